"""Sets of strings in one place of a row: canaries and twins as a checkpoint reads them.

The prefix is what the model reads of the row before the first token that shows anything
of the true string; the rows are the tokens at the string's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from spark_audit.data.encoding import Encoding, TokenSpan, token_ids
from spark_audit.errors import InputError
from spark_audit.manifest.schema import (
    CanaryContext,
    Manifest,
    ManifestCanary,
    ManifestTwins,
)
from spark_audit.scoring.items import Candidates

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded


def canary_key(canary_id: str, part: str, example: str) -> str:
    """Key of the candidates of one canary part in one row."""
    return f"canary:{quote(canary_id, safe='')}/{quote(part, safe='')}/{example}"


def twins_key(twins_id: str, example: str) -> str:
    """Key of an identifier and its twins in one row."""
    return f"twins:{quote(twins_id, safe='')}/{example}"


def place_of(key: str) -> tuple[str, str]:
    """A key without its example, and the example."""
    parts = 2 if key.startswith("canary:") else 1
    *of, example = key.split("/", parts)
    return "/".join(of), example


def slot_items(
    manifest: Manifest,
    loaded: Loaded,
    encodings: Mapping[str, Encoding],
    keys: Sequence[str],
) -> list[Candidates]:
    """Candidates in the place of a true string, by key, in the manifest's order.

    Where the first token also covers characters before the string, it is one of them.

    Raises
    ------
    InputError
        Naming the set, if the manifest has none there, the string was cut off, or a
        candidate changes another token than the string's own.
    """
    known: dict[str, ManifestCanary | ManifestTwins] = {
        place_of(canary_key(one.canary_id, one.part, ""))[0]: one
        for one in manifest.canaries
    }
    known |= {place_of(twins_key(one.id, ""))[0]: one for one in manifest.twins}
    found = []
    for key in keys:
        name, row = place_of(key)
        held = known.get(name)
        places = {c.example: c for c in held.contexts} if held else {}
        if held is None or row not in places or held.true_index is None:
            reason = getattr(held, "reason", None)
            raise InputError(
                reason or "the manifest has no such set",
                where=f"candidates {key!r}",
                fix="score what the manifest lists under `canaries` and `twins`",
            )
        example, encoding = manifest.by_id[row], encodings[row]
        slot, start = _slot(
            loaded,
            encoding,
            example.text,
            places[row],
            held.candidates,
            true=held.true_index,
            kept=example.kept,
            where=f"candidates {key!r}",
        )
        ids, positions = encoding.fed(example.kept)
        found.append(Candidates(key, ids[positions < start], tuple(slot)))
    return found


def _slot(
    loaded: Loaded,
    encoding: Encoding,
    text: str,
    place: CanaryContext,
    strings: Sequence[str],
    *,
    true: int,
    kept: tuple[int, int],
    where: str,
) -> tuple[np.ndarray, int]:
    """The strings' tokens at the place, and its first token."""
    span = encoding.span(place.char_start, place.char_end)
    if span is None or span.start < kept[0] or span.end > kept[1]:
        raise InputError("is cut off: text longer than the context", where=where)
    before, after = text[: place.char_start], text[place.char_end :]
    rows = token_ids(loaded.tokenizer, [before + one + after for one in strings])
    if not _fit_in(rows, encoding.ids, span, true):
        raise InputError(
            "a candidate changes tokens around the true string's place",
            where=where,
            fix="give the tokenizer that the manifest was built with",
        )
    slot = np.array([one[span.start : span.end] for one in rows], dtype=np.int32)
    return slot, span.start


def _fit_in(
    rows: Sequence[list[int]], own: np.ndarray, span: TokenSpan, true: int
) -> bool:
    """Whether rows of ids are a row's own outside the span, and the true one inside."""
    if {len(ids) for ids in rows} != {len(own)}:
        return False
    same = np.array(rows) == own
    edges = same[:, : span.start].all() and same[:, span.end :].all()
    return bool(edges and same[true].all())

"""The canaries of a manifest with the strings that they are ranked among."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from spark_audit.data.canaries import RANKED, canary_ranges
from spark_audit.data.canary_candidates import NO_CANDIDATES, Encode, candidates
from spark_audit.data.examples import Canary, Example, Part
from spark_audit.errors import InputError
from spark_audit.manifest import layout
from spark_audit.manifest.records import CUT_OFF, Record
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.provenance import seed_for


def canary_sets(
    rows: Sequence[tuple[layout.ManifestLayout, bool]],
    settings: ManifestSettings,
    *,
    encode: Encode,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """Candidates for every canary and part, each from a pool of its own.

    Parameters
    ----------
    rows
        Those with a canary, and whether all of it was scored.
    settings
        ``canary_contexts``: rows that a canary is ranked in, the first by id that hold
        all of it; ``None``: all. ``n_candidates``: strings in a set.
    encode
        Token ids of texts, special tokens included.
    """
    standing: dict[str, list[tuple[layout.ManifestLayout, bool]]] = defaultdict(list)
    for row, scored in rows:
        if row.example.canary is not None:
            standing[row.example.canary.id].append((row, scored))
    records = list[Record]()
    for _, held in sorted(standing.items()):
        canary, parts = _one_canary([row.example for row, _ in held])
        whole = [row for row, scored in held if scored][: settings.canary_contexts]
        for part in RANKED:
            places = [(row.example, *canary_ranges(row.example)[part]) for row in whole]
            record: Record = {
                "canary_id": canary.id,
                "part": part,
                "contexts": [
                    {"example": example.id, "char_start": start, "char_end": end}
                    for example, start, end in places
                ],
                **NO_CANDIDATES,
                "reason": CUT_OFF,
                "n_tokens": None,
                "format": canary.format,
                "dose": canary.dose,
                "held_out": canary.held_out,
                **({"pair": canary.pair} if canary.pair else {}),
            }
            if places:
                tokens = whole[0].encoding.span(*places[0][1:])
                record["n_tokens"] = tokens and tokens.end - tokens.start
                record |= candidates(
                    canary.format,
                    parts,
                    part,
                    encode=encode,
                    contexts=[(row.text, start, end) for row, start, end in places],
                    seed=seed_for(settings.seed, canary.id, part),
                    n=settings.n_candidates,
                )
            records.append(record)
            progress(len(records), len(standing) * len(RANKED))
    return records


def _one_canary(held: Sequence[Example]) -> tuple[Canary, dict[Part, str]]:
    """What all rows of a canary agree on: the canary and its parts."""
    (canary, parts), *others = {
        (e.canary, tuple((s.part, e.text[s.start : s.end]) for s in e.spans if s.part))
        for e in held
    }
    assert canary is not None
    if others:
        raise InputError(
            "rows of one canary hold different strings or facts",
            where=f"canary {canary.id!r}",
            fix="inject again",
        )
    return canary, {part: text for part, text in parts if part is not None}


def is_whole(row: layout.ManifestLayout, unll: np.ndarray) -> bool:
    """Whether every token of a row's canary was scored."""
    tokens = row.encoding.span(*canary_ranges(row.example)["full"])
    return tokens is not None and bool((unll[tokens.start : tokens.end] >= 0).all())

"""The canaries of a manifest with the strings that they are ranked among."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from spark_audit.data.canaries import RANKED, Ranked, canary_ranges
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
    """Return candidates for every canary and part, each from a pool of its own.

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
    rows_of_canary: dict[str, list[tuple[layout.ManifestLayout, bool]]]
    rows_of_canary = defaultdict(list)
    for row, is_scored in rows:
        if row.example.canary is not None:
            rows_of_canary[row.example.canary.id].append((row, is_scored))

    records = list[Record]()
    n_records = len(rows_of_canary) * len(RANKED)
    for _, canary_rows in sorted(rows_of_canary.items()):
        canary, parts = _agreed_canary([row.example for row, _ in canary_rows])
        whole_rows = [row for row, is_scored in canary_rows if is_scored]
        contexts = whole_rows[: settings.canary_contexts]

        for part in RANKED:
            records.append(
                _canary_record(
                    canary, parts, part, contexts, settings=settings, encode=encode
                )
            )
            progress(len(records), n_records)
    return records


def _canary_record(
    canary: Canary,
    parts: dict[Part, str],
    part: Ranked,
    contexts: Sequence[layout.ManifestLayout],
    *,
    settings: ManifestSettings,
    encode: Encode,
) -> Record:
    """Return a canary's part with its candidates; without a context there are none."""
    ranges = [canary_ranges(row.example)[part] for row in contexts]
    record: Record = {
        "canary_id": canary.id,
        "part": part,
        "contexts": [
            {"example": row.example.id, "char_start": start, "char_end": end}
            for row, (start, end) in zip(contexts, ranges, strict=True)
        ],
        **NO_CANDIDATES,
        "reason": CUT_OFF,
        "n_tokens": None,
        "format": canary.format,
        "dose": canary.dose,
        "held_out": canary.held_out,
    }
    if canary.pair:
        record["pair"] = canary.pair
    if not contexts:
        return record

    tokens = contexts[0].encoding.span(*ranges[0])
    record["n_tokens"] = tokens and tokens.end - tokens.start
    record |= candidates(
        canary.format,
        parts,
        part,
        encode=encode,
        contexts=[
            (row.example.text, start, end)
            for row, (start, end) in zip(contexts, ranges, strict=True)
        ],
        seed=seed_for(settings.seed, canary.id, part),
        n=settings.n_candidates,
    )
    return record


def _agreed_canary(examples: Sequence[Example]) -> tuple[Canary, dict[Part, str]]:
    """Return what all rows of a canary agree on: the canary and its parts."""
    versions = set()
    for example in examples:
        part_texts = tuple(
            (span.part, example.text[span.start : span.end])
            for span in example.spans
            if span.part
        )
        versions.add((example.canary, part_texts))

    (canary, parts), *other_versions = versions
    assert canary is not None
    if other_versions:
        raise InputError(
            "rows of one canary hold different strings or facts",
            where=f"canary {canary.id!r}",
            fix="inject again",
        )
    return canary, {part: text for part, text in parts if part is not None}


def is_whole(row: layout.ManifestLayout, unll: np.ndarray) -> bool:
    """Return whether every token of a row's canary was scored.

    Parameters
    ----------
    unll
        Micro-nats of the row's tokens, shape ``(n,)``; -1: not scored.
    """
    tokens = row.encoding.span(*canary_ranges(row.example)["full"])
    return tokens is not None and bool((unll[tokens.start : tokens.end] >= 0).all())

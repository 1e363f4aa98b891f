"""Build the sets of strings among which a manifest's canaries are ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from spark_audit.data.canaries import RANKED, Ranked, canary_ranges
from spark_audit.data.canary_candidates import (
    NO_CANDIDATES,
    Context,
    Encode,
    candidates,
)
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
    """Return candidates for every canary and part, each from a separate pool.

    Parameters
    ----------
    rows
        Rows with a canary, each with whether its whole canary was scored.
    settings
        ``canary_contexts``: rows in which a canary is ranked, the first by id that hold
        all of it; ``None``: all rows. ``n_candidates``: strings in a set.
    encode
        Token ids of texts, special tokens included.
    """
    examples_of_canary: dict[str, list[Example]] = defaultdict(list)
    scored_rows: dict[str, list[layout.ManifestLayout]] = defaultdict(list)
    for row, is_scored in rows:
        if row.example.canary is None:
            continue
        canary_id = row.example.canary.id
        examples_of_canary[canary_id].append(row.example)
        if is_scored:
            scored_rows[canary_id].append(row)

    records: list[Record] = []
    n_records = len(examples_of_canary) * len(RANKED)
    for canary_id in sorted(examples_of_canary):
        # Rows with a cut canary must agree, too, because they were trained on.
        canary, part_texts = _agreed_canary(examples_of_canary[canary_id])
        contexts = scored_rows[canary_id][: settings.canary_contexts]
        for ranked in RANKED:
            record = _canary_record(
                canary,
                part_texts,
                ranked,
                contexts,
                settings=settings,
                encode=encode,
            )
            records.append(record)
            progress(len(records), n_records)
    return records


def _canary_record(
    canary: Canary,
    part_texts: dict[Part, str],
    ranked: Ranked,
    contexts: Sequence[layout.ManifestLayout],
    *,
    settings: ManifestSettings,
    encode: Encode,
) -> Record:
    """Return a canary's part with its candidates, or without any if it has no context.

    Parameters
    ----------
    part_texts
        The canary's name, password and number.
    ranked
        The part to draw candidates for, or the whole sentence.
    contexts
        Rows in which the part is ranked.
    """
    # The records go into the manifest; the texts go to the search for candidates.
    context_records: list[Record] = []
    contexts_to_fit: list[Context] = []
    for row in contexts:
        start, end = canary_ranges(row.example)[ranked]
        contexts_to_fit.append((row.example.text, start, end))
        context_records.append(
            {"example": row.example.id, "char_start": start, "char_end": end}
        )

    record: Record = {
        "canary_id": canary.id,
        "part": ranked,
        "contexts": context_records,
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

    # Candidates have as many tokens as the true string has in its first context.
    _, start, end = contexts_to_fit[0]
    tokens = contexts[0].encoding.span(start, end)
    if tokens is not None:
        record["n_tokens"] = tokens.end - tokens.start

    # These fields replace the empty set and its reason.
    record |= candidates(
        canary.format,
        part_texts,
        ranked,
        encode=encode,
        contexts=contexts_to_fit,
        seed=seed_for(settings.seed, canary.id, ranked),
        n=settings.n_candidates,
    )
    return record


def _agreed_canary(examples: Sequence[Example]) -> tuple[Canary, dict[Part, str]]:
    """Return the canary and the texts of its parts, on which all its rows must agree.

    Raises
    ------
    InputError
        If the rows disagree: two canaries have one id.
    """
    # The first row defines the canary, and all others must match it. Pairs, not a
    # dictionary, are compared: it would hide a part that a row holds twice.
    agreed: tuple[Canary, list[tuple[Part, str]]] | None = None
    for example in examples:
        assert example.canary is not None
        part_texts: list[tuple[Part, str]] = []
        for span in example.spans:
            if span.part is not None:
                part_texts.append((span.part, example.text[span.start : span.end]))

        if agreed is not None and agreed != (example.canary, part_texts):
            raise InputError(
                "rows of one canary hold different strings or facts",
                where=f"canary {example.canary.id!r}",
                fix="inject again",
            )
        agreed = (example.canary, part_texts)

    assert agreed is not None  # every canary has at least one row
    canary, pairs = agreed
    return canary, dict(pairs)


def is_whole(row: layout.ManifestLayout, unll: np.ndarray) -> bool:
    """Return whether every token of a row's canary was scored.

    Parameters
    ----------
    unll
        Micro-nats of the row's tokens, shape ``(n,)``; -1: not scored.
    """
    start, end = canary_ranges(row.example)["full"]
    tokens = row.encoding.span(start, end)
    return tokens is not None and bool((unll[tokens.start : tokens.end] >= 0).all())

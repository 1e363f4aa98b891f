"""Build the sets of strings among which a manifest's canaries are ranked.

The strings themselves are drawn by :mod:`spark_audit.data.canary_candidates`. The
records are those of :class:`spark_audit.manifest.schema.ManifestCanary`: a further
field goes into :func:`_canary_record`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_audit.data.canaries import RANKED, Ranked, canary_ranges
from spark_audit.data.canary_candidates import (
    NO_CANDIDATES,
    Context,
    Encode,
    candidates,
)
from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import Canary, Example, Part
from spark_audit.data.tokenizer_type import Tokenizer
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
    """Return a record for every canary and part, each with candidates of its own.

    Canaries are sorted by id, and their parts in the order of ``RANKED``.

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
        rows_to_rank_in = scored_rows[canary_id][: settings.canary_contexts]
        for part in RANKED:
            record = _canary_record(
                canary,
                part_texts,
                part,
                rows_to_rank_in,
                settings=settings,
                encode=encode,
            )
            records.append(record)
            progress(len(records), n_records)
    return records


@dataclass
class RankableParts:
    """How many canaries can be ranked by one of their parts.

    Attributes
    ----------
    n
        Canaries, planted and held out.
    n_tokens_of_unrankable
        Tokens of the part of each canary that cannot be ranked by it.
    """

    n: int = 0
    n_tokens_of_unrankable: list[int] = field(default_factory=list)

    @property
    def n_unrankable(self) -> int:
        """Return how many canaries cannot be ranked by this part."""
        return len(self.n_tokens_of_unrankable)


def rankable_parts(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    settings: ManifestSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Ranked, RankableParts]:
    """Count by part the canaries that a manifest with this tokenizer can rank.

    The candidates are those of the manifest, unless the model's context is too short
    for a canary's row.

    Parameters
    ----------
    examples
        Rows of all tasks; those without a canary count for nothing.
    settings
        As of :func:`canary_sets`.

    Raises
    ------
    InputError
        If the tokenizer gives no offsets, or fails on a text.
    """
    # A manifest ranks a canary in the first of its rows by id.
    canary_rows = [example for example in examples if example.canary is not None]
    canary_rows.sort(key=lambda example: example.id)
    layouts = layout.Rows(canary_rows, tokenizer, max_length=None)

    def encode(texts: list[str]) -> list[list[int]]:
        return token_ids(tokenizer, texts, special_tokens=True)

    records = canary_sets(
        [(row, True) for row in layouts], settings, encode=encode, progress=progress
    )
    counts_by_part: dict[Ranked, RankableParts] = {}
    for part in RANKED:
        counts = RankableParts()
        for record in records:
            if record["part"] == part:
                counts.n += 1
                if not record["candidates"]:
                    n_tokens = record["n_tokens"]
                    assert isinstance(n_tokens, int)  # every part has a context
                    counts.n_tokens_of_unrankable.append(n_tokens)
        counts_by_part[part] = counts
    return counts_by_part


def _canary_record(
    canary: Canary,
    part_texts: dict[Part, str],
    part: Ranked,
    rows: Sequence[layout.ManifestLayout],
    *,
    settings: ManifestSettings,
    encode: Encode,
) -> Record:
    """Return a canary's part with its candidates, or without any if it has no context.

    Parameters
    ----------
    part_texts
        The canary's name, password and number.
    part
        The part to draw candidates for, or the whole sentence.
    rows
        Rows in which the part is ranked. Without any, the reason is that the canary
        was cut off.
    """
    # The records go into the manifest; the texts go to the search for candidates.
    context_records: list[Record] = []
    contexts_to_fit: list[Context] = []
    for row in rows:
        start, end = canary_ranges(row.example)[part]
        contexts_to_fit.append((row.example.text, start, end))
        context_records.append(
            {"example": row.example.id, "char_start": start, "char_end": end}
        )

    record: Record = {
        "canary_id": canary.id,
        "part": part,
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
    if not rows:
        return record

    # Candidates have as many tokens as the true string has in its first context.
    _, start, end = contexts_to_fit[0]
    tokens = rows[0].encoding.span(start, end)
    if tokens is not None:
        record["n_tokens"] = tokens.end - tokens.start

    # These fields replace the empty set and its reason.
    record |= candidates(
        canary.format,
        part_texts,
        part,
        encode=encode,
        contexts=contexts_to_fit,
        seed=seed_for(settings.seed, canary.id, part),
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
    # Each row must match the one before. Lists are compared, because a dictionary would
    # hide a part that a row holds twice.
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
    canary, agreed_part_texts = agreed
    return canary, dict(agreed_part_texts)


def is_whole(row: layout.ManifestLayout, nll_micronats: np.ndarray) -> bool:
    """Return whether every token of a row's canary was scored.

    Parameters
    ----------
    nll_micronats
        Micro-nats of the row's tokens, shape ``(n,)``; -1: not scored.
    """
    start, end = canary_ranges(row.example)["full"]
    tokens = row.encoding.span(start, end)
    if tokens is None:
        return False
    return bool((nll_micronats[tokens.start : tokens.end] >= 0).all())

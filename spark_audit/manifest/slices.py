"""What a manifest says of its rows, slice by slice: no more are in memory at once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_audit.manifest.covariates import Likelihoods, corpus
from spark_audit.manifest.layout import Layout, Reference, Rows
from spark_audit.manifest.packed_lists import Packer
from spark_audit.manifest.records import Found, example_records, row_counts
from spark_audit.manifest.schema import ManifestExample, ManifestPair, UnmatchedSpan
from spark_audit.manifest.selection import (
    CUT_OFF,
    Pairs,
    counts_by_task,
    low_sensitivity,
    match,
)
from spark_audit.manifest.settings import BuildSettings
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import item
from spark_audit.stats.matching import micro_nats

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tokens:
    """The rows' tokens.

    Attributes
    ----------
    texts
        What the reference model reads.
    lengths
        Tokens of each row, shape ``(n,)``.
    counts
        How often each token stands in a task's rows, special ones left out.
    """

    texts: list[Item]
    lengths: np.ndarray
    counts: dict[str, np.ndarray]


def tokenised(rows: Rows, vocab_size: int) -> Tokens:
    """All rows' tokens."""
    texts, lengths = list[Item](), array("i")
    counts: dict[str, np.ndarray] = {}
    for _, part in rows.slices():
        for row in part:
            texts.append(item(row.example.id, row.encoding, row.kept))
            lengths.append(len(row.encoding))
        for task, found in counts_by_task(part, vocab_size).items():
            counts[task] = counts.get(task, 0) + found
    return Tokens(texts, np.array(lengths, np.int64), counts)


def gone_through(
    rows: Rows,
    tokens: Tokens,
    reference: Reference,
    labels: Sequence[str],
    *,
    chosen: BuildSettings,
    recorded: Mapping[str, Any],
    progress: Progress | None = None,
) -> Found:
    """Match, describe and count all rows.

    Parameters
    ----------
    labels
        Cluster of each row.
    chosen, recorded
        Settings as they were given, and as the manifest says them.
    """
    found = Found(
        Packer(ManifestExample, name="examples"),
        Packer(ManifestPair, name="pairs"),
        Packer(UnmatchedSpan, name="unmatched"),
    )
    counts = sum(tokens.counts.values())
    before: dict[str, float] = {}
    for low, part in rows.slices():
        texts = corpus(
            [row.example.text for row in part],
            [row.encoding for row in part],
            ids=[row.example.id for row in part],
            response_starts=[len(row.example.prompt) for row in part],
            table=reference.table(low, low + len(part)),
            quantise=micro_nats,
            counts=np.asarray(counts),
            before=before,
        )
        before = texts.after()
        excluded = _excluded(part, recorded)
        eligible = (texts.unll >= 0) & ~excluded
        pairs = match(
            part,
            texts,
            eligible,
            caliper=chosen.caliper,
            distance=chosen.distance,
            controls=chosen.controls,
        )
        unlikely = low_sensitivity(
            part,
            texts,
            vocab_size=len(next(iter(tokens.counts.values()))),
            alpha=chosen.alpha,
            tau=chosen.tau,
            counts=tokens.counts,
        )
        own = labels[low : low + len(part)]
        found.examples.add(example_records(part, texts, excluded, unlikely, own))
        _keep(found, part, texts, pairs)
        found.balance.add(part, texts, eligible, pairs)
        found.identifiers.add(part, texts, first=low)
        if progress is not None:
            progress(low + len(part), len(rows))
    return found


def _keep(
    found: Found, part: Sequence[Layout], texts: Likelihoods, pairs: Pairs
) -> None:
    """Pairs and counts of a slice, and its rows with a canary."""
    found.pairs.add(pairs.pairs)
    found.unmatched.add(pairs.unmatched)
    found.solvers.update(pairs.solvers)
    found.counted.update(row_counts(part, texts.unll))
    found.counted["scored_spans"] += len(pairs.scored)
    found.counted["pairs"] += len(pairs.pairs)
    found.counted["unmatched"] += len(pairs.unmatched)
    cut = sum(one["reason"] == CUT_OFF for one in pairs.unmatched)
    found.counted["spans_cut"] += cut
    for i, row in enumerate(part):
        if row.example.canary is not None:
            found.canary_rows.append(row)
            found.canary_unll.append(texts.unll[texts.of(i)].copy())


def _excluded(rows: Sequence[Layout], settings: Mapping[str, Any]) -> np.ndarray:
    buffer, template = settings["buffer"], settings["exclude_template"]
    return np.concatenate(
        [row.excluded(buffer=buffer, exclude_template=template) for row in rows]
    )

"""Figures that are ratios of sums over clusters: cells in, rows and contrasts out.

Most figures of an audit are a sum over tokens, spans or canaries divided by how many
there are. An audit lists them as cells, one row a checkpoint, figure and cluster, and
everything else is alike for all: the interval, the chance value, the paired
difference to a baseline with its test, and the smallest effect it could have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.metric import Metric
from spark_audit.names import BASE
from spark_audit.results import Contrast, Row
from spark_audit.stats.bootstrap import cluster_sums, sign_flip, weighted_sums
from spark_audit.stats.intervals import (
    estimate_of,
    rate_estimate,
    ratio,
    ratio_estimate,
)
from spark_audit.stats.power import with_mde
from spark_audit.stats.weights import Blocks, Totals, Weights, draw_weights

CELLS = ("checkpoint", "group", "metric", "of", "cluster", "num", "den")
"""Columns of cells; several rows of one cluster are summed."""

KEYS = ["group", "metric", "of"]


def by_group(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """A frame with ``split``, ``task`` and ``type`` by the groups of a report.

    Train rows are pooled, then by task and by type (an empty value is of none); test
    rows are one group.
    """
    # One copy of some rows at a time: there may be millions.
    train, test = (frame["split"] == split for split in ("train", "test"))
    if train.any():
        yield "pooled", frame[train]
    for column in ("task", "type"):
        for value in sorted({*frame.loc[train, column].unique()} - {""}):
            yield f"{column}:{value}", frame[train & (frame[column] == value)]
    if test.any():
        yield "split:test", frame[test]


Summed: TypeAlias = tuple[
    str, dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]]
]
"""A group, and by figure its sums ``(C, 2)``, and those of resamples ``(B, 2)``."""


def ratio_rows(
    summed: Iterable[Summed],
    context: Context,
    *,
    audit: str,
    metrics: Mapping[str, Metric],
) -> list[Row]:
    """Rows of an audit, group by group.

    Parameters
    ----------
    summed
        From :func:`summed_groups`.
    metrics
        By name: how they are estimated.
    """
    found: list[Row] = []
    for group, sums in summed:
        for (checkpoint, metric, of), (pair, drawn) in sums.items():
            known, weights = metrics[metric], Totals(drawn)
            if known.rate:
                estimate = rate_estimate(*pair.T, weights=weights)
            else:
                estimate = ratio_estimate(*pair.T, weights=weights, bounds=known.bounds)
            estimate = with_mde(estimate)
            if known.note:
                estimate = estimate.noting(known.note)
            row = Row.of_estimate(
                estimate.decided(paper=context.paper),
                audit=audit,
                checkpoint=checkpoint,
                group=group,
                metric=metric,
                of=of,
                unit=known.unit,
                null=known.null,
            )
            found.append(row)
    return found


def ratio_contrasts(
    summed: Iterable[Summed],
    context: Context,
    *,
    audit: str,
    metrics: Mapping[str, Metric],
) -> list[Contrast]:
    """Checkpoint minus baseline of every figure, paired by cluster.

    Parameters are those of :func:`ratio_rows`.

    Notes
    -----
    ``p`` is the sign-flip test over clusters of the differences of sums. It needs both
    sides to count the same, as they do on one manifest.
    """
    found: list[Contrast] = []
    for group, sums in summed:
        for (checkpoint, metric, of), one in sums.items():
            baseline = context.baselines.get(checkpoint)
            other = sums.get((str(baseline), metric, of))
            if baseline is None or other is None:
                continue
            (ours, theirs), drawn = (
                (one[0], other[0]),
                np.concatenate([one[1], other[1]], axis=1),
            )
            estimate = estimate_of(
                np.concatenate([ours, theirs], axis=1),
                lambda both: np.asarray(ratio(both[..., :2]) - ratio(both[..., 2:])),
                n=round(float(ours[:, 1].sum())),
                weights=Totals(drawn),
            )
            none = estimate.value is None
            found.append(
                Contrast.of_estimate(
                    with_mde(estimate, null=0.0).decided(paper=context.paper),
                    audit=audit,
                    checkpoint=checkpoint,
                    baseline=baseline,
                    group=group,
                    metric=metric,
                    of=of,
                    unit=metrics[metric].unit,
                    null=0.0,
                    p=None if none else _p(ours, theirs, context.seed),
                )
            )
    return found


Place: TypeAlias = tuple[str, str, str, str]
"""Checkpoint, group, metric and variant of a row."""


def with_nulls(rows: Sequence[Row], *, of: str, null_of: str) -> list[Row]:
    """The rows of one variant with another variant's figure as their null value."""

    def other(row: Row) -> Place | None:
        return (*_place(row)[:3], null_of) if row.of == of else None

    return _with_nulls(rows, other)


def beside_base(rows: Sequence[Row]) -> list[Row]:
    """The rows with the untrained model's figure as their null value."""

    def base(row: Row) -> Place | None:
        return None if row.checkpoint == BASE else (BASE, *_place(row)[1:])

    return _with_nulls(rows, base)


def _place(row: Row) -> Place:
    return row.checkpoint, row.group, row.metric, row.of


def _with_nulls(
    rows: Sequence[Row], null_of: Callable[[Row], Place | None]
) -> list[Row]:
    by_place = {_place(row): row for row in rows}
    made = []
    for row in rows:
        place = null_of(row)
        null = None if place is None else by_place.get(place)
        if null is not None:
            figures = {
                "null": null.value,
                "null_low": null.low,
                "null_high": null.high,
            }
            row = row.model_copy(update=figures)
        made.append(row)
    return made


def summed_groups(frame: pd.DataFrame, context: Context) -> Iterator[Summed]:
    """The groups of cells, one after the other."""
    groups = frame["group"].unique().tolist()
    for group in groups:
        # Without a copy where it is all there is.
        part = frame if len(groups) == 1 else frame[frame["group"] == group]
        codes, clusters = pd.factorize(part["cluster"], sort=True)
        weights = draw_weights(
            len(clusters), replicates=context.replicates, seed=context.seed
        )
        values = part[["num", "den"]].to_numpy(np.float64)
        # Positions, not frames: a report has thousands of figures.
        figures = part[["checkpoint", "metric", "of"]]
        where = figures.groupby([*figures], sort=False, observed=True).indices
        sums: dict[tuple[str, str, str], np.ndarray] = {}
        for key in figures.drop_duplicates().itertuples(index=False, name=None):
            at = where[key]
            sums[key] = cluster_sums(values[at], codes[at], len(clusters))
        yield str(group), resampled(sums, weights)


def resampled(
    sums: Mapping[tuple[str, str, str], np.ndarray], weights: Weights
) -> dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]]:
    """Sums ``(C, 2)`` with those of resamples: one product for all figures."""
    pairs = [*sums.values()]
    if isinstance(weights, Blocks):
        size, block = weights.drawn.shape[1], weights.block
        pairs = [cluster_sums(pair, block, size) for pair in pairs]
        weights = weights.drawn
    drawn = weighted_sums(weights, np.concatenate(pairs, axis=1))
    parts = np.split(drawn, len(pairs), axis=1)
    return dict(zip(sums, zip(sums.values(), parts, strict=True), strict=True))


def _p(ours: np.ndarray, theirs: np.ndarray, seed: int) -> float | None:
    """Sign-flip p value; none where the two sides do not count the same."""
    if not np.array_equal(ours[:, 1], theirs[:, 1]):
        return None
    apart = ours[:, 0] - theirs[:, 0]
    return float(sign_flip(apart, seed=seed)) if np.count_nonzero(apart) > 1 else None


def moved(row: Contrast) -> bool:
    """Whether a change may be claimed: its interval and its test agree on one."""
    if row.low is None or row.high is None or row.p is None:
        return False
    return not row.low <= 0 <= row.high and row.p <= 1 - row.level


def bounded(contrasts: Sequence[Contrast], rates: Collection[str]) -> list[Contrast]:
    """The contrasts; those of rates within [-1, 1], which a difference cannot leave.

    A note tells where the interval excludes 0 and the sign-flip test does not agree.
    """
    limits = ("low", "high", "parity_low", "parity_high")
    found = []
    for row in contrasts:
        if row.metric in rates and row.low is not None and row.high is not None:
            ends = {name: getattr(row, name) for name in limits}
            change: dict[str, Any] = {
                name: None if end is None else min(1.0, max(-1.0, end))
                for name, end in ends.items()
            }
            if not row.low <= 0 <= row.high and not moved(row):
                told = "the interval and the sign-flip test disagree: no change"
                change["note"] = "; ".join(filter(None, (row.note, told)))
            row = row.model_copy(update=change)
        found.append(row)
    return found

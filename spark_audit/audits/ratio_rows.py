"""Figures that are ratios of sums over clusters: cells in, rows and contrasts out.

Most figures of an audit are a sum over tokens, spans or canaries divided by how many
there are. An audit lists the numerator and denominator of each unit, and everything
else is alike for all: the interval, the chance value, the paired difference to a
baseline with its test, and the smallest effect it could have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits import supervision
from spark_audit.audits.base import Audit, Context
from spark_audit.names import BASE
from spark_audit.results import Contrast, Row
from spark_audit.results.evidence import Evidence
from spark_audit.stats.bootstrap import Weights, cluster_sums, draw_weights, sign_flips
from spark_audit.stats.estimate import Estimate, Status
from spark_audit.stats.intervals import Estimand, estimates_of, ratio, replicates_of
from spark_audit.stats.power import with_mde

Key: TypeAlias = tuple[str, str, str]
"""Checkpoint, metric and variant of a figure."""
Both: TypeAlias = tuple[str, str, str, str]
"""Checkpoint, its baseline (of a row empty), metric and variant."""


@dataclass(frozen=True)
class UnitGroup:
    """Units of one group of a report.

    ``units`` are their places in the evidence, ``codes`` their clusters in the sorted
    order of labels, both of shape ``(n,)``, and ``size`` is the number of clusters.
    """

    name: str
    units: np.ndarray
    codes: np.ndarray
    size: int

    def weights(self, context: Context) -> Weights:
        """The resamples of its clusters, the same ones for all figures."""
        return draw_weights(self.size, replicates=context.replicates, seed=context.seed)


def groups_of(units: pd.DataFrame) -> Iterator[UnitGroup]:
    """Units with ``split``, ``cluster``, ``task``, ``type`` by the report's groups.

    Train rows are pooled, then by task, by type (an empty value is of none) and, where
    it is known, by what training did with them; test rows are one group. What training
    cut off is in none.
    """
    if "dose" in units:
        units = units[units["dose"] >= 0]
    labels = pd.factorize(units["cluster"], sort=True)[0]
    train, test = ((units["split"] == s).to_numpy() for s in ("train", "test"))
    groups = [("pooled", train)]
    for column in ("task", "type"):
        values = units[column].to_numpy()
        names = sorted({*values[train]} - {""})
        groups += [(f"{column}:{name}", train & (values == name)) for name in names]
    if supervision.COLUMN in units:
        states = units[supervision.COLUMN].to_numpy()
        for stratum in supervision.STRATA:
            name = supervision.group_of(stratum)
            groups.append((name, train & (states == stratum)))
    for name, chosen in [*groups, ("split:test", test)]:
        if chosen.any():
            clusters, codes = np.unique(labels[chosen], return_inverse=True)
            at = units.index[chosen].to_numpy()
            yield UnitGroup(name, at, codes, len(clusters))


Cells: TypeAlias = tuple[UnitGroup, Iterable[tuple[Key, np.ndarray, np.ndarray]]]
"""A group with the numerators (NaN: not scored) and denominators of its units."""


def cells_of_units(
    groups: Iterable[UnitGroup],
    evidence: Evidence,
    column: str,
    *,
    metrics: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    of: np.ndarray,
    den: np.ndarray | None = None,
) -> Iterator[Cells]:
    """Cells of scores of all units, group by group: of many units all would not fit.

    Parameters
    ----------
    column
        Scores in the evidence.
    metrics
        What is summed of the scores, by metric.
    of, den
        Variant and denominator of each unit, shape ``(units,)``; by default 1.
    """

    def cells(at: np.ndarray) -> Iterator[tuple[Key, np.ndarray, np.ndarray]]:
        counts = np.ones(len(at)) if den is None else den[at]
        for metric, value_of in metrics.items():
            for name in evidence.checkpoints:
                values = value_of(evidence.row(name, column)[at])
                for kind in dict.fromkeys(of[at]):
                    chosen = np.where(of[at] == kind, values, np.nan)
                    yield (name, metric, kind), chosen, counts

    for group in groups:
        yield group, cells(group.units)


def cells_of_frame(
    group: str, frame: pd.DataFrame, metrics: Mapping[str, str]
) -> Cells:
    """Cells of a frame with ``checkpoint``, ``of``, ``cluster`` and values.

    Parameters
    ----------
    metrics
        Metric -> column of what is averaged over the rows; NaN: not a part.
    """
    codes, clusters = pd.factorize(frame["cluster"], sort=True)
    at = frame.groupby(["checkpoint", "of"], sort=False).ngroup().to_numpy()
    names = frame[["checkpoint", "of"]].drop_duplicates()
    ones = np.ones(len(frame))
    cells = (
        ((name, metric, of), np.where(at == i, frame[column], np.nan), ones)
        for metric, column in metrics.items()
        for i, (name, of) in enumerate(names.itertuples(index=False, name=None))
    )
    return UnitGroup(group, np.arange(len(frame)), codes, len(clusters)), cells


def ratio_figures(
    groups: Iterable[Cells],
    context: Context,
    audit: type[Audit],
    **bounds: tuple[float, float],
) -> tuple[list[Row], list[Contrast]]:
    """Rows and contrasts of ratios of sums, group by group, see :func:`figures`.

    ``bounds`` are those of metrics that depend on the data.
    """
    rows, contrasts = list[Row](), list[Contrast]()
    for group, cells in groups:
        sums = {}
        for key, num, den in cells:
            used, metric = ~np.isnan(num), audit.metric(key[1])
            if used.any():
                pair = np.stack([num, den], axis=1)[used]
                pair = cluster_sums(pair, group.codes[used], group.size)
                count = round(float(pair[:, 1].sum()))
                limits = bounds.get(metric.name, metric.bounds), metric.rate
                sums[key] = Estimand(pair, ratio, count, *limits)
        more = figures(group, sums, context, audit)
        rows += more[0]
        contrasts += more[1]
    return rows, contrasts


def sums_apart(apart: Estimand) -> np.ndarray:
    """What each cluster adds to a difference of ratios; 0 if they count otherwise."""
    num, den, other, count = apart.sums.T
    return num - other if np.array_equal(den, count) else np.zeros(len(num))


def figures(
    group: UnitGroup,
    sums: Mapping[Key, Estimand | Estimate],
    context: Context,
    audit: type[Audit],
    *,
    pairs: Iterable[tuple[str, str]] | None = None,
    flipped: Callable[[Estimand], np.ndarray] = sums_apart,
) -> tuple[list[Row], list[Contrast]]:
    """Rows, and contrasts with baselines paired by cluster, of one group.

    Parameters
    ----------
    audit
        Whose figures they are; its metrics say how they are shown.
    pairs
        Checkpoints with what they are compared with; by default their baselines.
    flipped
        What each cluster adds to a difference, whose signs the test flips.

    Notes
    -----
    ``p`` is the sign-flip test over clusters of the differences of sums. It needs both
    sides to count the same, as they do on one manifest.
    """
    every: dict[Both, Estimand | Estimate] = {
        (name, "", metric, of): one for (name, metric, of), one in sums.items()
    }
    pairs = list(context.baselines.items() if pairs is None else pairs)
    added: dict[Both, np.ndarray] = {}
    for key, (name, baseline) in product(sums, pairs):
        other, both = (baseline, *key[1:]), (name, baseline, *key[1:])
        if name != key[0] or other not in sums or audit.metric(key[1]).alone:
            continue
        ours, theirs = sums[key], sums[other]
        if isinstance(ours, Estimate) or isinstance(theirs, Estimate):
            every[both] = ours if isinstance(ours, Estimate) else theirs
            continue
        every[both] = difference = ours.minus(theirs)
        # Several clusters must add to a difference.
        if np.count_nonzero(flips := flipped(difference)) > 1:
            added[both] = flips
    ps: dict[Both, float] = {}
    if added:
        found = sign_flips(np.stack([*added.values()], axis=1), seed=context.seed)
        ps = dict(zip(added, found.tolist(), strict=True))
    rows, contrasts = list[Row](), list[Contrast]()
    estimates = estimates_of(every, replicates_of(every, group.weights(context)))
    for both, one in estimates.items():
        name, baseline, metric, of = both
        known = audit.metric(metric)
        estimate = with_mde(one, null=0.0 if baseline else None)
        estimate = estimate.decided(paper=context.paper and not known.heavy)
        if not baseline:
            if known.note:
                estimate = estimate.noting(known.note)
            rows.append(audit.row(estimate, name, metric, of, group=group.name))
            continue
        contrast = Contrast.of_estimate(
            estimate,
            audit=audit.name,
            checkpoint=name,
            baseline=baseline,
            metric=metric,
            of=of,
            group=group.name,
            unit=known.unit,
            null=0.0,
            p=None if estimate.value is None else ps.get(both),
        )
        contrasts.append(contrast)
    return rows, contrasts


Place: TypeAlias = tuple[str, str, str, str]
"""Checkpoint, group, metric and variant of a row."""


def beside_base(rows: Sequence[Row]) -> list[Row]:
    """The rows with the untrained model's figure as their null value."""
    return with_nulls(
        rows, lambda place: None if place[0] == BASE else (BASE, *place[1:])
    )


def with_nulls(
    rows: Sequence[Row], null_of: Callable[[Place], Place | None]
) -> list[Row]:
    """The rows with other rows' figures as their null values, by place."""
    by_place = {(row.checkpoint, row.group, row.metric, row.of): row for row in rows}
    made = []
    for place, row in by_place.items():
        other = null_of(place)
        if other is not None and (null := by_place.get(other)) is not None:
            ends = {"null": null.value, "null_low": null.low, "null_high": null.high}
            row = row.model_copy(update=ends)
        made.append(row)
    return made


def bounded(contrasts: Sequence[Contrast], rates: Collection[str]) -> list[Contrast]:
    """The contrasts; those of rates within [-1, 1], which a difference cannot leave.

    A note tells where the interval excludes 0 and the sign-flip test does not agree.
    """
    found = []
    for row in contrasts:
        if row.metric in rates and row.ends is not None:
            change: dict[str, Any] = {
                name: min(1.0, max(-1.0, end))
                for name in ("low", "high", "parity_low", "parity_high")
                if (end := getattr(row, name)) is not None
            }
            if not row.ends[0] <= 0 <= row.ends[1] and not row.moved:
                told = "the interval and the sign-flip test disagree: no change"
                change["note"] = "; ".join(filter(None, (row.note, told)))
            row = row.model_copy(update=change)
        found.append(row)
    return found


def marked(
    rows: Sequence[Any], status: Status, why: Callable[[Any], str | None]
) -> list[Any]:
    """The rows; those with a value and a reason get it as note, and the status."""
    notes = [None if row.value is None else why(row) for row in rows]
    return [
        row if note is None else row.model_copy(update={"status": status, "note": note})
        for row, note in zip(rows, notes, strict=True)
    ]

"""Figures that are ratios of sums over clusters: cells in, rows and contrasts out.

Most figures of an audit are a sum over tokens, spans or canaries divided by how many
there are. An audit lists the numerator and denominator of each unit, and everything
else is alike for all: the interval, the chance value, the paired difference to a
baseline with its test, and the smallest effect it could have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.metric import Metric
from spark_audit.names import BASE
from spark_audit.results import Contrast, Row
from spark_audit.stats.bootstrap import (
    Weights,
    cluster_sums,
    dealt_sums,
    draw_weights,
    sign_flips,
    weighted_sums,
)
from spark_audit.stats.intervals import (
    estimate_of,
    rate_estimate,
    ratio,
    ratio_estimate,
)
from spark_audit.stats.power import with_mde

Key: TypeAlias = tuple[str, str, str]
"""Checkpoint, metric and variant of a figure."""


@dataclass(frozen=True)
class Group:
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


def groups_of(units: pd.DataFrame) -> Iterator[Group]:
    """Units with ``split``, ``cluster``, ``task``, ``type`` by the report's groups.

    Train rows are pooled, then by task and by type (an empty value is of none); test
    rows are one group.
    """
    labels = pd.factorize(units["cluster"], sort=True)[0]
    train, test = ((units["split"] == s).to_numpy() for s in ("train", "test"))
    groups = [("pooled", train)]
    for column in ("task", "type"):
        values = units[column].to_numpy()
        names = sorted({*values[train]} - {""})
        groups += [(f"{column}:{name}", train & (values == name)) for name in names]
    for name, chosen in [*groups, ("split:test", test)]:
        if chosen.any():
            clusters, codes = np.unique(labels[chosen], return_inverse=True)
            yield Group(name, np.flatnonzero(chosen), codes, len(clusters))


@dataclass(frozen=True)
class Sums:
    """Figures of one group: sums over clusters, and ratios of the resamples.

    ``num`` and ``den`` have the shape ``(C,)``, ``drawn`` has ``(B,)``.
    """

    group: str
    num: Mapping[Key, np.ndarray]
    den: Mapping[Key, np.ndarray]
    drawn: Mapping[Key, np.ndarray]

    @classmethod
    def of(
        cls,
        group: Group,
        cells: Iterable[tuple[Key, np.ndarray, np.ndarray]],
        context: Context,
    ) -> Sums:
        """From numerators (NaN: not scored) and denominators of the group's units."""
        nums: dict[Key, np.ndarray] = {}
        dens: dict[Key, np.ndarray] = {}
        shared: dict[str, np.ndarray] = {}
        for key, num, den in cells:
            used = ~np.isnan(num)
            if used.any():
                pair = np.stack([num, den], axis=1)[used]
                sums = cluster_sums(pair, group.codes[used], group.size)
                # Checkpoints count the same: of many rows, copies would not fit.
                same = shared.setdefault(key[2], sums[:, 1].copy())
                dens[key] = same if np.array_equal(same, sums[:, 1]) else sums[:, 1]
                nums[key] = sums[:, 0].copy()
        columns = {id(one): one for one in (*nums.values(), *dens.values())}
        weights, held = dealt_sums(group.weights(context), [*columns.values()])
        drawn = np.zeros((0, 0))
        if held:
            drawn = weighted_sums(weights, np.stack(held, axis=1)).T.copy()
        totals = dict(zip(columns, drawn, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = {k: totals[id(nums[k])] / totals[id(dens[k])] for k in nums}
        return cls(group.name, nums, dens, ratios)


def sums_of_units(
    groups: Iterable[Group],
    scores: Mapping[str, np.ndarray],
    context: Context,
    *,
    metrics: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    of: np.ndarray,
    den: np.ndarray | None = None,
) -> Iterator[Sums]:
    """Sums of scores of all units, group by group: of many units all would not fit.

    Parameters
    ----------
    scores
        By checkpoint, shape ``(units,)``; NaN: not scored.
    metrics
        What is summed of the scores, by metric.
    of, den
        Variant and denominator of each unit, shape ``(units,)``; by default 1.
    """

    def cells(at: np.ndarray) -> Iterator[tuple[Key, np.ndarray, np.ndarray]]:
        counts = np.ones(len(at)) if den is None else den[at]
        for metric, value_of in metrics.items():
            for name, own in scores.items():
                values = value_of(own[at])
                for kind in dict.fromkeys(of[at]):
                    chosen = np.where(of[at] == kind, values, np.nan)
                    yield (name, metric, kind), chosen, counts

    for group in groups:
        yield Sums.of(group, cells(group.units), context)


def sums_of_frame(
    group: str, frame: pd.DataFrame, metrics: Mapping[str, str], context: Context
) -> Sums:
    """Sums of a frame with ``checkpoint``, ``of``, ``cluster`` and values.

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
    whole = Group(group, np.arange(len(frame)), codes, len(clusters))
    return Sums.of(whole, cells, context)


def ratio_figures(
    groups: Iterable[Sums],
    context: Context,
    *,
    audit: str,
    metrics: Iterable[Metric],
    heavy: Collection[str] = (),
    alone: Collection[str] = (),
) -> tuple[list[Row], list[Contrast]]:
    """Rows, and contrasts with baselines paired by cluster, group by group.

    Parameters
    ----------
    metrics
        How they are estimated.
    heavy, alone
        Metrics whose percentile intervals never decide, and those without contrasts.

    Notes
    -----
    ``p`` is the sign-flip test over clusters of the differences of sums. It needs both
    sides to count the same, as they do on one manifest.
    """
    rows, contrasts = list[Row](), list[Contrast]()
    known = {metric.name: metric for metric in metrics}
    for sums in groups:
        for key, num in sums.num.items():
            metric, pair, drawn = known[key[1]], (num, sums.den[key]), sums.drawn[key]
            if metric.rate:
                estimate = rate_estimate(*pair, replicates=drawn)
            else:
                estimate = ratio_estimate(*pair, replicates=drawn, bounds=metric.bounds)
            estimate = with_mde(estimate)
            if metric.note:
                estimate = estimate.noting(metric.note)
            paper = context.paper and metric.name not in heavy
            columns = _columns(audit, sums.group, key, metric)
            shown = estimate.decided(paper=paper)
            rows.append(Row.of_estimate(shown, **columns, null=metric.null))
        others = {
            key: (baseline, *key[1:])
            for key in sums.num
            if key[1] not in alone
            and (baseline := context.baselines.get(key[0])) is not None
            and (baseline, *key[1:]) in sums.num
        }
        ps = _sign_flips(sums, others, context.seed)
        for key, other in others.items():
            both = [side[one] for one in (key, other) for side in (sums.num, sums.den)]
            estimate = estimate_of(
                np.stack(both, axis=1),
                lambda both: np.asarray(ratio(both[..., :2]) - ratio(both[..., 2:])),
                n=round(float(sums.den[key].sum())),
                replicates=sums.drawn[key] - sums.drawn[other],
            )
            paper = context.paper and key[1] not in heavy
            contrasts.append(
                Contrast.of_estimate(
                    with_mde(estimate, null=0.0).decided(paper=paper),
                    **_columns(audit, sums.group, key, known[key[1]]),
                    baseline=other[0],
                    null=0.0,
                    p=None if estimate.value is None else ps.get(key),
                )
            )
    return rows, contrasts


def _columns(audit: str, group: str, key: Key, metric: Metric) -> dict[str, Any]:
    checkpoint, name, of = key
    columns = {"audit": audit, "checkpoint": checkpoint, "group": group}
    return {**columns, "metric": name, "of": of, "unit": metric.unit}


def _sign_flips(sums: Sums, others: Mapping[Key, Key], seed: int) -> dict[Key, float]:
    """P of each contrast whose sides count the same and differ in some clusters."""
    apart = {
        key: sums.num[key] - sums.num[other]
        for key, other in others.items()
        if np.array_equal(sums.den[key], sums.den[other])
    }
    apart = {key: num for key, num in apart.items() if np.count_nonzero(num) > 1}
    if not apart:
        return {}
    ps = sign_flips(np.stack([*apart.values()], axis=1), seed=seed)
    return dict(zip(apart, ps.tolist(), strict=True))


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

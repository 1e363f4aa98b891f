"""Several seeds of one method as one entry, with intervals over sources, seeds or both.

Replicates are audited one by one as ``NAME[1]``, ``NAME[2]``, and every figure of the
entry ``NAME`` is their mean (of numbers of tries the geometric mean). Over sources,
its limits are the means of theirs, unless the audit has worked the mean out itself: an
upper bound, reached where the replicates' errors move together, as they nearly do over
the same sources. Over seeds, it has the t interval of the replicates' values. Over
both, half-widths are added in quadrature, which counts the part of the error that
belongs to source and seed together twice. Limits are clipped to what a figure can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import numpy as np
import scipy

from spark_audit.audits import metric_of
from spark_audit.audits.identifiers import memory_claim
from spark_audit.names import entry_of
from spark_audit.results import AuditResult, Claim, Contrast, Finding, Row
from spark_audit.results.rows import Over
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Estimate, Power, Status
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.power import with_mde
from spark_audit.stats.selectivity import unlike_drift

RowT = TypeVar("RowT", bound=Row)

AVERAGED_LIMITS_NOTE = (
    "limits are the mean of the limits of the replicates (conservative)"
)
QUADRATURE = "sources and seeds are added in quadrature (conservative)"
LOG = "tries"
"""Unit of figures that are averaged as logarithms."""
WORST = ("not_estimable", "ok", "not_resolvable", "insensitive", "invalid", "void")
"""Statuses of replicates: their entry has the last of these."""


def with_entries(result: AuditResult) -> AuditResult:
    """The result with rows and contrasts of every method that has replicates."""
    names = {row.checkpoint for row in (*result.rows, *result.contrasts)}
    seeds = Counter(entry_of(name) for name in names if entry_of(name) != name)
    if max(seeds.values(), default=0) < 2:
        return result
    rows, contrasts = _entries(result.rows), _entries(result.contrasts)
    return replace(
        result,
        rows=[*result.rows, *rows],
        contrasts=[*result.contrasts, *contrasts],
        findings=[*result.findings, *_findings([*rows, *contrasts], seeds)],
    )


def _place(row: Row) -> tuple[str, ...]:
    """Entry, figure, and whom it is held against: what replicates have in common."""
    against = entry_of(row.baseline) if isinstance(row, Contrast) else ""
    return (entry_of(row.checkpoint), row.metric, row.of, row.group, against)


def _entries(rows: Sequence[RowT]) -> list[RowT]:
    groups: dict[tuple[str, ...], list[RowT]] = {}
    own: dict[tuple[str, ...], RowT] = {}
    for row in rows:
        if entry_of(row.checkpoint) == row.checkpoint:
            own[_place(row)] = row
        else:
            groups.setdefault(_place(row), []).append(row)
    made = list[RowT]()
    for place, members in groups.items():
        if len(members) > 1:
            made += _entry(place[0], members, own.get(place))
    return made


def _entry(name: str, members: Sequence[RowT], own: RowT | None) -> Iterator[RowT]:
    """Rows of one figure: over sources (unless it is there), over seeds, over both."""
    first = members[0]
    if lost := [row for row in members if row.value is None]:
        reason = f"{len(lost)} of {len(members)} replicates: {lost[0].note}"
        if own is None:
            yield _row_like(first, name, Estimate.missing(reason), over="both")
        return

    nulls = _means(members, ("null", "null_low", "null_high"))
    status = max((row.status for row in members), key=WORST.index)
    bounds_met = dict.fromkeys(row.note for row in members if "that bound" in row.note)
    note = "; ".join(bounds_met)

    # What the audit has worked out, or the mean of the members' figures and limits.
    figures = members if own is None else [own]
    is_log = first.unit == LOG
    means = _means(figures, ("value", "low", "high"), log=is_log)
    has_limits = means["low"] is not None or means["high"] is not None
    sources = Estimate(
        value=means["value"],
        low=means["low"],
        high=means["high"],
        mde=_means(figures, ("mde",))["mde"],
        interval=first.interval if has_limits else "none",
        level=first.level,
        n=first.n,
        clusters=first.clusters,
        note=f"mean of {len(members)} replicates; {AVERAGED_LIMITS_NOTE}",
    )

    values = np.array([row.value for row in members], np.float64)  # (seeds,)
    if is_log:
        values = np.log10(values)
    seeds = replace(ratio_estimate(values, np.ones(len(values))), value=sources.value)
    seeds = with_mde(seeds).noting(f"over {len(values)} seeds")
    both = _quadrature(sources, seeds)

    def entry(estimate: Estimate, over: Over, p: float | None = None) -> RowT:
        return _row_like(
            first,
            name,
            _clipped(estimate, first),
            over=over,
            null=nulls["null"],
            null_low=nulls["null_low"],
            null_high=nulls["null_high"],
            status=status,
            note=note,
            p=p,
        )

    if own is None:
        yield entry(sources, "sources")
    yield entry(seeds, "seeds", _p_over_seeds(members))
    yield entry(both, "both")


def _p_over_seeds(members: Sequence[Row]) -> float | None:
    """Return the p of Student's t test of a contrast's null over its seeds."""
    if not isinstance(members[0], Contrast):
        return None
    effects = [(row.value or 0.0) - (row.null or 0.0) for row in members]
    if not np.ptp(effects):
        return None
    return float(scipy.stats.ttest_1samp(effects, 0).pvalue)


def _row_like(
    first: RowT,
    name: str,
    estimate: Estimate,
    *,
    over: Over,
    null: float | None = None,
    null_low: float | None = None,
    null_high: float | None = None,
    status: Status | None = None,
    note: str = "",
    p: float | None = None,
) -> RowT:
    """Return a row, or contrast, of an entry: of the same figure as its replicate's."""
    row: Row
    if isinstance(first, Contrast):
        row = Contrast.of_estimate(
            estimate,
            audit=first.audit,
            checkpoint=name,
            baseline=entry_of(first.baseline),
            metric=first.metric,
            of=first.of,
            group=first.group,
            unit=first.unit,
            null=null,
            null_low=null_low,
            null_high=null_high,
            status=status,
            over=over,
            note=note,
            p=p,
        )
    else:
        row = Row.of_estimate(
            estimate,
            audit=first.audit,
            checkpoint=name,
            metric=first.metric,
            of=first.of,
            group=first.group,
            unit=first.unit,
            null=null,
            null_low=null_low,
            null_high=null_high,
            status=status,
            over=over,
            note=note,
        )
    return cast(RowT, row)


def _means(
    rows: Sequence[Row], columns: Sequence[str], *, log: bool = False
) -> dict[str, float | None]:
    """Return means of figures of all rows, or of their log10; None: one is not known.

    Parameters
    ----------
    columns
        The figures' names, which are the keys of what is returned.
    """
    # (rows, columns), NaN where a figure is not known.
    table = np.array(
        [[getattr(row, column) for column in columns] for row in rows], np.float64
    )
    if log:
        table = np.log10(table)

    means: dict[str, float | None] = {}
    for column, mean in zip(columns, table.mean(axis=0).tolist(), strict=True):
        means[column] = None if math.isnan(mean) else mean
    return means


def _clipped(estimate: Estimate, row: Row) -> Estimate:
    """Return an estimate within what a figure can be, averaged logarithms as numbers.

    Parameters
    ----------
    row
        A row of the same figure, or a contrast, whose range is that of a difference.
    """
    low, high = metric_of(row.audit, row.metric).range
    if isinstance(row, Contrast):
        low, high = low - high, high - low
    is_log = row.unit == LOG

    def clipped(end: float | None) -> float | None:
        if end is None:
            return None
        return float(10.0**end if is_log else min(max(end, low), high))

    return replace(
        estimate,
        value=clipped(estimate.value),
        low=clipped(estimate.low),
        high=clipped(estimate.high),
        # A smallest effect in logarithms is none in tries.
        mde=None if is_log else estimate.mde,
    )


def _quadrature(sources: Estimate, seeds: Estimate) -> Estimate:
    """Both intervals' half-widths together; a side that one lacks stays open."""
    value = sources.value or 0.0

    def beyond(
        origin: float, over_sources: float | None, over_seeds: float | None, sign: int
    ) -> float | None:
        if over_sources is None or over_seeds is None:
            return None
        return origin + sign * math.hypot(over_sources - origin, over_seeds - origin)

    low = beyond(value, sources.low, seeds.low, -1)
    high = beyond(value, sources.high, seeds.high, 1)
    if low is None and high is None:
        return replace(
            sources, low=None, high=None, interval="none", note="no interval over both"
        )
    return replace(
        sources,
        low=low,
        high=high,
        # Of two effects to be seen the errors add up as the half-widths do.
        mde=beyond(0.0, sources.mde, seeds.mde, 1),
        interval="jackknife-t",
        note=QUADRATURE,
    )


class Conclusion(NamedTuple):
    """What a headline claims, and the keys of its sentences (without ``seeds.``)."""

    claim: Claim
    says: str
    further: tuple[str, ...] = ()


def _conclusion(row: Row, drift: Contrast | None) -> Conclusion:
    """Return what a headline over sources and seeds claims; the first match wins.

    ======================================  ==============  =========================
    row                                     claim           sentence
    ======================================  ==============  =========================
    no value                                not tested      missing
    no contrast, of memory                  as memory says  memory
    no contrast, of another metric          moved           headline
    contrast without an interval            nothing shown   headline of the change
    contrast whose interval contains 0      nothing shown   still
    drift of other text is not known        nothing shown   drift unknown
    drift of other text explains as much    nothing shown   drift unequal
    contrast above 0, below 0               moved           less, more likely
    ======================================  ==============  =========================

    Parameters
    ----------
    drift
        That of low-sensitivity text between the two sides of a contrast.
    """
    is_contrast = isinstance(row, Contrast)
    if row.value is None:
        return Conclusion("not_tested", "missing_change" if is_contrast else "missing")

    if not is_contrast:
        if row.metric == "memory":
            return Conclusion(memory_claim(row), "memory")
        return Conclusion("moved", "headline")

    if row.ends is None:
        return Conclusion("nothing_shown", "headline_change")
    if row.ends[0] <= 0 <= row.ends[1]:
        return Conclusion("nothing_shown", "did_still", ("mean",))
    if drift is None or drift.value is None:
        return Conclusion("nothing_shown", "did_drift_unknown", ("mean",))
    if unlike_drift(row.value, drift.value, drift.low, drift.high):
        further = ("drift_causes", "mean")
        return Conclusion("nothing_shown", "did_drift_unequal", further)

    says = "did_less" if row.ends[0] > 0 else "did_more"
    return Conclusion("moved", says, ("drift_equal", "mean"))


def _findings(rows: Sequence[Row], seeds: Mapping[str, int]) -> Iterator[Finding]:
    """The headlines of methods with several seeds, over sources and seeds.

    Memory is a primary finding. Its p is read from the interval as one of Student's t
    over seeds, which it is where they differ most: 0.05 where a limit lies on the null,
    and above the true one beyond it.
    """
    both = [row for row in rows if row.over == "both"]
    drifts = {
        (row.checkpoint, row.baseline): row
        for row in both
        if isinstance(row, Contrast) and row.metric == "low_change"
    }
    for row in both:
        against = row.baseline if isinstance(row, Contrast) else ""
        shown = row.of in metric_of(row.audit, row.metric).headline
        if not shown or row.group != "pooled" or (against and row.metric != "did"):
            continue
        drift = drifts.get((row.checkpoint, against))
        conclusion = _conclusion(row, drift)
        further = [f"seeds.{key}" for key in conclusion.further]
        if row.value is not None and (row.low is None or row.high is None):
            further.append("seeds.no_interval")
        if row.status not in ("ok", "not_estimable"):
            further.append("seeds.status")

        p, power, bounds = None, list[Power](), list[Bound]()
        if row.metric == "memory" and row.value is not None and row.ends is not None:
            n_seeds = seeds.get(row.checkpoint, 1)
            p, power = _memory_test(row, n_seeds=n_seeds)
            bounds = t_bound(
                row.value,
                row.low,
                df=max(n_seeds - 1, 1),
                direction=-1,
                beyond=abs(row.null_low or 0.0),
            )
        yield Finding.on(
            row,
            conclusion.claim,
            f"seeds.{conclusion.says}",
            facts={"figure": row, "drift": drift},
            further=further,
            p=p,
            power=power,
            bounds=bounds,
        )


def _memory_test(row: Row, *, n_seeds: int) -> tuple[float, list[Power]]:
    """Return the p that memory over both is within its null band, and its power.

    The interval is read as one of Student's t over seeds. Nothing can be detected where
    its limit is the value itself.
    """
    value = row.value or 0.0
    low, high = row.ends or (value, value)
    if value < 0:
        half_width = abs(value - high)
        band = abs(row.null_low or 0.0)
    else:
        half_width = abs(value - low)
        band = abs(row.null_high or 0.0)

    df = max(n_seeds - 1, 1)
    quantile = float(scipy.special.stdtrit(df, 0.975))
    if not half_width:
        return 1.0, []
    t = quantile * max(abs(value) - band, 0.0) / half_width
    p = float(2 * scipy.special.stdtr(df, -t))
    return p, [Power(test="t", se=half_width / quantile, df=df, beyond=band)]

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import scipy

from spark_audit.audits import metric_of
from spark_audit.audits.identifiers import memory_claim
from spark_audit.names import entry_of
from spark_audit.results import AuditResult, Claim, Contrast, Finding, Row
from spark_audit.stats.estimate import Estimate, Power
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
    columns: dict[str, Any] = {
        key: getattr(first, key) for key in ("audit", "metric", "of", "group", "unit")
    }
    columns["checkpoint"], tested = name, dict[str, Any]()
    if isinstance(first, Contrast):
        columns["baseline"] = entry_of(first.baseline)
        # Of the t test of its null over seeds.
        apart = [(row.value or 0.0) - (row.null or 0.0) for row in members]
        if np.ptp(apart):
            tested["p"] = float(scipy.stats.ttest_1samp(apart, 0).pvalue)
    of_estimate: Callable[..., RowT] = type(first).of_estimate
    if lost := [row for row in members if row.value is None]:
        reason = f"{len(lost)} of {len(members)} replicates: {lost[0].note}"
        if own is None:
            yield of_estimate(Estimate.missing(reason), **columns, over="both")
        return
    columns |= _means(members, ("null", "null_low", "null_high"))
    columns["status"] = max((row.status for row in members), key=WORST.index)
    bounds_met = dict.fromkeys(row.note for row in members if "that bound" in row.note)
    columns["note"] = "; ".join(bounds_met)
    log = first.unit == LOG
    values = np.array([row.value for row in members], np.float64)
    values = np.log10(values) if log else values
    # What the audit has worked out, or the mean of the members' figures and limits.
    figures = members if own is None else [own]
    ends: dict[str, Any] = _means(figures, ("value", "low", "high"), log=log)
    without = ends["low"] is None and ends["high"] is None
    ends |= _means(figures, ("mde",))
    sources = Estimate(
        **ends,
        interval="none" if without else first.interval,
        level=first.level,
        n=first.n,
        clusters=first.clusters,
        note=f"mean of {len(members)} replicates; {AVERAGED_LIMITS_NOTE}",
    )
    seeds = replace(ratio_estimate(values, np.ones(len(values))), value=sources.value)
    seeds = with_mde(seeds).noting(f"over {len(values)} seeds")
    if own is None:
        yield of_estimate(_clipped(sources, first), **columns, over="sources")
    yield of_estimate(_clipped(seeds, first), **columns, **tested, over="seeds")
    both = _quadrature(sources, seeds)
    yield of_estimate(_clipped(both, first), **columns, over="both")


def _means(
    rows: Sequence[Row], columns: Sequence[str], *, log: bool = False
) -> dict[str, float | None]:
    """Means of some figures of all rows, or of their log10; None: one is not known."""
    table = np.array([[getattr(r, column) for column in columns] for r in rows], float)
    means = (np.log10(table) if log else table).mean(axis=0).tolist()
    known = (None if math.isnan(mean) else mean for mean in means)
    return dict(zip(columns, known, strict=True))


def _clipped(estimate: Estimate, row: Row) -> Estimate:
    """The estimate within what a figure can be, averaged logarithms as numbers."""
    limits = low, high = metric_of(row.audit, row.metric).range
    if isinstance(row, Contrast):
        limits = low - high, high - low
    # A smallest effect in logarithms is none in tries.
    changes: dict[str, Any] = {"mde": None if row.unit == LOG else estimate.mde}
    for key in ("value", "low", "high"):
        if (end := getattr(estimate, key)) is not None:
            end = 10.0**end if row.unit == LOG else min(max(end, limits[0]), limits[1])
            changes[key] = float(end)
    return replace(estimate, **changes)


def _quadrature(sources: Estimate, seeds: Estimate) -> Estimate:
    """Both intervals' half-widths together; a side that one lacks stays open."""
    value, ends = sources.value or 0.0, dict[str, Any]()
    # Of two effects to be seen the errors add up as the half-widths do.
    for side, at, sign in (("low", value, -1), ("high", value, 1), ("mde", 0.0, 1)):
        one, other = getattr(sources, side), getattr(seeds, side)
        known = one is not None and other is not None
        ends[side] = at + sign * math.hypot(one - at, other - at) if known else None
    if ends["low"] is None and ends["high"] is None:
        none: dict[str, Any] = {"low": None, "high": None, "interval": "none"}
        return replace(sources, **none, note="no interval over both")
    return replace(sources, **ends, interval="jackknife-t", note=QUADRATURE)


def _claim(row: Row, drift: Contrast | None) -> tuple[Claim, str]:
    """What a headline claims, and the key of how it is read.

    ``drift`` is that of low-sensitivity text between the two sides of a contrast.
    """
    if row.value is None:
        return "not_tested", "headline"
    if not isinstance(row, Contrast):
        memory = row.metric == "memory"
        return (memory_claim(row), "memory") if memory else ("moved", "headline")
    if row.ends is None:
        return "nothing_shown", "headline"
    if row.ends[0] <= 0 <= row.ends[1]:
        return "nothing_shown", "did_still"
    if drift is None or drift.value is None:
        return "nothing_shown", "did_drift_unknown"
    if unlike_drift(row.value, drift.value, drift.low, drift.high):
        return "nothing_shown", "did_drift_unequal"
    return "moved", "did_less" if row.ends[0] > 0 else "did_more"


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
        claim, says = _claim(row, drift)
        told: dict[str, Any] = {"facts": {"figure": row, "drift": drift}}
        if row.metric == "memory" and row.value is not None and row.ends is not None:
            down = row.value < 0
            limit, null = row.ends[down], row.null_low if down else row.null_high
            reach, beyond = abs(row.value - limit), abs(null or 0.0)
            df = max(seeds.get(row.checkpoint, 1) - 1, 1)
            quantile = float(scipy.special.stdtrit(df, 0.975))
            t = quantile * max(abs(row.value) - beyond, 0.0) / reach if reach else 0.0
            told["p"] = float(2 * scipy.special.stdtr(df, -t))
            power = Power(test="t", se=reach / quantile, df=df, beyond=beyond)
            told["power"] = [power] if reach else []
        yield Finding.on(row, claim, f"seeds.{says}", **told)

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

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import scipy

from spark_audit.audits import metric_of
from spark_audit.names import entry_of
from spark_audit.results import (
    AuditResult,
    Claim,
    Contrast,
    Estimate,
    Finding,
    Row,
)
from spark_audit.results.findings import Power
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.memory import claim_of
from spark_audit.stats.power import with_mde
from spark_audit.stats.selectivity import unlike_drift

R = TypeVar("R", bound=Row)

AVERAGED = "limits are the mean of the limits of the replicates (conservative)"
QUADRATURE = "sources and seeds are added in quadrature (conservative)"
LOG = "tries"
"""Unit of figures that are averaged as logarithms."""
_WORST = ("not_resolvable", "insensitive", "invalid")


def with_entries(result: AuditResult) -> AuditResult:
    """The result with rows and contrasts of every method that has replicates."""
    rows, contrasts = _entries(result.rows), _entries(result.contrasts)
    if not rows and not contrasts:
        return result
    names = {row.checkpoint for row in result.rows}
    seeds = Counter(entry_of(name) for name in names if entry_of(name) != name)
    return replace(
        result,
        rows=[*result.rows, *rows],
        contrasts=[*result.contrasts, *contrasts],
        findings=[*result.findings, *_findings([*rows, *contrasts], seeds)],
    )


def _key(row: Row) -> tuple[str, ...]:
    against = entry_of(row.baseline) if isinstance(row, Contrast) else ""
    return (row.metric, row.of, row.group, against)


def _against(rows: Sequence[Row]) -> dict[str, Any]:
    """The t test of a contrast's null over seeds."""
    apart = np.array([(row.value or 0.0) - (row.null or 0.0) for row in rows])
    spread = float(np.std(apart, ddof=1)) / np.sqrt(len(apart))
    p: float | None = None
    if spread > 0:
        t = abs(float(np.mean(apart))) / spread
        p = float(2 * scipy.special.stdtr(len(apart) - 1, -t))
    return {"p": p}


def _entries(rows: Sequence[R]) -> list[R]:
    groups: dict[tuple[str, ...], list[R]] = {}
    own = {(row.checkpoint, *_key(row)): row for row in rows}
    for row in rows:
        entry = entry_of(row.checkpoint)
        if entry != row.checkpoint:
            groups.setdefault((entry, *_key(row)), []).append(row)
    made: list[R] = []
    for place, members in groups.items():
        if len(members) > 1:
            made += _entry(place[0], members, own.get(place))
    return made


def _entry(name: str, members: Sequence[R], own: R | None) -> list[R]:
    """Rows of one figure: over sources (unless it is there), over seeds, over both."""
    first = members[0]
    columns: dict[str, Any] = {
        key: getattr(first, key) for key in ("audit", "metric", "of", "group", "unit")
    }
    columns |= {"checkpoint": name, "family": "exploratory"}
    if isinstance(first, Contrast):
        columns["baseline"] = entry_of(first.baseline)
    values = [row.value for row in members if row.value is not None]
    if len(values) < len(members):
        lost = next(row.note for row in members if row.value is None)
        reason = f"{len(members) - len(values)} of {len(members)} replicates: {lost}"
        if own is not None:
            return []
        missing = Estimate.missing(reason)
        return [type(first).of_estimate(missing, over="both", **columns)]
    columns["status"] = max(
        (row.status for row in members),
        key=lambda status: _WORST.index(status) if status in _WORST else -1,
    )
    for side in ("null", "null_low", "null_high"):
        columns[side] = _mean(getattr(row, side) for row in members)
    log = first.unit == LOG
    scale: Callable[[float], float] = np.log10 if log else float
    bounds = _bounds(first)
    sources = _over_sources(members, own, scale)
    mean = sources.value
    seeds = ratio_estimate([scale(value) for value in values], np.ones(len(values)))
    seeds = with_mde(replace(seeds, value=mean)).noting(f"over {len(values)} seeds")
    both = _quadrature(sources, seeds)
    bounds_met = dict.fromkeys(row.note for row in members if "that bound" in row.note)
    more = _against(members) if isinstance(first, Contrast) else {}
    found: list[tuple[Estimate, str, dict[str, Any]]] = []
    if own is None:
        found.append((sources, "sources", {}))
    found += [(seeds, "seeds", more), (both, "both", {})]
    columns["note"] = "; ".join(bounds_met)
    return [
        type(first).of_estimate(
            _clipped(estimate, bounds, log=log), over=over, **{**columns, **extra}
        )
        for estimate, over, extra in found
    ]


def _over_sources(
    members: Sequence[R], own: R | None, scale: Callable[[float], float]
) -> Estimate:
    """Mean of the members' figures and limits, or what the audit has worked out."""
    first = members[0]
    sources = Estimate(
        float(np.mean([scale(row.value) for row in members if row.value is not None])),
        low=_mean(None if row.low is None else scale(row.low) for row in members),
        high=_mean(None if row.high is None else scale(row.high) for row in members),
        interval=first.interval,
        level=first.level,
        n=first.n,
        clusters=first.clusters,
        mde=_mean(row.mde for row in members),
        note=f"mean of {len(members)} replicates; {AVERAGED}",
    )
    if sources.low is None and sources.high is None:
        sources = replace(sources, interval="none")
    if own is None:
        return sources
    return replace(sources, value=own.value, low=own.low, high=own.high, mde=own.mde)


def _bounds(row: Row) -> tuple[float, float]:
    """What a figure can be; one that is averaged as a logarithm is not clipped."""
    if row.unit == LOG:
        return -np.inf, np.inf
    metric = metric_of(row.audit, row.metric)
    return metric.range_of_change if isinstance(row, Contrast) else metric.range


def _clipped(estimate: Estimate, bounds: tuple[float, float], *, log: bool) -> Estimate:
    def ready(value: float | None) -> float | None:
        if value is None:
            return None
        return float(10.0**value if log else min(max(value, bounds[0]), bounds[1]))

    value = ready(estimate.value)
    assert value is not None
    return replace(
        estimate,
        value=value,
        low=ready(estimate.low),
        high=ready(estimate.high),
        parity_low=None,
        parity_high=None,
        # A smallest effect in logarithms is none in tries.
        mde=None if log else estimate.mde,
    )


def _quadrature(sources: Estimate, seeds: Estimate) -> Estimate:
    """Both intervals' half-widths together; a side that one lacks stays open."""
    value = sources.value
    assert value is not None

    def side(one: float | None, other: float | None, sign: int) -> float | None:
        if one is None or other is None:
            return None
        return value + sign * float(np.hypot(one - value, other - value))

    low, high = side(sources.low, seeds.low, -1), side(sources.high, seeds.high, 1)
    if low is None and high is None:
        return replace(
            sources, low=None, high=None, interval="none", note="no interval over both"
        )
    # Of two effects to be seen the errors add up as the half-widths do.
    seen = None
    if sources.mde is not None and seeds.mde is not None:
        seen = float(np.hypot(sources.mde, seeds.mde))
    return replace(
        sources,
        low=low,
        high=high,
        interval="jackknife-t",
        parity_low=None,
        parity_high=None,
        mde=seen,
        note=QUADRATURE,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    if any(value is None for value in known):
        return None
    return float(np.mean([value or 0.0 for value in known]))


def _read(row: Contrast, drift: Contrast | None) -> tuple[Claim, str]:
    """What the interval of a DiD over sources and seeds says, as a key.

    ``drift`` is that of low-sensitivity text between the two, over the same.
    """
    if row.value is None or row.low is None or row.high is None:
        return "nothing_shown", "headline"
    if row.low <= 0 <= row.high:
        return "nothing_shown", "did_still"
    if drift is None or drift.value is None:
        return "nothing_shown", "did_drift_unknown"
    if unlike_drift(row.value, drift.value, drift.low, drift.high):
        return "nothing_shown", "did_drift_unequal"
    return "moved", "did_less" if row.low > 0 else "did_more"


def _claim(row: Row, drift: Contrast | None) -> tuple[Claim, str]:
    """What a headline claims, and the key of how it is read."""
    if row.value is None:
        return "not_tested", "headline"
    if isinstance(row, Contrast):
        return _read(row, drift)
    if row.metric == "memory":
        return claim_of(row), "memory"
    return "moved", "headline"


def _primary(row: Row, seeds: int) -> dict[str, Any]:
    """What makes the memory of several seeds a primary finding; empty if nothing does.

    p is read from the interval as one of Student's t over seeds, which it is where they
    differ most: 0.05 where a limit lies on the null, and above the true one beyond it.
    """
    if row.metric != "memory" or row.value is None:
        return {}
    if row.low is None or row.high is None:
        return {}
    below = row.value < 0
    null, limit = (row.null_low, row.high) if below else (row.null_high, row.low)
    reach, apart = abs(row.value - limit), abs(row.value) - abs(null or 0.0)
    df = max(seeds - 1, 1)
    t = (
        float(scipy.special.stdtrit(df, 0.975)) * max(apart, 0.0) / reach
        if reach
        else 0.0
    )
    p = float(2 * scipy.special.stdtr(df, -t))
    se = reach / float(scipy.special.stdtrit(df, 0.975))
    power = [Power(test="t", se=se, df=df, beyond=abs(null or 0.0))] if se else []
    return {"p": p, "family": "primary", "power": power}


def _findings(rows: Sequence[Row], seeds: Mapping[str, int]) -> list[Finding]:
    """The headlines of methods with several seeds, over sources and seeds."""
    findings = []
    drifts = {
        (row.checkpoint, row.baseline): row
        for row in rows
        if isinstance(row, Contrast)
        and (row.metric, row.over) == ("low_change", "both")
    }
    for row in rows:
        shown = row.of in metric_of(row.audit, row.metric).headline
        if not shown or (row.group, row.over) != ("pooled", "both"):
            continue
        drift = None
        if isinstance(row, Contrast):
            if row.metric != "did":
                continue
            drift = drifts.get((row.checkpoint, row.baseline))
        claim, says = _claim(row, drift)
        facts = {"figure": row, "drift": drift}
        primary = _primary(row, seeds.get(row.checkpoint, 1))
        findings.append(Finding.on(row, claim, f"seeds.{says}", facts=facts, **primary))
    return findings

"""Several seeds as one method, with intervals over sources, over seeds, or over both.

Replicates are audited one by one as ``NAME[1]``, ``NAME[2]``. The method ``NAME`` gets
its own rows. Each figure is the mean of the replicates' figures (for numbers of tries
the geometric mean), with three intervals:

``sources``
    The means of the replicates' limits, unless the audit computes the mean itself. The
    width is an upper bound, reached if the replicates' errors move together, as they
    nearly do over the same sources.
``seeds``
    Student's t interval of the replicates' values.
``both``
    The half-widths of these two, added in quadrature. The error that source and seed
    share counts twice.

Limits are clipped to the range of the figure. The command line runs this on the result
of each audit; the report shows the rows as those of a checkpoint.
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

BEST_TO_WORST = (
    "not_estimable",
    "ok",
    "not_resolvable",
    "insensitive",
    "invalid",
    "void",
)
"""Statuses: a method has the worst one of its replicates. No replicate that has a value
is ``not_estimable``, so that the first never wins."""

AT_BOUND = "that bound"
"""Words of the notes on values that are a bound (``extract`` writes them): a method's
row has the notes of its replicates that hold them."""

UPPER_TAIL = 0.975
"""Probability below the upper limit of a 95% interval."""


class FigurePlace(NamedTuple):
    """Which figure of which method a row is: what its replicates have in common.

    ``baseline`` is the method that a contrast is compared with; empty: a row.
    """

    method: str
    metric: str
    of: str
    group: str
    baseline: str


class SeedsMemoryTest(NamedTuple):
    """Two-sided p that memory is within its null band, and inputs of its power."""

    p: float
    power: list[Power]


def with_entries(result: AuditResult) -> AuditResult:
    """Return the result with rows and findings of every method that has replicates.

    Without replicates it is the result itself. A replicate has the name of its method
    with a number; see :func:`spark_audit.names.entry_of`.
    """
    names = {row.checkpoint for row in (*result.rows, *result.contrasts)}
    n_seeds = Counter(entry_of(name) for name in names if entry_of(name) != name)
    if max(n_seeds.values(), default=0) < 2:
        return result

    rows = _rows_of_methods(result.rows)
    contrasts = _rows_of_methods(result.contrasts)
    findings = _findings([*rows, *contrasts], n_seeds)
    return replace(
        result,
        rows=[*result.rows, *rows],
        contrasts=[*result.contrasts, *contrasts],
        findings=[*result.findings, *findings],
    )


def _rows_of_methods(rows: Sequence[RowT]) -> list[RowT]:
    """Return the rows of each figure that at least two replicates have."""
    replicates: dict[FigurePlace, list[RowT]] = {}
    worked_out: dict[FigurePlace, RowT] = {}
    for row in rows:
        place = _place(row)
        if place.method == row.checkpoint:
            worked_out[place] = row
        else:
            replicates.setdefault(place, []).append(row)

    # A single replicate has no spread over seeds.
    rows_of_methods: list[RowT] = []
    for place, rows_of_figure in replicates.items():
        if len(rows_of_figure) > 1:
            rows_of_methods += _rows_of_figure(
                place.method, rows_of_figure, worked_out.get(place)
            )
    return rows_of_methods


def _place(row: Row) -> FigurePlace:
    """Return the key of a row's figure."""
    baseline = entry_of(row.baseline) if isinstance(row, Contrast) else ""
    return FigurePlace(
        method=entry_of(row.checkpoint),
        metric=row.metric,
        of=row.of,
        group=row.group,
        baseline=baseline,
    )


def _rows_of_figure(
    method: str, replicates: Sequence[RowT], worked_out: RowT | None
) -> Iterator[RowT]:
    """Yield the rows of one figure: over sources, over seeds, and over both.

    Parameters
    ----------
    worked_out
        The method's row over sources, if the audit computed it; it is not yielded
        again.
    """
    template = replicates[0]
    is_log = template.unit == LOG

    without_value = [row for row in replicates if row.value is None]
    if without_value:
        n_missing = f"{len(without_value)} of {len(replicates)} replicates"
        missing = Estimate.missing(f"{n_missing}: {without_value[0].note}")
        # A mean over some of the replicates would not be that of the named seeds.
        if worked_out is None:
            yield _row_like(template, method, missing, over="both")
        return

    # Over sources; figures that are averaged as logarithms stay logarithms up to the
    # end.
    sources = _over_sources(replicates if worked_out is None else [worked_out])
    sources = sources.noting(f"mean of {len(replicates)} replicates")
    sources = sources.noting(AVERAGED_LIMITS_NOTE)

    # Over seeds, and over both.
    values = np.array([row.value for row in replicates], np.float64)  # (seeds,)
    if is_log:
        values = np.log10(values)
    seeds = ratio_estimate(values, np.ones(len(values)))
    seeds = with_mde(replace(seeds, value=sources.value))
    seeds = seeds.noting(f"over {len(values)} seeds")
    both = _quadrature(sources, seeds)

    # The mean of the null values, the worst status, and notes on values at a bound.
    nulls = _means(replicates, ("null", "null_low", "null_high"))
    status = max((row.status for row in replicates), key=BEST_TO_WORST.index)
    notes_on_bounds = [row.note for row in replicates if AT_BOUND in row.note]
    note = "; ".join(dict.fromkeys(notes_on_bounds))

    def row_over(estimate: Estimate, over: Over, p: float | None = None) -> RowT:
        """Return the method's row with an estimate over sources, seeds or both."""
        return _row_like(
            template,
            method,
            _clipped(estimate, template),
            over=over,
            null=nulls["null"],
            null_low=nulls["null_low"],
            null_high=nulls["null_high"],
            status=status,
            note=note,
            p=p,
        )

    if worked_out is None:
        yield row_over(sources, "sources")
    yield row_over(seeds, "seeds", _p_over_seeds(replicates))
    yield row_over(both, "both")


def _over_sources(rows: Sequence[Row]) -> Estimate:
    """Return the mean of the figures of some rows, and of their limits.

    ``n`` and ``clusters`` are those of one replicate: all have the same sources.

    Parameters
    ----------
    rows
        Rows of the replicates, or the one that the audit computed.
    """
    template = rows[0]
    means = _means(rows, ("value", "low", "high"), log=template.unit == LOG)
    # An interval may be open on one side.
    has_limits = means["low"] is not None or means["high"] is not None
    return Estimate(
        value=means["value"],
        low=means["low"],
        high=means["high"],
        mde=_means(rows, ("mde",))["mde"],
        interval=template.interval if has_limits else "none",
        level=template.level,
        n=template.n,
        clusters=template.clusters,
    )


def _p_over_seeds(replicates: Sequence[Row]) -> float | None:
    """Return the p of Student's t test of a contrast's null over its seeds."""
    if not isinstance(replicates[0], Contrast):
        return None

    effects = [(row.value or 0.0) - (row.null or 0.0) for row in replicates]
    # Without a spread there is no test.
    if not np.ptp(effects):
        return None
    return float(scipy.stats.ttest_1samp(effects, 0).pvalue)


def _row_like(
    template: RowT,
    method: str,
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
    """Return a row or contrast of a method for the figure of a replicate's row.

    Parameters
    ----------
    template
        Row of a replicate.
    """
    row: Row
    if isinstance(template, Contrast):
        row = Contrast.of_estimate(
            estimate,
            audit=template.audit,
            checkpoint=method,
            baseline=entry_of(template.baseline),
            metric=template.metric,
            of=template.of,
            group=template.group,
            unit=template.unit,
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
            audit=template.audit,
            checkpoint=method,
            metric=template.metric,
            of=template.of,
            group=template.group,
            unit=template.unit,
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
    """Return the means of columns over all rows, or of their log10; None: a gap.

    Parameters
    ----------
    columns
        Names of the columns, which are the keys of the result.
    """
    figures = []
    for row in rows:
        figures.append([getattr(row, column) for column in columns])
    table = np.array(figures, np.float64)  # (rows, columns), NaN: not known
    if log:
        table = np.log10(table)

    means: dict[str, float | None] = {}
    for column, mean in zip(columns, table.mean(axis=0).tolist(), strict=True):
        means[column] = None if math.isnan(mean) else mean
    return means


def _clipped(estimate: Estimate, row: Row) -> Estimate:
    """Return an estimate clipped to its range, with logarithms turned into numbers.

    Parameters
    ----------
    row
        A row of the same figure, or a contrast, which has the range of a difference.
    """
    # The range of a difference extends to both sides by the width of the figure's.
    least, most = metric_of(row.audit, row.metric).range
    if isinstance(row, Contrast):
        least, most = least - most, most - least
    is_log = row.unit == LOG

    def clipped(figure: float | None) -> float | None:
        """Return a value or limit within the range, and no logarithm."""
        if figure is None:
            return None
        if is_log:
            return float(10.0**figure)
        return float(min(max(figure, least), most))

    return replace(
        estimate,
        value=clipped(estimate.value),
        low=clipped(estimate.low),
        high=clipped(estimate.high),
        # A smallest effect of logarithms has no meaning in tries.
        mde=None if is_log else estimate.mde,
    )


def _quadrature(sources: Estimate, seeds: Estimate) -> Estimate:
    """Return the estimate with both half-widths added in quadrature.

    If one of the two lacks a limit, the limit of both on that side is missing.
    """
    value = sources.value or 0.0

    def limit(
        origin: float, of_sources: float | None, of_seeds: float | None, direction: int
    ) -> float | None:
        """Return the combined limit on one side of a value (``origin``).

        ``direction`` is 1 above the value and -1 below.
        """
        if of_sources is None or of_seeds is None:
            return None
        half_width = math.hypot(of_sources - origin, of_seeds - origin)
        return origin + direction * half_width

    low = limit(value, sources.low, seeds.low, -1)
    high = limit(value, sources.high, seeds.high, 1)
    if low is None and high is None:
        return replace(
            sources, low=None, high=None, interval="none", note="no interval over both"
        )
    return replace(
        sources,
        low=low,
        high=high,
        # Smallest effects add up as half-widths do: both are multiples of errors.
        mde=limit(0.0, sources.mde, seeds.mde, 1),
        interval="jackknife-t",
        note=QUADRATURE,
    )


class Conclusion(NamedTuple):
    """The claim of a headline, and the keys of its sentences (without ``seeds.``)."""

    claim: Claim
    says: str
    further: tuple[str, ...] = ()


def _conclusion(row: Row, drift: Contrast | None) -> Conclusion:
    """Return the conclusion of a headline over sources and seeds; first match wins.

    =====================================  ===============  =======================
    row                                    claim            sentence
    =====================================  ===============  =======================
    no value                               not_tested       missing, of a contrast
                                                            missing_change
    no contrast, of memory                 that of          memory
                                           ``memory_claim``
    no contrast, of another metric         moved            headline
    contrast without an interval           nothing_shown    headline_change
    contrast whose interval contains 0     nothing_shown    did_still
    drift of other text is not known       nothing_shown    did_drift_unknown
    drift of other text explains as much   nothing_shown    did_drift_unequal
    contrast above 0: less likely          moved            did_less
    contrast below 0: likelier             moved            did_more
    =====================================  ===============  =======================

    Parameters
    ----------
    drift
        Change of low-sensitivity text from the baseline of the contrast, nats per
        token; ``None``: there is no such contrast.
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


def _findings(rows: Sequence[Row], n_seeds: Mapping[str, int]) -> Iterator[Finding]:
    """Yield the findings on the headline figures of methods, over sources and seeds.

    A method has one finding for each headline figure of its audit, and one for each
    DiD. Only memory is tested. Its p reads the interval as one of Student's t over
    seeds, which it nearly is if the spread over seeds dominates. This p is 0.05 if a
    limit lies on the null, and larger than the true p beyond it.

    Parameters
    ----------
    rows
        Rows and contrasts of methods.
    n_seeds
        Method -> number of its replicates.
    """
    rows_over_both = [row for row in rows if row.over == "both"]
    drifts: dict[tuple[str, str], Contrast] = {}
    for row in rows_over_both:
        if isinstance(row, Contrast) and row.metric == "low_change":
            drifts[row.checkpoint, row.baseline] = row

    for row in rows_over_both:
        if not _is_headline(row):
            continue
        drift = None
        if isinstance(row, Contrast):
            drift = drifts.get((row.checkpoint, row.baseline))
        df = max(n_seeds.get(row.checkpoint, 1) - 1, 1)
        yield _headline_finding(row, drift, df=df)


def _is_headline(row: Row) -> bool:
    """Return whether a row stands for its method: each audit declares which do.

    Of contrasts only a DiD does.
    """
    if row.group != "pooled" or row.of not in metric_of(row.audit, row.metric).headline:
        return False
    return not isinstance(row, Contrast) or row.metric == "did"


def _headline_finding(row: Row, drift: Contrast | None, *, df: int) -> Finding:
    """Return the finding on one headline figure over sources and seeds.

    Parameters
    ----------
    drift
        As for :func:`_conclusion`.
    df
        Seeds but one, the degrees of freedom.
    """
    conclusion = _conclusion(row, drift)
    further = [f"seeds.{key}" for key in conclusion.further]
    if row.value is not None and (row.low is None or row.high is None):
        further.append("seeds.no_interval")
    if row.status not in ("ok", "not_estimable"):
        further.append("seeds.status")

    p: float | None = None
    power: list[Power] = []
    bounds: list[Bound] = []
    is_tested = row.value is not None and row.ends is not None
    if row.metric == "memory" and is_tested:
        test = _memory_test(row, df=df)
        p = test.p
        power = test.power
        # Memory is below 0, so the memory that could still be there is the lower limit.
        bounds = t_bound(
            row.value,
            row.low,
            df=df,
            direction=-1,
            beyond=abs(row.null_low or 0.0),
        )

    return Finding.on(
        row,
        conclusion.claim,
        f"seeds.{conclusion.says}",
        facts={"figure": row, "drift": drift},
        further=further,
        p=p,
        power=power,
        bounds=bounds,
    )


def _memory_test(row: Row, *, df: int) -> SeedsMemoryTest:
    """Return the test that memory over both is within its null band.

    The interval is read as one of Student's t over seeds. If its limit equals the
    value, nothing can be detected.

    Parameters
    ----------
    df
        Number of seeds minus one.
    """
    # The half-width towards the null, and the end of the null band on that side.
    value = row.value or 0.0
    low, high = row.ends or (value, value)
    if value < 0:
        half_width = abs(value - high)
        band = abs(row.null_low or 0.0)
    else:
        half_width = abs(value - low)
        band = abs(row.null_high or 0.0)

    if not half_width:
        return SeedsMemoryTest(1.0, [])

    # The half-width is a quantile times the standard error.
    quantile = float(scipy.special.stdtrit(df, UPPER_TAIL))
    t = quantile * max(abs(value) - band, 0.0) / half_width
    p = float(2 * scipy.special.stdtr(df, -t))
    power = Power(test="t", se=half_width / quantile, df=df, beyond=band)
    return SeedsMemoryTest(p, [power])

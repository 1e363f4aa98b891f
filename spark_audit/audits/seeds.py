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

``with_entries`` groups rows by figure -> ``_rows_of_figure`` (three rows each) ->
``findings_of_methods`` (:mod:`spark_audit.audits.seeds_findings`). A further field that
the three rows share goes into :class:`SharedFields`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import numpy as np
import scipy

from spark_audit.audits import metric_of
from spark_audit.audits.seeds_findings import findings_of_methods
from spark_audit.names import entry_of
from spark_audit.results import AuditResult, Contrast, Row
from spark_audit.results.rows import Over
from spark_audit.stats.estimate import Estimate, Status
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.power import with_mde

RowT = TypeVar("RowT", bound=Row)

AVERAGED_LIMITS_NOTE = (
    "limits are the mean of the limits of the replicates (conservative)"
)

QUADRATURE = "sources and seeds are added in quadrature (conservative)"
"""Notes of rows over sources and over both, which readers see."""

LOG = "tries"
"""Unit of figures that are averaged as logarithms: numbers of tries grow by factors."""

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


class FigurePlace(NamedTuple):
    """Which figure of which method a row is: what its replicates have in common.

    ``baseline`` is the method that a contrast is compared with; empty: a row that is no
    contrast.
    """

    method: str
    metric: str
    variant: str
    group: str
    baseline: str


class SharedFields(NamedTuple):
    """Fields that the rows of a method over sources, seeds and both have in common.

    Attributes
    ----------
    no_effect, no_effect_low, no_effect_high
        The means over the replicates; None: a replicate has none.
    status
        The worst one of the replicates.
    note
        Their notes on values that are a bound.
    """

    no_effect: float | None
    no_effect_low: float | None
    no_effect_high: float | None
    status: Status
    note: str


def with_entries(result: AuditResult) -> AuditResult:
    """Return the result with rows and findings of every method that has replicates.

    If no method has two replicates, it is the result itself. A replicate has the name
    of its method with a number; see :func:`spark_audit.names.entry_of`.
    """
    names = {row.checkpoint for row in (*result.results, *result.contrasts)}
    replicate_names = [name for name in names if entry_of(name) != name]
    n_seeds = Counter(entry_of(name) for name in replicate_names)  # by method
    if max(n_seeds.values(), default=0) < 2:
        return result

    rows = _rows_of_methods(result.results)
    contrasts = _rows_of_methods(result.contrasts)
    findings = findings_of_methods([*rows, *contrasts], n_seeds)
    return replace(
        result,
        results=[*result.results, *rows],
        contrasts=[*result.contrasts, *contrasts],
        findings=[*result.findings, *findings],
    )


def _rows_of_methods(rows: Sequence[RowT]) -> list[RowT]:
    """Return the rows of each figure that at least two replicates have."""
    replicates_by_figure: dict[FigurePlace, list[RowT]] = {}
    # Some audits compute the row of a method over sources themselves.
    row_of_audit: dict[FigurePlace, RowT] = {}
    for row in rows:
        figure = _figure_place(row)
        if figure.method == row.checkpoint:
            row_of_audit[figure] = row
        else:
            replicates_by_figure.setdefault(figure, []).append(row)

    # A single replicate has no spread over seeds.
    rows_of_methods: list[RowT] = []
    for figure, replicates in replicates_by_figure.items():
        if len(replicates) > 1:
            rows_of_methods += _rows_of_figure(
                figure.method, replicates, row_of_audit.get(figure)
            )
    return rows_of_methods


def _figure_place(row: Row) -> FigurePlace:
    """Return which figure of which method a row is."""
    baseline = entry_of(row.baseline) if isinstance(row, Contrast) else ""
    return FigurePlace(
        method=entry_of(row.checkpoint),
        metric=row.metric,
        variant=row.variant,
        group=row.group,
        baseline=baseline,
    )


def _rows_of_figure(
    method: str, replicates: Sequence[RowT], row_of_audit: RowT | None
) -> Iterator[RowT]:
    """Yield the rows of one figure: over sources, over seeds, and over both.

    Parameters
    ----------
    row_of_audit
        The method's row over sources, if the audit computed it; it is not yielded
        again.
    """
    without_value = [row for row in replicates if row.value is None]
    if without_value:
        # A mean over some of the replicates would not be that of the named seeds.
        if row_of_audit is None:
            yield _row_without_value(method, replicates, note=without_value[0].note)
        return

    # Figures that are averaged as logarithms stay logarithms up to `_clipped`.
    template = replicates[0]
    averaged = replicates if row_of_audit is None else [row_of_audit]
    over_sources = _over_sources(averaged, n_replicates=len(replicates))
    over_seeds = _over_seeds(replicates, mean=over_sources.value)
    over_both = _quadrature(over_sources, over_seeds)
    shared = _shared_fields(replicates)

    def method_row(
        estimate: Estimate, interval_over: Over, p: float | None = None
    ) -> RowT:
        """Return the method's row with one of these three estimates."""
        return _row_like(
            template,
            method,
            _clipped(estimate, template),
            interval_over=interval_over,
            no_effect=shared.no_effect,
            no_effect_low=shared.no_effect_low,
            no_effect_high=shared.no_effect_high,
            status=shared.status,
            note=shared.note,
            p=p,
        )

    if row_of_audit is None:
        yield method_row(over_sources, "sources")
    yield method_row(over_seeds, "seeds", _p_over_seeds(replicates))
    yield method_row(over_both, "both")


def _row_without_value(method: str, replicates: Sequence[RowT], *, note: str) -> RowT:
    """Return the row of a figure that some replicates lack.

    Parameters
    ----------
    note
        Why the first of these replicates has no value.
    """
    n_without_value = sum(row.value is None for row in replicates)
    reason = f"{n_without_value} of {len(replicates)} replicates: {note}"
    return _row_like(
        replicates[0], method, Estimate.missing(reason), interval_over="both"
    )


def _shared_fields(replicates: Sequence[Row]) -> SharedFields:
    """Return the fields that the three rows of a figure have in common."""
    nulls = _means(replicates, ("no_effect", "no_effect_low", "no_effect_high"))
    status = max((row.status for row in replicates), key=BEST_TO_WORST.index)
    notes_on_bounds = [row.note for row in replicates if AT_BOUND in row.note]
    return SharedFields(
        no_effect=nulls["no_effect"],
        no_effect_low=nulls["no_effect_low"],
        no_effect_high=nulls["no_effect_high"],
        status=status,
        note="; ".join(dict.fromkeys(notes_on_bounds)),
    )


def _over_sources(rows: Sequence[Row], *, n_replicates: int) -> Estimate:
    """Return the mean of the figures of some rows, and of their limits.

    ``n`` and ``clusters`` are those of one replicate: all have the same sources. Value
    and limits are logarithms (base 10) if the unit is :data:`LOG`.

    Parameters
    ----------
    rows
        Rows of the replicates, or the one that the audit computed.
    n_replicates
        Number of replicates, which readers see.
    """
    template = rows[0]
    means = _means(rows, ("value", "low", "high"), log=template.unit == LOG)
    # An interval may be open on one side.
    has_limits = means["low"] is not None or means["high"] is not None
    mean = Estimate(
        value=means["value"],
        low=means["low"],
        high=means["high"],
        mde=_means(rows, ("mde",))["mde"],
        interval=template.interval_method if has_limits else "none",
        level=template.interval_level,
        n=template.n,
        clusters=template.clusters,
    )
    mean = mean.noting(f"mean of {n_replicates} replicates")
    return mean.noting(AVERAGED_LIMITS_NOTE)


def _over_seeds(replicates: Sequence[Row], *, mean: float | None) -> Estimate:
    """Return Student's t interval of the replicates' values: each seed is a cluster.

    Parameters
    ----------
    mean
        The method's value, which all three of its rows have.
    """
    values = np.array([row.value for row in replicates], np.float64)  # (seeds,)
    if replicates[0].unit == LOG:
        values = np.log10(values)

    estimate = ratio_estimate(values, np.ones(len(values)))
    estimate = with_mde(replace(estimate, value=mean))
    return estimate.noting(f"over {len(values)} seeds")


def _p_over_seeds(replicates: Sequence[Row]) -> float | None:
    """Return the p of Student's t test of a contrast's null over its seeds."""
    if not isinstance(replicates[0], Contrast):
        return None

    effects = [(row.value or 0.0) - (row.no_effect or 0.0) for row in replicates]
    is_without_spread = np.ptp(effects) == 0
    if is_without_spread:
        return None
    return float(scipy.stats.ttest_1samp(effects, 0).pvalue)


def _row_like(
    template: RowT,
    method: str,
    estimate: Estimate,
    *,
    interval_over: Over,
    no_effect: float | None = None,
    no_effect_low: float | None = None,
    no_effect_high: float | None = None,
    status: Status | None = None,
    note: str = "",
    p: float | None = None,
) -> RowT:
    """Return a row or contrast of a method for the figure of a replicate's row.

    Parameters
    ----------
    template
        Row of a replicate, which names the figure.
    status
        Default: that of the estimate.
    p
        Of a contrast; a row that is no contrast has none.
    """
    row: Row
    if isinstance(template, Contrast):
        row = Contrast.of_estimate(
            estimate,
            audit=template.audit,
            checkpoint=method,
            baseline=entry_of(template.baseline),
            metric=template.metric,
            variant=template.variant,
            group=template.group,
            unit=template.unit,
            no_effect=no_effect,
            no_effect_low=no_effect_low,
            no_effect_high=no_effect_high,
            status=status,
            interval_over=interval_over,
            note=note,
            p=p,
        )
    else:
        row = Row.of_estimate(
            estimate,
            audit=template.audit,
            checkpoint=method,
            metric=template.metric,
            variant=template.variant,
            group=template.group,
            unit=template.unit,
            no_effect=no_effect,
            no_effect_low=no_effect_low,
            no_effect_high=no_effect_high,
            status=status,
            interval_over=interval_over,
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
        Fields of ``Row``, which are the keys of the result.
    """
    values_by_row = []
    for row in rows:
        values_by_row.append([getattr(row, column) for column in columns])
    table = np.array(values_by_row, np.float64)  # (rows, columns), NaN: not known
    if log:
        table = np.log10(table)

    means: dict[str, float | None] = {}
    for column, mean in zip(columns, table.mean(axis=0).tolist(), strict=True):
        means[column] = None if math.isnan(mean) else mean
    return means


def _clipped(estimate: Estimate, row: Row) -> Estimate:
    """Return an estimate clipped to its range, with logarithms turned into numbers.

    Numbers of tries are not clipped.

    Parameters
    ----------
    row
        A row of the same figure, or a contrast, which has the range of a difference.
    """
    # The range of a difference extends to both sides by the width of the figure's.
    smallest, largest = metric_of(row.audit, row.metric).range
    if isinstance(row, Contrast):
        smallest, largest = smallest - largest, largest - smallest
    is_log = row.unit == LOG

    def clipped(number: float | None) -> float | None:
        """Return a value or limit within the range, and no logarithm."""
        if number is None:
            return None
        if is_log:
            return float(10.0**number)
        return float(min(max(number, smallest), largest))

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

    Parameters
    ----------
    sources, seeds
        Estimates over sources and over seeds, with the same value.
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

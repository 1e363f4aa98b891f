"""Rows of an audit: its estimates, with what its metrics declare of them.

A further field of :class:`~spark_audit.results.rows.Row` that audits give themselves is
an argument of :meth:`MetricRows.row`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

from spark_audit.audits.metrics import Metric
from spark_audit.results.rows import Family, Over, Row
from spark_audit.stats.estimate import Estimate, Status


class MetricRows:
    """Makes the rows of an audit, each with the unit and null value of its metric.

    Attributes
    ----------
    name
        Name of the audit.
    metrics
        What it estimates, in the order of reports.
    """

    name: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()

    @classmethod
    def metric(cls, name: str) -> Metric:
        """Return the metric of a name; an unknown one has its name only."""
        for metric in cls.metrics:
            if metric.name == name:
                return metric
        return Metric(name)

    @classmethod
    def row(
        cls,
        estimate: Estimate,
        checkpoint: str,
        metric: str,
        variant: str = "",
        *,
        group: str = "pooled",
        unit: str | None = None,
        no_effect: float | None = None,
        no_effect_low: float | None = None,
        no_effect_high: float | None = None,
        status: Status | None = None,
        family: Family = "exploratory",
        interval_over: Over = "sources",
        note: str = "",
    ) -> Row:
        """Return a row, by default with the unit and null value of its metric.

        Parameters
        ----------
        metric, variant
            Name of the metric, and its variant.
        unit, no_effect
            Default: those of the metric.
        status
            Default: that of the estimate.
        """
        declared = cls.metric(metric)
        return Row.of_estimate(
            estimate,
            audit=cls.name,
            checkpoint=checkpoint,
            metric=metric,
            variant=variant,
            group=group,
            unit=declared.unit if unit is None else unit,
            no_effect=declared.no_effect if no_effect is None else no_effect,
            no_effect_low=no_effect_low,
            no_effect_high=no_effect_high,
            status=status,
            family=family,
            interval_over=interval_over,
            note=note,
        )

    @classmethod
    def missing(
        cls,
        names: Iterable[str],
        reason: str,
        *,
        metrics: Iterable[Metric] | None = None,
        variants: Collection[str] | None = None,
        beside: Iterable[Row] = (),
    ) -> list[Row]:
        """Return pooled rows without a figure, with the reason.

        Parameters
        ----------
        names
            Checkpoints without a figure.
        metrics
            Default: all of this audit.
        variants
            Default: the variants that each metric lists in its field ``missing``.
        beside
            Rows that exist already: a variant that they have of a checkpoint is left
            out, whatever the metric.
        """
        has_figure = {
            (row.checkpoint, row.variant) for row in beside if row.group == "pooled"
        }
        if metrics is None:
            metrics = cls.metrics
        variants_by_metric = {
            metric.name: metric.missing if variants is None else variants
            for metric in metrics
        }

        rows = []
        for name in names:
            for metric_name, variants_of_metric in variants_by_metric.items():
                for variant in variants_of_metric:
                    if (name, variant) in has_figure:
                        continue
                    # An audit that lists no such rows may have no reason, either.
                    estimate = Estimate.missing(reason)
                    rows.append(cls.row(estimate, name, metric_name, variant))
        return rows

"""Where a figure stands in a report, and which figures belong together.

The rules of :mod:`spark_audit.report.disclosure.withholding` compare figures whose
places are related. Each relation is a projection of :class:`Place`: a further relation
is a further property here, and a rule there that groups rows by it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from spark_audit.audits import about
from spark_audit.audits.base import Audit
from spark_audit.results import Contrast, Finding, Row

REMEMBERED_METRICS = 1024
"""Metrics whose leading one is remembered: a report has thousands of rows of few."""


class Place(NamedTuple):
    """Where a figure stands in a report.

    Figures of equal places are figures of the same thing. A projection is the place
    with some fields empty or replaced: figures whose projections are equal are related.

    ======================  ==================================================
    Projection              Figures for which it is equal
    ======================  ==================================================
    ``whole_place``         Of a part of the identifiers, and of all of them.
    ``shown_together``      One follows from the other: shown both or neither.
    ``partition``           They add up to a pooled figure: all types, all tasks.
    ``group_of_audit``      Of one audit, checkpoint and group, of any metric.
    ``without_comparison``  Rows and contrasts, over sources and over seeds.
    ======================  ==================================================

    Attributes
    ----------
    audit, checkpoint, metric, variant
        Columns of the row.
    group
        Kind and name of the group of identifiers, as ``type:SSN``; ``pooled``: all.
    baseline
        What a contrast is held against; empty for a row that is no contrast.
    interval_over
        What the interval is over: ``sources``, ``seeds`` or ``both``.
    """

    audit: str
    checkpoint: str
    group: str
    metric: str = ""
    variant: str = ""
    baseline: str = ""
    interval_over: str = ""

    @classmethod
    def of_row(cls, row: Row) -> Place:
        """Return the place of a row's figures."""
        baseline = ""
        if isinstance(row, Contrast):
            baseline = row.baseline

        return cls(
            audit=row.audit,
            checkpoint=row.checkpoint,
            group=row.group,
            metric=row.metric,
            variant=row.variant,
            baseline=baseline,
            interval_over=row.interval_over,
        )

    @classmethod
    def of_finding(cls, finding: Finding) -> Place:
        """Return the place of the row that a finding rests on.

        A finding does not name the baseline of its row, so look the row up by
        :attr:`without_comparison`.
        """
        return cls(
            audit=finding.audit,
            checkpoint=finding.checkpoint,
            group=finding.group,
            metric=finding.row_metric,
            variant=finding.variant,
        )

    @property
    def without_comparison(self) -> Place:
        """The place without ``baseline`` and ``interval_over``."""
        return self._replace(baseline="", interval_over="")

    @property
    def shown_together(self) -> Place:
        """The place of all figures that are shown with this one or not at all.

        Some metrics have a partner from which they follow, as a rate and its
        complement. The figures of both metrics, of all variants, share the place of the
        metric that leads.
        """
        leading_metric = _leading_metric(about(self.audit), self.metric)
        if not leading_metric:
            return self
        return self._replace(metric=leading_metric, variant="")

    @property
    def partition(self) -> Place:
        """The place without the group's name: ``type:SSN`` becomes ``type``.

        The groups of a partition add up to the pooled figure.
        """
        group_kind, _, _ = self.group.partition(":")
        return self._replace(group=group_kind)

    @property
    def group_of_audit(self) -> Place:
        """The place without its metric: an audit, a checkpoint and a group."""
        return Place(audit=self.audit, checkpoint=self.checkpoint, group=self.group)

    @property
    def whole_place(self) -> Place | None:
        """The place of the figure of all identifiers, if this is of a part of them.

        The audit says which of its figures are of the identifiers with a control alone.
        None: this figure is of no part.
        """
        whole = about(self.audit).whole_of(self.metric, self.variant)
        if whole is None:
            return None

        audit, metric, variant = whole
        return self._replace(audit=audit, metric=metric, variant=variant, baseline="")


@lru_cache(maxsize=REMEMBERED_METRICS)
def _leading_metric(audit: type[Audit], metric: str) -> str:
    """Return the metric that leads a metric and its partner; empty: it has none."""
    partners = {described.name: described.partner for described in audit.metrics}
    leading_metric = partners.get(metric) or metric
    return leading_metric if leading_metric in partners.values() else ""


class PlacedValue(NamedTuple):
    """A figure by its place and exact value, which identifies a row.

    Facts of findings hold copies of rows. A copy is found by this key, although its
    status or its note may differ.
    """

    place: Place
    value: float | None

    @classmethod
    def of_row(cls, row: Row) -> PlacedValue:
        """Return the key of a row."""
        return cls(Place.of_row(row), row.value)

"""Where a figure stands in a report, and which figures belong together.

The rules of :mod:`spark_audit.report.disclosure.withholding` compare figures whose
places are related. Each relation is a projection of :class:`Place`: a further relation
is a further property here, and a rule there that groups rows by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_audit.audits import about
from spark_audit.results import Contrast, Finding, Row


@dataclass(frozen=True, kw_only=True)
class Place:
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
        return replace(self, baseline="", interval_over="")

    @property
    def shown_together(self) -> Place:
        """The place of all figures that are shown with this one or not at all.

        Some metrics have a partner from which they follow, as a rate and its
        complement. The figures of both metrics, of all variants, share the place of the
        metric that leads.
        """
        partners = {metric.name: metric.partner for metric in about(self.audit).metrics}
        leading_metric = partners.get(self.metric) or self.metric
        if leading_metric not in partners.values():
            return self

        return replace(self, metric=leading_metric, variant="")

    @property
    def partition(self) -> Place:
        """The place without the group's name: ``type:SSN`` becomes ``type``.

        The groups of a partition add up to the pooled figure.
        """
        group_kind, _, _ = self.group.partition(":")
        return replace(self, group=group_kind)

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
        return replace(self, audit=audit, metric=metric, variant=variant, baseline="")


@dataclass(frozen=True)
class PlacedValue:
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

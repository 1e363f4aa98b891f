"""One look at a model in training: its report, and its figures for logs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from spark_audit.audits import metric_of
from spark_audit.audits.setup_guards import faults
from spark_audit.names import ANY_NAME
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.glance import main_rows
from spark_audit.results import Finding, Guard, Report, Row

LOG_PREFIX = "spark_audit/"
"""Prefix of the names of logged figures."""


@dataclass(frozen=True)
class AuditLook:
    """The result of one look.

    Attributes
    ----------
    step
        Steps of training before this look.
    name
        Name of the checkpoint in the report: ``step-N``, or ``base`` if training begins
        with the base.
    report
        The figures of this look, and the findings of all looks so far.
    tripped
        The broken rules, each with the figure that broke it.
    """

    step: int
    name: str
    report: Report = field(repr=False)
    tripped: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Return findings on this look or on the report as a whole, severest first."""
        return [
            finding
            for finding in self.report.findings
            if finding.checkpoint in ("", self.name)
        ]

    @property
    def faults(self) -> list[Guard]:
        """Return the failed setup guards: they void what this look measured."""
        return faults(self.report.guards, self.name)

    @cached_property
    def shared(self) -> AuditLook:
        """Return this look with its figures rounded or withheld as in shared files."""
        return replace(self, report=disclosed(self.report))

    def figures(self) -> dict[str, float]:
        """Return the shared figures for logs, by the names of the gate's rules."""
        figures = self._severities()
        figures[f"{LOG_PREFIX}void"] = float(bool(self.faults))
        for row in self._main_rows():
            name = f"{LOG_PREFIX}{row.audit}.{row.metric}"
            if row.variant:
                name += f".{row.variant}"
            for end in ("value", "low", "high"):
                # Figures that shared files withhold are not logged either.
                value = getattr(row, end)
                if value is not None:
                    figures[f"{name}.{end}"] = float(value)
        return figures

    def _severities(self) -> dict[str, float]:
        """Return the highest severity of all findings, and of each audit."""
        # A curve without any finding is a line at 0.
        severities = {f"{LOG_PREFIX}severity": 0.0}

        for finding in self.findings:
            names = [f"{LOG_PREFIX}severity"]
            # Findings on the report as a whole belong to no audit.
            if finding.checkpoint:
                names.append(f"{LOG_PREFIX}{finding.audit}.severity")
            for name in names:
                severity = float(finding.severity)
                severities[name] = max(severities.get(name, 0.0), severity)
        return severities

    def _main_rows(self) -> list[Row]:
        """Return the rows of this look for a report's first table, with fixed variants.

        The table shows only the best variant of some metrics, which may change from
        look to look. So the declared variants are included, too, and a curve of one
        variant can be drawn over all looks.
        """
        report = self.shared.report
        own_rows: list[Row] = []
        for _, declared, rows in main_rows(report):
            own_rows += [row for row in rows if row.checkpoint == self.name]
            if declared == ANY_NAME:
                own_rows += self._rows_of_headline(report, rows[0])
        return own_rows

    def _rows_of_headline(self, report: Report, like: Row) -> list[Row]:
        """Return this look's pooled rows of the declared variants of a metric.

        Parameters
        ----------
        like
            A row of the metric.
        """
        # Declared in the audit, see `metric_of`.
        headline = metric_of(like.audit, like.metric).headline
        own_rows = []
        for row in report.results:
            is_metric = (row.audit, row.metric) == (like.audit, like.metric)
            is_variant = row.group == "pooled" and row.variant in headline
            if row.checkpoint == self.name and is_metric and is_variant:
                own_rows.append(row)
        return own_rows

"""One look at a model in training: its report, and the figures that are logged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from spark_audit.audits import metric_of
from spark_audit.names import ANY_NAME
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.glance import main_rows
from spark_audit.results import Finding, Report, Row

LOG_PREFIX = "spark_audit/"
"""What names of logged figures begin with."""


@dataclass(frozen=True)
class AuditLook:
    """What one look came to.

    Attributes
    ----------
    name
        The checkpoint in the report; ``base`` before the first step.
    report
        Figures of this look, findings of all looks until it.
    tripped
        The rules that it breaks, each with what was found.
    """

    step: int
    name: str
    report: Report = field(repr=False)
    tripped: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Findings of this look, or of the report as a whole; severest first."""
        return [
            finding
            for finding in self.report.findings
            if finding.checkpoint in ("", self.name)
        ]

    @cached_property
    def shared(self) -> AuditLook:
        """The same look, its figures rounded or withheld as in files for others."""
        return replace(self, report=disclosed(self.report))

    def figures(self) -> dict[str, float]:
        """Return what is logged: shared figures, by the names of the gate's rules."""
        figures = self._severities()
        for row in self._main_rows():
            of = f".{row.of}" if row.of else ""
            name = f"{LOG_PREFIX}{row.audit}.{row.metric}{of}"
            for end in ("value", "low", "high"):
                # What is withheld in shared files is not logged either.
                value = getattr(row, end)
                if value is not None:
                    figures[f"{name}.{end}"] = float(value)
        return figures

    def _severities(self) -> dict[str, float]:
        """Return the highest severity of all findings, and of each audit's."""
        severities = {f"{LOG_PREFIX}severity": 0.0}
        for finding in self.findings:
            names = [f"{LOG_PREFIX}severity"]
            # Findings on the report as a whole are of no audit.
            if finding.checkpoint:
                names.append(f"{LOG_PREFIX}{finding.audit}.severity")
            for name in names:
                severity = float(finding.severity)
                severities[name] = max(severities.get(name, 0.0), severity)
        return severities

    def _main_rows(self) -> list[Row]:
        """Return the rows of this look that a report's first table has.

        The table shows the best variant of some metrics, and which one is the best
        differs between looks. So variants that stay the same are taken, too: a curve
        of one variant can be drawn over all looks.
        """
        report = self.shared.report
        own_rows: list[Row] = []
        for _, declared, rows in main_rows(report):
            own_rows += [row for row in rows if row.checkpoint == self.name]
            if declared == ANY_NAME:
                own_rows += self._rows_of_headline(report, rows[0])
        return own_rows

    def _rows_of_headline(self, report: Report, like: Row) -> list[Row]:
        """Return the pooled rows of this look of a metric's declared variants.

        Parameters
        ----------
        like
            A row of the metric.
        """
        headline = metric_of(like.audit, like.metric).headline
        own_rows = []
        for row in report.results:
            is_metric = (row.audit, row.metric) == (like.audit, like.metric)
            is_variant = row.group == "pooled" and row.of in headline
            if row.checkpoint == self.name and is_metric and is_variant:
                own_rows.append(row)
        return own_rows

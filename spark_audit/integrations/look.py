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
                value = getattr(row, end)
                if value is not None:
                    figures[f"{name}.{end}"] = float(value)
        return figures

    def _severities(self) -> dict[str, float]:
        """Return the highest severity of all findings, and of each audit's."""
        severities = {f"{LOG_PREFIX}severity": 0.0}
        for finding in self.findings:
            names = [f"{LOG_PREFIX}severity"]
            if finding.checkpoint:
                names.append(f"{LOG_PREFIX}{finding.audit}.severity")
            for name in names:
                severity = float(finding.severity)
                severities[name] = max(severities.get(name, 0.0), severity)
        return severities

    def _main_rows(self) -> list[Row]:
        """Return the rows of this look that a report's first table has."""
        report = self.shared.report
        shown: list[Row] = []
        for _, declared, rows in main_rows(report):
            shown += [row for row in rows if row.checkpoint == self.name]
            if declared == ANY_NAME:  # of those that vary, what stays the same too
                audit, metric = rows[0].audit, rows[0].metric
                headline = metric_of(audit, metric).headline
                shown += [
                    row
                    for row in report.results
                    if row.checkpoint == self.name
                    and (row.audit, row.metric) == (audit, metric)
                    and row.group == "pooled"
                    and row.of in headline
                ]
        return shown

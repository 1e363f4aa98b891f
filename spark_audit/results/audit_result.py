"""The conclusions of an audit, before they are written anywhere.

An audit returns an :class:`AuditResult`; ``pipeline/conclude.py`` unites those of all
audits in a :class:`~spark_audit.results.report.Report`. Both show their lists as frames
by :func:`spark_audit.results.frames.frame`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.arguments import checked_call
from spark_audit.cells_html import cell_html, counted, short_repr
from spark_audit.results.findings import Finding, by_severity
from spark_audit.results.frames import frame
from spark_audit.results.guards import Guard
from spark_audit.results.rows import Contrast, Row, Strict

if TYPE_CHECKING:
    import pandas as pd

    from spark_audit.results.evidence import Evidence

REPORT_LISTS: dict[str, type[Strict]] = {
    "results": Row,
    "contrasts": Contrast,
    "guards": Guard,
    "findings": Finding,
}
"""Lists that audits and reports hold, and the type of their records."""

TableRecord: TypeAlias = dict[str, Any]
"""A record of a further table of an audit: plain values by column."""


@dataclass(frozen=True, repr=False)
class AuditResult:
    """Conclusions of an audit, before they are written to a file.

    They contain no text and no token ids.

    Attributes
    ----------
    results
        Figures of single checkpoints, one row per figure.
    contrasts
        Differences of figures from those of a baseline.
    guards
        Conditions that can void a claim.
    findings
        What was found and what was not, in plain words.
    tables
        Further small tables of the report, by name.
    settings
        Settings that the audit used, after its defaults were filled in.
    evidence
        Units (examples, identifiers, candidate sets ...) and the scores from which the
        conclusions follow. They are written to ``scores/``. Comparisons of reports read
        them and need neither model nor manifest.

    Examples
    --------
    >>> result = sa.audits.NLL()(scores, manifest)
    >>> isinstance(result, sa.AuditResult), {*result.to_frame()["metric"]}
    (True, {'nll'})
    """

    results: list[Row] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tables: dict[str, list[TableRecord]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None

    def __repr__(self) -> str:
        return short_repr(self, results=len(self.results), findings=len(self.findings))

    def _repr_html_(self) -> str:
        """Return the HTML of its claims, without figures, for a notebook."""
        figures = counted(len(self.results), "figure")
        differences = counted(len(self.contrasts), "difference")
        return cell_html(
            f"Result of an audit: {figures}, {differences}",
            ["checkpoint", "audit", "claim", "metric"],
            [
                (finding.checkpoint, finding.audit, finding.claim, finding.metric)
                for finding in by_severity(self.findings)
            ],
            note="Claims before a report corrects for multiple tests. "
            "Figures: to_frame(); sentences: verdict.",
        )

    @checked_call
    def to_frame(self, of: str = "results") -> pd.DataFrame:
        """Return one of its lists as a frame, with one line per record.

        ``docs/frames.md`` has its columns and their dtypes. ``state`` and ``voided_by``
        are empty here: only a report knows the states of checkpoints.

        Parameters
        ----------
        of
            ``results``, ``contrasts``, ``guards``, ``findings``, or the name of a
            further table.
        """
        return frame(of, self, REPORT_LISTS)

    @property
    def verdict(self) -> list[str]:
        """The sentences of the findings, the most severe first."""
        return [finding.sentence for finding in by_severity(self.findings)]

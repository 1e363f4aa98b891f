"""The conclusions of an audit, before they are written anywhere.

An audit returns an :class:`AuditResult`; ``pipeline/conclude.py`` unites those of all
audits in a :class:`~spark_audit.results.report.Report`. Both show their lists as frames
by :func:`frame`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel

from spark_audit.errors import InputError, choose
from spark_audit.results.findings import Finding, Guard, by_severity
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


def frame(of: str, holder: Any, lists: Mapping[str, type[BaseModel]]) -> pd.DataFrame:
    """Return a list of records, or a further table, as a frame with a row per record.

    Parameters
    ----------
    of
        Name of the list or table.
    holder
        A report or the result of an audit: it has an attribute for each list, and
        ``tables`` by name.
    lists
        Name of each list -> type of its records. All fields except the facts of
        sentences become columns.

    Raises
    ------
    InputError
        If there is no such list or table; the message lists the known names.
    """
    # pandas takes long to import, and reading a report does not need it.
    import pandas as pd

    # A list of records; without any it keeps its columns.
    if of in lists:
        record_type = lists[of]
        columns = [*record_type.model_fields, *record_type.model_computed_fields]
        records = [record.model_dump() for record in getattr(holder, of)]
        table = pd.DataFrame(records, columns=columns)

        # Facts are nested records, which do not fit into a cell.
        return table.drop(columns="facts", errors="ignore")

    # A further table, by its name.
    if of in holder.tables:
        return pd.DataFrame(holder.tables[of])

    fix = choose(of, [*lists, *holder.tables])
    raise InputError(f"there is no table {of!r}", fix=fix)


@dataclass(frozen=True, repr=False)
class AuditResult:
    """Conclusions of an audit, before they are written to a file.

    They contain no text and no token ids.

    Attributes
    ----------
    rows, contrasts
        Figures of single checkpoints, and their differences from a baseline.
    guards
        Conditions that can void a claim.
    findings
        What was found and what was not, in plain words.
    tables
        Further small tables of the report, by name.
    settings
        Settings that the audit used, after its defaults were filled in.
    evidence
        Units and scores that the conclusions follow from. They are written to
        ``scores/``. Comparisons of reports read them and need neither model nor
        manifest.
    """

    rows: list[Row] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tables: dict[str, list[TableRecord]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None

    def __repr__(self) -> str:
        return f"AuditResult({len(self.rows)} rows, {len(self.findings)} findings)"

    def to_frame(self, of: str = "results") -> pd.DataFrame:
        """Return the rows as a frame with one figure per line.

        Parameters
        ----------
        of
            ``results``, ``contrasts``, ``guards``, ``findings``, or a further table.
        """
        return frame(of, self, REPORT_LISTS)

    @property
    def results(self) -> list[Row]:
        """The rows, under the name that they have in reports."""
        return self.rows

    @property
    def verdict(self) -> list[str]:
        """The sentences of the findings, the most severe first."""
        return [finding.sentence for finding in by_severity(self.findings)]

"""What an audit concludes, before it is written anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    TypeAlias,
)

from pydantic import (
    BaseModel,
)

from spark_audit.errors import InputError, choose

if TYPE_CHECKING:
    import pandas as pd

    from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Finding, Guard, by_severity
from spark_audit.results.rows import Contrast, Row, Strict


def frame(of: str, held: Any, lists: Mapping[str, type[BaseModel]]) -> pd.DataFrame:
    """One of the lists that something holds, or of its further tables, as a frame.

    Raises
    ------
    InputError
        If there is none of that name; it names those that there are.
    """
    import pandas as pd

    if of in lists:
        records = [one.model_dump() for one in getattr(held, of)]
        names = [*lists[of].model_fields, *lists[of].model_computed_fields]
        table = pd.DataFrame(records, columns=names)
        return table.drop(columns="facts", errors="ignore")
    if of in held.tables:
        return pd.DataFrame(held.tables[of])
    fix = choose(of, [*lists, *held.tables])
    raise InputError(f"there is no table {of!r}", fix=fix)


REPORT_LISTS: dict[str, type[Strict]] = {
    "results": Row,
    "contrasts": Contrast,
    "guards": Guard,
    "findings": Finding,
}
"""What audits and reports hold lists of."""


TableRecord: TypeAlias = dict[str, Any]
"""A record of a further table of an audit: plain values by column."""


@dataclass(frozen=True, repr=False)
class AuditResult:
    """What an audit concludes, before it is written anywhere.

    ``findings`` say in plain words what was found and what was not. ``tables`` are
    small further tables by name (a list of records each) that stand in the report,
    ``settings`` what was really used; ``evidence`` is what the audit concludes from,
    written to ``scores/`` and read again by comparisons, which need neither model nor
    manifest. Neither holds text or token ids.
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
        """The rows as a frame, a figure a line.

        Parameters
        ----------
        of
            ``results``, ``contrasts``, ``guards``, ``findings``, or a further table.
        """
        return frame(of, self, REPORT_LISTS)

    @property
    def results(self) -> list[Row]:
        """The rows, as reports call them."""
        return self.rows

    @property
    def verdict(self) -> list[str]:
        """The sentences of the findings, the most severe first."""
        return [finding.sentence for finding in by_severity(self.findings)]

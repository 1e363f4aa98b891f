"""The data of each attack of a report, and whether it tested memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_audit import sentences
from spark_audit.audits import about, all_audits
from spark_audit.names import BASE, entry_of, series_of
from spark_audit.results import OF_REPORT, Finding, Report


def remembers(finding: Finding) -> bool:
    """Whether a finding rests on a test of memory, whatever that came to."""
    if finding.alone in ("not_tested", "confounded") or finding.checkpoint == BASE:
        return False
    if finding.alone in ("verbatim", "memory"):
        return True
    tested = finding.family == "primary" and finding.p is not None
    return about(finding.audit).memory and (tested or finding.metric == "memory")


def unclear(finding: Finding) -> bool:
    """Whether a finding may be memory, or a difference between the texts."""
    if finding.claim != "confounded" or finding.checkpoint == BASE:
        return False
    return about(finding.audit).memory or finding.audit == "extract"


def untested(findings: Sequence[Finding], names: Iterable[str]) -> list[Finding]:
    """That memory was not tested: of no checkpoint, or of some.

    Of a method with several seeds or stages one test is enough.
    """
    tested = {_method(one.checkpoint) for one in findings if remembers(one)}
    entries = [k for k in dict.fromkeys(map(_method, names)) if k != BASE]
    lacking = [name for name in entries if name not in tested]
    if lacking and len(lacking) == len(entries):
        lacking = [""]
    says = "report.untested"
    return [Finding.not_tested(OF_REPORT, says, checkpoint=name) for name in lacking]


def _method(name: str) -> str:
    return entry_of(series_of(name))


@dataclass(frozen=True)
class Coverage:
    """On how much an attack was tried; ``count`` 0: it came to no figure."""

    audit: str
    count: int = 0
    types: int = 0

    @property
    def on(self) -> str:
        """In words; empty: on nothing."""
        facts = {"count": self.count, "types": self.types}
        key = f"audit.{self.audit}.covers"
        if not sentences.knows(key):
            return str(self.count or "")
        return sentences.render(key, **facts) if self.count else ""


def coverage(report: Report) -> list[Coverage]:
    """On how much each attack was tried."""
    covers = []
    for name, (metric, field) in attacks_of_audits():
        rows = [
            row
            for row in report.results
            if (row.audit, row.metric) == (name, metric) and row.n
        ]
        rows = [row for row in rows if row.checkpoint != BASE] or rows
        counts = [getattr(row, field) for row in rows if row.group == "pooled"]
        types = {r.grouping[1] for r in rows if r.grouping[0] == "type"}
        covers.append(Coverage(name, max(counts, default=0), len(types)))
    return covers


def attacks_of_audits() -> Iterator[tuple[str, tuple[str, str]]]:
    """Audits that attack checkpoints, and the metric and field that say on how much."""
    for name in list(all_audits()):
        if covers := about(name).covers:
            yield name, covers

"""The data of each attack of a report, and whether it tested memory."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """On how much an attack was tried; ``count`` 0: it came to no figure.

    ``facts`` are those of its findings: sizes of the two sides stand among them.
    """

    audit: str
    count: int = 0
    types: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def on(self) -> str:
        """In words; empty: on nothing."""
        key = f"audit.{self.audit}.covers"
        if not sentences.knows(key):
            return str(self.count or "")
        return sentences.render(key, **vars(self)) if self.count else ""


def coverage(report: Report) -> list[Coverage]:
    """On how much each attack was tried."""
    covers = []
    for name, (metric, size) in attacks_of_audits():
        rows = [
            row
            for row in report.results
            if (row.audit, row.metric) == (name, metric) and row.n
        ]
        rows = [row for row in rows if row.checkpoint != BASE] or rows
        counts = [getattr(row, size) for row in rows if row.group == "pooled"]
        types = {r.grouping[1] for r in rows if r.grouping[0] == "type"}
        findings = (f for f in report.findings if f.audit == name)
        parts = [one.facts for one in findings if one.checkpoint != BASE]
        guards = (g for g in report.guards if g.says.startswith(f"guard.{name}."))
        facts = ChainMap(*map(dict, [*parts, *(guard.facts for guard in guards)]))
        covers.append(Coverage(name, max(counts, default=0), len(types), facts))
    return covers


def attacks_of_audits() -> Iterator[tuple[str, tuple[str, str]]]:
    """Audits that attack checkpoints, and the metric and field that say on how much."""
    for name in list(all_audits()):
        if covers := about(name).covers:
            yield name, covers

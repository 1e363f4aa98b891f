"""Which audits attack checkpoints, and whether they tested memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from spark_audit.audits import about, all_audits
from spark_audit.names import BASE, CONTROL, entry_of, series_of
from spark_audit.results import OF_REPORT, Finding


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
    tested = {method_of(one.checkpoint) for one in findings if remembers(one)}
    bases = (BASE, CONTROL)
    entries = [k for k in dict.fromkeys(map(method_of, names)) if k not in bases]
    lacking = [name for name in entries if name not in tested]
    if lacking and len(lacking) == len(entries):
        lacking = [""]
    says = "report.untested"
    return [Finding.not_tested(OF_REPORT, says, checkpoint=name) for name in lacking]


def method_of(name: str) -> str:
    """The method that a seed or a stage of a series is of, else the name."""
    return entry_of(series_of(name))


def attacks_of_audits(ran: Collection[str]) -> list[str]:
    """Audits that attack checkpoints; what runs on request only, where it ran."""
    known = {name: about(name) for name in all_audits()}
    return [
        k for k, one in known.items() if one.covers and (k in ran or not one.on_request)
    ]

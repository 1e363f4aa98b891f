"""What is claimed once all primary tests of a report count: one family, by Holm.

Among many checkpoints and audits some test comes out by chance alone. A detection is
claimed only where its p holds once corrected over all primary tests of the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spark_audit.checkpoints.specs import BASE
from spark_audit.names import entry_of, series_of
from spark_audit.results import OF_REPORT, Finding
from spark_audit.results.rows import DETECTED, SEVERITY
from spark_audit.stats.bootstrap import holm

LEVEL = 0.05
TESTS = "primary_tests"
"""Setting of a report: how many tests its primary family has."""
REMEMBERS = ("matched", "twins", "canary", "stages")
"""Audits whose tests are of what was remembered."""
UNTESTED = (
    "memory was not tested: no audit of this report that tests for it (`matched`, "
    "`twins`, `canary`, `stages`) had what it needs"
)
GIVE = (
    "Run `matched` with held-out rows that hold identifiers, run `twins`, or plant "
    "canaries before training (`spark-audit data inject`)"
)


def family(findings: Iterable[Finding]) -> list[Finding]:
    """The primary tests among findings; the base was trained on nothing."""
    return [
        one
        for one in findings
        if one.family == "primary" and one.p is not None and one.checkpoint != BASE
    ]


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, each claiming what it may among all of these.

    ``p_adjusted`` of a primary finding is its p corrected by Holm over the primary
    findings, those that claim nothing included. A detection that does not hold claims
    ``nothing_shown`` and changes its sentences; given again among other findings it
    may claim it again, since all that is needed stays in it.
    """
    tests = family(findings)
    ps = holm([one.p or 0.0 for one in tests]).tolist() if tests else []
    adjusted = {id(one): p for one, p in zip(tests, ps, strict=True)}
    return [
        _judged(one, adjusted[id(one)]) if id(one) in adjusted else one
        for one in findings
    ]


def _judged(finding: Finding, p: float) -> Finding:
    changes: dict[str, Any] = {"p_adjusted": p}
    holds = p < LEVEL or SEVERITY[finding.alone] < DETECTED
    own = finding.alone if holds else "nothing_shown"
    if own != finding.claim:
        said = {"sentence": finding.otherwise, "otherwise": finding.sentence}
        changes |= {"claim": own, **said}
    return finding.model_copy(update=changes)


def remembers(finding: Finding) -> bool:
    """Whether a finding rests on a test of memory, whatever that came to."""
    if finding.alone in ("not_tested", "confounded") or finding.checkpoint == BASE:
        return False
    if finding.alone in ("verbatim", "memory"):
        return True
    tested = finding.family == "primary" and finding.p is not None
    return finding.audit in REMEMBERS and (tested or finding.metric == "memory")


def untested(findings: Sequence[Finding], names: Iterable[str]) -> list[Finding]:
    """That memory was not tested: of no checkpoint, or of some.

    Of a method with several seeds or stages one test is enough.
    """
    tested = {_entry(one.checkpoint) for one in findings if remembers(one)}
    entries = [k for k in dict.fromkeys(map(_entry, names)) if k != BASE]
    lacking = [name for name in entries if name not in tested]
    if lacking and len(lacking) == len(entries):
        text = f"{UNTESTED[0].upper()}{UNTESTED[1:]}. {GIVE}."
        return [Finding(audit=OF_REPORT, claim="not_tested", sentence=text)]
    return [
        Finding(
            audit=OF_REPORT,
            checkpoint=name,
            claim="not_tested",
            sentence=f"{name}: {UNTESTED}.",
        )
        for name in lacking
    ]


def _entry(name: str) -> str:
    return entry_of(series_of(name))

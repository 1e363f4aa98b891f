"""Which findings are tests of memory, and which checkpoints have none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_audit.audits import about
from spark_audit.names import BASE, RELEARNED_BASE
from spark_audit.report.tried import method_of
from spark_audit.results import OF_REPORT, Finding

NOT_TESTED_CLAIMS = ("not_tested", "confounded")
"""Claims that state why memory was not tested."""


def is_memory_test(finding: Finding) -> bool:
    """Return whether a finding rests on a test of memory, whatever its result."""
    # ``alone`` is the claim before the correction over all tests of the report.
    is_claim_lost = finding.can_only_claim and finding.withdrawn
    if is_claim_lost or finding.alone in NOT_TESTED_CLAIMS:
        return False
    if finding.checkpoint == BASE:
        return False
    if finding.alone in ("verbatim", "memory"):
        return True

    if not about(finding.audit).memory:
        return False
    is_primary_test = finding.family == "primary" and finding.p is not None
    return is_primary_test or finding.metric == "memory"


def untested(
    findings: Sequence[Finding], names: Iterable[str], *, is_of_text: bool = False
) -> list[Finding]:
    """Return a finding for each checkpoint whose memory was not tested.

    If that holds for all, there is one finding on the report. For a method with several
    seeds or stages one test is enough.

    Parameters
    ----------
    names
        Names of all checkpoints of the report.
    is_of_text
        Whether they are endpoints that give only text.
    """
    tested_names = set()
    for finding in findings:
        if is_memory_test(finding):
            tested_names.add(method_of(finding.checkpoint))

    methods = dict.fromkeys(method_of(name) for name in names)
    # Memory of the base is not tested: it was trained on none of the rows.
    audited_names = [name for name in methods if name not in (BASE, RELEARNED_BASE)]
    untested_names = [name for name in audited_names if name not in tested_names]
    if untested_names and len(untested_names) == len(audited_names):
        # A finding without a checkpoint is on the report.
        untested_names = [""]

    says, further = "report.untested", ["report.tests_of_memory"]
    if is_of_text:
        says, further = "report.untested_by_text", []

    reasons = []
    for name in untested_names:
        reason = Finding.not_tested(
            OF_REPORT,
            says,
            checkpoint=name,
            further=further,
        )
        reasons.append(reason)
    return reasons

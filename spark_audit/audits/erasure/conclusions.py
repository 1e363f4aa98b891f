"""Findings on all checkpoints of an audit of erasure, in the order of the correction.

Models that others are compared with, broken ones and those of a mistaken setup have a
finding without a verdict. The verdicts on the others are chosen together, since they
are corrected over all findings (:mod:`~spark_audit.audits.erasure.verdicts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_audit.audits.erasure.comparison import NO_REFERENCE, ErasureComparison
from spark_audit.audits.erasure.findings import (
    CheckpointFigures,
    erasure_finding,
    reason_of_no_bound,
    reference_finding,
)
from spark_audit.audits.erasure.tables import margin_records
from spark_audit.audits.erasure.verdicts import (
    CheckpointTests,
    Margin,
    broken_of,
    chosen_verdicts,
    tests_of,
)
from spark_audit.names import RELEARN, CheckpointName, original_of
from spark_audit.results import Finding, Row
from spark_audit.results.audit_result import TableRecord


class ConcludedCheckpoints(NamedTuple):
    """The findings on all checkpoints, and the tests of equivalence of each.

    ``findings`` are in the order of the checkpoints; ``margin_records`` are those of
    the table ``erasure_margins``.
    """

    findings: list[Finding]
    margin_records: list[TableRecord]


def concluded_checkpoints(
    comparison: ErasureComparison,
    names: Sequence[str],
    figures: Mapping[str, CheckpointFigures],
    margin: Margin,
    margin_row: Row | None,
    *,
    mistake: str,
) -> ConcludedCheckpoints:
    """Return the findings on all checkpoints, and what they rest on.

    Parameters
    ----------
    names
        All checkpoints but the base, with copies.
    figures
        Those of each of them.
    margin, margin_row
        The margin, and its figure; None: there is no margin.
    mistake
        Key of the mistake of the setup; empty: there is none.
    """
    finding_by_name: dict[str, Finding] = {}
    tests_by_name: dict[str, CheckpointTests] = {}
    records: list[TableRecord] = []

    # Findings without a verdict come first, as the correction runs over them, too.
    for name in names:
        says = key_of_reference(name, comparison)
        if says:
            finding_by_name[name] = reference_finding(
                comparison, name, comparison.tests(name), figures[name], says=says
            )
            continue

        copies = [copy for copy in names if copy != name and original_of(copy) == name]
        tests = tests_of(comparison, name, copies, margin)
        records += margin_records(comparison, name, margin, tests.p_by_part)
        untested = _untested(comparison, name, figures[name], tests, mistake)
        if untested is None:
            tests_by_name[name] = tests
        else:
            finding_by_name[name] = untested

    p_of_references = {name: one.p for name, one in finding_by_name.items()}
    for name, verdict in chosen_verdicts(tests_by_name, p_of_references).items():
        reason = reason_of_no_bound(comparison, figures[name])
        if verdict.claim == "nothing_shown" and reason:
            finding_by_name[name] = Finding.not_tested(
                "erasure",
                "erasure.cannot_tell_few",
                checkpoint=name,
                reason=reason,
                persons=int(comparison.evidence.facts.get("persons", 0)),
            )
            continue
        finding_by_name[name] = erasure_finding(
            comparison,
            name,
            verdict,
            figures,
            margin_row,
            tests=tests_by_name[name],
        )
    return ConcludedCheckpoints([finding_by_name[name] for name in names], records)


def _untested(
    comparison: ErasureComparison,
    name: str,
    figures: CheckpointFigures,
    tests: CheckpointTests,
    mistake: str,
) -> Finding | None:
    """Return the finding that a checkpoint was not tested; None: it can be.

    The first match wins: it is broken, the setup is mistaken, or there is no test.
    """
    broken = broken_of(comparison.evidence, name)
    if broken is not None:
        relearned_copy = f"{name}+{RELEARN}"
        is_relearned = relearned_copy in comparison.evidence.checkpoints
        remark = "broken_relearned" if is_relearned else "broken_relearn"
        return Finding.not_tested(
            "erasure",
            "erasure.broken",
            checkpoint=name,
            further=[f"erasure.{remark}"],
            relearned_copy=relearned_copy,
            plain_text=broken.facts["plain_text"],
            base=broken.facts["base"],
        )
    if mistake:
        return Finding.not_tested(
            "erasure",
            f"erasure.missing_{mistake}",
            checkpoint=name,
            before=comparison.before,
            retrained=comparison.retrained,
        )
    if not tests.tests:
        reason = figures.remaining[comparison.part_of_rows.name].note
        return Finding.not_tested(
            "erasure",
            "erasure.missing",
            checkpoint=name,
            reason=reason or NO_REFERENCE,
        )
    return None


def key_of_reference(name: str, comparison: ErasureComparison) -> str:
    """Return the key of a finding without a verdict; empty: the name gets a verdict."""
    if original_of(name) == comparison.before:
        return "before"
    if original_of(name) == comparison.retrained:
        return "retrained"
    return "copy" if CheckpointName.parse(name).derived else ""


def not_scored(name: str, reference: str) -> Finding:
    """Return the finding that a model to compare with was not scored."""
    return Finding.not_tested(
        "erasure", "erasure.missing_reference", checkpoint=name, reference=reference
    )

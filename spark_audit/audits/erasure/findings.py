"""Findings of the audit of erasure: one per checkpoint, with its figures.

The verdict stands in ``verdict`` of the finding; it follows from the claim after the
correction over the report (:func:`verdict_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_audit.audits.erasure.comparison import (
    MEMBERSHIP,
    VERBATIM,
    ComparedPart,
    ErasureComparison,
    MemoryTestResult,
    WrittenOut,
)
from spark_audit.audits.erasure.units import IDENTIFIERS, TWINS
from spark_audit.audits.erasure.verdicts import CheckpointTests, ErasureVerdict
from spark_audit.results import Finding, Row
from spark_audit.results.findings import ALPHA, UNBOUNDED, UNUSABLE, Fact, Hits
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Power

REMEMBERED = "REMEMBERED"
SUPPRESSED = "SUPPRESSED"
BETRAYS = "BETRAYS"
BROKEN = "BROKEN"
ERASED = "ERASED"
CANNOT_TELL = "CANNOT TELL"

VERDICTS = (BROKEN, REMEMBERED, SUPPRESSED, BETRAYS, ERASED, CANNOT_TELL)
"""In the order in which they are decided."""

WITHOUT_VERDICT = ("before", "retrained", "copy", "missing")
"""Beginnings of keys of findings without a verdict."""


def verdict_of(finding: Finding) -> str:
    """Return the verdict of a finding; empty: it has none.

    The models before erasure and retrained have none, nor have copies, which decide the
    verdict on their original; no checkpoint has one if the setup is mistaken.
    """
    key = finding.says.removeprefix("erasure.")
    if key == "cannot_tell_few":
        return CANNOT_TELL
    if key == "broken" or finding.voided_by == "broken_model":
        return BROKEN
    if key.startswith(WITHOUT_VERDICT):
        return ""
    if finding.withdrawn:
        return CANNOT_TELL
    if finding.claim == "not_tested":
        return ""
    if finding.status in UNUSABLE:
        return CANNOT_TELL

    verdict_by_claim = {
        "memory": REMEMBERED,
        "membership": REMEMBERED,
        "verbatim": REMEMBERED,
        "suppressed": SUPPRESSED,
        "betrays": BETRAYS,
        "erased": ERASED,
    }
    return verdict_by_claim.get(finding.claim, CANNOT_TELL)


def is_reference(finding: Finding) -> bool:
    """Return whether a finding is on the model before erasure or on a retrained one."""
    key = finding.says.removeprefix("erasure.")
    return key.startswith(("before_", "retrained_"))


class CheckpointFigures(NamedTuple):
    """The figures that findings on a checkpoint show.

    Attributes
    ----------
    remaining
        Part -> its remaining difference.
    sides
        Part -> the changes of forget and of held-out rows.
    smallest
        The smallest margin that these data show for all parts; None: there is no test.
    auc
        AUC of membership of rows.
    rise
        Rise of identifiers among their twins; None: these were not scored.
    written
        Groups of identifiers that are written out.
    """

    remaining: Mapping[str, Row]
    sides: Mapping[str, tuple[Row, Row]]
    smallest: Row | None
    auc: Row
    rise: Row | None
    written: WrittenOut | None


def erasure_finding(
    comparison: ErasureComparison,
    name: str,
    verdict: ErasureVerdict,
    figures: Mapping[str, CheckpointFigures],
    margin: Row | None,
    *,
    tests: CheckpointTests,
) -> Finding:
    """Return the finding on a checkpoint that works and whose setup is right.

    It shows the part that decides: that of the test which the verdict rests on, else
    the part that is furthest from being within the margin.

    Parameters
    ----------
    figures
        Those of all checkpoints, by name.
    margin
        The margin; None: there is none.
    tests
        The tests of the checkpoint and of its copies.
    """
    if verdict.test is None:
        part = _part_furthest_from_margin(comparison, tests.p_by_part)
    else:
        part = _part_of_test(comparison, verdict.test)
    n_tests = tests.n_tests
    own = figures[name]
    row = own.remaining[part.name]
    forget, held_out = own.sides[part.name]
    facts: dict[str, Fact] = {
        "remaining": row,
        "forget": forget,
        "held_out": held_out,
        "before": figures[comparison.before].remaining[part.name],
    }
    n_persons = int(comparison.evidence.facts.get("persons", 0))
    if n_persons:
        facts["persons"] = n_persons
    if margin is not None:
        facts["margin"] = margin
    if own.smallest is not None:
        facts["smallest"] = own.smallest
    no_bound = reason_of_no_bound(comparison, own)
    if no_bound:
        facts[UNBOUNDED] = no_bound
    if verdict.copy:
        facts["copy"] = verdict.copy
        facts["returned"] = figures[verdict.copy].remaining[part.name]
    if own.written is not None:
        facts["written"] = Hits(
            count=own.written.n_forget, of=own.written.n_forget_groups
        )
        facts["written_held_out"] = Hits(
            count=own.written.n_held_out, of=own.written.n_held_out_groups
        )

    # A claim by twins or by membership rests on its own figure.
    rests_on = row
    is_by_twins = verdict.test is not None and verdict.test.kind == TWINS
    if is_by_twins and own.rise is not None and not verdict.copy:
        rests_on = own.rise
        facts["rise"] = own.rise
    is_by_membership = verdict.test is not None and verdict.test.kind == MEMBERSHIP
    if is_by_membership and not verdict.copy:
        rests_on = own.auc
        facts["auc"] = own.auc
    return Finding.on(
        rests_on,
        verdict.claim,
        f"erasure.{verdict.says}",
        further=_remarks(verdict, row, own, tests, margin),
        facts=facts,
        p=verdict.p,
        power=_power(comparison, name, part, n_tests) if rests_on is row else (),
        bounds=_bounds(comparison, name, part, n_tests) if rests_on is row else (),
    )


def reference_finding(
    comparison: ErasureComparison,
    name: str,
    tests: Sequence[MemoryTestResult],
    figures: CheckpointFigures,
    *,
    says: str,
) -> Finding:
    """Return the finding on the model before erasure, a retrained one, or a copy.

    It has no verdict. Its claim says whether it remembers the rows.
    """
    remembered = [test for test in tests if test.direction > 0]
    test = min(remembered or tests, key=lambda each: each.p, default=None)
    if test is None:
        reason = figures.remaining[comparison.part_of_rows.name].note
        return Finding.not_tested(
            "erasure", "erasure.missing", checkpoint=name, reason=reason
        )

    p = min(1.0, len(tests) * test.p)
    part = _part_of_test(comparison, test)
    row = figures.remaining[part.name]
    forget, held_out = figures.sides[part.name]
    facts: dict[str, Fact] = {
        "remaining": row,
        "forget": forget,
        "held_out": held_out,
    }
    is_remembered = test.direction > 0 and row.value is not None and row.value < 0
    key = "remembers" if is_remembered and p < ALPHA else "nothing"
    return Finding.on(
        row,
        "memory" if key == "remembers" else "nothing_shown",
        f"erasure.{says}_{key}",
        facts=facts,
        p=p,
        power=_power(comparison, name, part, len(tests)),
        bounds=_bounds(comparison, name, part, len(tests)),
    )


def reason_of_no_bound(
    comparison: ErasureComparison, figures: CheckpointFigures
) -> str:
    """Return why nothing bounds what remains; empty: it has an interval.

    Tests that may show memory, but bound nothing where they show none, are no test
    of erasure.
    """
    if any(row.value is not None for row in figures.remaining.values()):
        return ""
    return figures.remaining[comparison.part_of_rows.name].note


def _part_of_test(
    comparison: ErasureComparison, test: MemoryTestResult
) -> ComparedPart:
    """Return the part of a test; for a test of membership, the text of rows."""
    if test.kind in (VERBATIM, TWINS):
        return _part_named(comparison, IDENTIFIERS)
    return _part_named(comparison, test.kind)


def _part_furthest_from_margin(
    comparison: ErasureComparison, p_by_part: Mapping[str, float]
) -> ComparedPart:
    """Return the part of largest p of equivalence; without any p, the text of rows.

    Parameters
    ----------
    p_by_part
        See :attr:`CheckpointTests.p_by_part
        <spark_audit.audits.erasure.verdicts.CheckpointTests.p_by_part>`.
    """
    if not p_by_part:
        return comparison.part_of_rows
    name = max(p_by_part, key=lambda part_name: p_by_part[part_name])
    return _part_named(comparison, name)


def _part_named(comparison: ErasureComparison, name: str) -> ComparedPart:
    """Return a part by its name; the text of rows if there is no such part."""
    for part in comparison.parts:
        if part.name == name:
            return part
    return comparison.part_of_rows


def _remarks(
    verdict: ErasureVerdict,
    remaining: Row,
    figures: CheckpointFigures,
    tests: CheckpointTests,
    margin: Row | None,
) -> list[str]:
    """Return the keys of the sentences that follow a verdict.

    Parameters
    ----------
    remaining
        What remains of the part that the finding shows.
    """
    remarks = []
    # What comes back in a copy may also betray who asked, as it is.
    is_less_likely = remaining.value is not None and remaining.value > 0
    betrays = any(tests.corrected(test) < ALPHA for test in tests.less_likely_tests)
    if verdict.claim == "suppressed" and is_less_likely and betrays:
        remarks.append("erasure.suppressed_less_likely")

    if verdict.test is None and margin is not None:
        remarks.append("erasure.decides")
    elif margin is not None:
        remarks.append("erasure.of_before")
    if verdict.claim == "nothing_shown" and figures.smallest is not None:
        remarks.append("erasure.smallest")
    return remarks


def _power(
    comparison: ErasureComparison, name: str, part: ComparedPart, n_tests: int
) -> list[Power]:
    """Return the inputs of the smallest detectable difference."""
    difference = comparison.difference(name, part).difference
    if not difference.se:
        return []
    return [
        Power(
            test="t",
            se=difference.se,
            df=difference.df,
            tolerance=comparison.gaps[part.name],
            n_tests=n_tests,
        )
    ]


def _bounds(
    comparison: ErasureComparison, name: str, part: ComparedPart, n_tests: int
) -> list[Bound]:
    """Return the inputs of the memory that could still be there."""
    difference = comparison.difference(name, part).difference
    return [
        *t_bound(
            difference.value,
            difference.low,
            df=difference.df,
            direction=-1,
            tolerance=comparison.gaps[part.name],
            n_tests=n_tests,
        )
    ]

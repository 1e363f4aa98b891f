"""Returns: memory that a short training on other rows brings back.

A method that suppresses memory may leave it in the weights. To find out, a checkpoint
(the original) is trained shortly on other rows. The memory of this relearned checkpoint
is compared with that of the original. The base is relearned with the same rows, and its
change is subtracted: these rows may move trained and held-out identifiers unequally
even without memory.

Memory is the change of the NLL of trained identifiers minus that of held-out ones, in
nats per token. Below 0, trained ones are likelier. A return needs two tests: memory
grew by that training, and there is memory after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits.identifiers import memory_claim
from spark_audit.audits.matched.report_rows import contrast_of, row_of
from spark_audit.audits.matched.units import MemoryTest, UnitScores
from spark_audit.audits.matched.verdict import Verdict, matched_finding, not_estimable
from spark_audit.names import (
    BASE,
    RELEARN,
    RELEARNED_BASE,
    CheckpointName,
    entry_of,
    original_of,
)
from spark_audit.results import Contrast, Finding, Row
from spark_audit.results.findings import Fact


@dataclass(frozen=True)
class Return:
    """The memory that a short training on other rows brought back to one checkpoint.

    Attributes
    ----------
    change
        Memory after that training minus memory before it, nats per token. Below 0,
        trained identifiers became likelier, compared with held-out ones.
    after
        Memory after that training, nats per token.
    finding
        The conclusion. ``None``: a test is possible, but the texts of the two sides
        differ, so that no difference between them is memory.
    """

    change: Contrast
    after: Row
    finding: Finding | None


@dataclass(frozen=True)
class ReturnTests:
    """The two tests of one return, which must both hold.

    Attributes
    ----------
    original
        The checkpoint before that training.
    change, test_of_change
        Memory after that training minus memory before it, and its test.
    after, test_after
        Memory after that training, and its test.
    """

    original: str
    change: Contrast
    test_of_change: MemoryTest
    after: Row
    test_after: MemoryTest

    @property
    def p(self) -> float | None:
        """Return the larger p, since both tests must hold; None: one has no p."""
        p_of_change = self.test_of_change.p
        p_after = self.test_after.p
        if self.change.value is None or p_of_change is None or p_after is None:
            return None
        return max(p_of_change, p_after)


def returns(
    scores: UnitScores, rows: Sequence[Row], findings: Sequence[Finding]
) -> Iterator[Return]:
    """Yield the return of each relearned checkpoint.

    There is none if its original, the base or the relearned base was not scored.

    Parameters
    ----------
    rows
        Figures of all checkpoints, of single replicates too.
    findings
        All other findings. If they show memory before that training, of a replicate or
        of its method, no return is claimed.
    """
    remembers_before = _names_with_memory(rows, findings)
    is_confounded = scores.pooled.is_told_by_text

    for name in scores.nll:
        is_relearned = CheckpointName.parse(name).derived == RELEARN
        if not is_relearned or name == RELEARNED_BASE:
            continue

        original = original_of(name)
        if not {BASE, RELEARNED_BASE, original} <= scores.nll.keys():
            continue

        # If texts distinguish the sides there is no claim. Only the finding that a test
        # is missing (without p) is made all the same.
        tests = _return_tests(scores, name, original)
        finding = None
        if tests.p is None or not is_confounded:
            finding = _return_finding(tests, remembers_before)
        yield Return(change=tests.change, after=tests.after, finding=finding)


def _names_with_memory(rows: Sequence[Row], findings: Sequence[Finding]) -> set[str]:
    """Return the checkpoints and methods that show memory of trained identifiers.

    Memory counts without correction, since memory that was there before is no return.
    """
    names = {finding.checkpoint for finding in findings if finding.alone == "memory"}

    # Replicates have no findings, so read their rows.
    for row in rows:
        is_memory_of_all = (row.metric, row.variant, row.group) == (
            "memory",
            "",
            "pooled",
        )
        if is_memory_of_all and memory_claim(row) == "memory":
            names.add(row.checkpoint)
    return names


def _return_tests(scores: UnitScores, name: str, original: str) -> ReturnTests:
    """Return the figures and tests of the memory that came back in ``name``."""
    nll = scores.nll
    pooled = scores.pooled
    seed = scores.context.seed

    # NLL minus that of the base, before and after that training; each (units,), nats.
    beyond_base_before = nll[original] - nll[BASE]
    beyond_base_after = nll[name] - nll[RELEARNED_BASE]

    test_of_change = pooled.test_memory(
        beyond_base_after - beyond_base_before, seed=seed
    )
    test_after = pooled.test_memory(beyond_base_after, seed=seed)

    change = contrast_of(
        test_of_change.memory.difference,
        checkpoint=name,
        baseline=original,
        metric="returned",
        no_effect=0.0,
        p=test_of_change.p,
    )
    after = row_of(
        test_after.memory.difference,
        checkpoint=name,
        metric="returned",
        variant="after",
        no_effect=0.0,
    )
    return ReturnTests(
        original=original,
        change=change,
        test_of_change=test_of_change,
        after=after,
        test_after=test_after,
    )


def _return_finding(tests: ReturnTests, remembers_before: Collection[str]) -> Finding:
    """Return the finding on one return; the first match wins.

    ======================  =============  ============================================
    sentence                claim          condition
    ======================  =============  ============================================
    return_missing          not_tested     one of the two tests cannot be made
    return_known            nothing_shown  the original shows memory already
    return_known_of_method  nothing_shown  the mean of its replicates does
    returned                memory         both tests show memory
    not_returned            nothing_shown  otherwise
    ======================  =============  ============================================

    Only the last two are declared tests with a p.

    Parameters
    ----------
    remembers_before
        Checkpoints and methods that show memory before that training.
    """
    change = tests.change
    facts: dict[str, Fact] = {
        "returned": change,
        "after": tests.after,
        "original": tests.original,
    }
    remarks = ("return_after", "return_change")

    if tests.p is None:
        return not_estimable(change, "return_missing", facts)

    # Memory that is already known is not tested again.
    if tests.original in remembers_before:
        verdict = Verdict("nothing_shown", "return_known", remarks)
        return matched_finding(change, verdict, facts)

    method = entry_of(tests.original)
    if method in remembers_before:
        facts["method"] = method
        verdict = Verdict("nothing_shown", "return_known_of_method", remarks)
        return matched_finding(change, verdict, facts)

    verdict = Verdict("nothing_shown", "not_returned", remarks)
    if memory_claim(change) == memory_claim(tests.after) == "memory":
        verdict = Verdict("memory", "returned", remarks)
    return matched_finding(
        change,
        verdict,
        facts,
        is_declared=True,
        p=tests.p,
        power=[*tests.test_of_change.power, *tests.test_after.power],
        bounds=tests.test_of_change.bounds,
    )

"""Returns: memory that a short training on other rows brings back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits.identifiers import memory_claim
from spark_audit.audits.matched.pairs import contrast_of
from spark_audit.audits.matched.units import MemoryTest, UnitScores, row_of
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
    """What a short training on other rows brought back to one checkpoint.

    Attributes
    ----------
    change
        Memory after that training minus memory before it, nats per token: below 0,
        trained identifiers became likelier again and held-out ones did not.
    after
        Memory after that training, nats per token.
    finding
        What is concluded; ``None`` where there is a test, and the sides are confounded.
    """

    change: Contrast
    after: Row
    finding: Finding | None


def returns(
    scores: UnitScores, rows: Sequence[Row], findings: Sequence[Finding]
) -> Iterator[Return]:
    """Yield what came back to the original of each relearned checkpoint.

    A return is counted beyond the base, which is relearned with the same rows. So it
    needs the original, the base and the relearned base among the checkpoints; of others
    nothing is yielded.

    The rows of that short training move trained identifiers and others of their kind
    alike, or move the base unequally, too. Two tests must hold, both beyond the base:
    memory after that training, and that it is more than before. The larger p counts.

    Parameters
    ----------
    rows
        Figures of all checkpoints, of single replicates too.
    findings
        All other findings: where memory is shown before that training, of a replicate
        or of its method, nothing is claimed of a return.
    """
    nll = scores.nll
    pooled = scores.pooled
    seed = scores.context.seed

    # Memory that the original shows is no return. Replicates have no finding of their
    # own: their rows tell.
    remembers_before = {
        finding.checkpoint for finding in findings if finding.alone == "memory"
    }
    for row in rows:
        is_memory_of_all = (row.metric, row.of, row.group) == ("memory", "", "pooled")
        if is_memory_of_all and memory_claim(row) == "memory":
            remembers_before.add(row.checkpoint)

    for name in nll:
        original = original_of(name)
        is_relearned = CheckpointName.parse(name).derived == RELEARN
        if not is_relearned or name == RELEARNED_BASE:
            continue
        if not {BASE, RELEARNED_BASE, original} <= nll.keys():
            continue

        # Beyond the base, before and after that training: below 0 is likelier.
        beyond_base_before = nll[original] - nll[BASE]  # (units,), nats
        beyond_base_after = nll[name] - nll[RELEARNED_BASE]  # (units,), nats
        returned = beyond_base_after - beyond_base_before

        test_of_return = pooled.test_memory(returned, seed=seed)
        test_after = pooled.test_memory(beyond_base_after, seed=seed)

        # The two figures, and the finding.
        change = contrast_of(
            test_of_return.memory.difference,
            checkpoint=name,
            baseline=original,
            metric="returned",
            null=0.0,
            p=test_of_return.p,
        )
        after = row_of(
            test_after.memory.difference,
            checkpoint=name,
            metric="returned",
            of="after",
            null=0.0,
        )

        finding = None
        has_no_test = _has_no_test(change, test_of_return, test_after)
        # Confounded sides allow no claim, of whichever checkpoint.
        if has_no_test or not pooled.is_told_by_text:
            finding = _return_finding(
                change,
                after,
                test_of_return=test_of_return,
                test_after=test_after,
                original=original,
                remembers_before=remembers_before,
            )
        yield Return(change=change, after=after, finding=finding)


def _has_no_test(
    change: Contrast, test_of_return: MemoryTest, test_after: MemoryTest
) -> bool:
    """Return whether a return cannot be estimated or tested."""
    return change.value is None or test_of_return.p is None or test_after.p is None


def _return_finding(
    change: Contrast,
    after: Row,
    *,
    test_of_return: MemoryTest,
    test_after: MemoryTest,
    original: str,
    remembers_before: Collection[str],
) -> Finding:
    """Return what is concluded about one return; see :func:`returns`.

    Parameters
    ----------
    remembers_before
        Checkpoints and methods that show memory before that training.
    """
    facts: dict[str, Fact] = {
        "returned": change,
        "after": after,
        "original": original,
    }
    if change.value is None or test_of_return.p is None or test_after.p is None:
        return not_estimable(change, "return_missing", facts)

    remarks = ("return_after", "return_change")
    if original in remembers_before:
        return matched_finding(
            change, Verdict("nothing_shown", "return_known", remarks), facts
        )
    method = entry_of(original)
    if method in remembers_before:
        facts["method"] = method
        return matched_finding(
            change, Verdict("nothing_shown", "return_known_of_method", remarks), facts
        )

    # Both tests must hold.
    is_memory = memory_claim(change) == memory_claim(after) == "memory"
    if is_memory:
        verdict = Verdict("memory", "returned", remarks)
    else:
        verdict = Verdict("nothing_shown", "not_returned", remarks)
    return matched_finding(
        change,
        verdict,
        facts,
        is_declared=True,
        p=max(test_of_return.p, test_after.p),
        power=[*test_of_return.power, *test_after.power],
        bounds=test_of_return.bounds,
    )

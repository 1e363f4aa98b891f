"""Verdicts of the audit of erasure: what the tests of a checkpoint come to.

===============  ============  =========================================================
verdict          claim         condition; the first that holds decides
===============  ============  =========================================================
BROKEN           not_tested    it no longer works as a language model
(no verdict)     not_tested    the setup is mistaken: see
                               :mod:`~spark_audit.audits.erasure.setup`
REMEMBERED       memory,       forget rows or their identifiers stand out as likelier
                 membership,
                 verbatim
SUPPRESSED       suppressed    not so, but they do in a copy of it: after a short
                               training on other rows, or with rounded weights
BETRAYS          betrays       forget rows are less likely, by more than two models
                               without them differ: that tells who asked
ERASED           erased        what remains lies within the margin, in all copies, too
CANNOT TELL      nothing_shown none of these
===============  ============  =========================================================

p of the tests of a checkpoint and its copies is corrected over all of them
(Bonferroni), so that one of them errs in at most 5 of 100 cases. p of ERASED is the
largest of all of its tests, since all must hold. Each verdict is one primary finding,
which is corrected over the report as all others are. So "holds" means: also once
corrected over all checkpoints of this audit (:func:`chosen_verdicts`). A condition that
holds for its checkpoint alone gives way to a later one that holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.erasure.comparison import (
    MEMBERSHIP,
    VERBATIM,
    ComparedPart,
    ErasureComparison,
    MemoryTestResult,
)
from spark_audit.audits.erasure.units import (
    FORGET,
    IDENTIFIERS,
    LOW,
    RESPONSE,
    ROW,
    TWINS,
)
from spark_audit.audits.setup_faults import Fault, broken_fault
from spark_audit.names import BASE
from spark_audit.results import Claim
from spark_audit.results.evidence import Evidence
from spark_audit.stats.multiple_tests import holm_by_key

DEFAULT_SHARE = 0.25
"""Share of what the model before erasure remembers that is the margin by default."""

STEP_OF_MARGIN = 0.05
"""Nats per token of which the default margin is a multiple, and at least one.

Every file shows it as it is. That gives nobody away: a quarter of a mean over five
groups moves by no more than this if one of them moves by 1 nat per token.
"""

LEAST_SHARE_TO_BETRAY = 0.1
"""Share of what the model before erasure remembers by which forget rows must be less
likely to betray who asked **[ours]**.

Two models that never read the rows differ, too. Of 16 pairs of tiny ones none differed
by more than 0.05 of what is remembered there (``benchmarks/known_truth_erasure.md``).
"""

CLAIM_OF_TEST: Mapping[str, Claim] = {
    ROW: "memory",
    RESPONSE: "memory",
    IDENTIFIERS: "memory",
    TWINS: "memory",
    VERBATIM: "verbatim",
    MEMBERSHIP: "membership",
}
"""What a test is on -> the claim of a checkpoint whose forget rows stand out in it."""


@dataclass(frozen=True)
class Margin:
    """How far from 0 what remains may be to count as erased, nats per token.

    Attributes
    ----------
    value
        The margin, the same for all parts; 0: the model before erasure remembers none.
    parts
        The parts of which the model before erasure remembers more than the margin: what
        remains of each must lie within it. To lie within the margin tells nothing about
        a part that did so before erasure.
    is_too_wide
        Whether it remembers no part beyond the margin, though it remembers some.
    least_to_betray
        By how much forget rows must be less likely to betray who asked, nats per token;
        not more than the margin.
    """

    value: float
    parts: tuple[ComparedPart, ...]
    least_to_betray: float = 0.0
    is_too_wide: bool = False


def broken_of(evidence: Evidence, name: str) -> Fault | None:
    """Return the fault that a checkpoint is no language model any more.

    Forget rows do not count: what is to be forgotten may become as unlikely as it likes
    without harm to the model.
    """
    units = evidence.units
    is_other = units["side"] != FORGET
    kinds = {LOW: "low", ROW: "text"}
    asked = units[is_other & units["part"].isin([*kinds])]
    nll = evidence.row(name, "nll_sum")[asked.index]
    base_nll = asked["ref_sum"].to_numpy(np.float64)
    if BASE in evidence.checkpoints:
        base_nll = evidence.row(BASE, "nll_sum")[asked.index]

    as_setup_units = pd.DataFrame(
        {
            "kind": asked["part"].map(kinds).to_numpy(),
            "cluster": asked["cluster"].to_numpy(),
            "n_tokens": asked["n_tokens"].to_numpy(np.float64),
            "nll": nll,
            "base_nll": base_nll,
        }
    )
    vocabulary = int(evidence.facts.get("vocabulary", 2))
    return broken_fault(name, as_setup_units, vocabulary)


def margin_of(comparison: ErasureComparison, given: float | None) -> Margin:
    """Return the margin: the given one, or a share of what is to be erased.

    By default it is :data:`DEFAULT_SHARE` of the difference of the part that the model
    before erasure remembers most, as a multiple of :data:`STEP_OF_MARGIN`.

    Parameters
    ----------
    given
        Nats per token; ``None``: the default.
    """
    remembered = {}
    for part in comparison.parts:
        contrast = comparison.difference(comparison.before, part)
        p = contrast.t_p(null=comparison.gaps[part.name])
        value = contrast.difference.value
        if p is not None and p < ALPHA and value is not None and value < 0:
            remembered[part] = abs(value)

    most = max(remembered.values(), default=0.0)
    margin = given
    if margin is None:
        n_steps = max(round(DEFAULT_SHARE * most / STEP_OF_MARGIN), 1)
        margin = round(n_steps * STEP_OF_MARGIN, 2) if remembered else 0.0

    parts = [part for part, value in remembered.items() if value > margin]
    return Margin(
        value=margin,
        parts=tuple(parts),
        least_to_betray=min(margin, LEAST_SHARE_TO_BETRAY * most),
        is_too_wide=bool(remembered) and not parts,
    )


@dataclass(frozen=True)
class CheckpointTests:
    """The tests of a checkpoint and of its copies.

    Attributes
    ----------
    name
        The checkpoint.
    tests
        Its own tests.
    tests_by_copy
        Copy -> its tests.
    less_likely_tests
        Tests of the checkpoint that forget rows are less likely, by more than
        :attr:`Margin.least_to_betray`.
    p_by_part
        Part of the margin -> p of the equivalence tests, the largest over the
        checkpoint and its copies: small where all of them lie within the margin.
    """

    name: str
    tests: Sequence[MemoryTestResult]
    tests_by_copy: Mapping[str, Sequence[MemoryTestResult]]
    less_likely_tests: Sequence[MemoryTestResult]
    p_by_part: Mapping[str, float]

    @property
    def n_tests(self) -> int:
        """Return the number of tests that p is corrected over."""
        n_of_copies = sum(len(tests) for tests in self.tests_by_copy.values())
        return max(len(self.tests) + n_of_copies, 1)

    def corrected(self, test: MemoryTestResult) -> float:
        """Return the p of a test, corrected over those of the checkpoint."""
        return min(1.0, self.n_tests * test.p)


@dataclass(frozen=True)
class ErasureVerdict:
    """What the tests of a checkpoint come to, before the correction over the report.

    Attributes
    ----------
    claim
        The claim of its finding.
    says
        Key of its sentence, without ``erasure.``.
    p
        p of the test that it rests on, corrected over the tests of the checkpoint.
    test
        The test that it rests on; None: the equivalence, or there is no test.
    copy
        The copy that brings the rows back; empty: none does.
    """

    claim: Claim
    says: str
    p: float | None
    test: MemoryTestResult | None = None
    copy: str = ""


def chosen_verdicts(
    tests_by_name: Mapping[str, CheckpointTests],
    p_of_references: Mapping[str, float | None],
) -> dict[str, ErasureVerdict]:
    """Return the verdict on each checkpoint that works and whose setup is right.

    It is the first that holds once corrected over all findings of the audit (Holm). If
    none does, it is the first that holds for the checkpoint alone: the report withdraws
    it, and says so. The p of each other checkpoint is that of its first verdict, so
    that the order of checkpoints does not matter.

    Parameters
    ----------
    tests_by_name
        Checkpoint -> its tests.
    p_of_references
        Checkpoint without a verdict -> p of its finding; ``None``: it has none.
    """
    verdicts_by_name = {
        name: [*_verdicts_alone(tests)] for name, tests in tests_by_name.items()
    }
    p_by_name = dict(p_of_references)
    for name, verdicts in verdicts_by_name.items():
        p_by_name[name] = verdicts[0].p

    chosen = {}
    for name, verdicts in verdicts_by_name.items():
        chosen[name] = verdicts[0]
        for verdict in verdicts:
            corrected = holm_by_key({**p_by_name, name: verdict.p})
            if corrected.get(name, 1.0) < ALPHA:
                chosen[name] = verdict
                break
    return chosen


def _verdicts_alone(tests: CheckpointTests) -> Iterator[ErasureVerdict]:
    """Yield the verdicts that hold for a checkpoint alone, in their order.

    ``CANNOT TELL`` is the only one if none holds.
    """
    verdicts = [
        _remembered(tests),
        _suppressed(tests),
        _betraying(tests),
        _erased(tests),
    ]
    held = [
        verdict
        for verdict in verdicts
        if verdict is not None and verdict.p is not None and verdict.p < ALPHA
    ]
    if held:
        yield from held
        return

    p = min((tests.corrected(test) for test in tests.tests), default=None)
    yield ErasureVerdict(claim="nothing_shown", says="cannot_tell", p=p)


def _remembered(tests: CheckpointTests) -> ErasureVerdict | None:
    """Return the verdict that forget rows stand out as they are; None: no test."""
    test = _smallest(tests.tests, direction=1)
    if test is None:
        return None
    return ErasureVerdict(
        claim=CLAIM_OF_TEST[test.kind],
        says=_key_of_memory(test),
        p=tests.corrected(test),
        test=test,
    )


def _suppressed(tests: CheckpointTests) -> ErasureVerdict | None:
    """Return the verdict that they stand out in a copy; None: no test.

    It names the copy in which they stand out most clearly.
    """
    test_by_copy: dict[str, MemoryTestResult] = {}
    for copy, tests_of_copy in tests.tests_by_copy.items():
        test = _smallest(tests_of_copy, direction=1)
        if test is not None:
            test_by_copy[copy] = test
    if not test_by_copy:
        return None

    clearest = min(test_by_copy, key=lambda copy: test_by_copy[copy].p)
    return ErasureVerdict(
        claim="suppressed",
        says="suppressed",
        p=tests.corrected(test_by_copy[clearest]),
        test=test_by_copy[clearest],
        copy=clearest,
    )


def _betraying(tests: CheckpointTests) -> ErasureVerdict | None:
    """Return the verdict that forget rows are less likely; None: no test."""
    test = _smallest(tests.less_likely_tests, direction=-1)
    if test is None:
        return None
    return ErasureVerdict(
        claim="betrays", says="betrays", p=tests.corrected(test), test=test
    )


def _erased(tests: CheckpointTests) -> ErasureVerdict | None:
    """Return the verdict that what remains lies within the margin; None: no test."""
    if not tests.p_by_part:
        return None
    p = max(tests.p_by_part.values())
    return ErasureVerdict(claim="erased", says="erased", p=p)


def _smallest(
    tests: Sequence[MemoryTestResult], *, direction: int
) -> MemoryTestResult | None:
    """Return the test of smallest p in a direction; None: there is none."""
    in_direction = [test for test in tests if test.direction == direction]
    return min(in_direction, key=lambda test: test.p, default=None)


def _key_of_memory(test: MemoryTestResult) -> str:
    """Return the key of the sentence on forget rows that are remembered."""
    if test.kind in (VERBATIM, MEMBERSHIP, TWINS):
        return f"remembered_{test.kind}"
    if test.kind == IDENTIFIERS:
        return "remembered_identifiers"
    return "remembered"


def tests_of(
    comparison: ErasureComparison,
    name: str,
    copies: Sequence[str],
    margin: Margin,
) -> CheckpointTests:
    """Return all tests of a checkpoint and its copies.

    Parameters
    ----------
    copies
        Its rounded and relearned copies that were scored.
    margin
        The margin, with the parts that must lie within it.
    """
    tested_copies = {}
    for copy in copies:
        tests = comparison.tests(copy)
        if tests:
            tested_copies[copy] = tests

    p_by_part = {}
    for part in margin.parts:
        ps = []
        for version in (name, *tested_copies):
            equivalence = comparison.equivalence(version, part, margin.value)
            ps.append(1.0 if equivalence is None else equivalence.p)
        p_by_part[part.name] = max(ps)
    return CheckpointTests(
        name=name,
        tests=comparison.tests(name),
        tests_by_copy=tested_copies,
        less_likely_tests=comparison.less_likely_tests(
            name, least=margin.least_to_betray
        ),
        p_by_part=p_by_part,
    )

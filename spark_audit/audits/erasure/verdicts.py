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
BETRAYS          betrays       forget rows are less likely: that tells who asked
ERASED           erased        what remains lies within the margin, in all copies, too
CANNOT TELL      nothing_shown none of these
===============  ============  =========================================================

p of the tests of a checkpoint and its copies is corrected over all of them
(Bonferroni), so that one of them errs in at most 5 of 100 cases. p of ERASED is the
largest of all of its tests, since all must hold. Each verdict is one primary finding,
which is corrected over the report as all others are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

DEFAULT_SHARE = 0.25
"""Share of what the model before erasure remembers that is the margin by default."""

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
        The parts that the model before erasure remembers: what remains of each must lie
        within the margin.
    """

    value: float
    parts: tuple[ComparedPart, ...]


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
    before erasure remembers most. It is taken as the number that is printed.

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

    margin = given
    if margin is None:
        margin = DEFAULT_SHARE * max(remembered.values(), default=0.0)
    return Margin(margin, tuple(remembered))


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
    p_by_part
        Part -> p that what remains exceeds the margin, the largest over the checkpoint
        and its copies; parts that the model before erasure does not remember are left
        out.
    """

    name: str
    tests: Sequence[MemoryTestResult]
    tests_by_copy: Mapping[str, Sequence[MemoryTestResult]]
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


def erasure_verdict(tests: CheckpointTests) -> ErasureVerdict:
    """Return the verdict on a checkpoint that works and whose setup is right."""
    remembered = _smallest(tests.tests, direction=1)
    if remembered is not None and tests.corrected(remembered) < ALPHA:
        return ErasureVerdict(
            claim=CLAIM_OF_TEST[remembered.kind],
            says=_key_of_memory(remembered),
            p=tests.corrected(remembered),
            test=remembered,
        )

    returned: tuple[float, str, MemoryTestResult] | None = None
    for copy, tests_of_copy in tests.tests_by_copy.items():
        test = _smallest(tests_of_copy, direction=1)
        if test is not None and (returned is None or test.p < returned[0]):
            returned = (test.p, copy, test)
    if returned is not None and tests.corrected(returned[2]) < ALPHA:
        return ErasureVerdict(
            claim="suppressed",
            says="suppressed",
            p=tests.corrected(returned[2]),
            test=returned[2],
            copy=returned[1],
        )

    less_likely = _smallest(tests.tests, direction=-1)
    if less_likely is not None and tests.corrected(less_likely) < ALPHA:
        return ErasureVerdict(
            claim="betrays",
            says="betrays",
            p=tests.corrected(less_likely),
            test=less_likely,
        )

    p_of_parts = [*tests.p_by_part.values()]
    if p_of_parts and max(p_of_parts) < ALPHA:
        return ErasureVerdict(claim="erased", says="erased", p=max(p_of_parts))

    p = None
    if tests.tests:
        p = min(tests.corrected(test) for test in tests.tests)
    return ErasureVerdict(claim="nothing_shown", says="cannot_tell", p=p)


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
        And the parts that must lie within it.
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
        p_by_part=p_by_part,
    )

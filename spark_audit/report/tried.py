"""The outcome of an attack on one checkpoint, and its name.

An attack is named by its audit. A further outcome is an item of :data:`Outcome`, a line
of :func:`attack_outcome`, and has a sentence ``outcome.KEY``; where nothing can be
concluded from it, it also stands in :data:`INCONCLUSIVE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from spark_audit.audits import about
from spark_audit.audits.strongest_leaks import leak_of
from spark_audit.names import entry_of, series_of
from spark_audit.results import Finding, Row
from spark_audit.results.findings import DETECTED, SEVERITY
from spark_audit.sentences import knows, number, optional, render
from spark_audit.sentences.renderer import DECIMALS, DECIMALS_OF_EFFECT, effect

Outcome = Literal["FOUND", "confounded", "void", "not tested", "not shown"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""In the order in which readers see them, detections first."""

CONCLUSIVE: tuple[Outcome, ...] = ("FOUND", "not shown")
"""Outcomes from which something is concluded."""

INCONCLUSIVE: tuple[Outcome, ...] = ("void", "confounded")
"""Outcomes of an attack that was run and from which nothing can be concluded."""


@dataclass(frozen=True)
class Tried:
    """One attack on one checkpoint.

    Attributes
    ----------
    audit
        Its name.
    outcome
        From :func:`attack_outcome`, which has a table of them.
    finding
        The finding that the outcome rests on; None where it rests on none.
    ran
        Whether the report has this audit.
    bounded
        If nothing was found, the test with the limit of what could still be there.
    is_of_text
        Whether the checkpoint is an endpoint that gives only text.
    is_under_extraction
        Whether the extraction audit asked such an endpoint for the same.
    """

    audit: str
    outcome: Outcome
    finding: Finding | None = None
    ran: bool = True
    bounded: Finding | None = None
    is_of_text: bool = False
    is_under_extraction: bool = False

    @property
    def why_not_run(self) -> str:
        """Why the report does not have this audit, in words."""
        if self.is_under_extraction:
            return render("endpoint.under_extraction")
        if self.is_of_text:
            return render("endpoint.cannot_be_asked")
        return render("dossier.not_run")

    @property
    def attack(self) -> str:
        """The attack, in words."""
        return attack_name(self.audit)

    @property
    def seed(self) -> str:
        """The replicate with the effect; else empty."""
        return seed_of(self.finding) if self.outcome == "FOUND" else ""

    @property
    def shown(self) -> str:
        """The attack, with the size of the effect that it found."""
        effect_found = self._effect_found
        if not effect_found:
            return self.attack

        # With several seeds, the finding may be on one alone.
        if self.seed:
            effect_found = render("states.in_seed", found=effect_found, seed=self.seed)
        return render("states.with_remark", text=self.attack, remark=effect_found)

    @property
    def _effect_found(self) -> str:
        """The effect that it found, in words; empty: none towards a leak."""
        finding = self.finding
        if self.outcome != "FOUND" or finding is None:
            return ""
        if finding.claim == "betrays":
            return render("outcome.betrays")
        if finding.value is None or not finding.unit:
            return ""

        # A leak is a fall of NLL, or a figure above its value by chance.
        if finding.unit == "nats":
            size = -finding.value
        else:
            size = finding.value - (finding.no_effect or 0.0)
        if size <= 0:
            return ""

        digits = DECIMALS.get(finding.unit, DECIMALS_OF_EFFECT)
        words = effect_in_own_words(finding, size, digits=digits)
        words = words or effect(size, finding.unit, brief=True)
        return f"{words} {comparison_in_words(finding)}".rstrip()


def attack_outcome(
    audit: str, findings: Sequence[Finding], *, scored: bool, ran: bool
) -> Tried:
    """Return the outcome of an audit on one checkpoint.

    ==============  ============================================================
    Outcome         Condition; the first that is met decides
    ==============  ============================================================
    ``FOUND``       The severest finding is a detection.
    ``not tested``  An endpoint gives only text, and no leak was found.
    ``confounded``  A finding claims that texts alone may explain a difference.
    ``not shown``   The primary test of smallest p has a usable figure.
    ``void``        There is a primary test, but nothing can be concluded from
                    it; or texts were scored, and there is none.
    ``not tested``  Else.
    ==============  ============================================================

    Parameters
    ----------
    findings
        Of this audit and checkpoint, the severest first.
    scored
        Whether the audit scored texts under the checkpoint.
    ran
        Whether the report has this audit.
    """
    severest = findings[0] if findings else None
    if severest is not None and severest.severity >= DETECTED:
        return Tried(audit, "FOUND", severest)

    # Without a claim such a finding tells nothing.
    if severest is not None and severest.can_only_claim:
        return Tried(audit, "not tested", severest, ran=ran)

    # If texts differ, a test without a result is no answer.
    for finding in findings:
        if finding.claim == "confounded":
            return Tried(audit, "confounded", finding)

    test = smallest_p_test(findings)
    if test is not None and test.status == "ok":
        bounded = _bounding_test(audit, findings)
        return Tried(audit, "not shown", test, bounded=bounded)
    if test is not None:
        return Tried(audit, "void", test)

    if scored:
        return Tried(audit, "void", severest, ran=ran)
    return Tried(audit, "not tested", severest, ran=ran)


def smallest_p_test(findings: Iterable[Finding]) -> Finding | None:
    """Return the primary test with the smallest p, whatever its claim.

    A void test comes last. Tests of all identifiers come before those of a part of
    them, such as a dose, unless the part would claim something by itself.
    """
    tests = [
        finding
        for finding in findings
        if finding.family == "primary" and finding.claim != "not_tested"
    ]

    def order(test: Finding) -> tuple[bool, bool, float]:
        claims_alone = SEVERITY[test.alone] >= DETECTED
        is_part = test.group != "pooled" and not claims_alone
        return test.status != "ok", is_part, p_of(test)

    return min(tests, key=order, default=None)


def p_of(finding: Finding | None) -> float:
    """Return the p of a test; 1 where there is none."""
    if finding is None or finding.p is None:
        return 1.0
    return finding.p


def _bounding_test(audit: str, findings: Sequence[Finding]) -> Finding | None:
    """Return the test that bounds what could still be there; None: no test does.

    It is on the figure that counts the tested units, and on all identifiers rather than
    those of a dose. Among several such tests the one that leaves most open counts.
    """
    covered = about(audit).covers
    if covered is None:
        return None

    # Tests of other figures have other scales.
    covered_metric, _ = covered
    bounding = []
    for finding in findings:
        if finding.at_most is not None and finding.row_metric == covered_metric:
            bounding.append(finding)

    pooled = [finding for finding in bounding if finding.group == "pooled"]
    return max(pooled or bounding, key=_left_open, default=None)


def _left_open(finding: Finding) -> float:
    """Return how much a test leaves open, in the direction of a leak."""
    if finding.at_most is None:
        return 0.0
    return leak_of(finding, finding.at_most)


def effect_in_own_words(finding: Finding, size: float, *, digits: int) -> str:
    """Return an effect in the words of its audit, such as ``60 more of 100 rows``.

    Empty if the audit has no words of its own for the unit
    (``audit.NAME.word.UNIT``).

    Parameters
    ----------
    size
        At least 0.
    """
    key = f"audit.{finding.audit}.word.{finding.unit}"
    return render(key, size=number(size, digits)) if knows(key) else ""


def comparison_in_words(finding: Finding) -> str:
    """Return the comparison of an effect, such as ``than by chance``.

    The audit chooses the sentence; empty where it has none.
    """
    key = f"audit.{finding.audit}.than"
    compared_with = about(finding.audit).compared_with(finding)
    if compared_with:
        return optional(f"{key}.{compared_with}")
    return render(key, finding=finding) if knows(key) else ""


def seed_of(finding: Finding | None) -> str:
    """Return the seed that a finding on a method with several seeds is of, or empty."""
    if finding is None or entry_of(finding.checkpoint) == finding.checkpoint:
        return ""
    return finding.checkpoint


def method_of(name: str) -> str:
    """Return the method that a seed or a stage of a series is of, else the name."""
    return entry_of(series_of(name))


def attack_name(audit: str) -> str:
    """Return the attack of an audit, in words."""
    return optional(f"audit.{audit}.attack") or audit


def outcome_name(outcome: Outcome) -> str:
    """Return the outcome of an attack, in words."""
    return render(f"outcome.{outcome.replace(' ', '_')}")


def is_beyond_no_effect(row: Row, *, is_above: bool) -> bool:
    """Return whether a row's interval lies above, or below, the band of no effect.

    Without a band, no effect is 0.
    """
    if is_above:
        return row.low is not None and row.low > (row.no_effect_high or 0.0)
    return row.high is not None and row.high < (row.no_effect_low or 0.0)

"""What an attack on one checkpoint came to, and how that is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from spark_audit.audits import about
from spark_audit.names import entry_of, series_of
from spark_audit.results import Finding
from spark_audit.sentences import knows, optional, render
from spark_audit.sentences.renderer import effect

Outcome = Literal["FOUND", "confounded", "void", "not tested", "not shown"]


OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


RESULTS: tuple[tuple[Outcome, ...], ...] = (
    ("FOUND", "not shown"),
    ("void", "confounded"),
)
"""Outcomes that tell something, and those of which nothing can be concluded."""


@dataclass(frozen=True)
class Tried:
    """One attack on one checkpoint.

    Attributes
    ----------
    audit
        Its name.
    outcome
        ``void``: tried, but its figures say nothing.
    finding
        What the outcome rests on, if on one.
    ran
        Whether the report has this audit.
    bounded
        Where nothing was found, the test that says how much could still be there.
    """

    audit: str
    outcome: Outcome
    finding: Finding | None = None
    ran: bool = True
    bounded: Finding | None = None

    @property
    def attack(self) -> str:
        """The attack, in words."""
        return attack_name(self.audit)

    @property
    def seed(self) -> str:
        """The replicate that it found something in; else empty."""
        return seed_of(self.finding) if self.outcome == "FOUND" else ""

    @property
    def shown(self) -> str:
        """The attack, and by how much it found what it tries to find."""
        found = self._found
        if not found:
            return self.attack
        if self.seed:
            found = render("states.in_seed", found=found, seed=self.seed)
        return render("states.with_remark", text=self.attack, remark=found)

    @property
    def _found(self) -> str:
        """The effect that it found, in words; empty: none towards a leak."""
        finding = self.finding
        if self.outcome != "FOUND" or finding is None:
            return ""
        if finding.claim == "betrays":
            return render("outcome.betrays")
        if finding.value is None or not finding.unit:
            return ""

        is_change_of_nll = finding.unit == "nats"
        size = -finding.value if is_change_of_nll else _beyond_null(finding)
        if size <= 0:
            return ""
        found = effect(size, finding.unit, brief=True)
        return f"{found} {comparison_in_words(finding)}".rstrip()


def _beyond_null(finding: Finding) -> float:
    """Return how far above its value without an effect a figure is."""
    return (finding.value or 0.0) - (finding.null or 0.0)


def comparison_in_words(finding: Finding) -> str:
    """Return what an effect is held against, as ``than by chance``.

    The audit chooses the sentence; empty where it has none.
    """
    compared_with = about(finding.audit).compared_with(finding)
    key = f"audit.{finding.audit}.than"
    if compared_with:
        return optional(f"{key}.{compared_with}")
    return render(key, finding=finding) if knows(key) else ""


def seed_of(finding: Finding | None) -> str:
    """Return the seed that a finding on a method with several seeds is of, or empty."""
    name = finding.checkpoint if finding else ""
    return name if name and entry_of(name) != name else ""


def method_of(name: str) -> str:
    """Return the method that a seed or a stage of a series is of, else the name."""
    return entry_of(series_of(name))


def attack_name(audit: str) -> str:
    """Return the attack of an audit, in words."""
    return optional(f"audit.{audit}.attack") or audit


def outcome_name(outcome: Outcome) -> str:
    """Return the outcome of an attack, in words."""
    return render(f"outcome.{outcome.replace(' ', '_')}")

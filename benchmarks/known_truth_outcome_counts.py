"""How often the reports of ``known_truth.py`` show a state, and how often guards fail.

A *line* is a finished audit of one scenario in one seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from exact_limits import limits
from finished_lines import Line
from known_truth_lines import REFUSED, group_by_scenario
from known_truth_scenarios import GUARDS

ANY_GUARD = "any"
"""Counts a line once, whichever guards fail."""


@dataclass(frozen=True, kw_only=True)
class OutcomeCount:
    """Which states the reports of a scenario show, and how often ``gate`` exits with 1.

    Attributes
    ----------
    right_states
        States that are right; empty: any is.
    right_code
        The exit code that is right; None: any is.
    """

    scenario: str
    n_reports: int
    states: dict[str, int]
    right_states: tuple[str, ...]
    n_stopped: int
    right_code: int | None
    n_wrong_codes: int

    @property
    def n_wrong_states(self) -> int:
        """Number of reports that show a wrong state."""
        return sum(n for state, n in self.states.items() if self.is_wrong(state))

    def is_wrong(self, state: str) -> bool:
        """Return whether a state is wrong in this scenario."""
        return bool(self.right_states) and state not in self.right_states


class RequiredFailures(NamedTuple):
    """How often a guard failed in a scenario in which it must."""

    n_failed: int
    n_lines: int


@dataclass(frozen=True, kw_only=True)
class GuardCount:
    """How often a guard fails where it must, and where it must not.

    Attributes
    ----------
    guard
        Name of a guard, or :data:`ANY_GUARD`.
    required_failures
        Scenario in which the guard must fail -> how often it does. Empty for
        :data:`ANY_GUARD`.
    n_reports
        Number of reports in which a false alarm could happen: of one guard those in
        which it neither must nor may fail; of :data:`ANY_GUARD` all, since in each
        scenario some guard neither must nor may fail.
    alarms
        Scenario with false alarms -> number of its reports with one.
    """

    guard: str
    n_reports: int
    required_failures: dict[str, RequiredFailures] = field(default_factory=dict)
    alarms: dict[str, int] = field(default_factory=dict)

    @property
    def n_alarms(self) -> int:
        """Number of reports with a false alarm."""
        return sum(self.alarms.values())

    @property
    def most_alarms(self) -> float | None:
        """Exact one-sided 95% upper limit of their share; None: there is no report."""
        return limits(self.n_alarms, self.n_reports)[1] if self.n_reports else None


def outcome_counts(lines: Sequence[Line]) -> list[OutcomeCount]:
    """Return how often each state was shown, and how often ``gate`` exited with 1."""
    counts = []
    for scenario, own_lines in group_by_scenario(lines):
        codes = [line["gate"] for line in own_lines]
        n_wrong_codes = 0
        if scenario.gate is not None:
            n_wrong_codes = sum(code != scenario.gate for code in codes)
        counts.append(
            OutcomeCount(
                scenario=scenario.name,
                n_reports=len(own_lines),
                states=dict(Counter(line["state"] for line in own_lines)),
                right_states=scenario.states,
                n_stopped=codes.count(1),
                right_code=scenario.gate,
                n_wrong_codes=n_wrong_codes,
            )
        )
    return counts


def guard_counts(lines: Sequence[Line]) -> list[GuardCount]:
    """Return how often each guard fails, and how often any fails where none may."""
    return [*(_guard_count(name, lines) for name in GUARDS), _any_guard_count(lines)]


def _guard_count(guard: str, lines: Sequence[Line]) -> GuardCount:
    """Return how often a guard fails where it must, and where it must not.

    Set-ups that were refused, and those in which it may fail, count as neither.
    """
    required_failures = {}
    alarms = {}
    n_reports = 0
    for scenario, own_lines in group_by_scenario(lines):
        n_failed = sum(guard in line["guards"] for line in own_lines)
        if scenario.guard == guard:
            required_failures[scenario.name] = RequiredFailures(
                n_failed=n_failed, n_lines=len(own_lines)
            )
        elif scenario.allowed != guard:
            n_reports += _count_reports(own_lines)
            if n_failed > 0:
                alarms[scenario.name] = n_failed
    return GuardCount(
        guard=guard,
        n_reports=n_reports,
        required_failures=required_failures,
        alarms=alarms,
    )


def _any_guard_count(lines: Sequence[Line]) -> GuardCount:
    """Return in how many reports a guard fails that neither must nor may."""
    alarms = {}
    for scenario, own_lines in group_by_scenario(lines):
        expected = {scenario.guard, scenario.allowed}
        n_failed = 0
        for line in own_lines:
            unexpected = set(line["guards"]) - expected
            n_failed += bool(unexpected)
        if n_failed > 0:
            alarms[scenario.name] = n_failed
    return GuardCount(guard=ANY_GUARD, n_reports=_count_reports(lines), alarms=alarms)


def _count_reports(lines: Sequence[Line]) -> int:
    """Return the number of lines whose set-up no command refused."""
    return sum(line["state"] != REFUSED for line in lines)

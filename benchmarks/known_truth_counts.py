"""How often the reports of ``known_truth.py`` claim something, and how often rightly.

A *line* is a finished audit of one scenario in one seed; a *claim* here is a family of
claims of findings, a key of :data:`~known_truth_scenarios.CLAIMS`, or one of the two
that are read from figures of memory: ``less memory`` and ``memory, dose D``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exact_limits import limits
from finished_lines import Line
from known_truth_scenarios import CLAIMS, GUARDS, SCENARIOS, TITLES, Scenario

REFUSED = "refused"
"""State of a line whose set-up a command refused."""

LESS_MEMORY = "less memory"
"""The claim that a checkpoint remembers less than the full-text model of its seed."""

ANY_GUARD = "any"
"""Counts a line once, whichever guards fail."""


@dataclass(frozen=True, kw_only=True)
class ClaimCount:
    """How often a claim was made of the models of a scenario.

    Attributes
    ----------
    is_true
        Whether it must be made (True) or must not (False); None: neither, by
        construction.
    n_made, n_reports
        Number of reports that make it, of those that could.
    low, high
        Exact one-sided 95% limits of the share; None: no report could make it.
    n_findings
        Number of findings that make it, by audit.
    """

    scenario: str
    claim: str
    is_true: bool | None
    n_made: int
    n_reports: int
    low: float | None
    high: float | None
    n_findings: dict[str, int]

    @property
    def is_false_claim(self) -> bool:
        """Whether it was made somewhere and is false."""
        return self.is_true is False and self.n_made > 0

    @property
    def is_missed(self) -> bool:
        """Whether it is true and was not made everywhere."""
        return self.is_true is True and self.n_made < self.n_reports


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


@dataclass(frozen=True, kw_only=True)
class GuardCount:
    """How often a guard fails where it must, and where it must not.

    Attributes
    ----------
    due
        Scenario in which it must fail -> number of lines where it does, and of all.
    n_reports
        Number of lines in which it must not fail.
    alarms
        Scenario in which it must not fail -> in how many lines it does.
    """

    guard: str
    n_reports: int
    due: dict[str, tuple[int, int]] = field(default_factory=dict)
    alarms: dict[str, int] = field(default_factory=dict)

    @property
    def n_alarms(self) -> int:
        """Number of false alarms."""
        return sum(self.alarms.values())

    @property
    def most_alarms(self) -> float | None:
        """Exact one-sided 95% upper limit of their share; None: there is no line."""
        return limits(self.n_alarms, self.n_reports)[1] if self.n_reports else None


def by_scenario(lines: Sequence[Line]) -> Iterator[tuple[Scenario, list[Line]]]:
    """Yield each scenario that has lines, with these."""
    for scenario in SCENARIOS.values():
        own_lines = [line for line in lines if line["scenario"] == scenario.name]
        if own_lines:
            yield scenario, own_lines


# --------------------------------------------------------------------------------------
# Claims
# --------------------------------------------------------------------------------------


def claim_counts(lines: Sequence[Line]) -> list[ClaimCount]:
    """Return how often each claim was made, by scenario."""
    full_text_lines = {
        line["seed"]: line for line in lines if line["scenario"] == TITLES["full"]
    }
    counts = []
    for scenario, own_lines in by_scenario(lines):
        # Each claim, and those that the scenario alone is asked for.
        for claim in dict.fromkeys([*CLAIMS, *scenario.truth]):
            made = [
                is_made(line, claim, full_text_lines.get(line["seed"]))
                for line in own_lines
            ]
            n_reports = len(made) - made.count(None)
            n_made = made.count(True)

            # Count the findings that make it.
            n_findings: Counter[str] = Counter()
            for line in own_lines:
                for finding in line["claims"]:
                    if finding["claim"] in CLAIMS.get(claim, ()):
                        n_findings[finding["audit"]] += 1

            low, high = limits(n_made, n_reports) if n_reports else (None, None)
            counts.append(
                ClaimCount(
                    scenario=scenario.name,
                    claim=claim,
                    is_true=scenario.truth.get(claim),
                    n_made=n_made,
                    n_reports=n_reports,
                    low=low,
                    high=high,
                    n_findings=dict(n_findings),
                )
            )
    return counts


def is_made(line: Line, claim: str, full_text_line: Line | None) -> bool | None:
    """Return whether a report makes a claim; None: it has no such figure.

    Parameters
    ----------
    full_text_line
        The line of the same seed on the full-text model, if there is one.
    """
    if line["state"] == REFUSED:
        return None
    if claim == LESS_MEMORY:
        return _is_less_memory(line, full_text_line)
    if match := re.fullmatch(r"memory, dose (\d+)", claim):
        return _is_memory_of_dose(line, dose=int(match[1]))
    return any(finding["claim"] in CLAIMS[claim] for finding in line["claims"])


def _is_less_memory(line: Line, full_text_line: Line | None) -> bool | None:
    """Return whether a checkpoint's memory is weaker than the full-text model's."""
    memory = _pooled_memory(line)
    memory_of_full_text = _pooled_memory(full_text_line or {})
    if memory is None or memory_of_full_text is None:
        return None
    # A change of the NLL: the lower, the more is remembered.
    return memory > memory_of_full_text


def _pooled_memory(line: Line) -> float | None:
    """Return the figure of memory over all identifiers; None: there is none."""
    value: float | None = line.get("memory", {}).get("pooled", [None])[0]
    return value


def _is_memory_of_dose(line: Line, *, dose: int) -> bool | None:
    """Return whether the interval of memory at a dose is below 0.

    A group of doses has the name ``dose:4-15``, whose first number is the dose here.
    """
    for group, (_, _, high) in line["memory"].items():
        match = re.match(r"dose:(\d+)", group)
        if match and int(match[1]) == dose:
            return None if high is None else high < 0
    return None


# --------------------------------------------------------------------------------------
# States, exit codes and guards
# --------------------------------------------------------------------------------------


def outcome_counts(lines: Sequence[Line]) -> list[OutcomeCount]:
    """Return how often each state was shown, and how often ``gate`` exited with 1."""
    counts = []
    for scenario, own_lines in by_scenario(lines):
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
    due: dict[str, tuple[int, int]] = {}
    alarms: Counter[str] = Counter()
    n_reports = 0
    for scenario, own_lines in by_scenario(lines):
        n_failed = sum(guard in line["guards"] for line in own_lines)
        if scenario.guard == guard:
            due[scenario.name] = (n_failed, len(own_lines))
        elif scenario.allowed != guard:
            n_reports += sum(line["state"] != REFUSED for line in own_lines)
            alarms[scenario.name] += n_failed
    return GuardCount(guard=guard, n_reports=n_reports, due=due, alarms=+alarms)


def _any_guard_count(lines: Sequence[Line]) -> GuardCount:
    """Return how often a guard fails that neither must nor may."""
    alarms: Counter[str] = Counter()
    for scenario, own_lines in by_scenario(lines):
        expected = {scenario.guard, scenario.allowed}
        alarms[scenario.name] += sum(
            bool({*line["guards"]} - expected) for line in own_lines
        )
    n_reports = sum(line["state"] != REFUSED for line in lines)
    return GuardCount(guard=ANY_GUARD, n_reports=n_reports, alarms=+alarms)

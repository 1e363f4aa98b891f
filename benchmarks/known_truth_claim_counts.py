"""How often the reports of ``known_truth.py`` claim something, and how often rightly.

A *line* is a finished audit of one scenario in one seed; a *claim* here is a family of
claims of findings, a key of :data:`~known_truth_scenarios.CLAIMS`, that of memory
without canaries, or one of the two that are read from figures of memory: ``less
memory`` and ``memory, dose D``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exact_limits import limits
from finished_lines import Line
from known_truth_lines import REFUSED, group_by_scenario
from known_truth_scenarios import CLAIMS, MEMORY_BUT_CANARIES, TITLES

LESS_MEMORY = "less memory"
"""The claim that a checkpoint remembers less than the full-text model of its seed."""


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


def claim_counts(lines: Sequence[Line]) -> list[ClaimCount]:
    """Return how often each claim was made, by scenario."""
    full_text_lines = {
        line["seed"]: line for line in lines if line["scenario"] == TITLES["full"]
    }
    counts = []
    for scenario, own_lines in group_by_scenario(lines):
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
                    if _makes(finding, claim):
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
    return any(_makes(finding, claim) for finding in line["claims"])


def _makes(finding: Mapping[str, Any], claim: str) -> bool:
    """Return whether a finding makes a claim; a figure of memory makes none."""
    if claim == MEMORY_BUT_CANARIES:
        return finding["audit"] != "canary" and finding["claim"] in CLAIMS["memory"]
    return finding["claim"] in CLAIMS.get(claim, ())


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

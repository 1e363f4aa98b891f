"""The lines of ``known_truth.py``: one finished audit of a scenario in a seed each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finished_lines import Line
from known_truth_scenarios import SCENARIOS, Scenario

REFUSED = "refused"
"""State of a line whose set-up a command refused."""


def refused_fields(reason: str) -> Line:
    """Return what a line says in place of a report, where a command refused."""
    return {
        "claims": [],
        "memory": {},
        "guards": [],
        "state": REFUSED,
        "gate": None,
        "asks": False,
        "why": reason,
    }


def group_by_scenario(lines: Sequence[Line]) -> Iterator[tuple[Scenario, list[Line]]]:
    """Yield each scenario that has lines, with these."""
    for scenario in SCENARIOS.values():
        own_lines = [line for line in lines if line["scenario"] == scenario.name]
        if own_lines:
            yield scenario, own_lines

"""The tables of states, exit codes and guards of ``known_truth.py``, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from known_truth_outcome_counts import GuardCount, OutcomeCount
from markdown_table import markdown_table, round_up


def outcome_table(outcomes: Sequence[OutcomeCount]) -> str:
    """Return states and exit codes, wrong ones in bold."""
    rows = []
    for outcome in outcomes:
        states = []
        for state, n_reports in sorted(outcome.states.items(), key=str):
            cell = f"{state} {n_reports}"
            states.append(f"**{cell}**" if outcome.is_wrong(state) else cell)

        stopped = f"{outcome.n_stopped}/{outcome.n_reports}"
        if outcome.n_wrong_codes:
            stopped = f"**{stopped}**"
        right_code = "any" if outcome.right_code is None else str(outcome.right_code)
        right_states = " or ".join(outcome.right_states) or "any"
        rows.append(
            [outcome.scenario, ", ".join(states), right_states, stopped, right_code]
        )
    return markdown_table(["scenario", "state", "right", "gate exits 1", "right"], rows)


def guard_table(guards: Sequence[GuardCount]) -> str:
    """Return where guards fail as they must, and their false alarms."""
    rows = []
    for count in guards:
        failures = "; ".join(
            f"{scenario} {required.n_failed}/{required.n_lines}"
            for scenario, required in count.required_failures.items()
        )
        alarms = f"{count.n_alarms}/{count.n_reports}"
        if count.most_alarms is not None:
            alarms += f", <= {round_up(1000 * count.most_alarms) / 10}%"
        if count.alarms:
            where = ", ".join(f"{name} {n}" for name, n in count.alarms.items())
            alarms += f" ({where})"
        rows.append([count.guard, failures or "-", alarms])
    return markdown_table(["guard", "fails where it must", "false alarms"], rows)

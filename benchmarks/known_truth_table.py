"""The tables of ``known_truth.py``, in Markdown."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from finished_lines import Line
from known_truth_counts import (
    ClaimCount,
    GuardCount,
    OutcomeCount,
    by_scenario,
    claim_counts,
    guard_counts,
    outcome_counts,
)
from known_truth_scenarios import CLAIMS

CLAIM_COLUMNS = {
    "memory": "memory",
    "dose 4": "memory, dose 4",
    "dose 16": "memory, dose 16",
    **{claim: claim for claim in CLAIMS if claim != "memory"},
}
"""Head of a column -> the claim that it counts."""

TRUTH_COLUMNS = ("A by dose", "K", "back", "AUC")
"""Columns of what is measured by plain torch."""

MEANING_OF_CELLS = (
    "A cell says in how many a claim was made; **wrong** ones with the exact upper "
    "limit of the share of false claims, found ones with the lower limit; in "
    "brackets: neither true nor false by construction. A, K, back, AUC: means of "
    "what plain torch measures: change of identifiers' NLL per token against "
    "held-out ones by dose, that of held-out ones, how many of the trained and of "
    "the held-out ones greedy decoding gives, and the AUC of rows' change."
)


def markdown(lines: Sequence[Line]) -> str:
    """Return the tables for readers."""
    counts = claim_counts(lines)
    parts = [
        _note(lines),
        _claim_table(lines, counts),
        _outcome_table(outcome_counts(lines)),
        _guard_table(guard_counts(lines)),
        _error_table("False claims", [one for one in counts if one.is_false_claim]),
        _error_table("True claims not made", [one for one in counts if one.is_missed]),
    ]
    if note := _note_on_absent_figures(counts):
        parts.append(note)
    return "\n\n".join(parts) + "\n"


def _note(lines: Sequence[Line]) -> str:
    """Return what the cells of the first table mean."""
    n_seeds = len({line["seed"] for line in lines})
    return f"{n_seeds} seeds. {MEANING_OF_CELLS}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [_table_row(heads), "|---" * len(heads) + "|"]
    lines += [_table_row(row) for row in rows]
    return "\n".join(lines)


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --------------------------------------------------------------------------------------
# Claims
# --------------------------------------------------------------------------------------


def _claim_table(lines: Sequence[Line], counts: Sequence[ClaimCount]) -> str:
    """Return how often each claim was made, beside the measured truth."""
    count_of = {(count.scenario, count.claim): count for count in counts}
    rows = []
    for scenario, own_lines in by_scenario(lines):
        cells = [
            _claim_cell(count_of.get((scenario.name, claim)))
            for claim in CLAIM_COLUMNS.values()
        ]
        rows.append([scenario.name, *cells, *_truth_cells(own_lines)])
    return _table(["scenario", *CLAIM_COLUMNS, *TRUTH_COLUMNS], rows)


def _claim_cell(count: ClaimCount | None) -> str:
    """Return in how many reports a claim was made, with the limit that matters.

    An upper limit is rounded up and a lower one down.
    """
    if count is None or count.low is None or count.high is None:
        return "-"

    share = f"{count.n_made}/{count.n_reports}"
    if count.is_true is None:
        return f"({share})"
    if count.is_true:
        return f"{share}, >= {_floor(100 * count.low)}%"
    if count.is_false_claim:
        share = f"**{share}**"
    return f"{share}, <= {_ceil(100 * count.high)}%"


def _floor(number: float) -> int:
    """Return a number rounded down; what is whole but for rounding stays."""
    return math.floor(round(number, 9))


def _ceil(number: float) -> int:
    """Return a number rounded up; what is whole but for rounding stays."""
    return math.ceil(round(number, 9))


def _truth_cells(lines: Sequence[Line]) -> list[str]:
    """Return means of what was measured of the models, for :data:`TRUTH_COLUMNS`."""
    values: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for name, value in line["truth"].items():
            values[name].append(value)
    means = {name: fmean(of_models) for name, of_models in values.items()}

    doses = [name for name in means if re.fullmatch(r"A\d+", name)]
    return [
        " / ".join(f"{means[dose]:+.2f}" for dose in doses),
        f"{means['K']:+.2f}" if "K" in means else "-",
        " / ".join(
            f"{means[side]:.0%}" if side in means else "-"
            for side in ("back", "back held")
        ),
        f"{means['AUC']:.2f}" if "AUC" in means else "-",
    ]


def _error_table(title: str, counts: Sequence[ClaimCount]) -> str:
    """Return false claims, or true ones that were not made, with how often."""
    rows = []
    for count in counts:
        n_errors = count.n_made
        if count.is_missed:
            n_errors = count.n_reports - count.n_made
        n_findings = ", ".join(
            f"{audit} {number}" for audit, number in count.n_findings.items()
        )
        share = f"{n_errors}/{count.n_reports}"
        rows.append([count.scenario, count.claim, share, n_findings])
    return _table([title, "claim", "of seeds", "by audit, findings"], rows)


def _note_on_absent_figures(counts: Sequence[ClaimCount]) -> str:
    """Return which true claims no report could make; empty: there is none."""
    absent = sorted(
        f"{count.claim} ({count.scenario})"
        for count in counts
        if count.is_true and not count.n_reports
    )
    return f"Not in these reports: {', '.join(absent)}." if absent else ""


# --------------------------------------------------------------------------------------
# States, exit codes and guards
# --------------------------------------------------------------------------------------


def _outcome_table(outcomes: Sequence[OutcomeCount]) -> str:
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
    return _table(["scenario", "state", "right", "gate exits 1", "right"], rows)


def _guard_table(guards: Sequence[GuardCount]) -> str:
    """Return where guards fail as they must, and their false alarms."""
    rows = []
    for count in guards:
        due = "; ".join(
            f"{scenario} {n_failed}/{n_lines}"
            for scenario, (n_failed, n_lines) in count.due.items()
        )
        alarms = f"{count.n_alarms}/{count.n_reports}"
        if count.most_alarms is not None:
            alarms += f", <= {_ceil(1000 * count.most_alarms) / 10}%"
        if count.alarms:
            where = ", ".join(f"{name} {n}" for name, n in count.alarms.items())
            alarms += f" ({where})"
        rows.append([count.guard, due or "-", alarms])
    return _table(["guard", "fails where it must", "false alarms"], rows)

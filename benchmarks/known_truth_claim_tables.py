"""The tables of claims of ``known_truth.py``, in Markdown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from finished_lines import Line
from known_truth_claim_counts import ClaimCount
from known_truth_lines import group_by_scenario
from known_truth_scenarios import CLAIMS
from markdown_table import markdown_table, round_down, round_up

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


def note_on_cells(lines: Sequence[Line]) -> str:
    """Return what the cells of the table of claims mean."""
    n_seeds = len({line["seed"] for line in lines})
    return f"{n_seeds} seeds. {MEANING_OF_CELLS}"


def claim_table(lines: Sequence[Line], counts: Sequence[ClaimCount]) -> str:
    """Return how often each claim was made, beside the measured truth."""
    count_of = {(count.scenario, count.claim): count for count in counts}
    rows = []
    for scenario, own_lines in group_by_scenario(lines):
        cells = [
            _claim_cell(count_of.get((scenario.name, claim)))
            for claim in CLAIM_COLUMNS.values()
        ]
        rows.append([scenario.name, *cells, *_truth_cells(own_lines)])
    return markdown_table(["scenario", *CLAIM_COLUMNS, *TRUTH_COLUMNS], rows)


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
        return f"{share}, >= {round_down(100 * count.low)}%"
    if count.is_false_claim:
        share = f"**{share}**"
    return f"{share}, <= {round_up(100 * count.high)}%"


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


def error_table(title: str, counts: Sequence[ClaimCount]) -> str:
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
    return markdown_table([title, "claim", "of seeds", "by audit, findings"], rows)


def note_on_absent_figures(counts: Sequence[ClaimCount]) -> str:
    """Return which true claims no report could make; empty: there is none."""
    absent = sorted(
        f"{count.claim} ({count.scenario})"
        for count in counts
        if count.is_true and not count.n_reports
    )
    return f"Not in these reports: {', '.join(absent)}." if absent else ""

"""The tables of ``known_truth.py`` for readers, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from finished_lines import Line
from known_truth_claim_counts import claim_counts
from known_truth_claim_tables import (
    claim_table,
    error_table,
    note_on_absent_figures,
    note_on_cells,
)
from known_truth_outcome_counts import guard_counts, outcome_counts
from known_truth_outcome_tables import guard_table, outcome_table


def markdown(lines: Sequence[Line]) -> str:
    """Return the tables for readers."""
    counts = claim_counts(lines)
    false_claims = [count for count in counts if count.is_false_claim]
    missed_claims = [count for count in counts if count.is_missed]
    parts = [
        note_on_cells(lines),
        claim_table(lines, counts),
        outcome_table(outcome_counts(lines)),
        guard_table(guard_counts(lines)),
        error_table("False claims", false_claims),
        error_table("True claims not made", missed_claims),
    ]
    if note := note_on_absent_figures(counts):
        parts.append(note)
    return "\n\n".join(parts) + "\n"

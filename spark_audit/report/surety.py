"""How sure a report is of what it says, in the words of its first screen.

A claim states of how many reports without a leak as many would claim as much; where
nothing was found, "at most" has its own error rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spark_audit.report.checkpoint_states import CheckpointState
from spark_audit.results.findings import SHOWN_BY_TEST
from spark_audit.sentences import render


def surety_line(all_checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the chance of such a result; without a leak that "at most" holds."""
    # The line is on the worst checkpoint, which comes first.
    for count, names in names_by_false_reports(all_checkpoint_states).items():
        if all_checkpoint_states[0].name in names:
            return render("glance.surety", count=count)

    n_absent = false_reports_of_absence(all_checkpoint_states)
    if n_absent:
        return render("glance.surety_of_absence", count=n_absent)
    if has_limits(all_checkpoint_states):
        return render("glance.surety_at_most")
    return ""


def names_by_false_reports(
    all_checkpoint_states: Sequence[CheckpointState],
) -> dict[int, list[str]]:
    """Return the checkpoints by the chance that their claim is false, lowest first.

    The chance is a count: of 1,000 reports without a leak, so many would claim as much.
    """
    names_by_count: dict[int, list[str]] = {}
    for checkpoint_state in all_checkpoint_states:
        if not checkpoint_state.detections:
            continue

        # A corrected p bounds the chance of such a claim, so round up: never 0 of
        # 1,000.
        p = checkpoint_state.detections[0].p_adjusted
        if p is not None:
            count = max(1, math.ceil(1000 * p))
            names_by_count.setdefault(count, []).append(checkpoint_state.name)
    return dict(sorted(names_by_count.items()))


def false_reports_of_absence(
    all_checkpoint_states: Sequence[CheckpointState],
) -> int:
    """Return of 1,000 reports in how many chance alone shows absence; 0: none does.

    It is that of the least sure claim that something is absent up to a margin.
    """
    most = 0
    for checkpoint_state in all_checkpoint_states:
        for tried in checkpoint_state.tried:
            finding = tried.finding
            if finding is None or finding.claim not in SHOWN_BY_TEST:
                continue
            # As for detections, round up: never 0 of 1,000.
            if finding.p_adjusted is not None:
                most = max(most, 1, math.ceil(1000 * finding.p_adjusted))
    return most


def has_limits(all_checkpoint_states: Sequence[CheckpointState]) -> bool:
    """Return whether any attack has a limit of what could still be there."""
    for checkpoint_state in all_checkpoint_states:
        for tried in checkpoint_state.tried:
            # A cell with a verdict shows no limit.
            has_verdict = tried.finding is not None and tried.finding.verdict
            if tried.bounded is not None and not has_verdict:
                return True
    return False

"""The figures of all looks at a model in training, as one frame, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from spark_audit.cells_html import MAX_ROWS_OF_CELL, cell_html, counted
from spark_audit.integrations.look import AuditLook
from spark_audit.names import BASE
from spark_audit.report.checkpoint_states import SHAPES, checkpoint_states
from spark_audit.report.disclosure.shared import rounded_for_owner

HISTORY_COLUMNS = {
    "step": "Int64",
    "audit": "string",
    "metric": "string",
    "variant": "string",
    "group_kind": "string",
    "group_value": "string",
    "value": "Float64",
    "low": "Float64",
    "high": "Float64",
    "unit": "string",
    "status": "string",
    "state": "string",
    "voided_by": "string",
    "seconds": "Float64",
    "share_of_time": "Float64",
}
"""Columns of a history, with their types; a new one is filled in ``history_of``.

Those that a report's frames have, too, mean the same there.
"""


class LookCost(NamedTuple):
    """The time that a look took.

    Attributes
    ----------
    seconds
        Seconds of this look.
    share_of_time
        The share of the loop's wall time, from its beginning to the end of this look,
        that all looks took.
    """

    seconds: float
    share_of_time: float


def history_of(looks: Sequence[AuditLook], costs: Sequence[LookCost]) -> pd.DataFrame:
    """Return the figures of looks, one row a figure, with the columns declared above.

    A row's ``status`` says whether its figure can be used (``ok``, ``not_estimable``,
    or ``void`` by the setup guard in ``voided_by``), and ``state`` what the report says
    of the model (``NOT TESTED``, ...). ``seconds`` and ``share_of_time`` are those of
    its look, and so repeat.

    Parameters
    ----------
    looks, costs
        Of equal length, in the order of looking.
    """
    rows: list[dict[str, object]] = []
    for look, cost in zip(looks, costs, strict=True):
        for row in look.report.results:
            # A report of a look also holds the figures of the base.
            if row.checkpoint != look.name:
                continue
            rows.append(
                {
                    "step": look.step,
                    "audit": row.audit,
                    "metric": row.metric,
                    "variant": row.variant,
                    "group_kind": row.group_kind,
                    "group_value": row.group_value,
                    "value": row.value,
                    "low": row.low,
                    "high": row.high,
                    "unit": row.unit,
                    "status": row.status,
                    "state": row.state,
                    "voided_by": row.voided_by,
                    "seconds": cost.seconds,
                    "share_of_time": cost.share_of_time,
                }
            )
    return pd.DataFrame(rows, columns=[*HISTORY_COLUMNS]).astype(HISTORY_COLUMNS)


def summary_of(looks: Sequence[AuditLook], costs: Sequence[LookCost]) -> str:
    """Return in words how many looks there were, and what they took."""
    if not looks:
        return "no look yet"
    seconds = sum(cost.seconds for cost in costs)
    share = costs[-1].share_of_time
    return (
        f"{counted(len(looks), 'look')}, the last at step {looks[-1].step}; "
        f"looking took {seconds:.1f} s, {share:.1%} of the time"
    )


def looks_html(
    title: str, looks: Sequence[AuditLook], costs: Sequence[LookCost]
) -> str:
    """Return the verdict of each of the last looks as HTML for a notebook.

    Figures are rounded as those of a report's pages.

    Parameters
    ----------
    looks, costs
        As in :func:`history_of`.
    """
    note = summary_of(looks, costs)
    if not looks:
        return cell_html(title, [], [], note)

    # The report of the last look has the findings of all, corrected together.
    report = rounded_for_owner(looks[-1].report)
    state_by_name = {state.name: state for state in checkpoint_states(report)}

    rows: list[tuple[object, ...]] = []
    for look in looks[-MAX_ROWS_OF_CELL:]:
        verdict, reason = "", ""
        if look.name in state_by_name:
            state = state_by_name[look.name]
            verdict = f"{SHAPES[state.state]} {state.state}"
            reason = state.reason
        elif look.name == BASE:
            verdict = "the base"
        rows.append((look.step, verdict, reason, len(look.tripped)))

    _, last_verdict, *_ = rows[-1]
    header = ("step", "state", "reason", "rules broken")
    return cell_html(
        f"{title}: step {looks[-1].step}: {last_verdict}", header, rows, note
    )

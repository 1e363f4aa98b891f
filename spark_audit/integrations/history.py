"""The figures of all looks at a model in training, as one frame, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from spark_audit.cells_html import counted
from spark_audit.integrations.look import AuditLook

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
    "state": "string",
    "seconds": "Float64",
    "share_of_time": "Float64",
}
"""Columns of a history, with their types; a new one is filled in ``history_of``."""


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

    A row's ``state`` says whether its figure can be used (``ok``, ``not_estimable``,
    ...). ``seconds`` and ``share_of_time`` are those of its look, and so repeat.

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
                    "state": row.status,
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

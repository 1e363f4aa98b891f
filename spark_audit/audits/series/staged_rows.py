"""Rows of a series by stage: the scores that three attacks give them from their NLL.

A row is an example of the manifest, or one of the two strings of a coin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.audits.of_series import UNORDERED
from spark_audit.names import BASE, CheckpointName, series_of
from spark_audit.results.evidence import Evidence
from spark_audit.results.rows import grouped

SERIES = "series"
LAST_STAGE = "last"
STEP = "step"

SERIES_ATTACKS = (SERIES, LAST_STAGE, STEP)
"""Attacks by all stages, by the last one, and by a row's own stage."""

MIN_ROWS_OF_TASK = 10
"""Least number of members, and of non-members, for estimates of a task."""

TOO_FEW_ROWS = (
    f"each task has fewer than {MIN_ROWS_OF_TASK} trained "
    f"or {MIN_ROWS_OF_TASK} held-out rows"
)


@dataclass(frozen=True, eq=False)
class StagedRows:
    """Rows of one series whose stage is known, and their NLL by stage.

    Attributes
    ----------
    rows
        Units of the evidence: ``example``, ``task``, ``cluster``, ``member``, ``dose``,
        the number of the stage that trained on its task as ``place``, from 1, and the
        best guess without a model as ``texts``.
    fall
        Shape ``(stages, rows)``: fall of the mean NLL since the untrained model, nats
        per token. Above 0 a row became likelier.
    """

    rows: pd.DataFrame
    fall: np.ndarray

    def take(self, is_taken: np.ndarray, n_stages: int | None = None) -> StagedRows:
        """Return some of the rows, as they were after the first stages.

        Parameters
        ----------
        is_taken
            Shape ``(rows,)``, bool.
        n_stages
            ``None``: all stages.
        """
        return StagedRows(self.rows[is_taken], self.fall[:n_stages, is_taken])

    @property
    def scores(self) -> Mapping[str, np.ndarray]:
        """Attack -> score, shape ``(rows,)``: higher is a likelier member.

        ``series`` is the largest fall since the row's own stage, ``last`` the fall at
        the last stage, and ``step`` what its own stage added.
        """
        n_stages, n_rows = self.fall.shape
        own_stage = self.rows["place"].to_numpy() - 1  # (rows,), from 0
        stages = np.arange(n_stages)[:, None]  # (stages, 1)

        # Before its own stage, no checkpoint has seen the row.
        fall_since_own = np.where(stages >= own_stage, self.fall, -np.inf)

        steps = np.diff(self.fall, axis=0, prepend=0.0)  # (stages, rows)
        return {
            SERIES: fall_since_own.max(axis=0),
            LAST_STAGE: self.fall[-1],
            STEP: steps[own_stage, np.arange(n_rows)],
        }


@dataclass(frozen=True, eq=False)
class SeriesRows:
    """The testable rows and coins of one series.

    Attributes
    ----------
    rows
        Rows of both sides; ``None``: none can be tested.
    reason
        Why none can be tested; empty: some can.
    coins
        Canaries and the strings that could have replaced them, in pairs.
    """

    name: str
    rows: StagedRows | None
    reason: str
    coins: StagedRows


def staged_series(evidence: Evidence) -> Iterator[SeriesRows]:
    """Yield the rows and the coins of each series."""
    units = evidence.units
    base = evidence.row(BASE, "nll")  # (units,), nats per token
    texts = evidence.row(BASE, "texts")  # (units,)
    is_coin = units["dose"].to_numpy() > 0  # (units,), bool

    names = [name for name in evidence.checkpoints if name != BASE]
    for name, checkpoints in grouped(names, series_of).items():
        stages = sorted(checkpoints, key=_stage_of)
        falls = [base - evidence.row(stage, "nll") for stage in stages]
        fall = np.stack(falls)  # (stages, units), nats per token

        # Number of the stage that trained on the task of each unit; 0: not known.
        own_stage = evidence.row(stages[0], "place").astype(int)  # (units,)
        all_units = StagedRows(units.assign(place=own_stage, texts=texts), fall)

        # Units whose stage is known and that every stage scored.
        is_known = (own_stage > 0) & np.isfinite(fall).all(axis=0)  # (units,), bool
        is_of_large_task = _is_of_large_task(units, is_known & ~is_coin)
        is_row = is_known & ~is_coin & is_of_large_task

        rows = None
        reason = ""
        if is_row.any():
            rows = all_units.take(is_row)
        elif (own_stage > 0).any():
            reason = TOO_FEW_ROWS
        else:
            reason = UNORDERED
        yield SeriesRows(
            name=name,
            rows=rows,
            reason=reason,
            coins=all_units.take(is_known & is_coin),
        )


def _stage_of(checkpoint: str) -> int:
    """Return the number of a checkpoint's stage."""
    return CheckpointName.parse(checkpoint).stage or 0


def _is_of_large_task(units: pd.DataFrame, is_used: np.ndarray) -> np.ndarray:
    """Return which units are of tasks with enough members and non-members.

    Parameters
    ----------
    units
        ``task``, ``member``.
    is_used
        Shape ``(units,)``, bool: units that count.

    Returns
    -------
    Shape ``(units,)``, bool.
    """
    counts = units[is_used].groupby(["task", "member"]).size().unstack()
    counts = counts.reindex(columns=[True, False])  # tasks in rows, sides beside

    is_large = counts.ge(MIN_ROWS_OF_TASK).all(axis=1)
    return units["task"].isin(counts.index[is_large]).to_numpy()

"""Rows of a series by stage: the scores that three attacks give them from their NLL.

A row is an example of the manifest, or one of the two strings of a coin (in
:class:`SeriesRows` the latter are ``coins``, and ``rows`` are examples). Stages count
from 1; a row's *own* stage is the one that trained on its task, which the column
``trained_at`` holds.

A further attack is a name in ``SERIES_ATTACKS`` and a score in
:attr:`StagedRows.scores`.
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
"""Attack by all stages."""

LAST_STAGE = "last"
"""Attack by the last stage alone."""

STEP = "step"
"""Attack by a row's own stage and the one before it."""

SERIES_ATTACKS = (SERIES, LAST_STAGE, STEP)

MIN_ROWS_OF_TASK = 10
"""Least number of members, and of non-members, for estimates of a task."""

TOO_FEW_ROWS = (
    f"each task has fewer than {MIN_ROWS_OF_TASK} trained "
    f"or {MIN_ROWS_OF_TASK} held-out rows"
)

NONE_SCORED_BY_ALL = "no row was scored by the untrained model and by every stage"


@dataclass(frozen=True, eq=False)
class StagedRows:
    """Rows of one series, and how far their NLL fell by each stage.

    Attributes
    ----------
    rows
        Units of the evidence: ``example``, ``task``, ``cluster``, ``member`` (bool),
        ``dose`` (0: no coin), ``trained_at`` (the row's own stage, from 1; 0: not
        known) and ``texts``, a score of the best guess from the row's text and the
        base.
    fall
        Shape ``(stages, rows)``: fall of the mean NLL from the untrained model to each
        stage, nats per token. Above 0 a row became likelier.
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
            Stages that are kept, from the first; ``None``: all. Each taken row's own
            stage must be among them.
        """
        return StagedRows(self.rows[is_taken], self.fall[:n_stages, is_taken])

    @property
    def scores(self) -> Mapping[str, np.ndarray]:
        """Attack -> score, shape ``(rows,)``: higher is a likelier member.

        ``series`` is the largest fall at the row's own stage or a later one, ``last``
        the fall at the last stage, and ``step`` what its own stage added. Each row
        needs a known stage.
        """
        n_stages, n_rows = self.fall.shape
        own_index = (
            self.rows["trained_at"].to_numpy() - 1
        )  # (rows,), index of its own stage
        stage_index = np.arange(n_stages)[:, None]  # (stages, 1)

        # Before its own stage, no checkpoint has seen the row.
        has_seen_row = stage_index >= own_index  # (stages, rows)
        fall_since_own_stage = np.where(has_seen_row, self.fall, -np.inf)

        # The first step is that from the untrained model, whose fall is 0.
        steps = np.diff(self.fall, axis=0, prepend=0.0)  # (stages, rows)
        return {
            SERIES: fall_since_own_stage.max(axis=0),
            LAST_STAGE: self.fall[-1],
            STEP: steps[own_index, np.arange(n_rows)],
        }


@dataclass(frozen=True, eq=False)
class SeriesRows:
    """The testable rows and coins of one series.

    Attributes
    ----------
    name
        Name of the series.
    rows
        Trained and held-out examples; ``None``: none can be tested.
    reason
        Why none can be tested; empty: some can.
    coins
        Planted strings and those that could have replaced them, in pairs; may be empty.
    """

    name: str
    rows: StagedRows | None
    reason: str
    coins: StagedRows


def staged_series(evidence: Evidence) -> Iterator[SeriesRows]:
    """Yield the rows and the coins of each series.

    Parameters
    ----------
    evidence
        That of :class:`~spark_audit.audits.series.audit.SeriesAttack`: scores ``nll``,
        ``trained_at`` and ``texts`` by the base and by each stage.
    """
    units = evidence.units
    base_nll = evidence.row(BASE, "nll")  # (units,), nats per token
    guesses = evidence.row(BASE, "texts")  # (units,), the best guess
    is_coin = units["dose"].to_numpy() > 0  # (units,), bool

    names = [name for name in evidence.checkpoints if name != BASE]
    for name, checkpoints in grouped(names, series_of).items():
        stages = sorted(checkpoints, key=_stage_of)
        falls = [base_nll - evidence.row(stage, "nll") for stage in stages]
        fall = np.stack(falls)  # (stages, units), nats per token

        # All stages hold the same numbers. 0: it is not known which stage it is.
        own_stage = evidence.row(stages[0], "trained_at").astype(int)  # (units,)
        all_units = StagedRows(units.assign(trained_at=own_stage, texts=guesses), fall)

        # Units whose stage is known and that every stage scored.
        has_stage = own_stage > 0  # (units,), bool
        is_usable = has_stage & np.isfinite(fall).all(axis=0)  # (units,), bool
        is_in_large_task = is_of_large_task(units, is_usable & ~is_coin)
        is_tested_row = is_usable & ~is_coin & is_in_large_task

        rows = None
        reason = ""
        if is_tested_row.any():
            rows = all_units.take(is_tested_row)
        elif not has_stage.any():
            reason = UNORDERED
        elif not is_usable.any():
            reason = NONE_SCORED_BY_ALL
        else:
            reason = TOO_FEW_ROWS
        yield SeriesRows(
            name=name,
            rows=rows,
            reason=reason,
            coins=all_units.take(is_usable & is_coin),
        )


def _stage_of(checkpoint: str) -> int:
    """Return the number of a checkpoint's stage."""
    return CheckpointName.parse(checkpoint).stage or 0


def is_of_large_task(units: pd.DataFrame, is_used: np.ndarray) -> np.ndarray:
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
    # A line per task, a column per side; NaN, which is never enough, for no row.
    counts = counts.reindex(columns=[True, False])

    is_large = counts.ge(MIN_ROWS_OF_TASK).all(axis=1)  # by task
    return units["task"].isin(counts.index[is_large]).to_numpy()

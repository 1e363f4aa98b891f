"""Scores of each row by all stages of a series, and by its last one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.audits.utility.task_accuracy import UNORDERED
from spark_audit.names import BASE, CheckpointName, series_of
from spark_audit.results.evidence import Evidence
from spark_audit.stats.roc import Design

SERIES, LAST, STEP = "series", "last", "step"
FPRS = {"tpr_at_fpr_10": 0.1, "tpr_at_fpr_1": 0.01}
OFS = (SERIES, LAST, STEP)
FEWEST = 10
"""A task needs this many members and as many non-members to be estimated."""
TOO_FEW = f"each task has fewer than {FEWEST} trained or {FEWEST} held-out rows"


@dataclass(frozen=True)
class StagedRows:
    """The rows of one series that have a place, and their NLL by stage.

    ``fall`` is the fall of the NLL since the untrained model, nats per token, shape
    ``(stages, rows)``; ``place`` counts from 1, ``texts`` is the best guess without a
    model.
    """

    rows: pd.DataFrame
    fall: np.ndarray
    place: np.ndarray
    texts: np.ndarray

    def until(self, stage: int) -> StagedRows:
        """What there was after a stage: its tasks, and the stages up to it."""
        kept = self.place <= stage
        part = self.fall[:stage, kept]
        return StagedRows(self.rows[kept], part, self.place[kept], self.texts[kept])

    @property
    def scores(self) -> Mapping[str, np.ndarray]:
        """The three scores by name, shape ``(rows,)`` each."""
        stage = np.arange(1, len(self.fall) + 1)[:, None]
        known = np.where(stage >= self.place, self.fall, -np.inf)
        steps = np.diff(self.fall, axis=0, prepend=0.0)
        own = steps[self.place - 1, np.arange(len(self.place))]
        return {SERIES: known.max(axis=0), LAST: self.fall[-1], STEP: own}

    @property
    def design(self) -> Design:
        """Sides, clusters and tasks."""
        return Design.of(self.rows["member"], self.rows["cluster"], self.rows["task"])


def all_series(
    evidence: Evidence,
) -> Iterator[tuple[str, StagedRows | str, StagedRows]]:
    """The series by name; of one that cannot be tested, why; its coins (dose > 0)."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for name in evidence.checkpoints:
        if name != BASE:
            by_name[series_of(name)].append(name)
    base, texts = (evidence.row(BASE, column) for column in ("nll", "texts"))
    coin = evidence.units["dose"].to_numpy() > 0
    for name, stages in by_name.items():
        stages = sorted(stages, key=lambda one: CheckpointName.parse(one).stage or 0)
        place = evidence.row(stages[0], "place")
        fall = np.stack([base - evidence.row(stage, "nll") for stage in stages])
        known = (place > 0) & np.isfinite(fall).all(axis=0)

        def part(kept: np.ndarray, fall: np.ndarray, place: np.ndarray) -> StagedRows:
            own = place[kept].astype(int)
            return StagedRows(evidence.units[kept], fall[:, kept], own, texts[kept])

        coins = part(known & coin, fall, place)
        known &= ~coin
        if not (place > 0).any():
            yield name, UNORDERED, coins
            continue
        sides = evidence.units[known].groupby(["task", "member"]).size().unstack()
        enough = sides.reindex(columns=[True, False]).ge(FEWEST).all(axis=1)
        known &= evidence.units["task"].isin(enough[enough].index).to_numpy()
        if not known.any():
            yield name, TOO_FEW, coins
            continue
        yield name, part(known, fall, place), coins

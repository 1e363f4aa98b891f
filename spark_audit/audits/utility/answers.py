"""The answers of each series: which questions all of its stages answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.names import CheckpointName, series_of
from spark_audit.results.evidence import Evidence
from spark_audit.stats import accuracy, accuracy_intervals


@dataclass(frozen=True, eq=False)
class Series:
    """One series' answers.

    ``tasks`` has a row per task with ``chance``, ``scorer`` and ``reason`` (why nothing
    was asked), ``rows`` one per question that all stages answered: its task's place and
    its cluster's ``code``, numbered alike for all series. ``correct`` has the shape
    ``(rows, stages)``.
    """

    stages: list[int]
    tasks: pd.DataFrame
    rows: pd.DataFrame
    correct: np.ndarray
    n_clusters: int

    def answers(
        self, keep: Collection[str] | None = None
    ) -> accuracy_intervals.Answers:
        """Return sums by cluster, over some of the examples; None: over all."""
        is_used = np.ones(len(self.rows), bool)
        if keep is not None:
            is_used = self.rows["example"].isin(keep).to_numpy()
        rows = self.rows[is_used]
        return accuracy_intervals.Answers.of_rows(
            self.correct[is_used],
            self.tasks.index.get_indexer(pd.Index(rows["task"])),
            rows["code"].to_numpy(),
            n_tasks=len(self.tasks),
            n_clusters=self.n_clusters,
        )

    def reason(self, metric: str) -> str | None:
        """Return why a figure over tasks and stages has no value; None: it has one."""
        unasked = self.tasks["reason"][self.tasks["reason"] != ""]
        if len(unasked):
            return "; ".join(f"{task} {reason}" for task, reason in unasked.items())

        n_stages = len(self.stages)
        has_gaps = self.stages != list(range(1, n_stages + 1))
        if metric != "last" and n_stages > 1 and has_gaps:
            stages = ", ".join(str(stage) for stage in self.stages)
            return f"only the stages {stages} were scored"
        return accuracy.reason_against(metric, stages=n_stages, tasks=len(self.tasks))


def all_series(evidence: Evidence) -> Iterator[tuple[str, Series]]:
    """Yield every series with the questions that all of its stages answered."""
    units = evidence.units
    # 1 right, 0 wrong, -1 not asked, NaN where the checkpoint has no such question.
    correct = evidence.values["correct"]  # (checkpoints, questions)
    is_answered = correct >= 0

    # Clusters of questions that any checkpoint answered, numbered alike for all series.
    clusters = units["cluster"].where(np.any(is_answered, axis=0))
    codes, labels = pd.factorize(clusters, sort=True)

    places: dict[str, dict[int, int]] = {}
    for i, checkpoint in enumerate(evidence.checkpoints):
        series = series_of(checkpoint)
        stage: int | None = None
        if series != checkpoint:
            stage = CheckpointName.parse(checkpoint).stage
        # A single checkpoint is the first stage of a series.
        places.setdefault(series, {}).setdefault(stage or 1, i)

    for series, place_of_stage in places.items():
        stages = sorted(place_of_stage)
        checkpoints = [place_of_stage[stage] for stage in stages]
        if not is_answered[checkpoints].any():
            continue

        answered_by_all = np.flatnonzero(is_answered[checkpoints].all(axis=0))
        # All stages of a series know the same questions: the first one listed tells.
        first_listed = next(iter(place_of_stage.values()))
        is_known = ~np.isnan(correct[first_listed])
        tasks = units[is_known].drop_duplicates("task").sort_values("place")
        yield (
            series,
            Series(
                stages=stages,
                tasks=tasks.set_index("task"),
                rows=units.assign(code=codes).iloc[answered_by_all],
                correct=correct[checkpoints][:, answered_by_all].T,
                n_clusters=len(labels),
            ),
        )

"""The answers of each series, from the evidence of the utility audit.

A series is one training that learned task after task; its stages are the checkpoints
after each of them. A single checkpoint counts as a series of one stage. Figures compare
stages with each other, so a question counts only if all stages of its series answered
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.names import CheckpointName, series_of
from spark_audit.results.evidence import Evidence
from spark_audit.stats import accuracy, accuracy_intervals


@dataclass(frozen=True, eq=False)
class Series:
    """The answers of one series to the questions that all of its stages answered.

    Attributes
    ----------
    stages
        Numbers of the stages that were scored, from 1, in rising order.
    tasks
        One line per task in training order, indexed by its name. Columns: ``chance``
        (accuracy of always giving the most common response), ``scorer``, and ``reason``
        (why the task has no question; empty: it has some).
    questions
        One line per question. Columns: ``example`` (id of its row), ``task``, and
        ``cluster_code`` (number of its cluster, the same in all series).
    is_right
        Shape ``(questions, stages)``: 1 where the stage answered rightly, else 0.
    n_clusters
        Number of clusters of all series together: their codes are below it.
    """

    stages: list[int]
    tasks: pd.DataFrame
    questions: pd.DataFrame
    is_right: np.ndarray
    n_clusters: int

    def answers(
        self, example_ids: Collection[str] | None = None
    ) -> accuracy_intervals.Answers:
        """Return right answers by cluster, stage and task, and the number of questions.

        Parameters
        ----------
        example_ids
            Count only the questions of these examples; ``None``: all questions.
        """
        is_counted = np.ones(len(self.questions), dtype=bool)  # (questions,)
        if example_ids is not None:
            is_counted = self.questions["example"].isin(example_ids).to_numpy()

        counted = self.questions[is_counted]
        task_codes = self.tasks.index.get_indexer(
            pd.Index(counted["task"])
        )  # (questions that count,), places in training order
        return accuracy_intervals.Answers.of_rows(
            self.is_right[is_counted],
            task_codes,
            counted["cluster_code"].to_numpy(),
            n_tasks=len(self.tasks),
            n_clusters=self.n_clusters,
        )

    def reason_missing(self, metric: str) -> str | None:
        """Return why a metric over all tasks has no value; ``None``: it has one.

        It has one only if each task has a question. All but the last accuracy need each
        stage, too.
        """
        reasons = self.tasks["reason"]
        without_question = reasons[reasons != ""]
        if len(without_question):
            return "; ".join(
                f"{task} {reason}" for task, reason in without_question.items()
            )

        # Only the last accuracy does not need the stages in between.
        n_stages = len(self.stages)
        is_complete = self.stages == list(range(1, n_stages + 1))
        if metric != "last" and n_stages > 1 and not is_complete:
            stages = ", ".join(str(stage) for stage in self.stages)
            return f"only the stages {stages} were scored"

        return accuracy.reason_against(metric, stages=n_stages, tasks=len(self.tasks))


def all_series(evidence: Evidence) -> Iterator[tuple[str, Series]]:
    """Yield the name and the answers of each series that answered a question.

    Parameters
    ----------
    evidence
        Of :class:`~spark_audit.audits.utility.audit.Utility`. Columns of its units:
        ``example``, ``task``, ``cluster``, ``chance``, ``scorer``, ``reason`` and
        ``place``, the task's place in training order.
    """
    # Units are questions, and tasks without any. 1 right, 0 wrong, -1 a task without a
    # question; NaN: a unit that is none of this checkpoint.
    correct = evidence.values["correct"]  # (checkpoints, units)
    is_answered = correct >= 0

    # One numbering for all series, so that they can be resampled together.
    clusters = evidence.units["cluster"].where(np.any(is_answered, axis=0))
    cluster_codes, cluster_names = pd.factorize(clusters, sort=True)
    units = evidence.units.assign(cluster_code=cluster_codes)

    for name, index_by_stage in _indices_by_series(evidence.checkpoints).items():
        stages = sorted(index_by_stage)
        indices = [index_by_stage[stage] for stage in stages]  # of checkpoints
        if not is_answered[indices].any():
            continue

        # All stages of a series have the same units, so read the first one.
        first_listed = next(iter(index_by_stage.values()))
        is_unit_of_series = ~np.isnan(correct[first_listed])  # (units,)
        tasks = (
            units[is_unit_of_series].drop_duplicates("task").sort_values("task_index")
        )

        is_answered_by_all = np.all(is_answered[indices], axis=0)  # (units,)
        is_right = correct[indices][:, is_answered_by_all]  # (stages, questions)
        series = Series(
            stages=stages,
            tasks=tasks.set_index("task"),
            questions=units[is_answered_by_all],
            is_right=is_right.T,  # (questions, stages)
            n_clusters=len(cluster_names),
        )
        yield name, series


def _indices_by_series(checkpoints: Sequence[str]) -> dict[str, dict[int, int]]:
    """Map each series to the index of the checkpoint after each of its stages.

    Parameters
    ----------
    checkpoints
        Names in the order of the evidence, whose first axis the indices are of.
    """
    indices_by_series: dict[str, dict[int, int]] = {}
    for i, checkpoint in enumerate(checkpoints):
        series = series_of(checkpoint)

        # A checkpoint without a stage is the first stage of its own series.
        stage = 1
        if series != checkpoint:
            stage = CheckpointName.parse(checkpoint).stage or 1

        index_by_stage = indices_by_series.setdefault(series, {})
        index_by_stage.setdefault(stage, i)
    return indices_by_series

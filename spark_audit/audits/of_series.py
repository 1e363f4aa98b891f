"""Audits of all stages of a series, and the order of the tasks that it learned.

A series ``NAME`` has the stages ``NAME@1``, ``NAME@2`` and so on. Each stage was
trained on one task more than the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from spark_audit.audits.base import Audit, Tables
from spark_audit.errors import InputError, one_of
from spark_audit.manifest.schema import Manifest
from spark_audit.names import CheckpointName, series_of
from spark_audit.results.rows import grouped
from spark_audit.scoring.table import Pass

UNORDERED = (
    "it is not known which task each stage was trained on: give --order with one task "
    "per stage"
)


@dataclass(frozen=True, kw_only=True)
class OfSeries(Audit):
    """The base class of audits that compare the stages of a series.

    Attributes
    ----------
    order
        The option ``--order``: tasks in the order of training, between commas.
    """

    of_series = True

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None

    def __post_init__(self) -> None:
        """Refuse an order with an empty name, or with a task twice."""
        super().__post_init__()
        if self.order is None:
            return
        tasks = listed(self.order)
        has_empty_name = "" in tasks
        has_repeated_task = len(set(tasks)) < len(tasks)
        if has_empty_name or has_repeated_task:
            raise InputError(
                "names a task twice, or has an empty name",
                where="--order",
                fix="write t1,t2,...",
            )

    def training_stages(
        self, tables: Tables, manifest: Manifest
    ) -> dict[str, dict[str, int]]:
        """Map each stage of a series to the number of the stage that trained each task.

        The result is checkpoint -> task -> number of a stage, from 1, and the same for
        all stages of a series. The inner mapping is empty if no order is given, or if
        its tasks are not as many as the stages of the series. Series of a single stage
        are left out.

        Raises
        ------
        InputError
            If the order names a task that the manifest does not have.
        """
        # This only refuses an order with unknown tasks.
        tasks_in_order(manifest, self.order)
        stage_of_task = {
            task: stage for stage, task in enumerate(listed(self.order), start=1)
        }

        # Only checkpoints with scores count as stages.
        stage_of_checkpoint: dict[str, int] = {}
        for checkpoint, passes in tables.items():
            if Pass() not in passes:
                continue
            parsed = CheckpointName.parse(checkpoint)
            if parsed.stage and not parsed.derived:
                stage_of_checkpoint[checkpoint] = parsed.stage

        stage_by_task: dict[str, dict[str, int]] = {}
        for checkpoints in grouped(stage_of_checkpoint, series_of).values():
            # A single stage has no earlier one to compare with.
            if len(checkpoints) < 2:
                continue
            stages = {stage_of_checkpoint[checkpoint] for checkpoint in checkpoints}
            has_stage_per_task = stages == {*stage_of_task.values()}
            for checkpoint in checkpoints:
                stage_by_task[checkpoint] = stage_of_task if has_stage_per_task else {}
        return stage_by_task


def tasks_in_order(manifest: Manifest, order: str | None) -> list[str]:
    """Return the tasks as they were trained; default: as they stand in the manifest.

    Tasks of the manifest that a given order does not name are left out.

    Raises
    ------
    InputError
        If the order names a task that the manifest does not have.
    """
    tasks = list(dict.fromkeys(example.task for example in manifest.examples))
    if order is None:
        return tasks

    ordered = listed(order)
    for task in ordered:
        one_of(task, "--order", tasks)
    return ordered


def listed(order: str | None) -> list[str]:
    """Return the tasks of an order that is written as names between commas."""
    if order is None:
        return []
    return [task.strip() for task in order.split(",")]

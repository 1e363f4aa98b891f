"""Audits of all stages of a series, and the order of the tasks that it learned."""

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
    """An audit of all stages of a series, each trained on the next of some tasks."""

    of_series = True

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None

    def __post_init__(self) -> None:
        tasks = listed(self.order)
        if self.order is None:
            return
        if not all(tasks) or len(set(tasks)) < len(tasks):
            raise InputError(
                "names a task twice, or has an empty name",
                where="--order",
                fix="write t1,t2,...",
            )

    def places(self, tables: Tables, manifest: Manifest) -> dict[str, dict[str, int]]:
        """Map each checkpoint of a series to the stage that trained on each task.

        No task has a place if the order is not given or its length is not that of the
        series. Series of a single stage are left out.
        """
        # This also refuses an order with unknown tasks.
        tasks_in_order(manifest, self.order)
        stage_of_task = {
            task: stage for stage, task in enumerate(listed(self.order), start=1)
        }

        # Checkpoint -> its stage; without scores a checkpoint is none.
        stage_of: dict[str, int] = {}
        for name, passes in tables.items():
            if Pass() not in passes:
                continue
            parsed = CheckpointName.parse(name)
            if parsed.stage and not parsed.derived:
                stage_of[name] = parsed.stage

        training_stages: dict[str, dict[str, int]] = {}
        for names in grouped(stage_of, series_of).values():
            # A single stage has no earlier one to compare with.
            if len(names) < 2:
                continue
            stages = {stage_of[name] for name in names}
            has_stage_per_task = stages == {*stage_of_task.values()}
            for name in names:
                training_stages[name] = stage_of_task if has_stage_per_task else {}
        return training_stages


def tasks_in_order(manifest: Manifest, order: str | None) -> list[str]:
    """Return the tasks as they were trained; default: as they stand in the manifest.

    Tasks that are missing in a given order are left out.

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

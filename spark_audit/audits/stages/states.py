"""States of tasks after each stage: remembered, forgotten, and so on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.stages.memory_cells import TaskCell
from spark_audit.stats.bootstrap import holm_by_key

State: TypeAlias = Literal[
    "not yet trained",
    "not estimable",
    "confounded",
    "remembered",
    "less likely",
    "forgotten",
    "not shown",
]

TaskOfSeries: TypeAlias = tuple[str, str]
"""A series, and the name of one of its tasks."""


@dataclass(frozen=True, eq=False)
class TaskState:
    """The state of one task after one stage.

    Attributes
    ----------
    cell
        The figures that it follows from.
    state
        See :func:`states_of_tasks`.
    memory_p, step_p
        p of no memory, and of no change by the stage, corrected over all tasks of the
        report; ``None``: not tested.
    is_likelier_again
        Whether the stage, a later one than its own, made identifiers of the task
        likelier again.
    """

    cell: TaskCell
    state: State
    memory_p: float | None
    step_p: float | None
    is_likelier_again: bool

    @property
    def is_significant(self) -> bool:
        """True if trained and held-out identifiers of the task clearly differ."""
        return _is_below_alpha(self.memory_p)


def states_of_tasks(cells: Sequence[TaskCell]) -> list[TaskState]:
    """Return the state of each task after each stage, in the order of the cells.

    ===============  ===================================================================
    state            condition, first match wins
    ===============  ===================================================================
    not yet trained  the stage comes before that of the task
    not estimable    there is no p
    confounded       the sides differed before the task was trained on
    remembered       trained identifiers are clearly likelier than held-out ones
    less likely      they clearly differ otherwise
    forgotten        the task was remembered at an earlier stage, and its NLL rose since
    not shown        otherwise
    ===============  ===================================================================

    Each p is corrected by Holm over all series and tasks: of memory before a task was
    trained on, of memory since, of rises since the lowest, and of steps by later
    stages, each family by itself.

    Parameters
    ----------
    cells
        Of single tasks; stages of a task in their order.
    """
    adjusted = _adjusted_ps(cells)

    differed_before = set[TaskOfSeries]()
    for number, cell in enumerate(cells):
        is_significant = _is_below_alpha(adjusted.memory.get(number))
        if cell.is_before_training and is_significant:
            differed_before.add(_task_of(cell))

    # A task is forgotten only if it was remembered at an earlier stage.
    remembered = set[TaskOfSeries]()
    states = []
    for number, cell in enumerate(cells):
        memory_p = adjusted.memory.get(number)
        step_p = adjusted.step.get(number)
        task = _task_of(cell)
        state = _state(
            cell,
            memory_p=memory_p,
            rise_p=adjusted.rise.get(number),
            differed_before=differed_before,
            remembered=remembered,
        )
        if state == "remembered":
            remembered.add(task)

        is_clear_step = _is_below_alpha(step_p) and task not in differed_before
        task_state = TaskState(
            cell=cell,
            state=state,
            memory_p=memory_p,
            step_p=step_p,
            is_likelier_again=is_clear_step and _fell(cell),
        )
        states.append(task_state)
    return states


class AdjustedPs(NamedTuple):
    """p by the place of a cell, corrected (Holm) within families of tests.

    Attributes
    ----------
    memory
        Of no memory: one family before the training of tasks, and one since.
    rise
        Of no rise since the stage at which a task was remembered most.
    step
        Of no change by a later stage than that of the task.
    """

    memory: dict[int, float]
    rise: dict[int, float]
    step: dict[int, float]


def _adjusted_ps(cells: Sequence[TaskCell]) -> AdjustedPs:
    """Return the corrected p of all cells; a cell that is not tested has none."""
    memory_before: dict[int, float | None] = {}
    memory_since: dict[int, float | None] = {}
    rises: dict[int, float | None] = {}
    steps: dict[int, float | None] = {}
    for number, cell in enumerate(cells):
        if cell.is_before_training:
            memory_before[number] = cell.memory_p
            continue
        memory_since[number] = cell.memory_p
        rises[number] = cell.rise_p
        if cell.is_after_training:
            steps[number] = cell.step_p

    return AdjustedPs(
        memory=holm_by_key(memory_before) | holm_by_key(memory_since),
        rise=holm_by_key(rises),
        step=holm_by_key(steps),
    )


def _state(
    cell: TaskCell,
    *,
    memory_p: float | None,
    rise_p: float | None,
    differed_before: Collection[TaskOfSeries],
    remembered: Collection[TaskOfSeries],
) -> State:
    """Return the state of one cell, see :func:`states_of_tasks`.

    Parameters
    ----------
    memory_p, rise_p
        Corrected.
    differed_before
        Tasks whose sides differed before they were trained on.
    remembered
        Tasks that were remembered at an earlier stage.
    """
    # In the order of the table.
    is_significant = _is_below_alpha(memory_p)

    if cell.is_before_training:
        return "not yet trained"
    if memory_p is None:
        return "not estimable"
    if _task_of(cell) in differed_before:
        return "confounded"
    if is_significant and (cell.memory.value or 0.0) < 0:
        return "remembered"
    if is_significant:
        return "less likely"
    if _task_of(cell) in remembered and _is_below_alpha(rise_p):
        return "forgotten"
    return "not shown"


def _fell(cell: TaskCell) -> bool:
    """Return whether trained identifiers became likelier by the stage.

    Both by themselves, at the upper limit of their change, and more than held-out ones.
    """
    if cell.trained_step_high is None or cell.step.value is None:
        return False
    return cell.trained_step_high < 0 and cell.step.value < 0


def _task_of(cell: TaskCell) -> TaskOfSeries:
    """Return the task of a cell, of its series."""
    return cell.series, cell.task


def _is_below_alpha(p: float | None) -> bool:
    """Return whether there is a p below the level of a claim."""
    return p is not None and p < ALPHA

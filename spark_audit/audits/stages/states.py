"""States of tasks after each stage: remembered, forgotten, and so on.

Memory and steps are changes of NLL, nats per token, of trained minus held-out
identifiers: below 0 is more remembered. A new state is a word of :data:`State`, a row
of the table in :func:`states_of_tasks`, and a branch in :func:`_state` in the same
order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.stages.memory_cells import TaskCell
from spark_audit.stats.multiple_tests import holm_by_key

State: TypeAlias = Literal[
    "not yet trained",
    "not estimable",
    "confounded",
    "remembered",
    "less likely",
    "forgotten",
    "not shown",
]
"""State of a task after a stage. The findings count ``remembered`` and ``forgotten`` by
these words, and the figure of stages marks ``remembered``; the report's table
``stages_states`` has all of them."""

TaskOfSeries: TypeAlias = tuple[str, str]
"""A series, and the name of one of its tasks."""


@dataclass(frozen=True, eq=False)
class TaskState:
    """The state of one task after one stage.

    Attributes
    ----------
    cell
        The figures that the state follows from.
    state
        See :func:`states_of_tasks`.
    memory_p, step_p
        Two-sided p of no memory, and of no change by the stage, corrected over all
        tasks of the report; ``None``: not tested.
    is_likelier_again
        Whether a later stage than the task's own clearly made its trained identifiers
        likelier again.
    """

    cell: TaskCell
    state: State
    memory_p: float | None
    step_p: float | None
    is_likelier_again: bool

    @property
    def is_significant(self) -> bool:
        """True if trained and held-out identifiers clearly differ, in any direction."""
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
                     (memory below 0)
    less likely      trained identifiers are clearly less likely (memory above 0)
    forgotten        the task was remembered at an earlier stage, and since its best
                     stage its memory clearly rose
    not shown        otherwise
    ===============  ===================================================================

    Each p is corrected by Holm over all series and tasks: of memory before a task was
    trained on, of memory since, of rises since the lowest, and of steps by later
    stages, each family by itself.

    Parameters
    ----------
    cells
        Cells of single tasks, of one or more series. The cells of a task stand in the
        order of their stages; a stage that was not scored has no cell.
    """
    adjusted = _adjusted_ps(cells)

    # Before a task is trained on, its sides cannot differ by memory.
    differed_before = set[TaskOfSeries]()
    for number, cell in enumerate(cells):
        is_significant = _is_below_alpha(adjusted.memory.get(number))
        if cell.is_before_training and is_significant:
            differed_before.add(_task_of(cell))

    # Cells come in the order of stages: the set holds what earlier stages remembered.
    remembered_so_far = set[TaskOfSeries]()
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
            remembered_so_far=remembered_so_far,
        )
        if state == "remembered":
            remembered_so_far.add(task)

        is_clear_step = _is_below_alpha(step_p) and task not in differed_before
        states.append(
            TaskState(
                cell=cell,
                state=state,
                memory_p=memory_p,
                step_p=step_p,
                is_likelier_again=is_clear_step and _became_likelier(cell),
            )
        )
    return states


class AdjustedPs(NamedTuple):
    """p by the number of a cell, from 0, corrected (Holm) within families of tests.

    Attributes
    ----------
    memory
        Two-sided p of no memory: cells before the training of their tasks are one
        family, and cells since are another.
    rise
        p of no rise since the stage at which a task was remembered most.
    step
        Two-sided p of no change, by stages after that of the task.
    """

    memory: dict[int, float]
    rise: dict[int, float]
    step: dict[int, float]


def _adjusted_ps(cells: Sequence[TaskCell]) -> AdjustedPs:
    """Return the corrected p of all cells; a test without a p has no entry.

    Parameters
    ----------
    cells
        Their places in this list are the keys of the result.
    """
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
    remembered_so_far: Collection[TaskOfSeries],
) -> State:
    """Return the state of one cell: the first match in :func:`states_of_tasks`' table.

    Parameters
    ----------
    memory_p, rise_p
        Corrected p of the cell; ``None``: not tested.
    differed_before
        Tasks whose sides differed before they were trained on.
    remembered_so_far
        Tasks that were remembered at an earlier stage.
    """
    is_significant = _is_below_alpha(memory_p)
    # A cell with a p has a value, too: 0.0 is for the type checker.
    memory = cell.memory.value or 0.0

    # In the order of the table.
    if cell.is_before_training:
        return "not yet trained"
    if memory_p is None:
        return "not estimable"
    if _task_of(cell) in differed_before:
        return "confounded"
    if is_significant and memory < 0:
        return "remembered"
    if is_significant:
        return "less likely"
    if _task_of(cell) in remembered_so_far and _is_below_alpha(rise_p):
        return "forgotten"
    return "not shown"


def _became_likelier(cell: TaskCell) -> bool:
    """Return whether the stage made trained identifiers of the task likelier.

    Their own NLL must have fallen (the upper limit of its change is below 0), and it
    must have fallen more than that of held-out identifiers.
    """
    if cell.trained_step_high is None or cell.step.value is None:
        return False
    return cell.trained_step_high < 0 and cell.step.value < 0


def _task_of(cell: TaskCell) -> TaskOfSeries:
    """Return the series and the task of a cell: tasks of two series are not one."""
    return cell.series, cell.task


def _is_below_alpha(p: float | None) -> bool:
    """Return whether a corrected p is below :data:`ALPHA`; ``None`` is not."""
    return p is not None and p < ALPHA

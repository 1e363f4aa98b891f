"""Findings of the audit of stages: memory, identifiers likelier again, and gains.

All are exploratory, since the primary tests decide whether a checkpoint leaks. A series
has one finding on memory, one on identifiers that became likelier again, and one on
what its earlier stages add to the last one. Memory and steps are in nats per token,
below 0 is more memory. Keys of sentences are those of ``sentences/en/stages.toml``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.identifiers import memory_claim
from spark_audit.audits.of_series import UNORDERED
from spark_audit.audits.stages.memory_cells import SeriesGain, TaskCell
from spark_audit.audits.stages.states import State, TaskState
from spark_audit.results import Claim, Finding
from spark_audit.results.findings import Fact
from spark_audit.stats.multiple_tests import holm_by_key

NO_FOLLOWED_TASK = "no task can be followed beyond its stage"

WITHOUT_FIGURE: tuple[State, ...] = ("not yet trained", "not estimable")
"""States of tasks on whose memory nothing can be said."""


def remembered_finding(
    states: Sequence[TaskState],
    all_tasks: Sequence[TaskCell],
    states_of_report: Sequence[TaskState],
) -> Finding:
    """Return the finding on the memory of a series.

    ==============================  ================================================
    first match wins                finding
    ==============================  ================================================
    no task has a figure            not_tested, with the reasons
    no task is remembered           nothing_shown, on all tasks after the last stage
    otherwise                       moved, on the task that is remembered most at the
                                    latest stage at which any is
    ==============================  ================================================

    Parameters
    ----------
    states
        Single tasks of the series, after each of its stages.
    all_tasks
        Cells of all tasks that the series was trained on so far, one for each stage.
    states_of_report
        Single tasks of all series: p is corrected over them.
    """
    # Without a figure, the reasons are given.
    with_figure = [state for state in states if state.state not in WITHOUT_FIGURE]
    if not with_figure:
        notes = dict.fromkeys(state.cell.memory.note for state in states)
        reasons = [note for note in notes if note]
        return Finding.not_tested(
            "stages",
            "stages.missing" if reasons else "stages.missing_alike",
            checkpoint=states[0].cell.series,
            reasons=reasons,
        )

    # Without memory, the figure is that of all tasks after the last stage.
    remembered = [state for state in states if state.state == "remembered"]
    if not remembered:
        last_stage = max(state.cell.stage for state in with_figure)
        (pooled,) = (cell.memory for cell in all_tasks if cell.stage == last_stage)
        return Finding.on(
            pooled,
            "nothing_shown",
            "stages.nothing",
            further=["stages.after_last"] if pooled.value is not None else [],
            facts={"memory": pooled},
        )

    # The latest stage shows the memory that is left; the lowest value is most memory.
    latest_stage = max(state.cell.stage for state in remembered)
    at_latest_stage = [
        state for state in remembered if state.cell.stage == latest_stage
    ]
    most_remembered = min(
        at_latest_stage, key=lambda state: state.cell.memory.value or 0.0
    )

    forgotten = [state for state in states if state.state == "forgotten"]
    tasks_by_period = _tasks_by_period(states)

    # p is corrected over all tasks and stages since their training.
    n_tests = sum(
        not state.cell.is_before_training and state.memory_p is not None
        for state in states_of_report
    )

    facts: dict[str, Fact] = {
        "tasks": [*tasks_by_period.values()],
        "periods": [list(period) for period in tasks_by_period],
        "memory": most_remembered.cell.memory,
        "task": most_remembered.cell.task,
        "stage": most_remembered.cell.stage,
        "p": most_remembered.memory_p,
        "tests": n_tests,
        "remembered_tasks": _task_names(remembered),
        "forgotten_tasks": _task_names(forgotten),
    }

    further = ["stages.remembered_tasks"]
    if forgotten:
        further.append("stages.forgotten_tasks")

    return Finding.on(
        most_remembered.cell.memory,
        "moved",
        "stages.remembered",
        further=further,
        facts=facts,
        p_adjusted=most_remembered.memory_p,
    )


def _task_names(states: Sequence[TaskState]) -> list[str]:
    """Return the names of the tasks, each once, in alphabetical order."""
    return sorted({state.cell.task for state in states})


def _tasks_by_period(states: Sequence[TaskState]) -> dict[tuple[str, ...], list[str]]:
    """Map each period of remembering to its tasks, in the order of their names.

    A period has the stage from which on its tasks are forgotten (empty: they are not),
    then the stages at which they are remembered: ``("4", "1", "2")`` is remembered at
    stages 1 and 2, and forgotten from 4 on. Tasks without memory are in none.
    """
    # Stages of each task at which it is remembered, or forgotten, in their order.
    remembered_stages: dict[str, list[int]] = defaultdict(list)
    forgotten_stages: dict[str, list[int]] = defaultdict(list)
    for state in states:
        if state.state == "remembered":
            remembered_stages[state.cell.task].append(state.cell.stage)
        if state.state == "forgotten":
            forgotten_stages[state.cell.task].append(state.cell.stage)

    # Tasks with the same stages share a period.
    tasks_by_period: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task, stages in sorted(remembered_stages.items()):
        # Only a stage after the last one at which it is remembered counts: what is
        # remembered again is not forgotten for good.
        last_stage = max(stages)
        forgotten_after = [
            stage for stage in forgotten_stages[task] if stage > last_stage
        ]
        forgotten_from = str(forgotten_after[0]) if forgotten_after else ""
        period = (forgotten_from, *(str(stage) for stage in stages))
        tasks_by_period[period].append(task)
    return tasks_by_period


def again_finding(
    states: Sequence[TaskState], states_of_report: Sequence[TaskState]
) -> Finding:
    """Return the finding on earlier tasks that a later stage made likelier again.

    It is on the step that made identifiers likelier by most.

    Parameters
    ----------
    states
        Single tasks of the series, after each of its stages.
    states_of_report
        Single tasks of all series: p is corrected over them.
    """
    # Only steps by a later stage than that of the task have a p (`states.py`).
    followed = [state for state in states if state.step_p is not None]
    if not followed:
        reason = UNORDERED
        if any(state.cell.trained_at for state in states):
            reason = NO_FOLLOWED_TASK
        return Finding.not_tested(
            "stages",
            "stages.no_steps",
            checkpoint=states[0].cell.series,
            reason=reason,
        )

    # The largest significant fall of NLL counts; without any, the largest fall.
    likelier_again = [state for state in followed if state.is_likelier_again]
    largest_fall = min(
        likelier_again or followed, key=lambda state: state.cell.step.value or 0.0
    )
    n_tests = sum(state.step_p is not None for state in states_of_report)

    tasks: list[str] = []
    stages: list[str] = []
    pairs: list[list[str]] = []
    for state in likelier_again:
        task = state.cell.task
        stage = str(state.cell.stage)
        tasks.append(task)
        stages.append(stage)
        pairs.append([task, stage])

    facts: dict[str, Fact] = {
        "step": largest_fall.cell.step,
        "task": largest_fall.cell.task,
        "stage": largest_fall.cell.stage,
        "p": largest_fall.step_p,
        "tests": n_tests,
        "tasks": tasks,
        "stages": stages,
        "again": pairs,
    }

    claim: Claim = "nothing_shown"
    says = "stages.not_again"
    further = ["stages.largest_step"]
    if likelier_again:
        claim = "moved"
        says = "stages.again"
        further += ["stages.again_tasks", "stages.replay"]
    return Finding.on(
        largest_fall.cell.step,
        claim,
        says,
        further=further,
        facts=facts,
        p_adjusted=largest_fall.step_p,
    )


def gain_findings(gains: Mapping[str, SeriesGain]) -> list[Finding]:
    """Return the findings on the gain of all stages over the last one, by series.

    p is corrected over the series (Holm). A series can add to its last stage only if it
    shows memory itself.

    Parameters
    ----------
    gains
        Series -> gain of all of its stages over the last one.
    """
    # Series whose gain cannot be tested have no finding.
    adjusted_ps = holm_by_key({name: gain.p for name, gain in gains.items()})
    findings = []
    for name, p in adjusted_ps.items():
        series_gain = gains[name]
        facts: dict[str, Fact] = {
            "series": series_gain.best,
            "last": series_gain.last,
            "gain": series_gain.gain,
            "p": p,
            "tests": len(adjusted_ps),
        }

        # Below 0, all stages show more memory than the last one.
        is_memory = memory_claim(series_gain.best) == "memory"
        is_more = (series_gain.gain.value or 0.0) < 0
        claim: Claim = "nothing_shown"
        says = "stages.series_adds_nothing"
        if is_memory and is_more and p < ALPHA:
            claim = "moved"
            says = "stages.series_adds"
        finding = Finding.on(
            series_gain.gain,
            claim,
            says,
            further=["stages.series_best"],
            facts=facts,
            p_adjusted=p,
        )
        findings.append(finding)
    return findings

"""What a study costs before it begins: runs, hours and money, by measured rates."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from claims.plan import Run
from claims.request import TrainingOptions
from claims.training import train_run
from spark_audit.data.examples import Example, write_examples
from spark_train.run_folder import Folder
from spark_train.run_record import PhaseSeconds

Progress = Callable[[str, int, int], None]

PROBE_TASKS = 2
PROBE_BATCHES = 4
PROBE_CORRECTION = 3
PROBE_ANSWERS = 4
"""A probe learns the first two tasks of a run: four batches of each in one epoch, three
steps of correction, and four answered rows."""

ANSWERS = "answers"
CORRECTION = "priv"
"""Ends of the names of phases that are no learning (``2-yelp/answers``)."""


@dataclass(frozen=True)
class Rates:
    """Seconds that one method takes, measured on this machine.

    Attributes
    ----------
    first, later
        Per train row and epoch of the first task, and of every later one, which also
        replays.
    correction
        Per step of correction; 0 for a method without.
    answer
        Per test row that is answered.
    """

    first: float
    later: float
    correction: float
    answer: float


@dataclass(frozen=True)
class PlannedCost:
    """All runs of one system in one task order, and the hours that they take."""

    system: str
    order: str
    n_runs: int
    hours: float


def planned_costs(
    planned: Sequence[Run],
    *,
    bases: Mapping[bool, str],
    rows: Sequence[Example],
    settings: Mapping[str, Any],
    options: TrainingOptions,
    progress: Progress,
) -> list[PlannedCost]:
    """Measure each method on the study's own data and base, and add its runs up.

    Parameters
    ----------
    planned
        Runs of the study, in any order.
    bases
        The base model (``False``) and, where there is one, the second (``True``).
    rows
        Of the study's data.

    Returns
    -------
    costs
        By system and task order, in the order of ``planned``.
    """
    rates: dict[tuple[bool, str, str], Rates] = {}
    hours: dict[tuple[str, str], list[float]] = {}
    kinds = {_kind(run): run for run in reversed(planned)}
    for done, (kind, run) in enumerate(kinds.items()):
        progress("measuring, methods", done, len(kinds))
        rates[kind] = measured_rates(
            run,
            base=bases[kind[0]],
            rows=rows,
            settings=settings,
            options=options,
        )

    for run in planned:
        seconds = run_seconds(run, rates[_kind(run)], rows=rows, settings=settings)
        hours.setdefault((run.system.name, str(run.order)), []).append(seconds / 3600)
    return [
        PlannedCost(system=system, order=order, n_runs=len(each), hours=sum(each))
        for (system, order), each in hours.items()
    ]


def _kind(run: Run) -> tuple[bool, str, str]:
    """What decides a run's rates: its base, its method, and its privacy option."""
    return run.order == "second", run.system.method, run.system.dp


def measured_rates(
    run: Run,
    *,
    base: str,
    rows: Sequence[Example],
    settings: Mapping[str, Any],
    options: TrainingOptions,
) -> Rates:
    """Train a few batches of a run in a folder that is thrown away."""
    tasks = run.tasks[:PROBE_TASKS]
    batch_size = int(settings.get("batch_size", 32))
    probe_rows = _few(rows, tasks, n_train=PROBE_BATCHES * batch_size)
    own = {
        name: value
        for name, value in run.system.settings.items()
        if name != "ptpc.steps"
    }
    probe = replace(run, tasks=tasks, system=replace(run.system, settings=own))

    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "rows.jsonl")
        write_examples(data, probe_rows)
        train_run(
            base,
            (data,),
            {**settings, "epochs": 1, "ptpc.steps": PROBE_CORRECTION},
            Path(scratch, "runs"),
            options,
            probe,
        )
        record = Folder(Path(scratch, "runs") / probe.place).read()
    assert record is not None

    n_train = [_count(probe_rows, task, "train") for task in tasks]
    n_test = sum(_count(probe_rows, task, "test") for task in tasks)
    learning = _learning_seconds(record.seconds)
    if len(learning) == 1:
        # All tasks are learned at once.
        first = later = learning[0] / sum(n_train)
    else:
        first, later = (
            seconds / count for seconds, count in zip(learning, n_train, strict=True)
        )
    corrected = _ends(record.seconds, CORRECTION)
    n_corrections = sum(phase.endswith(f"/{CORRECTION}") for phase in record.seconds)
    # After the second task the rows of the first are answered again.
    n_answers = n_test + _count(probe_rows, tasks[0], "test") * (len(learning) - 1)
    return Rates(
        first=first,
        later=later,
        correction=corrected / max(n_corrections * PROBE_CORRECTION, 1),
        answer=_ends(record.seconds, ANSWERS) / max(n_answers, 1),
    )


def run_seconds(
    run: Run, rates: Rates, *, rows: Sequence[Example], settings: Mapping[str, Any]
) -> float:
    """Seconds of a whole run: its tasks, their correction, and the answers to tests."""
    own = {**settings, **run.system.settings}
    epochs = int(own.get("epochs", 3))
    steps = int(own.get("ptpc.steps", 200))
    n_train = [_count(rows, task, "train") for task in run.tasks]
    n_test = [_count(rows, task, "test") for task in run.tasks]

    learning = epochs * (n_train[0] * rates.first + sum(n_train[1:]) * rates.later)
    correction = len(run.tasks) * steps * rates.correction
    # After each task the test rows of all tasks so far are answered.
    n_answers = sum(sum(n_test[: k + 1]) for k in range(len(run.tasks)))
    return learning + correction + n_answers * rates.answer


def lines(costs: Sequence[PlannedCost], *, hour_price: float | None) -> Iterable[str]:
    """Yield the plan, as text: a line per system and order, and the sum."""
    for cost in costs:
        order = "second base" if cost.order == "second" else f"order {cost.order}"
        yield (
            f"{cost.system:<22} {order:<13} {cost.n_runs:>3} runs "
            f"{cost.hours:>8.2f} hours"
        )
    hours = sum(cost.hours for cost in costs)
    price = "" if hour_price is None else f", {hours * hour_price:,.2f} in money"
    yield f"{sum(cost.n_runs for cost in costs)} runs, {hours:.2f} hours{price}"
    yield (
        "Measured on the first batches of each method on this machine, one run at a "
        "time; audits and the search of settings come on top."
    )


def _few(
    rows: Sequence[Example], tasks: Sequence[str], *, n_train: int
) -> list[Example]:
    """The first rows of the tasks: ``n_train`` to learn, and a few to answer."""
    few: list[Example] = []
    for task in tasks:
        own = [row for row in rows if row.task == task]
        few += [row for row in own if row.split == "train"][:n_train]
        few += [row for row in own if row.split == "test"][:PROBE_ANSWERS]
    return few


def _count(rows: Sequence[Example], task: str, split: str) -> int:
    return sum((row.task, row.split) == (task, split) for row in rows)


def _learning_seconds(seconds: PhaseSeconds) -> list[float]:
    """Seconds of learning, by stage."""
    return [
        _without_looking(kinds)
        for phase, kinds in seconds.items()
        if not phase.endswith((f"/{ANSWERS}", f"/{CORRECTION}"))
    ]


def _ends(seconds: PhaseSeconds, end: str) -> float:
    """Seconds of all phases whose name ends so."""
    return sum(
        _without_looking(kinds)
        for phase, kinds in seconds.items()
        if phase.endswith(f"/{end}")
    )


def _without_looking(kinds: Mapping[str, float]) -> float:
    """Seconds of a phase but those of its probe, which few steps read as often."""
    return sum(seconds for kind, seconds in kinds.items() if kind != "probe")

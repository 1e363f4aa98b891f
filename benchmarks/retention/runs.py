"""Train the runs of a design; what is finished is not trained again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from claims.plan import Run, System
from claims.request import TrainingOptions
from claims.training import finished, train_run

from retention.accuracies import run_lines
from retention.design import StudyDesign, StudyRules
from retention.further import read_further
from retention.judging import learning_of
from retention.tasks import write_tasks
from spark_audit.data.examples import read_examples
from spark_audit.files import check_writable

Progress = Callable[[str, int, int], None]
Keep = Callable[[pd.DataFrame], None]
"""Called with the accuracies of all finished runs, after each run."""


def run_study(
    data: Path,
    base: str,
    folder: Path,
    rules: StudyRules,
    *,
    device: str,
    progress: Progress,
    keep: Keep,
) -> None:
    """Train design after design, until the learner learns the tasks in one.

    Parameters
    ----------
    data
        Folder of the sources' folders.
    base
        The pretrained model.
    folder
        Where tasks, bases and runs are.

    Raises
    ------
    SparkError
        What reading the data and ``spark-train run`` raise; finished runs are kept.
    """
    check_writable(folder)
    files = write_tasks(data, folder / "data", rules)
    learner, *others = rules.systems
    tables: list[pd.DataFrame] = []

    for design in rules.designs:
        base_of_design = base
        if design.further_epochs:
            base_of_design = read_further(
                base,
                folder / "bases" / design.name,
                list(read_examples(*files)),
                epochs=design.further_epochs,
                progress=progress,
            )
        train = partial(
            trained,
            design=design,
            base=base_of_design,
            files=files,
            folder=folder / "runs" / design.name,
            device=device,
            progress=progress,
            learner=learner,
        )

        has_failed = False
        for run in planned_runs([learner], rules):
            tables.append(train(run))
            table = pd.concat(tables)
            keep(table)
            has_failed = learning_of(table, design, rules).fails
            if has_failed:
                break
        if has_failed:
            continue

        later_runs = planned_runs(rules.later_systems, rules)
        for run in [*planned_runs(others, rules), *later_runs]:
            tables.append(train(run))
            keep(pd.concat(tables))
        return


def planned_runs(systems: Sequence[System], rules: StudyRules) -> list[Run]:
    """Return the runs of systems, seed by seed, so that whole seeds are done first."""
    tasks = tuple(task.name for task in rules.tasks)
    return [
        Run(system=system, order=1, seed=seed, tasks=tasks)
        for seed in rules.seeds
        for system in systems
    ]


def trained(
    run: Run,
    *,
    design: StudyDesign,
    base: str,
    files: Sequence[Path],
    folder: Path,
    device: str,
    progress: Progress,
    learner: System,
) -> pd.DataFrame:
    """Train a run if it is not finished, and return its accuracies.

    The learner's first task is taken where it is trained the same.
    """
    progress(f"{design.name}, seed {run.seed}: {run.system.name}", 0, 1)
    place = folder / run.place
    if not finished(place):
        learner_run = replace(run, system=learner)
        first_phase_of = folder / learner_run.place
        train_run(
            base,
            tuple(files),
            design.settings,
            folder,
            TrainingOptions(device=device),
            run,
            first_phase_of=first_phase_of if run != learner_run else None,
        )
    return run_lines(place, design=design.name, system=run.system.name, seed=run.seed)

"""Train the runs of a design; what is finished is not trained again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from claims.plan import Run, System
from claims.request import TrainingOptions
from claims.training import finished, train_run

from retention.accuracies import run_lines
from retention.design import Design, Rules
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
    rules: Rules,
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

        def train(
            systems: Sequence[System], *, design: Design, base: str
        ) -> Iterable[pd.DataFrame]:
            for run in planned_runs(systems, rules):
                yield trained(
                    run,
                    design=design,
                    base=base,
                    files=files,
                    folder=folder / "runs" / design.name,
                    device=device,
                    progress=progress,
                    learner=rules.systems[0],
                )

        learner, *others = rules.systems
        has_failed = False
        for table in train([learner], design=design, base=base_of_design):
            tables.append(table)
            keep(pd.concat(tables))
            has_failed = not learning_of(pd.concat(tables), design, rules).holds
            if has_failed:
                break
        if has_failed:
            continue

        for systems in (others, rules.later_systems):
            for table in train(systems, design=design, base=base_of_design):
                tables.append(table)
                keep(pd.concat(tables))
        return


def planned_runs(systems: Sequence[System], rules: Rules) -> list[Run]:
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
    design: Design,
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

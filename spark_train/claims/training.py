"""The runs of a study, shared by processes; each resumes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spark_audit.demo.workers import Job, Progress, workers
from spark_train.claims.plan import Run

FINISHED, KEPT = "run finished", "run kept"
LOOK = 10.0
"""Seconds that looking at a finished run takes at most."""


def train_all(
    runs: Sequence[Run],
    *,
    base: str,
    data: Sequence[Path],
    settings: Mapping[str, Any],
    folder: Path,
    processes: int,
    device: str,
    progress: Progress,
) -> None:
    """Train what is not there yet, in the order given; ``folder`` is that of the runs.

    Raises
    ------
    SparkError
        What ``spark-train run`` would say of a run; the others' steps are kept.
    """
    told = _Told(len(runs), progress)
    train = partial(_train, base, tuple(data), dict(settings), folder, device)
    jobs: list[Job] = [partial(train, run) for run in runs]
    with workers(processes, progress=told) as crew:
        crew.run(jobs)


class _Told:
    """One line for all runs, with how long the rest is going to take."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total, self.progress = total, progress
        self.began = time.monotonic()
        self.done = self.trained = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if what in (FINISHED, KEPT):
            self.done += 1
            self.trained += what == FINISHED
        left = ""
        if self.trained:
            each = (time.monotonic() - self.began) / self.trained
            minutes = each * (self.total - self.done) / 60
            left = f", about {minutes:.0f} min left"
        self.progress(f"training, runs{left}", self.done, self.total)


def settings_of(run: Run, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of ``--set``; what its method does not read is left out."""
    from spark_train.methods import groups
    from spark_train.privacy import groups as privacy_groups
    from spark_train.settings import names

    read = groups(run.system.method)
    if run.system.dp != "none":
        read = (*read, *privacy_groups(run.system.dp))
    known = names(read)
    chosen = {key: value for key, value in settings.items() if key in known}
    chosen |= run.system.settings
    return tuple(f"{key}={value}" for key, value in chosen.items())


def _train(
    base: str,
    data: tuple[Path, ...],
    settings: Mapping[str, Any],
    folder: Path,
    device: str,
    run: Run,
    progress: Progress,
) -> None:
    from spark_audit.checkpoints.offline import quiet

    with quiet():
        from spark_train.request import Opening, TrainRequest
        from spark_train.run import train

    warnings.simplefilter("ignore")
    target = folder / run.place
    target.parent.mkdir(parents=True, exist_ok=True)
    request = TrainRequest(
        method=run.system.method,
        dp=run.system.dp,
        base=base,
        order=",".join(run.tasks),
        data=data,
        output=target,
        settings=settings_of(run, settings),
        seed=run.seed,
        loading=Opening(device=device),
    )
    began = time.monotonic()
    train(request, progress=progress)
    progress(FINISHED if time.monotonic() - began > LOOK else KEPT, 1, 1)

"""The runs of a study, shared by processes; each resumes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from claims.nodes import run_on_nodes
from claims.plan import Run
from claims.request import TrainingOptions
from spark_audit.demo_base import Progress
from spark_audit.errors import InputError
from spark_audit.pipeline.engines.cluster import connected
from spark_audit.pipeline.engines.local import Work, run_jobs
from spark_train.run_folder import Folder

LOOK = 10.0
"""Seconds that looking at a finished run takes at most."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster; without an address ``RAY_ADDRESS``, else one that begins here."""

    address: str | None


def train_all(
    runs: Sequence[Run],
    *,
    base: str,
    data: Sequence[Path],
    settings: Mapping[str, Any],
    folder: Path,
    processes: int,
    options: TrainingOptions,
    progress: Progress,
    cluster: Cluster | None = None,
) -> None:
    """Train what is not there yet, in the order given; ``folder`` is that of the runs.

    Parameters
    ----------
    cluster
        Whose nodes train, in place of processes here.

    Raises
    ------
    SparkError
        What ``spark-train run`` would say of a run; the others' steps are kept.
    """
    told = _Told(len(runs), progress)
    if cluster is not None:  # nodes work in folders of their own
        folder, data = folder.absolute(), [file.absolute() for file in data]
        base = str(Path(base).absolute()) if Path(base).exists() else base
    train = partial(train_run, base, tuple(data), dict(settings), folder, options)
    jobs: list[Work] = [partial(train, run) for run in runs]
    if cluster is None:
        run_jobs(jobs, processes=processes, ended=told)
        return
    with connected(cluster.address) as ray:
        run_on_nodes(ray, jobs, gpu=options.device != "cpu", ended=told)
    for run in runs:
        if not finished(folder / run.place):
            raise InputError(
                "a node has trained a run that is not in it",
                where=str(folder),
                fix="give an -o on a disk that all nodes share, by the same name",
            )


def finished(run: Path) -> bool:
    """Whether a run's folder says that it is complete."""
    try:
        record = Folder(run).read()
    except (InputError, OSError):
        return False
    return record is not None and record.status == "complete"


class _Told:
    """One line for all runs, with how long the rest is going to take."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total, self.progress = total, progress
        self.began = time.monotonic()
        self.done = self.trained = 0

    def __call__(self, trained: bool) -> None:
        self.done += 1
        self.trained += trained
        left = ""
        if self.trained:
            each = (time.monotonic() - self.began) / self.trained
            minutes = each * (self.total - self.done) / 60
            left = f", about {minutes:.0f} min left"
        self.progress(f"training, runs{left}", self.done, self.total)


def settings_of(run: Run, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of ``--set``; what its method does not read is left out."""
    from spark_train.privacy import groups as privacy_groups
    from spark_train.training_methods import groups
    from spark_train.training_settings import names

    read = groups(run.system.method)
    if run.system.dp != "none":
        read = (*read, *privacy_groups(run.system.dp))
    known = names(read)
    chosen = {key: value for key, value in settings.items() if key in known}
    chosen |= run.system.settings
    return tuple(f"{key}={value}" for key, value in chosen.items())


def train_run(
    base: str,
    data: tuple[Path, ...],
    settings: Mapping[str, Any],
    folder: Path,
    options: TrainingOptions,
    run: Run,
    *,
    first_phase_of: Path | None = None,
) -> bool:
    """Train a run; whether there was anything left to train.

    Parameters
    ----------
    first_phase_of
        Folder of a run whose first task is taken, if this run would learn it the same.
    """
    from spark_audit.checkpoints.untrusted import quiet

    with quiet():
        from spark_train.training_request import StudentLoading, TrainRequest
        from spark_train.training_run import train

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
        gradient_checkpointing=options.gradient_checkpointing,
        lora_targets=options.lora_targets,
        loading=StudentLoading(device=options.device, dtype=options.dtype),
        first_phase_of=first_phase_of,
    )
    began = time.monotonic()
    with _products(tf32=options.tf32):
        train(request)
    return time.monotonic() - began > LOOK


@contextmanager
def _products(*, tf32: bool) -> Iterator[None]:
    """Let products of float32 be rounded by a GPU, or not, and put it back."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before

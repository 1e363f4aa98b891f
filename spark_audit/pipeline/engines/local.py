"""Score on this machine: by one process, or by several that share the work.

Products of small matrices do not keep several cores busy: two processes of one thread
score 1.2 to 1.6 times what one of two threads does. Each process scores its share of
the items, by their store keys. The first process waits for the others (helpers), scores
what a helper that died has left, and is the only one to report progress and conclude.
Workers of ``--shard`` share the work in the same way, each with a command of its own.

``run.py`` calls :func:`score`. The demo shares its trainings by :func:`run_jobs`. A
shard is ``(i, n)`` everywhere: worker ``i``, from 0, of ``n``.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from spark_audit.errors import InputError, free_bytes
from spark_audit.messages import say
from spark_audit.pipeline.job import CheckpointJob, Job, Unscored
from spark_audit.pipeline.request import Request
from spark_audit.scoring.drift import score_remarks
from spark_audit.scoring.score import score_items
from spark_audit.scoring.threads import cores, use_threads

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.scoring.store import PassItems

Work: TypeAlias = Callable[[], object]
"""A function of a module with its arguments bound, so that it can be pickled."""

Helper: TypeAlias = subprocess.Popen[bytes]
"""A process that :func:`start` has started; it reads its work from stdin."""

MAX_PROCESSES = 8
"""Processes of a job, at most, if the user gives no number; more were not measured."""

PROCESS_BYTES = 1_500_000_000
"""Memory of a process besides its weights: libraries, a manifest, activations."""

MIN_WORK = 5e11
"""Tokens times weights from which on a job is worth several processes.

It is about 15 seconds of a core; a process needs 6 to begin.
"""

GRACE_SECONDS = 10.0
"""Seconds in which an interrupted helper stores what it has scored, until it is killed.
"""

HELPER_PROGRAM = "from spark_audit.pipeline.engines import local; local.help_out()"
"""Python code that a helper runs."""


def processes(job: Job, unscored: Unscored) -> int:
    """Return how many processes score the unscored items of a job.

    If the user gives no number (``--jobs``), it is one per core of the CPU,
    :data:`MAX_PROCESSES` at most, as far as there is memory for each.

    Raises
    ------
    InputError
        If the user asks for several, and checkpoints are not on the CPU.
    """
    from spark_audit.checkpoints.devices import pick_device

    request = job.request
    described = job.opening.described
    n_tokens = 0
    for items in unscored.values():
        n_tokens += sum(item.tokens for item in items)
    if not request.can_use_processes or not n_tokens:
        return 1

    if any(checkpoint.served for checkpoint in described):
        device = "a server"
    else:
        device = pick_device(request.loading.device)

    if isinstance(request.jobs, int):
        if device != "cpu":
            raise InputError(
                f"shares the cores of a CPU, and checkpoints are on {device}",
                where="--jobs",
                fix="leave it out",
            )
        return request.jobs

    # A few tokens, or a small model, are done before another process has begun.
    n_weights = max((checkpoint.parameters or 0 for checkpoint in described), default=0)
    if device != "cpu" or n_tokens * n_weights < MIN_WORK:
        return 1

    n_fitting = MAX_PROCESSES
    free = free_bytes()
    if free is not None:
        # Weights are in float32, of 4 bytes, with a second copy while they are rounded.
        n_copies = 2 if request.loading.quantize else 1
        n_fitting = int(free / (n_copies * 4 * n_weights + PROCESS_BYTES))
    return max(min(cores(), MAX_PROCESSES, n_fitting), 1)


def score(job: Job, unscored: Unscored) -> list[CheckpointJob]:
    """Score a job, or this worker's part of it; the engine of ``run``.

    If the job is interrupted, helpers store what they have scored.
    """
    has_work = any(unscored.values())
    n_processes = processes(job, unscored) if has_work else 1
    if n_processes == 1:
        return score_part(job, job.opened(unscored), job.request.shard)
    return _score_in_processes(job, unscored, n_processes)


def _score_in_processes(
    job: Job, unscored: Unscored, n_processes: int
) -> list[CheckpointJob]:
    """Score the job in ``n_processes`` processes, of which this is the first."""
    threads = max(cores() // n_processes, 1)  # of each process

    # Each process opens the request again, as one of so many workers.
    works = []
    for worker in range(1, n_processes):
        request = replace(job.request, jobs=1, shard=(worker, n_processes))
        works.append(partial(help_score, request))

    with helped(works, threads) as helpers:
        checkpoint_jobs = score_part(job, job.opened(unscored), (0, n_processes))
        with job.clock("waiting"):
            for number, helper in enumerate(helpers, start=1):
                job.show("waiting for other processes", number, len(helpers))
                helper.wait()

        error_codes = [helper.returncode for helper in helpers if helper.returncode]
        if error_codes:
            say(
                f"{len(error_codes)} of {n_processes} processes ended early (code "
                f"{error_codes[0]}; out of memory?): this one does their work"
            )
        # Stored scores of helpers are not computed again.
        if job.n_missing(checkpoint_jobs):
            score_part(job, job.opened(job.unscored()), (0, 1))
    return checkpoint_jobs


def help_score(request: Request) -> None:
    """Score the part of a request that ``request.shard`` names; what a helper runs."""
    job = Job.of(request)
    score_part(job, job.opened(job.unscored()), request.shard)


def score_part(
    job: Job, opened: Iterator[Checkpoint], shard: tuple[int, int]
) -> list[CheckpointJob]:
    """Score one worker's part of all passes over some checkpoints.

    Parameters
    ----------
    opened
        The checkpoints, each opened when it is asked for.
    shard
        ``(i, n)``: worker ``i`` of ``n``.
    """
    checkpoint_jobs: list[CheckpointJob] = []
    while True:
        # With a for loop, the time of loading could not be measured.
        with job.clock("loading"):
            checkpoint = next(opened, None)
        if checkpoint is None:
            return checkpoint_jobs

        if job.lineup.scores(checkpoint.name):
            checkpoint_job = job.checkpoint_job(checkpoint)
            checkpoint_jobs.append(checkpoint_job)
            for pass_items in checkpoint_job.items_by_pass.values():
                with job.clock(f"scoring: {pass_items.scoring_pass.kind}"):
                    _score_pass(job, checkpoint, pass_items, shard)
        # Free full weights before the next checkpoint is loaded.
        del checkpoint


def _score_pass(
    job: Job, checkpoint: Checkpoint, pass_items: PassItems, shard: tuple[int, int]
) -> None:
    """Score the missing rest of one worker's part of one pass over a checkpoint."""
    store = job.store
    store.refresh()
    if not store.left(pass_items):
        return

    # Remarks are measured by the first worker alone.
    is_first_worker = shard[0] == 0
    if is_first_worker:
        for remark in score_remarks(checkpoint, pass_items, seed=job.request.seed):
            store.remark(remark)

    activity = f"scoring {checkpoint.name}, {pass_items.scoring_pass.label}, tokens"
    score_items(
        checkpoint,
        pass_items,
        store=store,
        batch_size=job.request.batch_size,
        shard=shard,
        progress=partial(job.show, activity),
    )


def run_jobs(
    jobs: Sequence[Work], *, processes: int, ended: Callable[[Any], None]
) -> None:
    """Have processes of one thread each share jobs; the demo trains its runs by this.

    A job that is complete does nothing when it is called again. So this process calls
    the jobs of the others, too, once they have ended: it does what a process that died
    has left, and raises the errors that others met.

    Parameters
    ----------
    jobs
        They begin in this order.
    ended
        Called in this process with what each job returns.
    """
    own_share, *other_shares = [jobs[worker::processes] for worker in range(processes)]
    works = [partial(_call_all, share) for share in other_shares]
    with helped(works, 1) as helpers:
        for job in own_share:
            ended(job())

        for helper, share in zip(helpers, other_shares, strict=True):
            helper.wait()
            for job in share:
                ended(job())


def _call_all(jobs: Sequence[Work]) -> None:
    """Do some jobs one after the other.

    It stands at the top of this module, so that a helper can unpickle it.
    """
    for job in jobs:
        job()


@contextmanager
def helped(works: Sequence[Work], threads: int) -> Iterator[list[Helper]]:
    """Start a helper for each work, and yield them while this process works, too.

    In the end helpers that still run are interrupted and waited for.

    Parameters
    ----------
    threads
        Threads of each process, of this one too.
    """
    helpers: list[Helper] = []
    try:
        for work in works:
            helpers.append(start(work, threads))

        with use_threads(threads):
            yield helpers
    finally:
        # All processes are interrupted before the first wait.
        for helper in helpers:
            assert helper.stdin is not None
            with suppress(OSError):
                helper.stdin.close()
        for helper in helpers:
            helper.wait()


def start(work: Work, threads: int) -> Helper:
    """Start a helper that does some work; closing its stdin interrupts it."""
    # The helper imports from where this process does, but not from the working folder.
    import_path = os.pathsep.join(folder for folder in sys.path if folder)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": import_path,
    }

    helper = subprocess.Popen(
        [sys.executable, "-P", "-c", HELPER_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # An interrupt at the terminal (Ctrl-C) must only reach this process.
        process_group=0,
        env=environment,
    )
    assert helper.stdin is not None

    # If the helper has died already, its part is done by the caller.
    with suppress(OSError):
        pickle.dump(work, helper.stdin)
        helper.stdin.flush()
    return helper


def help_out() -> None:
    """Do the work that comes by stdin; a helper of :func:`start` runs this.

    The pickle comes from the process that started the helper. The end of stdin
    interrupts the work.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work: Work = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    work()


def _end_with_stdin() -> NoReturn:
    """Wait for the end of stdin, and interrupt the work.

    After :data:`GRACE_SECONDS`, in which it stores its scores, this process ends.
    """
    # Nothing more is sent: reading returns when the other process closes its end.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os._exit(1)

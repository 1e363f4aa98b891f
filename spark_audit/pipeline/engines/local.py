"""On this machine: one process, a worker of ``--shard``, or processes that share work.

Products of small matrices do not keep several cores busy: two processes of one thread
score 1.2 to 1.6 times what one of two threads does. Each process scores the items whose
keys fall to it. The first one waits for the others, scores what one that died has left,
and alone reports and concludes.
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
from spark_audit.scoring.added_rows import added_remarks
from spark_audit.scoring.score import cores, drift_remarks, score_items, use_threads

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.store import PassItems

Work: TypeAlias = Callable[[], object]
"""A function of a module with its arguments bound (``functools.partial``)."""

Helper: TypeAlias = subprocess.Popen[bytes]

MAX_PROCESSES = 8
"""Processes that a job takes unasked at most: of more nothing was measured."""

PROCESS_BYTES = 1_500_000_000
"""Bytes of a process besides its weights: libraries, a manifest, what is computed."""

MIN_WORK = 5e11
"""Tokens times weights that are worth more processes: 15 seconds of a core, about; one
needs 6 to begin."""

GRACE_SECONDS = 10.0
"""Seconds that a process has to keep what it has scored, before it is ended."""

HELPER_PROGRAM = "from spark_audit.pipeline.engines import local; local.help_out()"


def processes(job: Job, unscored: Unscored) -> int:
    """Return how many processes score what a job lacks on this machine's CPU.

    Where the user gives no number, one per core, :data:`MAX_PROCESSES` at most, as far
    as there is memory for each.

    Raises
    ------
    InputError
        If several are asked for where no CPU is to be shared.
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

    n_weights = max((checkpoint.parameters or 0 for checkpoint in described), default=0)
    if device != "cpu" or n_tokens * n_weights < MIN_WORK:
        return 1

    n_fitting = MAX_PROCESSES
    free = free_bytes()
    if free is not None:
        # float32, and a second copy while weights are rounded.
        n_copies = 2 if request.loading.quantize else 1
        n_fitting = int(free / (n_copies * 4 * n_weights + PROCESS_BYTES))
    return max(min(cores(), MAX_PROCESSES, n_fitting), 1)


def score(job: Job, unscored: Unscored) -> list[CheckpointJob]:
    """Score what falls to this process; all of the job, unless it is a worker's part.

    Processes that help keep what they have scored when the job is interrupted.
    """
    has_work = any(unscored.values())
    n_processes = processes(job, unscored) if has_work else 1
    if n_processes == 1:
        return score_part(job, job.opened(unscored), job.request.shard)
    return _score_in_processes(job, unscored, n_processes)


def _score_in_processes(
    job: Job, unscored: Unscored, n_processes: int
) -> list[CheckpointJob]:
    """Score the job in so many processes, of which this is the first."""
    threads = max(cores() // n_processes, 1)

    # Each process opens the request anew, as one worker of so many.
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
        # Scores that a helper stored are not made again.
        if job.n_missing(checkpoint_jobs):
            score_part(job, job.opened(job.unscored()), (0, 1))
    return checkpoint_jobs


def help_score(request: Request) -> None:
    """Score the part of a request that falls to this process."""
    job = Job.of(request)
    score_part(job, job.opened(job.unscored()), request.shard)


def score_part(
    job: Job, opened: Iterator[Loaded], shard: tuple[int, int]
) -> list[CheckpointJob]:
    """Score one worker's part of all passes over some checkpoints."""
    checkpoint_jobs: list[CheckpointJob] = []
    while True:
        # A for loop would not show where the time of loading begins and ends.
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
        # Let go of full weights before the next checkpoint is loaded.
        del checkpoint


def _score_pass(
    job: Job, checkpoint: Loaded, pass_items: PassItems, shard: tuple[int, int]
) -> None:
    """Score one worker's part of one pass over a checkpoint, if any of it is left."""
    store = job.store
    store.refresh()
    if not store.left(pass_items):
        return

    # Remarks are measured once, not by every worker.
    is_first_worker = shard[0] == 0
    if is_first_worker:
        seed = job.request.seed
        remarks = drift_remarks(checkpoint, pass_items, seed)
        remarks += added_remarks(checkpoint, pass_items, seed)
        for remark in remarks:
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
    """Have processes of one thread each share jobs, which begin in the order given.

    A job that is called again only looks at what it has done: so this process does
    what one that died has left, and meets the errors of others itself.

    Parameters
    ----------
    ended
        Called with what each job returns here.
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
    """Do some jobs one after the other; at the top of a module, to be pickled."""
    for job in jobs:
        job()


@contextmanager
def helped(works: Sequence[Work], threads: int) -> Iterator[list[Helper]]:
    """Start a process for each work, while this one computes with as many threads.

    In the end they are interrupted, and waited for.
    """
    helpers: list[Helper] = []
    try:
        for work in works:
            helpers.append(start(work, threads))

        with use_threads(threads):
            yield helpers
    finally:
        # All are interrupted before the first is waited for.
        for helper in helpers:
            assert helper.stdin is not None
            with suppress(OSError):
                helper.stdin.close()
        for helper in helpers:
            helper.wait()


def start(work: Work, threads: int) -> Helper:
    """Start a process that does some work, as long as its stdin is open."""
    # Modules are found where they are here, and not in this folder.
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
        # An interrupt at the terminal is for this process.
        process_group=0,
        env=environment,
    )
    assert helper.stdin is not None

    # Where it has died already, others do its part.
    with suppress(OSError):
        pickle.dump(work, helper.stdin)
        helper.stdin.flush()
    return helper


def help_out() -> None:
    """Do the work that comes by stdin; the end of stdin is an interrupt.

    This is what a process of :func:`start` runs; the pickle is that process's own.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work: Work = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    work()


def _end_with_stdin() -> NoReturn:
    """Wait for the end of stdin, interrupt the work, and end it after a while."""
    # Nothing more is sent: this returns when the other end is closed.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os._exit(1)

"""Score on this machine: in one process, a ``--shard`` worker, or several processes.

Products of small matrices do not keep several cores busy: two processes with one thread
each are 1.2 to 1.6 times as fast as one with two threads. Each process scores the items
whose keys fall to it. The first process waits for the others, scores what a dead one
left, and is the only one that reports and concludes.
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
"""A module's function with bound arguments (``functools.partial``)."""

Helper: TypeAlias = subprocess.Popen[bytes]

MAX_PROCESSES = 8
"""Most processes that a job uses by default: more were never measured."""

PROCESS_BYTES = 1_500_000_000
"""Bytes of a process besides its weights: libraries, the manifest, working memory."""

MIN_WORK = 5e11
"""Tokens times weights that justify more processes: about 15 seconds of a core, while a
process takes 6 to start."""

GRACE_SECONDS = 10.0
"""Seconds in which an interrupted process can save its scores before it is killed."""

HELPER_PROGRAM = "from spark_audit.pipeline.engines import local; local.help_out()"


def processes(job: Job, unscored: Unscored) -> int:
    """Return how many processes score the missing items of a job on this CPU.

    By default there is one per core, at most :data:`MAX_PROCESSES`, as far as each has
    enough memory.

    Raises
    ------
    InputError
        If several are requested but there is no CPU work to share.
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
    """Score the part of this process: the whole job, or a worker's part.

    If the job is interrupted, helping processes save what they have scored.
    """
    has_work = any(unscored.values())
    n_processes = processes(job, unscored) if has_work else 1
    if n_processes == 1:
        return score_part(job, job.opened(unscored), job.request.shard)
    return _score_in_processes(job, unscored, n_processes)


def _score_in_processes(
    job: Job, unscored: Unscored, n_processes: int
) -> list[CheckpointJob]:
    """Score the job in several processes, of which this one is the first."""
    threads = max(cores() // n_processes, 1)

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
    """Score the part of a request that belongs to this process."""
    job = Job.of(request)
    score_part(job, job.opened(job.unscored()), request.shard)


def score_part(
    job: Job, opened: Iterator[Loaded], shard: tuple[int, int]
) -> list[CheckpointJob]:
    """Score one worker's part of all passes over some checkpoints."""
    checkpoint_jobs: list[CheckpointJob] = []
    while True:
        # A for loop would hide the beginning and end of each loading.
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
    """Score the missing rest of one worker's part of one pass over a checkpoint."""
    store = job.store
    store.refresh()
    if not store.left(pass_items):
        return

    # Remarks are measured by the first worker alone.
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
    """Share jobs among processes of one thread each; start the jobs in the given order.

    A finished job that is called again only checks its results. So this process
    completes the jobs of a dead process, and meets the errors of others itself.

    Parameters
    ----------
    ended
        Called with the result of each job in this process.
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
    """Run jobs one after the other; a module-level function can be pickled."""
    for job in jobs:
        job()


@contextmanager
def helped(works: Sequence[Work], threads: int) -> Iterator[list[Helper]]:
    """Start a process for each work, and give this one equally many threads.

    At the end, the processes are interrupted and waited for.
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
    """Start a process for some work, which lasts as long as its stdin is open."""
    # Modules are searched where this process finds them, but not in this folder.
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
        # An interrupt at the terminal is meant for this process.
        process_group=0,
        env=environment,
    )
    assert helper.stdin is not None

    # If it is already dead, others do its part.
    with suppress(OSError):
        pickle.dump(work, helper.stdin)
        helper.stdin.flush()
    return helper


def help_out() -> None:
    """Do the work that arrives on stdin, until stdin ends.

    Processes of :func:`start` run this function, and the pickle comes from their
    parent. The end of stdin is an interrupt.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work: Work = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    work()


def _end_with_stdin() -> NoReturn:
    """Wait for the end of stdin, interrupt the work, and kill it after a while."""
    # No more data is sent, so this returns when the other end is closed.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os._exit(1)

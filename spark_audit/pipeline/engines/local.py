"""Score on this machine: by one process, or by several that share the work.

Products of small matrices do not keep several cores busy: two processes of one thread
score 1.2 to 1.6 times what one of two threads does. Each process scores its share of
the items, by their store keys. The first process waits for the others (helpers), scores
what a helper that died has left, and is the only one to report progress and conclude.
Workers of ``--shard`` share the work in the same way, each with a command of its own.

``run.py`` calls :func:`score`. The demo shares its trainings by :func:`run_jobs`, and
keeps the helpers for the scoring (:func:`helpers_kept`). A shard is ``(i, n)``
everywhere: worker ``i``, from 0, of ``n``.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
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

LENGTH_BYTES = 8
"""Bytes of the number in front of each work that a helper reads: its length."""


@dataclass
class Helper:
    """A process that does one work after the other for this process.

    Attributes
    ----------
    process
        It reads works from stdin, and writes to stdout what each of them returned.
    threads
        Its threads.
    is_idle
        Whether it has done all of its works, and lives.
    result
        What its last work returned.
    """

    process: subprocess.Popen[bytes]
    threads: int
    is_idle: bool = True
    result: object = None

    def begin(self, work: Work) -> None:
        """Let the helper do a work; :meth:`wait` must follow before the next one."""
        self.is_idle = False
        pickled_work = pickle.dumps(work)
        assert self.process.stdin is not None

        # A helper that has died or is being ended does nothing: the caller does it.
        with suppress(OSError, ValueError):
            self.process.stdin.write(len(pickled_work).to_bytes(LENGTH_BYTES, "big"))
            self.process.stdin.write(pickled_work)
            self.process.stdin.flush()

    def wait(self) -> bool:
        """Wait for the end of the work; return whether it was done.

        Its result is then in ``result``. A helper that has not done it ends.
        """
        assert self.process.stdout is not None
        try:
            self.result = pickle.load(self.process.stdout)
        # It died before, or while it answered.
        except (EOFError, OSError, pickle.UnpicklingError):
            self.process.wait()
            return False
        self.is_idle = True
        return True


_kept_helpers: ContextVar[list[Helper] | None] = ContextVar("kept", default=None)
"""Helpers without work, which :func:`helped` takes; ``None``: none is kept."""


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
        n_tokens += sum(item.n_tokens for item in items)
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

    with helped(len(works), threads) as helpers:
        for helper, work in zip(helpers, works, strict=True):
            helper.begin(work)

        checkpoint_jobs = score_part(job, job.opened(unscored), (0, n_processes))
        error_codes = []
        with job.clock("waiting"):
            for number, helper in enumerate(helpers, start=1):
                job.show("waiting for other processes", number, len(helpers))
                if not helper.wait():
                    error_codes.append(helper.process.returncode)

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
    if not store.left(pass_items):
        return
    # Another worker may have scored the rest by now.
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

    A process that is free takes the next job. A job that a helper could not do is
    called in this process at last: it does what a process that died has left, and
    raises the errors that others met.

    Parameters
    ----------
    jobs
        They begin in this order.
    ended
        Called in this process with what each job returns.
    """
    jobs_left = deque(jobs)
    jobs_undone: list[Work] = []
    results: SimpleQueue[object] = SimpleQueue()  # of jobs that helpers have done

    def next_job() -> Work | None:
        """Take the next job; ``None`` if there is none. Threads call this, too."""
        try:
            return jobs_left.popleft()
        except IndexError:
            return None

    def keep_busy(helper: Helper) -> None:
        """Give a helper one job after the other, until none is left or it dies."""
        while (job := next_job()) is not None:
            helper.begin(job)
            if not helper.wait():
                jobs_undone.append(job)
                return
            results.put(helper.result)

    with helped(processes - 1, 1) as helpers:
        threads = []
        for helper in helpers:
            thread = threading.Thread(target=keep_busy, args=(helper,), daemon=True)
            thread.start()
            threads.append(thread)

        while (job := next_job()) is not None:
            ended(job())
            while not results.empty():
                ended(results.get())

        for thread in threads:
            thread.join()
            while not results.empty():
                ended(results.get())
        for job in jobs_undone:
            ended(job())


@contextmanager
def helpers_kept() -> Iterator[None]:
    """Keep helpers that have done their work for later work, inside the block.

    To start one takes seconds: it imports torch and more.
    """
    kept: list[Helper] = []
    token = _kept_helpers.set(kept)
    try:
        yield
    finally:
        _kept_helpers.reset(token)
        _end(kept)


@contextmanager
def helped(count: int, threads: int) -> Iterator[list[Helper]]:
    """Yield so many helpers, which work while this process works, too.

    In the end helpers that still run are interrupted and waited for.

    Parameters
    ----------
    threads
        Threads of each process, of this one too.
    """
    helpers: list[Helper] = []
    try:
        for _ in range(count):
            helpers.append(_take_kept(threads) or start(threads))
        with use_threads(threads):
            yield helpers
    finally:
        kept = _kept_helpers.get()
        if kept is not None:
            kept += [helper for helper in helpers if helper.is_idle]
            helpers = [helper for helper in helpers if not helper.is_idle]
        _end(helpers)


def _take_kept(threads: int) -> Helper | None:
    """Take a kept helper of so many threads; ``None`` if there is none."""
    kept = _kept_helpers.get() or []
    for helper in kept:
        if helper.threads == threads:
            kept.remove(helper)
            return helper
    return None


def _end(helpers: Sequence[Helper]) -> None:
    """Interrupt helpers, and wait for their end."""
    # All processes are interrupted before the first wait.
    for helper in helpers:
        assert helper.process.stdin is not None
        with suppress(OSError):
            helper.process.stdin.close()
    for helper in helpers:
        helper.process.wait()
        assert helper.process.stdout is not None
        helper.process.stdout.close()


def start(threads: int) -> Helper:
    """Start a helper of so many threads; closing its stdin interrupts it."""
    # The helper imports from where this process does, but not from the working folder.
    import_path = os.pathsep.join(folder for folder in sys.path if folder)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": import_path,
    }

    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HELPER_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # An interrupt at the terminal (Ctrl-C) must only reach this process.
        process_group=0,
        env=environment,
    )
    return Helper(process, threads)


def help_out() -> None:
    """Do the works that come by stdin, one after the other; a helper runs this.

    Their pickles come from the process that started the helper, which gets the pickle
    of what each returned. The end of stdin interrupts the work.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)

    # What a work prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    pickled_works: SimpleQueue[bytes] = SimpleQueue()
    reader = threading.Thread(target=_read_works, args=(pickled_works,), daemon=True)
    reader.start()
    while True:
        # Imports that a work needs are made here, in the main thread.
        work: Work = pickle.loads(pickled_works.get())
        pickle.dump(work(), answers)
        answers.flush()


def _read_works(pickled_works: SimpleQueue[bytes]) -> NoReturn:
    """Read works from stdin; interrupt this process when stdin ends.

    After :data:`GRACE_SECONDS`, in which it stores its scores, this process ends.
    """
    stdin = sys.stdin.buffer
    while length := int.from_bytes(stdin.read(LENGTH_BYTES), "big"):
        pickled_works.put(stdin.read(length))

    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os._exit(1)

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
from spark_audit.pipeline.job import CheckpointJob, Job, Lacking
from spark_audit.pipeline.request import Request
from spark_audit.scoring.added_rows import added_remarks
from spark_audit.scoring.score import cores, drift_remarks, score_keys, use_threads

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded


Work: TypeAlias = Callable[[], Any]
"""A function of a module with its arguments bound (``functools.partial``)."""

Helper: TypeAlias = subprocess.Popen[bytes]

MAX_PROCESSES = 8
"""Processes that a job takes unasked at most: of more nothing was measured."""

OWN = 1_500_000_000
"""Bytes of a process besides its weights: libraries, a manifest, what is computed."""

WORTH = 5e11
"""Tokens times weights that are worth more processes: 15 seconds of a core, about; one
needs 6 to begin."""

GRACE = 10.0
"""Seconds that a process has to keep what it has scored, before it is ended."""

HELPER_PROGRAM = "from spark_audit.pipeline.engines import local; local.help_out()"


def processes(job: Job, lacking: Lacking) -> int:
    """How many processes score what a job lacks on this machine's CPU.

    Unasked one per core, :data:`MAX_PROCESSES` at most, as far as each has memory of
    its own.

    Raises
    ------
    InputError
        If several are asked for where no CPU is to be shared.
    """
    from spark_audit.checkpoints.devices import pick_device

    request, described = job.request, job.opening.described
    tokens = sum(item.tokens for items in lacking.values() for item in items)
    if not request.several or not tokens:
        return 1
    served = any(one.served for one in described)
    place = "a server" if served else pick_device(request.loading.device)
    if isinstance(request.jobs, int):
        if place != "cpu":
            raise InputError(
                f"shares the cores of a CPU, and checkpoints are on {place}",
                where="--jobs",
                fix="leave it out",
            )
        return request.jobs
    weights = max((one.parameters or 0 for one in described), default=0)
    if place != "cpu" or tokens * weights < WORTH:
        return 1
    free, copies = free_bytes(), 1 + bool(request.loading.quantize)
    room = MAX_PROCESSES if free is None else int(free / (copies * 4 * weights + OWN))
    return max(min(cores(), MAX_PROCESSES, room), 1)


def score(job: Job, lacking: Lacking) -> list[CheckpointJob]:
    """Score what falls to this process; all of the job, unless it is a worker's part.

    Processes that help keep what they have scored when the job is interrupted.
    """
    count = processes(job, lacking) if any(lacking.values()) else 1
    if count == 1:
        return score_part(job, job.opened(lacking), job.request.shard)
    return _shared(job, lacking, count)


def _shared(job: Job, lacking: Lacking, count: int) -> list[CheckpointJob]:
    """Score the job in so many processes."""
    threads = max(cores() // count, 1)
    parts = (replace(job.request, jobs=1, shard=(i, count)) for i in range(1, count))
    with helped([partial(help_score, one) for one in parts], threads) as helpers:
        scored = score_part(job, job.opened(lacking), (0, count))
        with job.clock("waiting"):
            for number, one in enumerate(helpers, start=1):
                job.show("waiting for other processes", number, len(helpers))
                one.wait()
        if ended := [one.returncode for one in helpers if one.returncode]:
            say(
                f"{len(ended)} of {count} processes ended early (code {ended[0]}; "
                "out of memory?): this one does their work"
            )
        if job.missing(scored):
            score_part(job, job.opened(job.lacking()), (0, 1))
    return scored


def help_score(request: Request) -> None:
    """Score the part of a request that falls to this process."""
    job = Job.of(request)
    score_part(job, job.opened(job.lacking()), request.shard)


def score_part(
    job: Job, opened: Iterator[Loaded], shard: tuple[int, int]
) -> list[CheckpointJob]:
    """Score one worker's part of all passes over some checkpoints."""
    scored: list[CheckpointJob] = []
    while True:
        with job.clock("loading"):
            checkpoint = next(opened, None)
        if checkpoint is None:
            return scored
        if job.order.scores(checkpoint.name):
            scored.append(job.scored(checkpoint))
            for keys in scored[-1].keys.values():
                what = f"scoring {checkpoint.name}, {keys.scoring_pass.label}, tokens"
                with job.clock(f"scoring: {keys.scoring_pass.kind}"):
                    job.store.refresh()
                    if not job.store.left(keys):
                        continue
                    if not shard[0]:
                        seed = job.request.seed
                        remarks = drift_remarks(checkpoint, keys, seed)
                        remarks += added_remarks(checkpoint, keys, seed)
                        for remark in remarks:
                            job.store.remark(remark)
                    score_keys(
                        checkpoint,
                        keys,
                        store=job.store,
                        batch_size=job.request.batch_size,
                        shard=shard,
                        progress=partial(job.show, what),
                    )
        # Let go of full weights before the next checkpoint is loaded.
        del checkpoint


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
    shares = [jobs[part::processes] for part in range(processes)]
    with helped([partial(_each, share) for share in shares[1:]], 1) as helpers:
        for part, share in enumerate(shares):
            if part:
                helpers[part - 1].wait()
            for job in share:
                ended(job())


def _each(jobs: Sequence[Work]) -> None:
    for job in jobs:
        job()


@contextmanager
def helped(works: Sequence[Work], threads: int) -> Iterator[list[Helper]]:
    """Processes that do some work each, while this one computes with as many threads.

    In the end they are interrupted, and waited for.
    """
    helpers: list[Helper] = []
    try:
        helpers += (start(work, threads) for work in works)
        with use_threads(threads):
            yield helpers
    finally:
        for one in helpers:
            with suppress(OSError):
                one.stdin.close()  # type: ignore[union-attr]
        for one in helpers:
            one.wait()


def start(work: Work, threads: int) -> Helper:
    """A process that does some work; its stdin is open while it shall."""
    helper = subprocess.Popen(
        # Modules are found where they are here, and not in this folder.
        [sys.executable, "-P", "-c", HELPER_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # An interrupt at the terminal is for this process.
        process_group=0,
        env=os.environ
        | {"OMP_NUM_THREADS": str(threads)}
        | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert helper.stdin is not None
    with suppress(OSError):  # it died: others do its part
        pickle.dump(work, helper.stdin)
        helper.stdin.flush()
    return helper


def help_out() -> None:
    """Do the work that comes by stdin, whose end is an interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work: Work = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    work()


def _end_with_stdin() -> NoReturn:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)

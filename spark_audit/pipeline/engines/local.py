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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

from spark_audit.errors import InputError
from spark_audit.host_memory import free_bytes
from spark_audit.pipeline.job import Job, Scored
from spark_audit.pipeline.request import Request
from spark_audit.scoring.score import cores, drift_remarks, score_keys, use_threads
from spark_audit.terminal.console import say

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.store import Keys

Work: TypeAlias = Callable[[], Any]
"""A function of a module with its arguments bound (``functools.partial``)."""

MOST = 8
"""Processes that a job takes unasked at most: of more nothing was measured."""
OWN = 1_500_000_000
"""Bytes of a process besides its weights: libraries, a manifest, what is computed."""
WORTH = 5e11
"""Tokens times weights of a pass over all checkpoints that is worth more processes: 15
seconds of a core, about, where one needs 6 to begin."""
GRACE = 10.0
"""Seconds that a process has to keep what it has scored, before it is ended."""
HELP = "from spark_audit.pipeline.engines import local; local.help_out()"


def processes(request: Request, *, work: float, size: float, free: int | None) -> int:
    """How many processes score a job on this machine's CPU.

    Unasked one per core, :data:`MOST` at most, as far as each has memory of its own.

    Parameters
    ----------
    work
        Tokens times weights of all that is asked first.
    size, free
        Bytes of a model, and of memory before any is loaded, if that is known.
    """
    if not request.several or not work:
        return 1
    if isinstance(request.jobs, int):
        return request.jobs
    if work < WORTH:
        return 1
    copies = 1 + bool(request.loading.quantize)
    room = MOST if free is None else int(free / (copies * size + OWN))
    return max(min(cores(), MOST, room), 1)


def score(job: Job) -> list[Scored]:
    """Score what falls to this process; all of the job, unless it is a worker's part.

    Checkpoints are opened one after the other, and returned without their models.
    """
    with Local(job, job.request.shard) as engine:
        scored = engine.score(job.opening.each())
        if engine.wait() and job.missing(scored):
            engine.score(job.opening.each())
    return scored


class Local:
    """One process, and those that help it until the block ends."""

    def __init__(self, job: Job, shard: tuple[int, int]) -> None:
        self._job, self._shard = job, shard
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._threads = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End those that help; they keep what they have scored."""
        end(self._helpers)
        if self._threads:
            use_threads(self._threads)

    def score(self, opened: Iterator[Loaded]) -> list[Scored]:
        """Score this process's part of all passes over some checkpoints."""
        scored: list[Scored] = []
        while True:
            with self._job.clock("loading"):
                checkpoint = next(opened, None)
            if checkpoint is None:
                return scored
            if self._job.order.scores(checkpoint.name):
                scored.append(self._job.scored(checkpoint))
                for keys in scored[-1].keys.values():
                    self._score(checkpoint, keys)
            # Let go of full weights before the next checkpoint is loaded.
            del checkpoint

    def _score(self, checkpoint: Loaded, keys: Keys) -> None:
        """Score this process's part of a pass."""
        job, kind = self._job, keys.kind
        job.store.refresh()
        tokens = sum(item.tokens for item in job.store.left(keys).values())
        if tokens and job.request.several and not self._helpers:
            self._begin(checkpoint, tokens)
        with job.clock(f"scoring: {kind.kind}"):
            if tokens and not self._shard[0]:
                for remark in drift_remarks(checkpoint, keys, job.request.seed):
                    job.store.remark(remark)
            score_keys(
                checkpoint,
                keys,
                store=job.store,
                batch_size=job.request.batch_size,
                shard=self._shard,
                progress=partial(
                    job.show, f"scoring {checkpoint.name}, {kind.label}, tokens"
                ),
            )

    def _begin(self, checkpoint: Loaded, tokens: int) -> None:
        """Start processes that help, once a pass is worth them."""
        request, opening = self._job.request, self._job.opening
        if checkpoint.device != "cpu" or checkpoint.served is not None:
            if isinstance(request.jobs, int):
                place = "a server" if checkpoint.served else checkpoint.device
                raise InputError(
                    f"shares the cores of a CPU; {checkpoint.name} is on {place}",
                    where="--jobs",
                    fix="leave it out",
                )
            return
        weights = list(checkpoint.model.parameters())
        size, free = sum(one.nbytes for one in weights), free_bytes()
        checkpoints = sum(map(len, opening.groups))
        count = processes(
            request,
            work=tokens * checkpoints * sum(one.numel() for one in weights),
            size=size,
            free=None if free is None else free + size,
        )
        if count > 1:
            threads = max(cores() // count, 1)
            self._threads = use_threads(threads)
            self._shard = (0, count)
            for part in range(1, count):
                mine = replace(request, jobs=1, shard=(part, count))
                self._helpers.append(start(partial(help_score, mine), threads))

    def wait(self) -> bool:
        """Wait for those that help, if there are any: what they left is ours."""
        what, codes = "waiting for other processes", []
        with self._job.clock("waiting"):
            for number, one in enumerate(self._helpers, start=1):
                self._job.show(what, number, len(self._helpers))
                codes.append(one.wait())
        if ended := [code for code in codes if code]:
            say(
                f"{len(ended)} of {len(codes) + 1} processes ended early (code "
                f"{ended[0]}; out of memory?): this one does their work"
            )
        if codes:
            self._shard = (0, 1)
        return bool(codes)


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
    threads = use_threads(1)
    helpers = [start(partial(_each, share), 1) for share in shares[1:]]
    try:
        for part, share in enumerate(shares):
            if part:
                helpers[part - 1].wait()
            for job in share:
                ended(job())
    finally:
        end(helpers)
        use_threads(threads)


def _each(jobs: Sequence[Work]) -> None:
    for job in jobs:
        job()


def start(work: Work, threads: int) -> subprocess.Popen[bytes]:
    """A process that does some work; its stdin is open while it shall."""
    helper = subprocess.Popen(
        # Modules are found where they are here, and not in this folder.
        [sys.executable, "-P", "-c", HELP],
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


def end(helpers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt processes that help, and wait for their end."""
    for one in helpers:
        assert one.stdin is not None
        with suppress(OSError):
            one.stdin.close()
    for one in helpers:
        one.wait()


def help_out() -> None:
    """Do the work that comes by stdin, whose end is an interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work: Work = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    work()


def help_score(request: Request) -> None:
    """Score the part of a request that falls to this process."""
    score(Job.of(request))


def _end_with_stdin() -> NoReturn:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)

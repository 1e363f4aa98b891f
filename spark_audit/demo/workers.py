"""Processes that work through a list of jobs, and end with the one that asked.

Jobs tell their progress through a queue; the asking process shows it. An error in a job
ends all of them and is raised once, where they were asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    BrokenExecutor,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from spark_audit.errors import IncompleteError

Progress: TypeAlias = Callable[[str, int, int], None]
Job: TypeAlias = Callable[[Progress], None]
"""A function of a module with its arguments bound (``functools.partial``)."""

EVERY = 0.2
"""Seconds between two looks at what jobs have told."""


ENDED = "one of its processes was ended from outside (for want of memory?)"


class Workers:
    """What :func:`workers` gives; without a pool all is done in this process."""

    def __init__(
        self,
        progress: Progress,
        pool: ProcessPoolExecutor | None = None,
        told: Any = (),
    ) -> None:
        self._progress, self._pool, self._told = progress, pool, told

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; they begin in the order given.

        Raises
        ------
        Exception
            The first that a job raised; jobs that have not begun do not.
        """
        if self._pool is None:
            for job in jobs:
                job(self._progress)
            return
        # An interrupt is for this process: those that begin here never see one.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            left = {self._pool.submit(job, _tell) for job in jobs}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        alive: set[int | None] = set()
        while left:
            done, left = wait(left, timeout=EVERY, return_when=FIRST_EXCEPTION)
            self.show()
            try:
                for future in done:
                    future.result()
            except BrokenExecutor as error:
                raise IncompleteError(ENDED) from error
            # The pool looks at the processes that it had when a job was last handed in:
            # it can miss the death of one that it began after that.
            now = {process.pid for process in multiprocessing.active_children()}
            if left and alive - now:
                raise IncompleteError(ENDED)
            alive = now
        self.show()

    def show(self) -> None:
        """Pass on what the jobs have told by now."""
        with suppress(queue.Empty):
            while True:
                self._progress(*self._told.get_nowait())


@contextmanager
def workers(count: int, *, progress: Progress) -> Iterator[Workers]:
    """Processes of one thread each; when the block is left they are gone.

    They are begun anew, not forked: a library's threads do not survive a fork.

    Parameters
    ----------
    count
        How many; with 1 there is none but this one.
    """
    if count == 1:
        yield Workers(progress)
        return
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    # Nothing is ever sent: the pipe ends when this process lets go of it, or dies.
    alive, hold = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        count, mp_context=context, initializer=_begin, initargs=(alive, told)
    )
    try:
        crew = Workers(progress, pool, told)
        yield crew
        pool.shutdown()
        crew.show()  # what a process told last may come after its job's end
    finally:
        hold.close()
        pool.shutdown(cancel_futures=True)
        alive.close()
        told.close()


_told: Any = None
"""In a worker: where its jobs tell of their progress."""


def _begin(alive: Connection, told: Any) -> None:
    """Set a worker up: one thread for models, and an end with its parent."""
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    global _told
    _told = told
    import torch

    torch.set_num_threads(1)


def _end_with(alive: Connection) -> None:
    try:
        alive.recv()
    except (EOFError, OSError):
        # At once: what is half-written is swept away or written again on resuming.
        os._exit(1)


def _tell(what: str, done: int, total: int) -> None:
    _told.put((what, done, total))

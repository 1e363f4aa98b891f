"""Processes that work through a list of jobs, and end with the one that asked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    BrokenExecutor,
    ProcessPoolExecutor,
    wait,
)
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from spark_audit.errors import IncompleteError
from spark_audit.scoring.score import use_threads

Job: TypeAlias = Callable[[], Any]
"""A function of a module with its arguments bound (``functools.partial``)."""
EVERY = 1.0
"""Seconds between two looks at whether all processes are alive."""
ENDED = "one of its processes was ended from outside (for want of memory?)"


def run_jobs(
    jobs: Sequence[Job], *, processes: int, ended: Callable[[Any], None]
) -> None:
    """Run all jobs; they begin in the order given.

    Processes have one thread each. They are begun anew, not forked: a library's threads
    do not survive a fork.

    Parameters
    ----------
    processes
        How many; 1: this one alone.
    ended
        Called with what each job returns, when it ends.

    Raises
    ------
    Exception
        The first that a job raised; jobs that have not begun do not.
    IncompleteError
        If a process dies.
    """
    if processes == 1:
        for job in jobs:
            ended(job())
        return
    context = multiprocessing.get_context("spawn")
    # Nothing is ever sent: the pipe ends when this process lets go of it, or dies.
    alive, hold = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin, initargs=(alive,)
    )
    try:
        # An interrupt is for this process: those that begin here never see one.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            left = {pool.submit(job) for job in jobs}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        known: set[int | None] = set()
        while left:
            done, left = wait(left, timeout=EVERY, return_when=FIRST_EXCEPTION)
            for future in done:
                ended(future.result())
            # The pool can miss the death of a process that it began last.
            now = {process.pid for process in multiprocessing.active_children()}
            if left and known - now:
                raise IncompleteError(ENDED)
            known = now
    except BrokenExecutor as error:
        raise IncompleteError(ENDED) from error
    finally:
        hold.close()
        pool.shutdown(cancel_futures=True)
        alive.close()


def _begin(alive: Connection) -> None:
    """Set a worker up: one thread for models, and an end with its parent."""
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    use_threads(1)


def _end_with(alive: Connection) -> None:
    with suppress(EOFError, OSError):
        alive.recv()
    # At once: what is half-written is swept away or written again on resuming.
    os._exit(1)

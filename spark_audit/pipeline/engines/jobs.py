"""Processes of this machine that share a call: this one, and some that help it.

Products of small matrices do not keep several cores busy: two processes of one thread
score 1.2 to 1.6 times what one of two threads does. Those that help score their parts
as workers of ``--shard`` do; this one waits for them, does what one that died has left,
and alone tells and concludes.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from spark_audit.errors import InputError
from spark_audit.memory import free_bytes
from spark_audit.pipeline.engines.contract import Call, Engine, Task
from spark_audit.pipeline.request import Request
from spark_audit.scoring.speed import cores, use_threads
from spark_audit.terminal.console import say

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

MOST = 8
"""Processes that a call takes by itself at most: of more nothing was measured."""
OWN = 1_500_000_000
"""Bytes of a process beside its weights: libraries, a manifest, what is computed."""
WORTH = 5e11
"""Tokens times weights of a pass over all checkpoints that is worth more processes: 15
seconds of a core, about, where one needs 6 to begin."""
GRACE = 10.0
"""Seconds that a process has to keep what it has scored, before it is ended."""
HELP = """
from spark_audit.pipeline.engines.jobs import asked
from spark_audit.pipeline.run import run
run(asked(), concludes=False)
"""


def processes(request: Request, *, work: float, size: float, free: int | None) -> int:
    """How many processes score a call that is scored on this machine's CPU.

    By itself one a core, :data:`MOST` at most, as far as each has memory of its own.

    Parameters
    ----------
    work
        Tokens times weights of all that is asked first.
    size, free
        Bytes of a model, and of memory before any is loaded, if that is told.
    """
    if request.way != "jobs" or not work:
        return 1
    if isinstance(request.jobs, int):
        return request.jobs
    if work < WORTH:
        return 1
    copies = 1 + bool(request.loading.quantize)
    room = MOST if free is None else int(free / (copies * size + OWN))
    return max(min(cores(), MOST, room), 1)


class Jobs(Engine):
    """All of a call on the cores of this machine."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._asked: list[Task] = []
        self._threads = 0

    def __exit__(self, *_: object) -> None:
        """End those that help; they keep what they have scored."""
        for one in self._helpers:
            assert one.stdin is not None
            with suppress(OSError):
                one.stdin.close()
        for one in self._helpers:
            try:
                one.wait(GRACE)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        if self._threads:
            use_threads(self._threads)

    def score(self, task: Task, checkpoint: Loaded) -> None:
        """Score this process's part, with helpers once a pass is worth them."""
        if not self._helpers:
            self._begin(task, checkpoint)
        super().score(task, checkpoint)
        if self._helpers and task.lacks:
            self._asked.append(task)

    def finish(self) -> None:
        """Wait for those that help, and do what one that died has left."""
        with self.call.clock("waiting"):
            for number, one in enumerate(self._helpers, start=1):
                self.call.show(
                    "waiting for other processes", number, len(self._helpers)
                )
                one.wait()
        codes = [one.returncode for one in self._helpers]
        if ended := [code for code in codes if code]:
            say(
                f"{len(ended)} of {len(codes) + 1} processes ended early (code "
                f"{ended[0]}; out of memory?): this one does their work"
            )
        self.call = replace(self.call, request=replace(self.call.request, shard=(0, 1)))
        for task in self._asked:
            task.store.refresh()
        left = {task.checkpoint: task for task in self._asked if task.lacks}
        for group in sorted({self.group_of(name) for name in left}):
            for checkpoint in self.opening.open(group):
                for task in self._asked:
                    if task.checkpoint == checkpoint.name:
                        super().score(task, checkpoint)

    def _begin(self, task: Task, checkpoint: Loaded) -> None:
        """Start those that help, once a pass is worth it."""
        request = self.call.request
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
        checkpoints = len(self.call.specs) + self.loading.include_base
        size, free = sum(one.nbytes for one in weights), free_bytes()
        count = processes(
            request,
            work=task.lacks * checkpoints * sum(one.numel() for one in weights),
            size=size,
            free=None if free is None else free + size,
        )
        if count == 1:
            return
        each = max(cores() // count, 1)
        self._threads = use_threads(each)
        self._helpers = [self._start(place, count, each) for place in range(1, count)]
        mine = replace(request, jobs=1, shard=(0, count))
        self.call = replace(self.call, request=mine)

    def _start(self, place: int, count: int, threads: int) -> subprocess.Popen[bytes]:
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
            pickle.dump(
                replace(self.call.request, jobs=1, shard=(place, count)), helper.stdin
            )
            helper.stdin.flush()
        return helper


def asked() -> Request:
    """What one that helps is asked comes by stdin, whose end is an interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    request: Request = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    return request


def _end_with_stdin() -> NoReturn:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)

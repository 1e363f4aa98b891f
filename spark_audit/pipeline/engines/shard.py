"""Workers that share a folder: each leases units, those of the dead too.

They begin at different places and go round, so that they meet late. Who finds all
leased waits: an owner may die.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.errors import IncompleteError
from spark_audit.locks import Lease
from spark_audit.pipeline.engines import ENGINES
from spark_audit.pipeline.engines.contract import Call, Engine, Task

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded

UNITS = 4
"""Units of a pass for each worker: of some, however small it is."""
FIRST_LOOK, LAST_LOOK = 0.05, 2.0
"""Seconds between two looks at the others' leases, growing."""


@ENGINES.register()
def shard(call: Call) -> Engine:
    """A worker's part of a call, and what dead workers left of theirs."""
    return Shard(call)


class Shard(Engine):
    """Leases units of every task, and goes on until nobody lacks any."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._left: list[Task] = []

    def score(self, task: Task, checkpoint: Loaded) -> None:
        """Score the units that nobody has or holds."""
        place, workers = self.call.request.shard
        units = task.units(UNITS * workers)
        first = len(units) * place // workers
        with self.call.clock(f"scoring: {task.kind.kind}"):
            self._go_through([*units[first:], *units[:first]], checkpoint)
        # Only these are kept: of many checkpoints all units would be many.
        self._left += [unit for unit in units if unit.lacks]

    def _go_through(self, units: Sequence[Task], checkpoint: Loaded) -> None:
        due = [unit.lacks for unit in units]
        done, total, shown = 0, sum(due), 0
        for unit, tokens in zip(units, due, strict=True):
            if unit.lacks:
                with _leased(unit) as mine:
                    if mine:
                        shown = done + self._do(unit, checkpoint, done, total)
            done += tokens  # by whoever
        if shown < total:
            self.call.show(units[0].what, total, total)

    def _do(self, unit: Task, checkpoint: Loaded, done: int, total: int) -> int:
        unit.store.refresh()  # its last owner may have ended it
        tokens = unit.lacks
        if tokens:
            self.here(unit, checkpoint, done=done, total=total)
        if unit.lacks:
            raise IncompleteError(f"scores of {unit.checkpoint!r} could not be kept")
        return tokens

    def finish(self) -> None:
        """Wait for what others hold, and do what the dead have left."""
        wait, most = FIRST_LOOK, len(self._left)
        while self._left:
            self._left[0].store.refresh()
            self._left = [unit for unit in self._left if unit.lacks]
            if self._take_over(self._left):
                wait = FIRST_LOOK
            elif self._left:
                done = most - len(self._left)
                self.call.show("waiting for other workers, units", done, most)
                with self.call.clock("waiting"):
                    time.sleep(wait)
                wait = min(wait * 1.5, LAST_LOOK)

    def _take_over(self, left: list[Task]) -> bool:
        """Do what one of the dead has left; whether there was any."""
        for unit in left:
            with _leased(unit) as mine:
                unit.store.refresh()
                if not (mine and unit.lacks):  # its owner may have just ended it
                    continue
                for checkpoint in self.opening.open(self.group_of(unit.checkpoint)):
                    if checkpoint.name == unit.checkpoint:
                        self._do(unit, checkpoint, 0, unit.lacks)
                    own = [one for one in left if one.checkpoint == checkpoint.name]
                    self._go_through([one for one in own if one != unit], checkpoint)
                self.opening.release()
                return True
        return False


@contextmanager
def _leased(unit: Task) -> Iterator[bool]:
    """Hold a unit, if nobody does."""
    assert unit.store.folder is not None
    folder: Path = unit.store.folder / "leases"
    lease = Lease.take(folder / unit.id)
    try:
        yield lease is not None
    finally:
        if lease is not None:
            lease.release()
        with suppress(OSError):  # others hold theirs
            folder.rmdir()

"""What engines share: tasks, the units that they are cut into, and who opens what."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spark_audit.scoring.items import AnyItem, Picked
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import Opening
    from spark_audit.checkpoints.specs import Loading, Spec
    from spark_audit.pipeline.request import Request
    from spark_audit.scoring.store import Keys, Store

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

UNIT_TOKENS = 100_000
"""Of a unit at most, one long item apart: some batches, and what a death may cost."""
DRIFT_ROWS = 8


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the time of the block."""
        start = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


@dataclass(frozen=True)
class Call:
    """What an engine is asked: which checkpoints, how, and who wants to know."""

    specs: Sequence[Spec]
    request: Request
    clock: Clock
    show: Progress


@dataclass(frozen=True, eq=False)
class Task:
    """One pass over one checkpoint, or a unit of it.

    Attributes
    ----------
    checkpoint
        Its name.
    keys
        What the store calls the scores of its items.
    number
        Of a unit, its place in the whole; 0 is the first.
    """

    checkpoint: str
    kind: Pass
    keys: Keys
    store: Store
    number: int = 0

    @property
    def items(self) -> Sequence[AnyItem]:
        """What is to be scored."""
        return self.keys.items

    @property
    def what(self) -> str:
        """What progress calls it."""
        return f"scoring {self.checkpoint}, {self.kind.label}, tokens"

    @property
    def lacking(self) -> Task:
        """What nobody has scored of it, as far as the store was read: each once."""
        names = self.keys()
        fresh = {names[item.key]: number for number, item in enumerate(self.items)}
        left = self.store.lacking(fresh)
        numbers = (number for key, number in fresh.items() if key in left)
        return self._of(Picked(self.items, numbers))

    @property
    def lacks(self) -> int:
        """Tokens that :attr:`lacking` has."""
        return sum(item.tokens for item in self.lacking.items)

    def units(self, least: int) -> list[Task]:
        """Runs of items of about as many tokens each: the same for all workers."""
        tokens = np.cumsum([item.tokens for item in self.items])
        if not len(tokens):
            return []
        count = max(least, -(-int(tokens[-1]) // UNIT_TOKENS))
        ends = np.searchsorted(tokens, tokens[-1] * np.arange(1, count + 1) / count)
        edges = [0, *sorted({int(end) + 1 for end in ends})]
        edges[-1] = len(self.items)
        return [
            self._of(self.items[start:end], number)
            for number, (start, end) in enumerate(pairwise(edges))
        ]

    def _of(self, items: Sequence[Any], number: int = 0) -> Task:
        return replace(self, keys=replace(self.keys, items=items), number=number)

    def probes(self, seed: int) -> list[Any]:
        """Texts of which it is measured what a batch does to them."""
        if self.kind != Pass() or self.number:
            return []
        drawn = np.random.default_rng(seed).permutation(len(self.items))[:DRIFT_ROWS]
        return [self.items[i] for i in drawn]


def drift_told(loaded: Loaded, probes: Sequence[Any]) -> list[str]:
    """What a reader must know of batches; nothing without texts to measure it on."""
    from spark_audit.scoring.score import drift, dtype_drift

    if not probes or loaded.served is not None:
        return []
    count = len(probes)
    told = [
        f"{count} texts scored alone and in one batch differ by at most "
        f"{drift(loaded, probes, k=count):.1e} nats per token"
    ]
    if apart := dtype_drift(loaded, probes, k=count):
        told.append(
            f"{count} texts scored in {loaded.dtype} and in float32 differ by "
            f"{apart[0]:.1e} nats per token in the mean, {apart[1]:.1e} at most"
        )
    return told


class Engine:
    """Opens the checkpoints of a call one by one, and has their tasks scored.

    This one does all in this process, each task as it comes.

    Attributes
    ----------
    order
        Names of the checkpoints, as one process would open them; whole at the end.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.order: list[str] = []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def loading(self) -> Loading:
        """How all of the call are opened."""
        request = self.call.request
        return replace(
            request.loading,
            base=request.base,
            include_base=request.base is not None,
        )

    @cached_property
    def opening(self) -> Opening:
        """The checkpoints of the call: all are checked when this is asked for."""
        from spark_audit.checkpoints.open import Opening

        return Opening(self.call.specs, self.loading)

    @property
    def described(self) -> list[Loaded]:
        """The checkpoints as headers tell of them."""
        return self.opening.described

    def group_of(self, checkpoint: str) -> int:
        """Which module a checkpoint is on, as :meth:`Opening.open` counts them."""
        return next(i for i, at in enumerate(self.opening.groups) if checkpoint in at)

    def checkpoints(self) -> Iterator[Loaded]:
        """Each checkpoint; a task of the one before may not be given any more."""
        opened = self.opening.each()
        while True:
            with self.call.clock("loading"):
                checkpoint = next(opened, None)
            if checkpoint is None:
                return
            self.order.append(checkpoint.name)
            yield checkpoint
            # Let go of full weights before the next checkpoint is loaded.
            del checkpoint

    def score(self, task: Task, checkpoint: Loaded) -> None:
        """Have a pass of a checkpoint scored, by :meth:`finish` at the latest.

        Of several workers each scores the items whose keys fall to it.
        """
        from spark_audit.scoring.score import score_keys

        request, store = self.call.request, task.store
        store.refresh()
        with self.call.clock(f"scoring: {task.kind.kind}"):
            if not request.shard[0] and task.lacks:
                for remark in drift_told(checkpoint, task.probes(request.seed)):
                    store.remark(remark)
            score_keys(
                checkpoint,
                task.items,
                kind=task.kind,
                store=store,
                batch_size=request.batch_size,
                shard=request.shard,
                progress=lambda done, total: self.call.show(task.what, done, total),
            )

    def finish(self) -> None:
        """Return when all that was asked is in the store."""

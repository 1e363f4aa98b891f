"""Ray: nodes of a cluster score units, and the columns come back to this store.

A holder on each node (on each GPU, where there are any) has one module in memory and is
given units of it as long as there are some; then it opens what nobody has, and only
where all is open does it help with what others hold. A unit that was lost with its node
goes to another one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_audit.errors import IncompleteError, InputError, OutputError, one_line
from spark_audit.pipeline.engines.contract import Call, Engine, Task
from spark_audit.pipeline.engines.ray.cluster import connected
from spark_audit.pipeline.engines.ray.holder import Holder, Unit
from spark_audit.provenance import versions

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

UNITS = 8
"""Units of a pass for each holder: of some, however small it is."""
LOOK = 2.0
"""Seconds between two looks for nodes that came or went."""
LONELY = 60.0
"""Seconds without any holder, after which none is awaited."""
LIVES = 3
"""Holders that may end while they do the same thing, or at the same place."""


@dataclass
class _Group:
    """Checkpoints of one module: those not yet opened, and units of the others."""

    unopened: deque[str]
    opening: bool = False
    units: deque[_Job] = field(default_factory=deque)


@dataclass(eq=False)
class _Job:
    """What a holder is asked: to open a checkpoint, or to score a unit (``task``)."""

    group: int
    checkpoint: str
    task: Task | None = None
    model_id: str = ""
    lost: int = 0


@dataclass(eq=False)
class _Hand:
    """A holder as it is seen from here; ``job`` is ``None`` until it has begun."""

    actor: Any
    place: tuple[str, int]
    ready: bool = False
    group: int = -1
    job: _Job | None = None


class Ray(Engine):
    """The driver: it owns the store, and hands out what is to be done."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._stack = ExitStack()
        self._ray: Any = None
        self._hands: list[_Hand] = []
        self._asked: dict[Any, _Hand] = {}
        self._groups: list[_Group] = []
        self._opened: deque[Loaded] = deque()
        self._ended: dict[tuple[str, int], int] = {}
        self._looked = -LOOK
        self._lonely = time.monotonic()
        self._store: Any = None
        self._tokens = [0, 0]  # done, asked

    def __enter__(self) -> Engine:
        _ = self.opening  # what is wrong with a checkpoint is told before Ray begins
        self._ray = self._stack.enter_context(connected(self.call.request.address))
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            if self._store is not None:
                with suppress(OutputError):
                    self._store.flush()  # the same command resumes from here
            for hand in self._hands:
                self._ray.kill(hand.actor)

    def checkpoints(self) -> Iterator[Loaded]:
        """Each checkpoint, as soon as a holder has opened it."""
        self._groups = [_Group(deque(names)) for names in self.opening.groups]
        self.order = [name for names in self.opening.groups for name in names]
        for _ in range(sum(len(group.unopened) for group in self._groups)):
            while not self._opened:
                self._turn()
            yield self._opened.popleft()

    def score(self, task: Task, checkpoint: Loaded) -> None:
        """Cut what is lacking into units, which holders are given in turn."""
        self._store = task.store
        task = task.lacking
        number = self.group_of(task.checkpoint)
        self._tokens[1] += task.lacks
        for unit in task.units(UNITS * max(len(self._hands), 1)):
            job = _Job(number, task.checkpoint, unit, checkpoint.model_id)
            self._groups[number].units.append(job)

    def finish(self) -> None:
        """Hand out units until all have come back."""
        while any(group.units for group in self._groups) or any(
            hand.job is not None for hand in self._hands
        ):
            self._turn()
        if self._store is not None:
            self._store.flush()

    # --- one turn ---------------------------------------------------------------------

    def _turn(self) -> None:
        """Hand out what can be done, and take in what was done."""
        with self.call.clock("scoring: ray"):
            if time.monotonic() - self._looked >= LOOK:
                self._look()
            for hand in self._hands:
                if hand.ready and hand.job is None:
                    self._hand_out(hand)
            done: list[Any] = []
            if self._asked:
                done, _ = self._ray.wait([*self._asked], timeout=LOOK)
            else:
                time.sleep(LOOK / 10)
            for reference in done:
                self._take_in(self._asked.pop(reference), reference)
        ready = sum(hand.ready for hand in self._hands)
        if not ready:
            # Others may have all cores of the cluster.
            self.call.show("waiting for Ray, workers", ready, len(self._hands))
        elif self._tokens[1]:
            self.call.show("scoring on Ray, tokens", *self._tokens)

    def _hand_out(self, hand: _Hand) -> None:
        job = self._next(hand)
        if job is None:
            return
        hand.group, hand.job = job.group, job
        if job.task is None:
            asked = hand.actor.open.remote(job.group, job.checkpoint)
        else:
            task, request = job.task, self.call.request
            unit = Unit(
                job.checkpoint,
                job.model_id,
                task.kind,
                task.items,
                task.probes(request.seed),
                request.batch_size,
            )
            asked = hand.actor.score.remote(job.group, unit)
        self._asked[asked] = hand

    def _next(self, hand: _Hand) -> _Job | None:
        """What a holder does next: of its own module, of nobody's, of another's."""
        on = [0] * len(self._groups)
        for one in self._hands:
            if one.group >= 0:
                on[one.group] += 1
        own = [hand.group] if hand.group >= 0 else []
        for number in (*own, *(n for n, count in enumerate(on) if not count)):
            group = self._groups[number]
            # The next is opened while others still have something to do.
            few = len(group.units) < max(on[number], 1)
            if few and group.unopened and not group.opening:
                group.opening = True
                return _Job(number, group.unopened[0])
            if group.units:
                return group.units.popleft()
        # A module is not loaded for a last unit that its own holder does in time.
        several = [n for n, group in enumerate(self._groups) if len(group.units) > 1]
        if not several:
            return None
        most = max(several, key=lambda n: len(self._groups[n].units) / on[n])
        return self._groups[most].units.popleft()

    def _take_in(self, hand: _Hand, reference: Any) -> None:
        lost = self._ray.exceptions
        ended = (
            lost.RayActorError,
            lost.ObjectLostError,
            lost.NodeDiedError,
            lost.WorkerCrashedError,
            lost.ActorUnschedulableError,
        )
        try:
            found = self._ray.get(reference)
        except lost.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise self._told(error.cause) from error
            raise
        except ended as error:
            self._bury(hand, error)
            return
        except lost.RayError as error:
            raise self._told(error) from error
        job, hand.job = hand.job, None
        if job is None:
            self._check_versions(found)
            hand.ready = True
        elif job.task is None:
            group = self._groups[job.group]
            group.opening = False
            group.unopened.popleft()
            self._opened.append(found)
        else:
            table, notes = found
            job.task.store.take(table, job.task.keys(), notes)
            self._tokens[0] += sum(item.tokens for item in job.task.items)

    # --- who is there -----------------------------------------------------------------

    def _look(self) -> None:
        """Have a holder at every place that there is."""
        self._looked = time.monotonic()
        places = self._places()
        self._hands = [hand for hand in self._hands if hand.job or hand.place in places]
        taken = {hand.place for hand in self._hands}
        for place, (cpus, gpus) in places.items():
            if place not in taken and self._ended.get(place, 0) < LIVES:
                self._hands.append(self._start(place, cpus, gpus))
        if self._hands:
            self._lonely = time.monotonic()
        elif time.monotonic() - self._lonely > LONELY:
            raise IncompleteError(
                "the Ray cluster has no node that scores", where="--engine ray"
            )

    def _places(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Node and number -> cores and GPUs: each GPU, or each node's cores."""
        nodes = {
            node["NodeID"]: node["Resources"]
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }
        device = self.call.request.loading.device
        cards = {node: int(has.get("GPU", 0)) for node, has in nodes.items()}
        if device != "cpu" and any(cards.values()):
            return {
                (node, i): (1.0, 1.0) for node, n in cards.items() for i in range(n)
            }
        return {(node, 0): (has["CPU"], 0.0) for node, has in nodes.items()}

    def _start(self, place: tuple[str, int], cpus: float, gpus: float) -> _Hand:
        ways = import_module("ray.util.scheduling_strategies")
        there = ways.NodeAffinitySchedulingStrategy(place[0], soft=False)
        # Ray has its process use as many threads as it gives it cores.
        made = self._ray.remote(Holder).options(
            num_cpus=cpus, num_gpus=gpus, scheduling_strategy=there
        )
        actor = made.remote(tuple(self.call.specs), self.loading)
        hand = _Hand(actor, place)
        self._asked[actor.versions.remote()] = hand
        return hand

    def _bury(self, hand: _Hand, error: Exception) -> None:
        """A holder has ended: what it did is done elsewhere."""
        if hand in self._hands:
            self._hands.remove(hand)
        self._ended[hand.place] = self._ended.get(hand.place, 0) + 1
        self._looked = -LOOK
        if getattr(error, "actor_init_failed", False):
            last = str(error).strip().splitlines()[-1]
            raise InputError(
                f"a node cannot begin ({last[:200]})",
                where="--engine ray",
                fix="install the same spark-audit on all nodes",
            ) from error
        job = hand.job
        if job is None:
            return
        job.lost += 1
        if job.lost > LIVES:
            raise IncompleteError(
                f"{job.lost} workers in a row ended over it (for want of memory?)",
                where=job.checkpoint,
            ) from error
        group = self._groups[job.group]
        if job.task is None:
            group.opening = False
        else:
            group.units.appendleft(job)

    def _check_versions(self, found: dict[str, str]) -> None:
        own, theirs = versions()["spark-audit"], found["spark-audit"]
        if own != theirs:
            raise InputError(
                f"a node has spark-audit {theirs}, not {own}",
                where="--engine ray",
                fix="install the same version on all nodes",
            )

    def _told(self, error: Exception) -> Exception:
        """An error of a node as it would be one here."""
        known = self._ray.exceptions
        if isinstance(error, (known.ObjectStoreFullError, known.OutOfDiskError)):
            return OutputError(
                "Ray's object store is full",
                where="--engine ray",
                fix="start Ray with a larger --object-store-memory",
            )
        if isinstance(error, known.RayError):
            return IncompleteError(f"Ray says: {one_line(error)}", where="--engine ray")
        return error

"""Ray: nodes of a cluster score parts of a job; the columns come back to this store.

A part is a task without a state: Ray begins one that was lost with its node on another.
A worker keeps the module that it opened last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from spark_audit.errors import (
    CheckpointError,
    IncompleteError,
    InputError,
    OutputError,
    one_line,
)
from spark_audit.pipeline.engines.cluster import connected
from spark_audit.pipeline.job import (
    Job,
    Scored,
    loading_of,
)
from spark_audit.provenance import versions
from spark_audit.scoring.items import AnyItem, Item
from spark_audit.scoring.score import BatchSize, drift_probes, drift_remarks
from spark_audit.scoring.score import score as score_items
from spark_audit.scoring.table import Pass, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.specs import Loading, Spec

PART_TOKENS = 500_000
"""Of a part at most, one long item apart: what a death may cost."""
PARTS = 4
"""Parts of all passes over a module for each task that runs at once, at least."""
LOOK = 2.0
"""Seconds between two looks at the nodes."""
SAME = "install the same spark-audit on all nodes"


@dataclass(frozen=True)
class Part:
    """Some items of a pass over a checkpoint, which is ``model_id`` on every node."""

    checkpoint: str
    model_id: str
    kind: Pass
    items: Sequence[AnyItem]
    probes: Sequence[Item]


class Holder:
    """On a node: opens modules one after the other, and keeps the last one."""

    def __init__(self, specs: Sequence[Spec], loading: Loading) -> None:
        from spark_audit.checkpoints.open import Opening

        self.opening = Opening(specs, loading)
        self._group = -1
        self._stream: Iterator[Loaded] = iter(())
        self._opened: dict[str, Loaded] = {}

    def get(self, group: int, name: str) -> Loaded:
        """A checkpoint of a module."""
        if group != self._group:
            self._begin(group)
        while name not in self._opened:
            one = next(self._stream, None)
            if one is None:  # rounded weights that were let go of
                self._begin(group)
                continue
            # Rounded weights are a copy of all: there is one at a time.
            for other in [k for k, v in self._opened.items() if v.quantised_from]:
                del self._opened[other]
            self._opened[one.name] = one
        return self._opened[name]

    def _begin(self, group: int) -> None:
        self._opened.clear()
        self._group, self._stream = group, self.opening.open(group)


_holder = lru_cache(maxsize=1)(Holder)


def opened(specs: tuple[Spec, ...], loading: Loading, group: int) -> list[Loaded]:
    """On a node: what is known of a module's checkpoints; their weights stay there."""
    holder = _holder(specs, loading)
    names = holder.opening.groups[group]
    return [holder.get(group, name).without_weights() for name in names]


def work(
    specs: tuple[Spec, ...],
    loading: Loading,
    group: int,
    part: Part,
    batch_size: BatchSize,
) -> tuple[TokenTable, list[str]]:
    """On a node: the columns of a part, and what a reader must know of them.

    Raises
    ------
    CheckpointError
        If the checkpoint is another one on this node.
    """
    loaded = _holder(specs, loading).get(group, part.checkpoint)
    if loaded.model_id != part.model_id:
        raise CheckpointError(
            "is another checkpoint on one node than on the others",
            where=part.checkpoint,
            fix="give a path to the same files on all nodes",
        )
    remarks = drift_remarks(loaded, part.probes)
    tables = score_items(loaded, part.items, passes=[part.kind], batch_size=batch_size)
    return tables[part.kind], [*remarks, *tables.notes]


def score(job: Job) -> list[Scored]:
    """Have all of a job scored on a cluster; the store is written here.

    Raises
    ------
    SparkError
        As a node raised it, or if the cluster cannot score.
    """
    with connected(job.request.address) as ray:
        return Driver(ray, job).score()


class Driver:
    """Asks for the checkpoints of each module first, then for what they lack."""

    def __init__(self, ray: Any, job: Job) -> None:
        self._ray, self._job = ray, job
        self._scored: dict[str, Scored] = {}
        self._asked: dict[Any, tuple[int, Part | None]] = {}
        self._tokens = [0, 0]  # done, asked

    def score(self) -> list[Scored]:
        """See :func:`score`."""
        job = self._job
        try:
            with job.clock("scoring: ray"):
                for group in range(len(job.opening.groups)):
                    self._ask(opened, group, None)
                while self._asked:
                    job.show("scoring on Ray, tokens", *self._tokens)
                    self._slots()  # without any nothing would ever come back
                    done, _ = self._ray.wait([*self._asked], timeout=LOOK)
                    for reference in done:
                        self._take_in(reference)
            job.store.flush()
        finally:
            with suppress(OutputError):
                job.store.flush()  # the same command resumes from here
            for reference in self._asked:
                self._ray.cancel(reference, force=True)
        names = chain(*job.opening.groups)
        return [self._scored[name] for name in names if name in self._scored]

    def _ask(self, task: Any, group: int, part: Part | None, *given: Any) -> None:
        """Have a function called on a node, or on another if that one dies."""
        job, (cpus, gpus, _) = self._job, self._slots()
        # Ray has its process use as many threads as it gives it cores, and ends one
        # that used a GPU unless it is told otherwise.
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_calls": 0}
        asked = self._ray.remote(**options)(_checked).remote(
            versions()["spark-audit"],
            task,
            job.order.specs,
            loading_of(job.request),
            group,
            *given,
        )
        self._asked[asked] = group, part

    def _slots(self) -> tuple[float, int, float]:
        """Cores and GPUs of a task, and how many tasks run at once."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = [node["CPU"] for node in nodes if node.get("CPU", 0) >= 1]
        if not cores:
            raise IncompleteError(
                "the Ray cluster has no node that scores", where="--engine ray"
            )
        cards = sum(node.get("GPU", 0) for node in nodes)
        if cards and self._job.request.loading.device != "cpu":
            return 1.0, 1, cards
        # A task of a node that dies must fit on any other one.
        return min(cores), 0, sum(one // min(cores) for one in cores)

    def _take_in(self, reference: Any) -> None:
        """Store what came back, or ask for what checkpoints lack."""
        group, part = self._asked.pop(reference)
        ray, job = self._ray.exceptions, self._job
        try:
            result = self._ray.get(reference)
        except ray.RayTaskError as error:
            if isinstance(error.cause, ImportError):
                text = f"a node cannot begin ({one_line(error.cause)})"
                raise InputError(text, where="--engine ray", fix=SAME) from error
            raise (error.cause or error) from error
        except (ray.ObjectStoreFullError, ray.OutOfDiskError) as error:
            raise OutputError(
                "Ray's object store is full",
                where="--engine ray",
                fix="start Ray with a larger --object-store-memory",
            ) from error
        except ray.RayError as error:
            text = f"Ray says: {one_line(error)}"
            raise IncompleteError(text, where="--engine ray") from error
        if part is not None:
            keys = self._scored[part.checkpoint].keys[part.kind]
            job.store.take(result[0], replace(keys, items=part.items)(), result[1])
            self._tokens[0] += sum(item.tokens for item in part.items)
            return
        for loaded in result:
            if job.order.scores(loaded.name):
                self._scored[loaded.name] = job.scored(loaded)
                for one in self._parts(loaded):
                    self._ask(work, group, one, one, job.request.batch_size)

    def _parts(self, loaded: Loaded) -> Iterator[Part]:
        """Runs of the items that a checkpoint lacks, of about as many tokens each."""
        scored, count = self._scored[loaded.name], PARTS * self._slots()[2]
        for kind, keys in scored.keys.items():
            items = [*self._job.store.left(keys).values()]
            probes = drift_probes(keys, self._job.request.seed)
            tokens = sum(item.tokens for item in items)
            self._tokens[1] += tokens
            run, size = list[AnyItem](), 0
            for item in items:
                run.append(item)
                size += item.tokens
                if size >= min(PART_TOKENS, tokens / count) or item is items[-1]:
                    yield Part(loaded.name, loaded.model_id, kind, run, probes)
                    run, size, probes = [], 0, []


def _checked(own: str, task: Any, *given: Any) -> Any:
    """Call a function on a node, which has the driver's version."""
    if (here := versions()["spark-audit"]) != own:
        raise InputError(
            f"a node has spark-audit {here}, not {own}",
            where="--engine ray",
            fix=SAME,
        )
    return task(*given)

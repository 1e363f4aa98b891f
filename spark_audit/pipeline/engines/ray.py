"""Ray: nodes of a cluster score parts of a job; the rows come back to this store.

A part is a task without a state: Ray begins one that was lost with its node on another.
A node does what a worker of this machine does, with a copy of the job.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit import errors
from spark_audit.pipeline.engines.local import score_part
from spark_audit.pipeline.job import CheckpointJob, Job, Lacking, loading_of
from spark_audit.provenance import versions
from spark_audit.scoring.store import Rows, Store

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.pipeline.engines.cluster import connected

PART_TOKENS = 500_000
"""Of a part of a module's checkpoints, about: what a death may cost."""

LOOK = 2.0
"""Seconds between two looks at the nodes."""

STORE_FULL_ERRORS = ("ObjectStoreFullError", "OutOfDiskError")
"""Errors of Ray where neither the memory for objects nor the disk behind it is left."""

SAME_INSTALLATION = "install the same spark-audit on all nodes"

Result: TypeAlias = tuple[list["Loaded"], list[tuple[Rows, list[str]]]]
"""Checkpoints without weights, and rows, each with what a reader must know of them."""


class Remote(Store):
    """A store on a node: it knows what the driver has, and collects what is added."""

    def __init__(self, store: Store) -> None:
        super().__init__(None)
        self._salt, self._parts = store._salt, store._parts
        self.parts: list[tuple[Rows, list[str]]] = []

    def flush(self) -> None:
        """Put pending rows, with what a reader must know of them, with the others."""
        if self._pending:
            self.parts.append((self._pending, self._pending_remarks))
            self._pending = {}
            self._pending_tokens = 0
            self._pending_remarks = []


def work(release: str, copied: bytes, group: int, shard: tuple[int, int]) -> Result:
    """On a node: a module's checkpoints without weights, and the rows of a part.

    Parameters
    ----------
    release
        The driver's version.
    copied
        Its job, without what is open.
    """
    if (here := versions()["spark-audit"]) != release:
        raise errors.InputError(
            f"a node has spark-audit {here}, not {release}",
            where="--engine ray",
            fix=SAME_INSTALLATION,
        )
    job: Any = pickle.loads(copied)
    opening = _opening(job.order.specs, loading_of(job.request))
    job = replace(job, opening=opening, show=lambda *_: None)
    opened: list[Loaded] = []

    def each() -> Iterator[Loaded]:
        for loaded in opening.open(group):
            opened.append(loaded.without_weights())
            yield loaded

    score_part(job, each(), shard)
    return opened, job.store.parts


def without_models(job: Job) -> Job:
    """A job for another machine: its part of the manifest, and nothing that is open."""
    nothing: Any = None
    store, view = Remote(job.store), job.view
    return replace(
        job, manifest=view, store=store, opening=nothing, show=nothing, _items={}
    )


@lru_cache(maxsize=1)
def _opening(specs: tuple[Spec, ...], loading: Loading) -> OpenCheckpoints:
    """The checkpoints of a job: a node checks their files once."""
    from spark_audit.checkpoints.open import OpenCheckpoints

    return OpenCheckpoints(specs, loading)


def score(job: Job, lacking: Lacking) -> list[CheckpointJob]:
    """Have all of a job scored on a cluster; the store is written here.

    Raises
    ------
    SparkError
        As a node raised it, or if the cluster cannot score.
    """
    with connected(job.request.address) as ray:
        try:
            return _scored(ray, job, lacking)
        except ray.exceptions.RayError as error:
            raise told(error) from error


def _scored(ray: Any, job: Job, lacking: Lacking) -> list[CheckpointJob]:
    """Ask for all parts at once, and take in what comes back."""
    cpus, gpus, slots = capacity(ray, job.request.loading.device)
    # Ray has its process use as many threads as it gives it cores, and ends one that
    # used a GPU unless it is told otherwise.
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=0)(work)
    copied = ray.put(pickle.dumps(without_models(job)))
    release = versions()["spark-audit"]
    asked = [
        task.remote(release, copied, group, (part, count))
        for group in range(len(job.opening.groups))
        for count in (parts(job.tokens_left(group, lacking), slots),)
        for part in range(count)
    ]
    total = len(asked)
    opened: dict[str, Loaded] = {}
    try:
        with job.clock("scoring: ray"):
            while asked:
                job.show("scoring on Ray, parts", total - len(asked), total)
                # Without any node nothing would ever come back.
                capacity(ray, job.request.loading.device)
                done, asked = ray.wait(asked, timeout=LOOK)
                for result in map(ray.get, done):
                    take(result, job.store, opened)
        job.store.flush()
    finally:
        with suppress(errors.OutputError):
            job.store.flush()  # the same command resumes from here
        for reference in asked:
            ray.cancel(reference, force=True)
    # Where nothing was lacking, nothing was opened.
    known = {one.name: one for one in job.opening.described} | opened
    names = filter(job.order.scores, chain(*job.opening.groups))
    return [job.scored(known[name]) for name in names]


def capacity(ray: Any, device: str) -> tuple[float, int, int]:
    """Cores and GPUs of a task, and how many tasks run at once on a cluster."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [node["CPU"] for node in nodes if node.get("CPU", 0) >= 1]
    if not cores:
        what = "the Ray cluster has no node that scores"
        raise errors.IncompleteError(what, where="--engine ray")
    cards = sum(node.get("GPU", 0) for node in nodes)
    if cards and device != "cpu":
        return 1.0, 1, int(cards)
    # A task of a node that dies must fit on any other one.
    return min(cores), 0, int(sum(one // min(cores) for one in cores))


def parts(tokens: int | None, slots: int) -> int:
    """How many tasks share what a module's checkpoints lack, if that is known."""
    if tokens is None:
        return slots
    return max(slots, -(-tokens // PART_TOKENS)) if tokens else 0


def take(result: Result, store: Store, opened: dict[str, Loaded]) -> None:
    """Store what :func:`work` came to, and add the checkpoints that it opened."""
    checkpoints, scored = result
    for one in checkpoints:
        if opened.setdefault(one.name, one).model_id != one.model_id:
            raise errors.CheckpointError(
                "is another checkpoint on one node than on the others",
                where=one.name,
                fix="give a path to the same files on all nodes",
            )
    for rows, remarks in scored:
        store.take(rows, remarks)


def told(error: Exception) -> Exception:
    """What a node raised; what Ray itself says becomes one line."""
    cause = getattr(error, "cause", None) or error
    place = "--engine ray"
    if type(cause).__name__ in STORE_FULL_ERRORS:
        what = "the object store of the Ray cluster is full"
        fix = "start Ray with a larger one (--object-store-memory)"
        return errors.IncompleteError(what, where=place, fix=fix)
    if isinstance(cause, ImportError):
        what = f"a node cannot begin ({errors.one_line(cause)})"
        return errors.InputError(what, where=place, fix=SAME_INSTALLATION)
    if cause is error:
        what = f"Ray says: {errors.one_line(error)}"
        return errors.IncompleteError(what, where=place)
    return cause

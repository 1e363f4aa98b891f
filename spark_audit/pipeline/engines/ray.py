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
from typing import TYPE_CHECKING, Any

from spark_audit.errors import (
    CheckpointError,
    IncompleteError,
    InputError,
    OutputError,
    one_line,
)
from spark_audit.pipeline.engines.cluster import connected
from spark_audit.pipeline.engines.local import score_part
from spark_audit.pipeline.job import Job, Lacking, Scored, loading_of
from spark_audit.provenance import versions
from spark_audit.scoring.store import Rows, Store

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import Opening
    from spark_audit.checkpoints.specs import Loading, Spec

PART_TOKENS = 500_000
"""Of a part of a module's checkpoints, about: what a death may cost."""
LOOK = 2.0
"""Seconds between two looks at the nodes."""
SAME = "install the same spark-audit on all nodes"


class Remote(Store):
    """A store on a node: it knows what the driver has, and collects what is added."""

    def __init__(self, store: Store) -> None:
        super().__init__(None)
        self._salt, self._parts = store._salt, store._parts
        self.parts: list[tuple[Rows, list[str]]] = []

    def flush(self) -> None:
        """Put pending rows, with what a reader must know of them, with the others."""
        if self._pending:
            self.parts.append((self._pending, self._remarks))
            self._pending, self._pending_tokens, self._remarks = {}, 0, []


def work(
    release: str, copied: bytes, group: int, shard: tuple[int, int]
) -> tuple[list[Loaded], list[tuple[Rows, list[str]]]]:
    """On a node: a module's checkpoints without weights, and the rows of a part.

    Parameters
    ----------
    release
        The driver's version.
    copied
        Its job, without what is open.
    """
    if (here := versions()["spark-audit"]) != release:
        raise InputError(
            f"a node has spark-audit {here}, not {release}",
            where="--engine ray",
            fix=SAME,
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
def _opening(specs: tuple[Spec, ...], loading: Loading) -> Opening:
    """The checkpoints of a job: a node checks their files once."""
    from spark_audit.checkpoints.open import Opening

    return Opening(specs, loading)


def score(job: Job, lacking: Lacking) -> list[Scored]:
    """Have all of a job scored on a cluster; the store is written here.

    Raises
    ------
    SparkError
        As a node raised it, or if the cluster cannot score.
    """
    with connected(job.request.address) as ray:
        return Driver(ray, job, lacking).score()


class Driver:
    """Asks for all parts at once, and takes in what comes back."""

    def __init__(self, ray: Any, job: Job, lacking: Lacking) -> None:
        self._ray, self._job, self._lacking = ray, job, lacking
        self._known: dict[str, Loaded] = {}

    def score(self) -> list[Scored]:
        """See :func:`score`."""
        job, (cpus, gpus, slots) = self._job, self._slots()
        # Ray has its process use as many threads as it gives it cores, and ends one
        # that used a GPU unless it is told otherwise.
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_calls": 0}
        task = self._ray.remote(**options)(work)
        copied = self._ray.put(pickle.dumps(without_models(job)))
        release = versions()["spark-audit"]
        asked = [
            task.remote(release, copied, group, (part, count))
            for group in range(len(job.opening.groups))
            for count in (self._parts(group, int(slots)),)
            for part in range(count)
        ]
        total = len(asked)
        try:
            with job.clock("scoring: ray"):
                while asked:
                    job.show("scoring on Ray, parts", total - len(asked), total)
                    self._slots()  # without any nothing would ever come back
                    done, asked = self._ray.wait(asked, timeout=LOOK)
                    for reference in done:
                        self._take_in(reference)
            job.store.flush()
        finally:
            with suppress(OutputError):
                job.store.flush()  # the same command resumes from here
            for reference in asked:
                self._ray.cancel(reference, force=True)
        names = filter(job.order.scores, chain(*job.opening.groups))
        # Where nothing was lacking, nothing was opened.
        known = {one.name: one for one in job.opening.described} | self._known
        return [job.scored(known[name]) for name in names]

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

    def _parts(self, group: int, slots: int) -> int:
        """How many tasks share what a module's checkpoints lack."""
        left = self._job.tokens_left(group, self._lacking)
        if left is None:
            return slots
        return max(slots, -(-left // PART_TOKENS)) if left else 0

    def _take_in(self, reference: Any) -> None:
        """Store what came back."""
        ray = self._ray.exceptions
        try:
            opened, parts = self._ray.get(reference)
        except ray.RayTaskError as error:
            if isinstance(error.cause, ImportError):
                text = f"a node cannot begin ({one_line(error.cause)})"
                raise InputError(text, where="--engine ray", fix=SAME) from error
            raise (error.cause or error) from error
        except ray.RayError as error:
            text = f"Ray says: {one_line(error)}"
            raise IncompleteError(text, where="--engine ray") from error
        for one in opened:
            if self._known.setdefault(one.name, one).model_id != one.model_id:
                raise CheckpointError(
                    "is another checkpoint on one node than on the others",
                    where=one.name,
                    fix="give a path to the same files on all nodes",
                )
        for rows, remarks in parts:
            self._job.store.take(rows, remarks)

"""Score parts of a job on the nodes of a Ray cluster, and store the rows here.

A part is a stateless task: if its node dies, Ray starts it on another node. A node
works like a local worker, with a copy of the job.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit import errors
from spark_audit.pipeline.engines.cluster import connected
from spark_audit.pipeline.engines.local import score_part
from spark_audit.pipeline.job import CheckpointJob, Job, Unscored, loading_of
from spark_audit.provenance import versions
from spark_audit.scoring.store import Rows, Store

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.checkpoints.specs import Loading, Spec

PART_TOKENS = 500_000
"""Tokens of a part, roughly: the loss when a node dies."""

LOOK_SECONDS = 2.0
"""Seconds between two checks of the nodes."""

STORE_FULL_ERRORS = ("ObjectStoreFullError", "OutOfDiskError")
"""Ray's errors when object memory and the disk behind it are full."""

SAME_INSTALLATION = "install the same spark-audit on all nodes"

Result: TypeAlias = tuple[list["Loaded"], list[tuple[Rows, list[str]]]]
"""Checkpoints without weights, and rows with their remarks."""


class Remote(Store):
    """A store on a node: it knows the driver's keys, and collects new rows."""

    def __init__(self, store: Store) -> None:
        super().__init__(None)
        # The same salt gives the same keys for the same items.
        self._salt = store._salt
        self._parts = store._parts
        self.parts: list[tuple[Rows, list[str]]] = []

    def flush(self) -> None:
        """Move pending rows and their remarks to the collected ones."""
        if self._pending:
            self.parts.append((self._pending, self._pending_remarks))
            self._pending = {}
            self._pending_tokens = 0
            self._pending_remarks = []


def work(release: str, copied: bytes, group: int, shard: tuple[int, int]) -> Result:
    """Score a part on a node; return a module's checkpoints and the rows of the part.

    Parameters
    ----------
    release
        Version of the driver.
    copied
        The driver's job, pickled, as :func:`without_models` returns it.
    group
        Number of the module, as in ``groups`` of
        :class:`spark_audit.checkpoints.open.OpenCheckpoints`.
    """
    release_here = versions()["spark-audit"]
    if release_here != release:
        raise errors.InputError(
            f"a node has spark-audit {release_here}, not {release}",
            where="--engine ray",
            fix=SAME_INSTALLATION,
        )

    # The pickle comes from the driver, through the Ray cluster of this run.
    job: Job = pickle.loads(copied)
    opening = _opening(job.lineup.specs, loading_of(job.request))
    job = replace(job, opening=opening, show=lambda *_: None)
    assert isinstance(job.store, Remote)

    opened: list[Loaded] = []

    def checkpoints() -> Iterator[Loaded]:
        for loaded in opening.open(group):
            opened.append(loaded.without_weights())
            yield loaded

    score_part(job, checkpoints(), shard)
    return opened, job.store.parts


def without_models(job: Job) -> Job:
    """Return a job for another machine: its part of the manifest, no open models."""
    nothing: Any = None
    return replace(
        job,
        manifest=job.view,
        store=Remote(job.store),
        opening=nothing,
        show=nothing,
        _items_by_tokenizer={},
    )


@lru_cache(maxsize=1)
def _opening(specs: tuple[Spec, ...], loading: Loading) -> OpenCheckpoints:
    """Return the checkpoints of a job; a node checks their files once."""
    from spark_audit.checkpoints.open import OpenCheckpoints

    return OpenCheckpoints(specs, loading)


def score(job: Job, unscored: Unscored) -> list[CheckpointJob]:
    """Score all of a job on a cluster, and write the store here.

    Raises
    ------
    SparkError
        The error of a node, or an error if the cluster cannot score.
    """
    with connected(job.request.address) as ray:
        try:
            return _score_on(ray, job, unscored)
        except ray.exceptions.RayError as error:
            raise cause_of(error) from error


def _score_on(ray: Any, job: Job, unscored: Unscored) -> list[CheckpointJob]:
    """Start the tasks of all parts at once, and store their results."""
    cpus, gpus, slots = capacity(ray, job.request.loading.device)

    # Ray limits threads by the cores of a task, and ends a process that used a GPU
    # unless told otherwise.
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=0)(work)
    copied = ray.put(pickle.dumps(without_models(job)))
    release = versions()["spark-audit"]

    pending = []
    for group in range(len(job.opening.groups)):
        n_parts = parts(job.tokens_left(group, unscored), slots)
        for part in range(n_parts):
            pending.append(task.remote(release, copied, group, (part, n_parts)))

    opened: dict[str, Loaded] = {}
    n_tasks = len(pending)
    try:
        with job.clock("scoring: ray"):
            while pending:
                job.show("scoring on Ray, parts", n_tasks - len(pending), n_tasks)
                # Without any node, no result would ever arrive.
                capacity(ray, job.request.loading.device)
                done, pending = ray.wait(pending, timeout=LOOK_SECONDS)
                for reference in done:
                    take(ray.get(reference), job.store, opened)
        job.store.flush()
    finally:
        # The same command resumes from here.
        with suppress(errors.OutputError):
            job.store.flush()
        for reference in pending:
            ray.cancel(reference, force=True)

    # If nothing was missing, no checkpoint was opened.
    described = {checkpoint.name: checkpoint for checkpoint in job.opening.described}
    checkpoints = {**described, **opened}
    checkpoint_jobs = []
    for names in job.opening.groups:
        for name in names:
            if job.lineup.scores(name):
                checkpoint_jobs.append(job.checkpoint_job(checkpoints[name]))
    return checkpoint_jobs


def capacity(ray: Any, device: str) -> tuple[float, int, int]:
    """Return the cores and GPUs of a task, and the number of tasks that run at once."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores_by_node = []
    for node in nodes:
        if node.get("CPU", 0) >= 1:
            cores_by_node.append(node["CPU"])
    if not cores_by_node:
        raise errors.IncompleteError(
            "the Ray cluster has no node that scores", where="--engine ray"
        )

    n_gpus = sum(node.get("GPU", 0) for node in nodes)
    if n_gpus and device != "cpu":
        return 1.0, 1, int(n_gpus)

    # The task of a dead node must fit on any other node.
    task_cores = min(cores_by_node)
    return task_cores, 0, int(sum(cores // task_cores for cores in cores_by_node))


def parts(tokens: int | None, slots: int) -> int:
    """Return how many tasks share the missing scores of a module's checkpoints.

    Parameters
    ----------
    tokens
        Tokens to score; ``None``: still unknown.
    slots
        Number of tasks that run at once.
    """
    if tokens is None:
        return slots
    if not tokens:
        return 0
    n_parts = -(-tokens // PART_TOKENS)
    return max(slots, n_parts)


def take(result: Result, store: Store, opened: dict[str, Loaded]) -> None:
    """Store the rows from :func:`work`, and add the checkpoints that it opened.

    Raises
    ------
    CheckpointError
        If two nodes opened different checkpoints under one name.
    """
    checkpoints, rows_and_remarks = result
    for checkpoint in checkpoints:
        first = opened.setdefault(checkpoint.name, checkpoint)
        if first.model_id != checkpoint.model_id:
            raise errors.CheckpointError(
                "is another checkpoint on one node than on the others",
                where=checkpoint.name,
                fix="give a path to the same files on all nodes",
            )
    for rows, remarks in rows_and_remarks:
        store.take(rows, remarks)


def cause_of(error: Exception) -> Exception:
    """Return a node's original error; an error of Ray becomes one line."""
    cause = getattr(error, "cause", None) or error

    # Compared by name, because Ray need not be installed here.
    if type(cause).__name__ in STORE_FULL_ERRORS:
        return errors.IncompleteError(
            "the object store of the Ray cluster is full",
            where="--engine ray",
            fix="start Ray with a larger one (--object-store-memory)",
        )
    if isinstance(cause, ImportError):
        return errors.InputError(
            f"a node cannot begin ({errors.one_line(cause)})",
            where="--engine ray",
            fix=SAME_INSTALLATION,
        )
    if cause is error:
        return errors.IncompleteError(
            f"Ray says: {errors.one_line(error)}", where="--engine ray"
        )
    return cause

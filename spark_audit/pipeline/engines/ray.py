"""Score on Ray: nodes of a cluster score parts of a job, and send the scores back.

The driver is the process that the user started; it alone writes the store. A part is a
Ray task without a state: if its node dies, Ray begins it again on another one. On its
node a task does what a worker of ``--shard`` does, with a copy of the job.

``run.py`` calls :func:`score`; a node runs :func:`work`. A further error of Ray gets
its words in :func:`cause_of`.
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
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.checkpoints.specs import Loading, Spec

PART_TOKENS = 500_000
"""About how many tokens a part has at most. If a node dies, this many are scored
again for each of its tasks."""

LOOK_SECONDS = 2.0
"""Seconds between two checks of the nodes."""

STORE_FULL_ERRORS = ("ObjectStoreFullError", "OutOfDiskError")
"""Ray's errors when object memory and the disk behind it are full."""

SAME_INSTALLATION = "install the same spark-audit on all nodes"

RowsAndRemarks: TypeAlias = tuple[Rows, list[str]]
"""Scored rows, and the remarks of their scoring."""

TaskResult: TypeAlias = tuple[list["Checkpoint"], list[RowsAndRemarks]]
"""The result of a task: its checkpoints without weights, and its scores."""


class CollectingStore(Store):
    """The store of a task on a node, which collects scores instead of writing them.

    The driver makes it from its own store, and each task gets a copy with the job: so a
    node knows which scores the driver has. The task's new scores are in ``collected``.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(None)
        # Only with the driver's salt do items have the keys that they have there.
        self._salt = store._salt
        self._index = store._index
        self._remarks_of_part = store._remarks_of_part
        self.collected: list[RowsAndRemarks] = []

    def flush(self) -> None:
        """Add pending rows and their remarks to ``collected``, for the driver."""
        if self._pending:
            self.collected.append((self._pending, self._pending_remarks))
            self._pending = {}
            self._pending_tokens = 0
            self._pending_remarks = []


def work(
    release: str, pickled_job: bytes, group: int, shard: tuple[int, int]
) -> TaskResult:
    """Score a part of a group of checkpoints; this is the task that a node runs.

    Parameters
    ----------
    release
        The driver's version of spark-audit, which the node must have, too.
    pickled_job
        The driver's job, as :func:`without_models` returns it, pickled.
    group
        Index in ``groups`` of
        :class:`spark_audit.checkpoints.open_call.OpenCheckpoints`.
    shard
        ``(i, n)``: part ``i`` of ``n`` parts of this group.
    """
    release_here = versions()["spark-audit"]
    if release_here != release:
        raise errors.InputError(
            f"a node has spark-audit {release_here}, not {release}",
            where="--engine ray",
            fix=SAME_INSTALLATION,
        )

    # The pickle is safe: it comes from the driver, by the Ray of this run.
    job: Job = pickle.loads(pickled_job)
    opening = _opening(job.lineup.specs, loading_of(job.request))
    job = replace(job, opening=opening, show=lambda *_: None)
    assert isinstance(job.store, CollectingStore)

    opened: list[Checkpoint] = []

    def checkpoints() -> Iterator[Checkpoint]:
        for loaded in opening.open(group):
            opened.append(loaded.without_weights())
            yield loaded

    score_part(job, checkpoints(), shard)
    return opened, job.store.collected


def without_models(job: Job) -> Job:
    """Return a copy of a job that can be pickled for a node.

    It has the part of the manifest that is audited, and no open checkpoint.
    """
    # Neither can be pickled: `work` puts those of its node in.
    nothing: Any = None
    return replace(
        job,
        manifest=job.view,
        store=CollectingStore(job.store),
        opening=nothing,
        show=nothing,
        _items_by_tokenizer={},
        _items_by_checkpoint={},
    )


@lru_cache(maxsize=1)
def _opening(specs: tuple[Spec, ...], loading: Loading) -> OpenCheckpoints:
    """Return the checkpoints of a job, checked from headers once per process."""
    from spark_audit.checkpoints.open import OpenCheckpoints

    return OpenCheckpoints(specs, loading)


def score(job: Job, unscored: Unscored) -> list[CheckpointJob]:
    """Score a job on a cluster; the engine of ``run`` for ``--engine ray``.

    Raises
    ------
    SparkError
        The error that a node raised, or one that says why the cluster cannot score.
    """
    with connected(job.request.address) as ray:
        try:
            return _score_on(ray, job, unscored)
        except ray.exceptions.RayError as error:
            raise cause_of(error) from error


def _score_on(ray: Any, job: Job, unscored: Unscored) -> list[CheckpointJob]:
    """Start the tasks of all parts at once, and store the scores that come back."""
    task_cores, task_gpus, n_slots = capacity(ray, job.request.loading.device)

    # Ray sets the threads of a task's process to the task's cores. With max_calls=0 a
    # process that used a GPU stays for the next task.
    task = ray.remote(num_cpus=task_cores, num_gpus=task_gpus, max_calls=0)(work)
    pickled_job = ray.put(pickle.dumps(without_models(job)))
    release = versions()["spark-audit"]

    pending = []
    for group in range(len(job.opening.groups)):
        n_parts = n_parts_of(job.tokens_left(group, unscored), n_slots)
        for part in range(n_parts):
            pending.append(task.remote(release, pickled_job, group, (part, n_parts)))

    opened: dict[str, Checkpoint] = {}
    n_tasks = len(pending)
    try:
        with job.clock("scoring: ray"):
            while pending:
                job.show("scoring on Ray, parts", n_tasks - len(pending), n_tasks)
                # Raises if no node is left: nothing would ever come back.
                capacity(ray, job.request.loading.device)
                done, pending = ray.wait(pending, timeout=LOOK_SECONDS)
                for reference in done:
                    take(ray.get(reference), job.store, opened)
        job.store.flush()
    finally:
        # Store what has come back: the same command resumes from here.
        with suppress(errors.OutputError):
            job.store.flush()
        for reference in pending:
            ray.cancel(reference, force=True)

    # A group of which everything was stored was not opened, but only described.
    described = {checkpoint.name: checkpoint for checkpoint in job.opening.described}
    checkpoints = {**described, **opened}
    checkpoint_jobs = []
    for names in job.opening.groups:
        for name in names:
            if job.lineup.scores(name):
                checkpoint_jobs.append(job.checkpoint_job(checkpoints[name]))
    return checkpoint_jobs


def capacity(ray: Any, device: str) -> tuple[float, int, int]:
    """Return the cores and the GPUs of a task, and how many tasks run at once.

    A task on a GPU also takes a core. A task's node must have one, so nodes without a
    core score nothing.

    Parameters
    ----------
    device
        As the user gave it; ``cpu``: GPUs of the cluster are not used.

    Raises
    ------
    IncompleteError
        If no node of the cluster has a core.
    """
    scoring_nodes = []
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1:
            scoring_nodes.append(node["Resources"])
    if not scoring_nodes:
        raise errors.IncompleteError(
            "the Ray cluster has no node that scores", where="--engine ray"
        )

    n_gpus = sum(resources.get("GPU", 0) for resources in scoring_nodes)
    if n_gpus and device != "cpu":
        return 1.0, 1, int(n_gpus)

    # A task whose node dies must fit on any other node.
    cores_by_node = [resources["CPU"] for resources in scoring_nodes]
    task_cores = min(cores_by_node)
    n_tasks_at_once = sum(cores // task_cores for cores in cores_by_node)
    return task_cores, 0, int(n_tasks_at_once)


def n_parts_of(n_tokens: int | None, n_slots: int) -> int:
    """Return in how many parts the checkpoints of a group are scored, a task each.

    A part has about :data:`PART_TOKENS` tokens, or fewer if the cluster runs more tasks
    at once than there are such parts.

    Parameters
    ----------
    n_tokens
        Tokens that are still to be scored; ``None``: this is only known after loading.
    n_slots
        How many tasks the cluster runs at once.
    """
    if n_tokens is None:
        return n_slots
    if n_tokens == 0:
        return 0
    n_full_parts = -(-n_tokens // PART_TOKENS)  # rounded up
    return max(n_slots, n_full_parts)


def take(result: TaskResult, store: Store, opened: dict[str, Checkpoint]) -> None:
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
    """Return the error behind an error of Ray: the one that a node raised, if any.

    Errors of Ray itself become one line of ours.
    """
    cause = getattr(error, "cause", None) or error

    # Compare names, as Ray need not be installed where this file is imported. No other
    # library that a node uses has errors of these names.
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

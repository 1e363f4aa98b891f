"""Ray: nodes of a cluster score parts of a job; the rows come back to this store.

A part is a task without a state: Ray begins one that was lost with its node on another.
A node does what a worker of this machine does, with a copy of the job.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

from spark_audit import errors
from spark_audit.pipeline.engines.local import score_part
from spark_audit.pipeline.job import CheckpointJob, Job, Lacking, loading_of
from spark_audit.provenance import versions
from spark_audit.scoring.store import Rows, Store

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.checkpoints.specs import Loading, Spec


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
            self.parts.append((self._pending, self._remarks))
            self._pending, self._pending_tokens, self._remarks = {}, 0, []


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
    place = {"where": "--engine ray"}
    if type(cause).__name__ in STORE_FULL_ERRORS:
        what = "the object store of the Ray cluster is full"
        place["fix"] = "start Ray with a larger one (--object-store-memory)"
        return errors.IncompleteError(what, **place)
    if isinstance(cause, ImportError):
        what = f"a node cannot begin ({errors.one_line(cause)})"
        return errors.InputError(what, **place, fix=SAME_INSTALLATION)
    if cause is error:
        return errors.IncompleteError(f"Ray says: {errors.one_line(error)}", **place)
    return cause


CONNECT_SECONDS = 4.0
"""To connect to an address."""

OBJECT_BYTES = 256 << 20
"""For results on their way, of a cluster that is started here: a unit has few MB."""

SILENCE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def check(address: str | None) -> None:
    """Refuse at once what Ray would only find after a minute or more.

    Raises
    ------
    InputError
        If Ray is not installed, or one that knows no tokens, or nothing answers at the
        address.
    """
    # The first that knows tokens; without one, whoever reaches a port runs code here.
    release = metadata.version("ray").split(".") if find_spec("ray") else ["0"]
    if [*map(int, release[:2])] < [2, 52]:
        raise errors.InputError(
            "Ray 2.52 or later is not installed",
            where="--engine ray",
            fix="where spark-audit lies: pip install '.[ray]'",
        )
    address = _place(address)
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        fix = "give HOST:PORT of a running cluster, as `ray start --head` prints it"
        where = f"--address {address}"
        raise errors.InputError("nothing answers", where=where, fix=fix) from error


def _place(address: str | None) -> str:
    return address or os.environ.get("RAY_ADDRESS") or "local"


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster at an address, or to one that is started here.

    Whoever has connected this process before goes on with it.

    Raises
    ------
    InputError
        If Ray refuses.
    """
    for name, value in SILENCE.items():
        os.environ.setdefault(name, value)
    ray = import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    address = _place(address)
    # Of any other job Ray puts the working directory first on its workers' import path:
    # a torch.py in a cloned repository would run there.
    options: dict[str, Any] = {
        "job_config": import_module("ray.job_config").JobConfig(_client_job=True)
    }
    # Nodes that die are our business: Ray prints it on stdout, whatever is asked.
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
    # Ray takes SIGTERM for itself.
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    with ExitStack() as stack:
        if address == "local":
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_BYTES}
            options["_node_ip_address"] = "127.0.0.1"
            _close(stack)
        try:
            ray.init(address, log_to_driver=False, logging_level="critical", **options)
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            # Of two versions Ray tells in several lines.
            raise errors.InputError(
                f"Ray says: {errors.shown(' '.join(str(error).split()), most=300)}",
                where=f"--address {address}",
            ) from error
        finally:
            if main:
                signal.signal(signal.SIGTERM, before)
        stack.callback(ray.shutdown)
        yield ray


def _close(stack: ExitStack) -> None:
    """Have a cluster that is started here listen on the loopback, to this run alone."""
    stack.callback(_read_token)  # once the variables are as they were
    # Or Ray takes an address of the network in the place of 127.0.0.1.
    constants = import_module("ray._private.ray_constants")
    stack.enter_context(patch.object(constants, "ENABLE_RAY_CLUSTER", False))
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    stack.enter_context(patch.dict(os.environ, token))
    _read_token()


def _read_token() -> None:
    """Ray keeps what it read of the environment when it was imported, or asked."""
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()

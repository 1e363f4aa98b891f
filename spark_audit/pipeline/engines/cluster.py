"""Check that a Ray cluster is available, and connect to it.

``job.checked_job`` calls :func:`check` before anything is read; ``ray.py`` scores
inside :func:`connected`. A cluster that is started here listens on the loopback alone.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from spark_audit import errors

CONNECT_SECONDS = 4.0
"""Seconds to wait for a connection to an address."""

OBJECT_BYTES = 256 << 20
"""Bytes for results in transit in a cluster started here: a part has a few MB."""

OLDEST_RAY = (2, 52)
"""The first version with tokens; without a token, anybody who reaches a port runs code.
"""

SILENCE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Variables that stop Ray from sending usage statistics, and from hiding devices from
tasks without a GPU."""


def check(address: str | None) -> None:
    """Refuse early what Ray would notice only after a minute or more.

    Raises
    ------
    InputError
        If Ray is missing or too old for tokens, or nothing answers at the address.
    """
    if _ray_release() < OLDEST_RAY:
        raise errors.InputError(
            "Ray 2.52 or later is not installed",
            where="--engine ray",
            fix="where spark-audit lies: pip install '.[ray]'",
        )

    address = _resolved(address)
    if address in ("local", "auto"):
        return

    # Addresses may also be ray://HOST:PORT or [::1]:PORT.
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise errors.InputError(
            "nothing answers",
            where=f"--address {address}",
            fix="give HOST:PORT of a running cluster, as `ray start --head` prints it",
        ) from error


def _ray_release() -> tuple[int, ...]:
    """Return the first two numbers of Ray's version; (0,) if it is not installed."""
    if find_spec("ray") is None:
        return (0,)
    major, minor = metadata.version("ray").split(".")[:2]
    return int(major), int(minor)


def _resolved(address: str | None) -> str:
    """Return the given address, else that of the environment, else ``local``."""
    return address or os.environ.get("RAY_ADDRESS") or "local"


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to the cluster at an address, or start one; yield the module ``ray``.

    If this process is connected already, its connection is used and left open.

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

    # We report dead nodes: Ray would print them on stdout in any case.
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None

    address = _resolved(address)
    with ExitStack() as stack:
        if address == "local":
            _listen_to_this_run_alone(stack)
        with _own_sigterm():
            _connect(ray, address)
        stack.callback(ray.shutdown)
        yield ray


def _connect(ray: Any, address: str) -> None:
    """Connect this process; turn a refusal by Ray into an error of one line."""
    # For any other job, Ray puts the working directory first on its workers' import
    # path. A torch.py in a cloned repository would then run there.
    job_config = import_module("ray.job_config").JobConfig(_client_job=True)

    # A running cluster refuses settings for starting one.
    settings_of_start: dict[str, object] = {}
    if address == "local":
        settings_of_start = {
            "include_dashboard": False,
            "object_store_memory": OBJECT_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
    try:
        ray.init(
            address,
            job_config=job_config,
            log_to_driver=False,
            logging_level="critical",
            **settings_of_start,
        )
    except Exception as error:
        # Ray raises a plain Exception if a busy machine needs more than 30 s to start
        # its processes. A conflict of versions takes several lines.
        is_too_slow = type(error) is Exception
        reason = errors.shown(" ".join(str(error).split()), most=300)
        fix = "try again when the machine is less busy, or leave out --engine ray"
        raise errors.InputError(
            f"Ray says: {reason}",
            where=f"--address {address}",
            fix=fix if is_too_slow else None,
        ) from error


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's handler for SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Python, and so Ray, sets signal handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _listen_to_this_run_alone(stack: ExitStack) -> None:
    """Let a cluster that is started here listen only on the loopback, for this run.

    Ray caches the environment: it reads the token now, and again when the stack is
    closed and the variables are restored.
    """
    stack.callback(_read_token)

    # Otherwise Ray replaces 127.0.0.1 by an address of the network.
    constants = import_module("ray._private.ray_constants")
    stack.enter_context(patch.object(constants, "ENABLE_RAY_CLUSTER", False))

    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    stack.enter_context(patch.dict(os.environ, token))
    _read_token()


def _read_token() -> None:
    """Let Ray read the environment again, which it otherwise does only on import."""
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()

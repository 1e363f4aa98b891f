"""A cluster of Ray: a check that it can be had, and the connection to it."""

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
"""Seconds to connect to an address."""

OBJECT_BYTES = 256 << 20
"""For results on their way, of a cluster that is started here: a unit has few MB."""

OLDEST_RAY = (2, 52)
"""The first that knows tokens; without one, whoever reaches a port runs code here."""

SILENCE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Variables by which Ray sends no statistics of its use, and leaves alone which devices
a task without a GPU sees."""


def check(address: str | None) -> None:
    """Refuse at once what Ray would only find after a minute or more.

    Raises
    ------
    InputError
        If Ray is not installed, or one that knows no tokens, or nothing answers at the
        address.
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

    # ray://HOST:PORT and [::1]:PORT are addresses, too.
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
    """Return the first two numbers of Ray's version; (0,): it is not installed."""
    if find_spec("ray") is None:
        return (0,)
    major, minor = metadata.version("ray").split(".")[:2]
    return int(major), int(minor)


def _resolved(address: str | None) -> str:
    """Return the address that is given, else the environment's, else ``local``."""
    return address or os.environ.get("RAY_ADDRESS") or "local"


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to the cluster at an address, or start one here; give the module ``ray``.

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

    # Nodes that die are our business: Ray prints it on stdout, whatever is asked.
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
    """Connect this process; refuse in one line what Ray refuses."""
    # Of any other job Ray puts the working directory first on its workers' import path:
    # a torch.py in a cloned repository would run there.
    job_config = import_module("ray.job_config").JobConfig(_client_job=True)

    # A running cluster refuses what says how one is started.
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
        # Ray raises a plain Exception where a busy machine takes more than 30 s to
        # start its processes. Of two versions it tells in several lines.
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
    """Keep this process's answer to SIGTERM, which Ray takes for itself."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Python sets signals in the main thread only, and so does Ray.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _listen_to_this_run_alone(stack: ExitStack) -> None:
    """Have a cluster that is started here listen on the loopback, to this run alone.

    Ray keeps what it has read of the environment: it reads the token now, and once more
    when the stack is closed and the variables are as they were.
    """
    stack.callback(_read_token)

    # Or Ray takes an address of the network in the place of 127.0.0.1.
    constants = import_module("ray._private.ray_constants")
    stack.enter_context(patch.object(constants, "ENABLE_RAY_CLUSTER", False))

    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    stack.enter_context(patch.dict(os.environ, token))
    _read_token()


def _read_token() -> None:
    """Have Ray read the environment again, which it does when it is imported only."""
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()

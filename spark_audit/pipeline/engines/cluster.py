"""A cluster of Ray: whether it can be had, and the connection to it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from spark_audit import errors

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
    job_config = import_module("ray.job_config").JobConfig(_client_job=True)
    # Nodes that die are our business: Ray prints it on stdout, whatever is asked.
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
    # Ray takes SIGTERM for itself.
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    with ExitStack() as stack:
        is_local = address == "local"
        if is_local:
            _close(stack)
        connect = partial(
            ray.init,
            address,
            job_config=job_config,
            log_to_driver=False,
            logging_level="critical",
        )
        try:
            # A running cluster refuses what says how one is started.
            if is_local:
                connect(
                    include_dashboard=False,
                    object_store_memory=OBJECT_BYTES,
                    _node_ip_address="127.0.0.1",
                )
            else:
                connect()
        except Exception as error:
            # Ray raises a plain Exception where a busy machine takes more than 30 s to
            # start its processes. Of two versions it tells in several lines.
            reason = errors.shown(" ".join(str(error).split()), most=300)
            is_too_slow = type(error) is Exception
            fix = "try again when the machine is less busy, or leave out --engine ray"
            raise errors.InputError(
                f"Ray says: {reason}",
                where=f"--address {address}",
                fix=fix if is_too_slow else None,
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

"""Runs on the nodes of a Ray cluster; what they make is on a disk that all share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from spark_audit.errors import IncompleteError, one_line
from spark_audit.pipeline.engines.local import Work

LIVES = 4
"""Nodes that may die over one job."""


def run_on_nodes(
    ray: Any, jobs: Sequence[Work], *, gpu: bool, ended: Callable[[Any], None]
) -> None:
    """As ``run_jobs`` of :mod:`spark_audit.pipeline.engines.local`, on Ray's nodes.

    A job that a node took along is begun anew on another one, and must resume itself.

    Raises
    ------
    Exception
        The first that a job raised.
    IncompleteError
        If nodes die over one again and again, or Ray fails otherwise.
    """
    # Nodes have the packages installed, not this folder.
    ray.cloudpickle.register_pickle_by_value(sys.modules["claims"])
    cards = gpu and ray.cluster_resources().get("GPU", 0) > 0
    options = {"num_cpus": 1, "num_gpus": int(cards), "max_retries": LIVES - 1}
    call = ray.remote(_call).options(**options)
    left = [call.remote(job) for job in jobs]
    known = ray.exceptions
    while left:
        done, left = ray.wait(left)
        try:
            ended(ray.get(done[0]))
        except known.RayTaskError as error:
            raise (error.cause or error) from error
        except known.RayError as error:
            text = f"Ray says: {one_line(error)}"
            raise IncompleteError(text, where="--engine ray") from error


def _call(job: Work) -> Any:
    import torch

    torch.set_num_threads(1)
    return job()

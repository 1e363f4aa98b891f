"""Runs on the nodes of a Ray cluster; what they make is on a disk that all share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from spark_audit.demo.workers import Job, Progress
from spark_audit.errors import IncompleteError, one_line

LIVES = 4
"""Nodes that may die over one job."""


class Crew:
    """As :class:`spark_audit.demo.workers.Workers`, with Ray's nodes as processes.

    A job that a node took along is begun anew on another one, and must resume itself.
    What jobs tell comes when they end.
    """

    def __init__(self, ray: Any, progress: Progress, *, gpu: bool) -> None:
        self._ray, self._progress = ray, progress
        # Nodes have the packages installed, not this folder.
        ray.cloudpickle.register_pickle_by_value(sys.modules["claims"])
        cards = gpu and ray.cluster_resources().get("GPU", 0) > 0
        options = {"num_cpus": 1, "num_gpus": int(cards), "max_retries": LIVES - 1}
        self._call = ray.remote(_call).options(**options)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; they begin in the order given.

        Raises
        ------
        Exception
            The first that a job raised.
        IncompleteError
            If nodes die over one again and again, or Ray fails otherwise.
        """
        left = [self._call.remote(job) for job in jobs]
        known = self._ray.exceptions
        while left:
            done, left = self._ray.wait(left)
            try:
                for told in self._ray.get(done[0]):
                    self._progress(*told)
            except known.RayTaskError as error:
                raise (error.cause or error) from error
            except known.RayError as error:
                text = f"Ray says: {one_line(error)}"
                raise IncompleteError(text, where="--engine ray") from error


def _call(job: Job) -> list[tuple[str, int, int]]:
    """On a node: the last that a job told of each kind."""
    import torch

    torch.set_num_threads(1)
    told: dict[str, tuple[str, int, int]] = {}

    def tell(what: str, done: int, total: int) -> None:
        told[what] = (what, done, total)

    job(tell)
    return list(told.values())

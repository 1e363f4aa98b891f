"""Engines: what runs the passes of a call, and where, one file each.

An engine opens the checkpoints, scores tasks, or units of them, and sees to it that all
is in the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_audit.pipeline.engines.contract import Call, Engine

CHOICES = ("local", "ray")


def engine_of(call: Call) -> Engine:
    """The engine that a request asks for."""
    way = call.request.way
    if way == "jobs":
        from spark_audit.pipeline.engines.jobs import Jobs

        return Jobs(call)
    if way == "ray":
        from spark_audit.pipeline.engines.ray.cluster import check
        from spark_audit.pipeline.engines.ray.engine import Ray

        check(call.request.address)
        return Ray(call)
    from spark_audit.pipeline.engines.contract import Engine

    return Engine(call)

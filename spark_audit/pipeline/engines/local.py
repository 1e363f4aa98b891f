"""One process: each pass is scored as soon as its checkpoint is open."""

from __future__ import annotations

from spark_audit.pipeline.engines import ENGINES
from spark_audit.pipeline.engines.contract import Call, Engine


@ENGINES.register()
def local(call: Call) -> Engine:
    """All of a call in this process."""
    return Engine(call)

"""Engines: one file each, what runs the passes of a call, and where.

An engine registers a function of a :class:`~spark_audit.pipeline.engines.contract.Call`
that gives an :class:`~spark_audit.pipeline.engines.contract.Engine`: it opens the
checkpoints, scores tasks, or units of them, and sees to it that all is in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_audit.registry import Registry

ENGINES: Registry[Callable[..., Any]] = Registry(
    "spark_audit.pipeline.engines", kind="engine", folder=Path(__file__).parent
)

"""Passes: one file each, how a model goes through items.

A pass registers ``run(loaded, items, settings, *, batch_size, emit, note)``, which
hands over each item's columns as soon as they are known; ``check=`` refuses settings
before any item is read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_audit.registry import Registry

PASSES: Registry[Callable[..., None]] = Registry(
    "spark_audit.scoring.passes", kind="pass", folder=Path(__file__).parent
)

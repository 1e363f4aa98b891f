"""Checkpoint formats: one file each, which makes a recipe of a path by headers alone.

A format registers ``recipe(path, given)`` with ``detect=``, which says by content
whether a path is one. Weights are read later, with every check in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Given, Recipe

FORMATS: Registry[Callable[[Path, Given], Recipe]] = Registry(
    "spark_audit.checkpoints.formats",
    kind="checkpoint format",
    folder=Path(__file__).parent,
)

"""Passes: one file each, how a model goes through items.

A pass registers ``run(loaded, items, settings, *, batch_size, emit, note)``, which
hands over each item's columns as soon as they are known; ``check=`` refuses settings
before any item is read.
Its file writes out two constants, which are read without importing it: ``LAYOUT``, the
columns and their numpy types, and ``ITEMS``, what of a manifest it goes through
(``texts``, ``prompts``, ``candidates`` or ``continuations``, see
:mod:`spark_audit.manifest.items`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_audit.registry import Registry

PASSES: Registry[Callable[..., None]] = Registry(
    "spark_audit.scoring.passes", kind="pass", folder=Path(__file__).parent
)

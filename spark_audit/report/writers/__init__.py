"""Report formats: one file or folder each, rendered from ``report.json`` alone.

A writer registers ``write(report, folder, *, manifest, show_text)`` and returns the
files it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from spark_audit.registry import Registry

Writer: TypeAlias = Callable[..., list[Path]]
WRITERS: Registry[Writer] = Registry(
    "spark_audit.report.writers", kind="report format", folder=Path(__file__).parent
)

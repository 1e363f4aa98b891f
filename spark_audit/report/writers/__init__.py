"""Report formats: one file or folder each, rendered from ``report.json`` alone.

A writer registers ``write(report, folder, how)`` and returns the files it wrote:
``report.EXTENSION``, or files in ``tables/`` or ``figures/``. They are named in
``report.json``, and go with the report that they tell of, or with the writer. Its part
``unasked(report)`` says whether it writes where no format was named (default: yes;
:func:`only_named`: no).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_audit.report.cells import Rendering
    from spark_audit.results import Report


Writer: TypeAlias = "Callable[[Report, Path, Rendering], list[Path]]"
WRITERS: Registry[Writer] = Registry(
    "spark_audit.report.writers", kind="report format", folder=Path(__file__).parent
)


def only_named(_: object) -> bool:
    """It is for one reader, or one tool: written only where ``--format`` names it."""
    return False

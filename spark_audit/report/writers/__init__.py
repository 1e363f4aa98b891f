"""Report formats: one file or folder each, rendered from ``report.json`` alone.

A writer registers ``write(report, folder, how)`` and returns the files it wrote:
``report.EXTENSION``, or files in ``tables/`` or ``figures/``. They are named in
``report.json``, and go with the report that they tell of, or with the writer. Its part
``unasked(report)`` says whether it writes where no format was named (default: yes;
:func:`only_named`: no).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.report.cells import Table
    from spark_audit.report.figures.theme import Drawn
    from spark_audit.results import Report


@dataclass(frozen=True)
class Rendering:
    """What a writer is given beside the report.

    Attributes
    ----------
    manifest, show_text
        For the words of examples; whether identifiers among them may be shown.
    further
        Tables for people that are not the report's own.
    prepared_by
        Who hands it over.
    drawn
        Draws the figures, once for all writers.
    """

    manifest: Manifest | None = None
    show_text: bool = False
    further: Sequence[Table] = ()
    prepared_by: str = ""
    drawn: Drawn | None = None


Writer: TypeAlias = "Callable[[Report, Path, Rendering], list[Path]]"
WRITERS: Registry[Writer] = Registry(
    "spark_audit.report.writers", kind="report format", folder=Path(__file__).parent
)


def only_named(_: object) -> bool:
    """It is for one reader, or one tool: written only where ``--format`` names it."""
    return False

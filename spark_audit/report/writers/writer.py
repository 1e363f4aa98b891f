"""What a writer of a report's files is given, and what it yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.report.figures.drawing import Drawn


class File(NamedTuple):
    """A file of a report's folder; a ``private`` one is for its owner only."""

    name: str
    content: str | bytes
    private: bool = False


@dataclass(frozen=True)
class WriterInput:
    """What a writer is given beside the report.

    Attributes
    ----------
    drawn
        Draws the figures, once for all writers.
    manifest, show_text
        For the words of examples; whether identifiers among them may be shown.
    """

    drawn: Drawn = tuple
    manifest: Manifest | None = None
    show_text: bool = False

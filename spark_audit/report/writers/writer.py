"""What a writer of a report's files is given, and what it yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.report.figures.drawing import Drawn
    from spark_audit.results import Report


class File(NamedTuple):
    """A file of a report's folder; a ``private`` one is for its owner only.

    Its name is relative to the folder, with a slash after each folder inside.
    """

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
    manifest
        For the words of examples, in formats that show some.
    show_text
        Whether identifiers among them may be shown.
    exact
        The report without rounding and withholding, for files of its owner alone.
    """

    drawn: Drawn = tuple
    manifest: Manifest | None = None
    show_text: bool = False
    exact: Report | None = None

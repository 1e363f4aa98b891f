"""Formats of a report, and the folders that its files stand in.

A further format is a function in ``writers/`` and an item of :data:`WRITERS`, and of
:data:`FORMATS_ON_REQUEST` if it is only written where it is named. A writer gets the
shared report, not the exact one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from spark_audit.errors import InputError, one_of
from spark_audit.report.figures import figure_files
from spark_audit.report.figures.paper.drawing import paper_drawings
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import (
    dossier,
    eval_records,
    exact_files,
    latex,
    markdown,
    pages,
    table_files,
)
from spark_audit.report.writers.writer import File, WriterInput

Writer: TypeAlias = Callable[[PreparedReport, Path, WriterInput], Iterable[File]]

REPORT_FILE = "report.json"
"""The report with exact figures, which every other file is rendered from."""

SCORES_FOLDER = "scores"
"""Evidence of audits. ``report.json`` names its files as those of a writer, but no
writer makes them."""

REPORT_FOLDERS = (
    "tables",
    "figures",
    exact_files.EXACT_FOLDER,
    *eval_records.RECORDS_FOLDERS,
    SCORES_FOLDER,
    "scores/store",
)
"""Folders in a report folder, none of which may be a link to a place outside; ``*``
stands for any name.

The report folder itself may be a link.
"""


def _json(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``report.json`` (schema: ``schemas/report.json`` of the package)."""
    # Figures are exact, and none is withheld.
    text = prepared.report.model_dump_json(indent=1)
    yield File(REPORT_FILE, f"{text}\n", private=True)


def _figures(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``figures/``: every figure that the report has data for.

    Those of SPARK's paper come in two widths, that of a text and that of a column. The
    same report gives the same files, byte for byte.
    """
    for picture in writer_input.drawn():
        for image_format in figure_files.FIGURE_FORMATS:
            name = f"figures/{picture.name}.{image_format}"
            yield File(name, figure_files.rendered(picture.figure, image_format))

    for stem, paper_picture in paper_drawings(prepared):
        for image_format in figure_files.FIGURE_FORMATS:
            name = f"figures/{stem}.{image_format}"
            yield File(name, figure_files.rendered(paper_picture.figure, image_format))


WRITERS: Mapping[str, Writer] = {
    "html": pages.write_page,
    "md": markdown.write,
    "csv": table_files.write_csv,
    "latex": latex.write_latex,
    "json": _json,
    "figures": _figures,
    "dossier": dossier.write_dossier,
    "card": markdown.write_card,
    "eee": eval_records.write_records,
    "named": table_files.write_named,
    "exact-csv": exact_files.write_exact_csv,
    "exact-latex": exact_files.write_exact_latex,
}
"""Report formats by the names that users give them, and those of exact figures."""

EXACT_FORMATS = {"csv": "exact-csv", "latex": "exact-latex"}
"""Format that users name -> the same with exact figures, which they ask for by
``--exact``."""

FORMATS_ON_REQUEST = (
    "latex",
    "figures",
    "dossier",
    "card",
    "eee",
    "named",
    *EXACT_FORMATS.values(),
)
"""Formats that are written only if they are named: page and CSV show the figures, these
serve one reader or one tool.
"""


def check_formats(formats: Sequence[str], *, exact: bool = False) -> None:
    """Refuse a format that does not exist, or that has no exact figures.

    Parameters
    ----------
    exact
        Whether exact figures are asked for.

    Raises
    ------
    InputError
        It lists the formats that exist.
    """
    known = [name for name in WRITERS if name not in EXACT_FORMATS.values()]
    for name in formats:
        one_of(name, "--format", known)
    if exact and (not formats or not set(formats) <= set(EXACT_FORMATS)):
        raise InputError(
            "only CSV and LaTeX are written with exact figures",
            where="--exact",
            fix="give --format latex,csv, or one of them",
        )

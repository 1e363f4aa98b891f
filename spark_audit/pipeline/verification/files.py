"""Whether the shared files of a report are, to the byte, what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path

from spark_audit.files import read_regular
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.verification.checked import NOT_NAMED, Checked
from spark_audit.previous import PREVIOUS
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.figures import drawing
from spark_audit.report.figures.drawing import Drawn
from spark_audit.report.folder import (
    SCORES_FOLDER,
    WRITERS,
)
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import Report

OTHER_BYTES = (
    "is not what report.json gives: it was changed, or another version wrote it "
    "(`spark-audit report` renders it again)"
)

SHARED_PAGES = ("report.html", "report.md", "card.md", "dossier.html")

SHARED_FOLDERS = ("tables", "figures")
"""Where the shared files of a report lie."""


def shared_files(
    report: Report, folder: Path, manifest: Manifest | None
) -> Iterator[Checked]:
    """Yield whether each file of the folder is what the report gives, to the byte."""
    shared = disclosed(report)

    # Drawing takes longest: all formats share what is drawn.
    drawn = cache(partial(drawing.drawings, shared))
    for kind, names in report.files.items():
        if kind == SCORES_FOLDER or kind not in WRITERS:
            continue
        there = {}
        for name in names:
            try:
                there[name] = read_regular(folder / name, most=1 << 28)
            except OSError:
                yield name, "is missing, and the report names it"
        if needs_manifest(report, kind) and manifest is None:
            continue  # it is listed among what is taken on trust
        render = partial(_rendered, kind, shared, folder, drawn, manifest)
        given = _nearest_rendering(kind, there, render)
        for name in there:
            yield name, "" if given.get(name) == there[name] else OTHER_BYTES
        for name in sorted(given.keys() - {*names}):
            yield name, "is missing, and report.json gives it"
    named = {*chain(*report.files.values())}
    for name in _files_of_reports(folder):
        if name not in named:
            yield name, NOT_NAMED


def needs_manifest(report: Report, kind: str) -> bool:
    """Whether a format holds words or counts that only the manifest has."""
    return kind == "dossier" and bool(report.files.get(kind))


Renderer = Callable[[bool], dict[str, bytes]]


def _nearest_rendering(
    kind: str, there: Mapping[str, bytes], render: Renderer
) -> dict[str, bytes]:
    """Return the files of a format as they are rendered.

    A dossier may show text or not: that which the folder has, else the one without.
    """
    without_text = render(False)
    if kind == "dossier" and without_text != there:
        with_text = render(True)
        if with_text == there:
            return with_text
    return without_text


def _rendered(
    kind: str,
    shared: Report,
    folder: Path,
    drawn: Drawn,
    manifest: Manifest | None,
    show_text: bool,
) -> dict[str, bytes]:
    """Return the bytes of each file of a format, by its name."""
    how = WriterInput(drawn, manifest, show_text)
    return {
        name: content.encode() if isinstance(content, str) else content
        for name, content, _ in WRITERS[kind](shared, folder, how)
    }


def _files_of_reports(folder: Path) -> Iterator[str]:
    """Yield what lies in a folder under a name that files of reports have."""
    for name in SHARED_PAGES:
        if (folder / name).is_file():
            yield name
    for place in SHARED_FOLDERS:
        for path in sorted((folder / place).glob("*")):
            # What was replaced is kept there, and is no part of the report.
            if path.name != PREVIOUS:
                yield f"{place}/{path.name}"

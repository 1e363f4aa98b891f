"""Render a report's shared files again, and compare them to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from spark_audit.files import read_regular
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.verification.checked import NOT_NAMED, Checked
from spark_audit.previous import PREVIOUS
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.figures import drawing
from spark_audit.report.figures.drawing import Drawing
from spark_audit.report.formats import SCORES_FOLDER, WRITERS
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers.eval_records import RECORDS_FOLDER
from spark_audit.report.writers.exact_files import EXACT_FOLDER
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import Report

OTHER_BYTES = (
    "is not what report.json gives: it was changed, or another version wrote it "
    "(`spark-audit report` renders it again)"
)

OTHER_DOSSIER = (
    "is not what report.json and the manifest give: it was changed, or another version "
    "or manifest wrote it (`spark-audit report --format dossier --manifest FILE` "
    "renders it again)"
)

DELETED = "is missing, and the report names it (`spark-audit report` renders it again)"

NOT_RENDERED = "is missing, and report.json gives it (`spark-audit report` renders it)"

MENDED_BY_RENDERING = (OTHER_BYTES, OTHER_DOSSIER, DELETED, NOT_RENDERED)
"""Problems of shared files alone, of a report that follows from its evidence."""

SHARED_PAGES = ("report.html", "report.md", "card.md", "dossier.html")

RENDERED_FOLDERS = ("tables", "figures", EXACT_FOLDER)
"""Folders of rendered files, in the report's folder; pages lie in the folder itself."""

MAX_FILE_BYTES = 1 << 28
"""Bytes of a shared file, at most: no report writes a larger one."""


def shared_file_checks(
    report: Report, folder: Path, manifest: Manifest | None
) -> Iterator[Checked]:
    """Yield the name and problem of each shared file of a report.

    The problem is empty where the file is, to the byte, what the report renders to. A
    dossier is left out if ``manifest`` is ``None``.
    """
    shared = disclosed(report)
    prepared = PreparedReport(shared)

    # Drawing takes longest, so that all formats share the drawings.
    @cache
    def drawn() -> Sequence[Drawing]:
        return drawing.drawings(shared)

    writer_input = WriterInput(drawn, manifest, exact=report)
    named = set[str]()
    for kind, names in report.files.items():
        named.update(names)
        if kind == SCORES_FOLDER or kind not in WRITERS:
            continue

        contents: dict[str, bytes] = {}
        for name in names:
            try:
                contents[name] = read_regular(folder / name, most=MAX_FILE_BYTES)
            except OSError:
                yield name, DELETED

        # Without the manifest, `taken_on_trust` lists the file instead.
        if needs_manifest(report, kind) and manifest is None:
            continue

        expected = _nearest_rendering(
            kind, prepared, folder, contents=contents, writer_input=writer_input
        )
        other_bytes = OTHER_DOSSIER if kind == "dossier" else OTHER_BYTES
        for name, content in contents.items():
            yield name, "" if expected.get(name) == content else other_bytes
        for name in sorted(expected.keys() - {*names}):
            yield name, NOT_RENDERED

    for name in _files_of_reports(folder):
        if name not in named:
            yield name, NOT_NAMED


def needs_manifest(report: Report, kind: str) -> bool:
    """Return whether a format needs words or counts from the manifest."""
    return kind == "dossier" and bool(report.files.get(kind))


def _nearest_rendering(
    kind: str,
    prepared: PreparedReport,
    folder: Path,
    *,
    contents: Mapping[str, bytes],
    writer_input: WriterInput,
) -> dict[str, bytes]:
    """Return the files of a format as they are rendered, by name.

    A dossier was rendered with or without text, and the report does not say which: the
    rendering that equals the folder's file is returned, or else the one without text.

    Parameters
    ----------
    contents
        Files of the format in the folder, by name.
    writer_input
        Without text.
    """
    without_text = _rendered(kind, prepared, folder, writer_input)
    if kind != "dossier" or without_text == contents:
        return without_text

    with_text = _rendered(kind, prepared, folder, replace(writer_input, show_text=True))
    return with_text if with_text == contents else without_text


def _rendered(
    kind: str, prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> dict[str, bytes]:
    """Return the bytes of each file of a format, by name."""
    rendered = {}
    for name, content, _ in WRITERS[kind](prepared, folder, writer_input):
        rendered[name] = content.encode() if isinstance(content, str) else content
    return rendered


def _files_of_reports(folder: Path) -> Iterator[str]:
    """Yield the files in a folder that lie where a report's shared files do."""
    for name in SHARED_PAGES:
        if (folder / name).is_file():
            yield name
    for path in sorted((folder / RECORDS_FOLDER).rglob("*.json")):
        if path.parent.name != PREVIOUS:
            yield path.relative_to(folder).as_posix()
    for subfolder in RENDERED_FOLDERS:
        for path in sorted((folder / subfolder).glob("*")):
            # Files of a replaced report are kept in this subfolder.
            if path.name != PREVIOUS:
                yield f"{subfolder}/{path.name}"

"""A report's folder: ``report.json`` is the truth, every writer renders it again.

:func:`write_report` names the files it wrote in ``report.json``, and deletes those that
another report named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from spark_audit.errors import InputError, OutputError, one_of
from spark_audit.files import (
    check_links,
    data_bytes,
    field_path,
    instead,
    no_such_path,
    parse_json,
    read_regular,
    write_atomically,
)
from spark_audit.manifest.schema import Manifest
from spark_audit.previous import keeping_previous
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.figures import drawing, figure_files
from spark_audit.report.figures_line import with_figures
from spark_audit.report.writers import latex, markdown, pages, table_files
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Report

Writer: TypeAlias = Callable[[Report, Path, WriterInput], Iterable[File]]

REPORT_FOLDERS = ("tables", "figures", "scores", "scores/store")
"""What a report folder holds besides files; never a link out of it."""


def _json(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``report.json`` (schema: ``schemas/report.json`` of the package)."""
    # Its figures are not rounded, and its findings not withheld.
    yield File("report.json", report.model_dump_json(indent=1) + "\n", private=True)


def _figures(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``figures/``: every figure that the report has data for, alike every time."""
    for picture in how.drawn():
        for form in figure_files.FIGURE_FORMATS:
            name = f"figures/{picture.name}.{form}"
            yield File(name, figure_files.rendered(picture, form))


WRITERS: Mapping[str, Writer] = {
    "html": pages.write_page,
    "md": markdown.write,
    "csv": table_files.write_csv,
    "latex": latex.write_latex,
    "json": _json,
    "figures": _figures,
    "dossier": pages.write_dossier,
    "card": markdown.write_card,
    "named": table_files.write_named,
}
"""Report formats by the names that users give them."""
FORMATS_ON_REQUEST = ("latex", "figures", "dossier", "card", "named")
"""Written only where it is named: page and CSV show the figures, the rest is for one
reader or one tool."""
SCORES_FOLDER = "scores"
"""What audits leave there is named like a writer's files, and is no writer's."""


def folder_of(path: str | Path) -> Path:
    """Return the report folder that a path is, or lies in: its page, a table, a figure.

    What is not there lies in none: a gate must not judge the report around it.
    """
    path = Path(path)
    if not path.exists():
        return path
    holds = (one for one in (path, *path.parents) if (one / "report.json").is_file())
    return next(holds, path)


def read_report(folder: str | Path) -> Report:
    """Read ``report.json`` of a report folder.

    Raises
    ------
    InputError
        If the folder holds no report, or one that this version cannot read, or what
        should be in it is a link out of it.
    """
    folder, fix = Path(folder), "give a report folder"
    check_links(folder, *REPORT_FOLDERS)
    path = folder / "report.json"
    again = "run the audit again with this version"
    try:
        text = read_regular(path, most=data_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        if not folder.exists():
            raise no_such_path(folder, otherwise=fix) from error
        what = "is a folder without report.json"
        fix = instead(folder, fix)
        if folder.is_file():
            what = "is a file"
        elif (folder / SCORES_FOLDER).is_dir():
            what = "holds scores and no report.json: its audit has not finished"
            fix = "give the command that made it again: it goes on where it stopped"
        raise InputError(what, where=str(folder), fix=fix) from error
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path)
        ) from error
    # Strictly first: pydantic takes NaN and any depth.
    parse_json(text, place=str(path))
    try:
        report = Report.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = field_path(first["loc"], Report.model_json_schema())
        what = f"field {field}: {first['msg']}" if field else "is not JSON"
        raise InputError(what, where=str(path), fix=again) from error
    # A sentence of somebody else's report may lack its template, or a fact.
    try:
        _ = [finding.sentence for finding in report.findings]
        _ = [guard.detail for guard in report.guards]
        # Its lines of figures may say something else than its figures.
        return with_figures(report)
    except Exception as error:  # whatever a template does with unfit facts
        what = "a finding or guard has no sentence of its facts"
        raise InputError(what, where=str(path), fix=again) from error


def write_report(
    report: Report,
    folder: Path,
    *,
    formats: Sequence[str] = (),
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write a report into its folder, and return the files that were written.

    ``report.json`` holds the exact figures. All other files hold the report as it can
    be shared, pages with words too: figures of two files could otherwise be compared to
    undo the rounding.

    ``report.json`` names the files next to it. Files that the previous report names and
    that would contradict the new one are deleted: all that were not written again, or,
    of a report that is only rendered again, those of the given formats.

    Parameters
    ----------
    formats
        Default: all formats that are not written on request only.
    manifest
        For the words of examples, in formats that show some.
    show_text
        Whether those words may show identifiers.

    Raises
    ------
    InputError
        If a format is unknown, or a folder inside is a link to a place outside. Nothing
        is written then.
    """
    check_formats(formats)
    report = with_figures(report)
    shared = disclosed(report)
    before = _before(folder)
    written_before = {"report.json"}
    if before is not None:
        written_before.update(chain(*before.files.values()))

    # Drawing takes longest: the page and the files share what is drawn.
    drawn = cache(partial(drawing.drawings, shared))
    how = WriterInput(drawn, manifest, show_text)

    def write_format(name: str, content: Report) -> list[Path]:
        files = [*WRITERS[name](content, folder, how)]
        if before is None:
            return write_files(files, folder)
        # A file that the report before does not name is the user's.
        users = [
            folder / file.name for file in files if file.name not in written_before
        ]
        with keeping_previous(users):
            return write_files(files, folder)

    usual = [name for name in WRITERS if name not in FORMATS_ON_REQUEST]
    requested = dict.fromkeys(formats or usual)
    written_by_format = {
        name: write_format(name, shared) for name in requested if name != "json"
    }
    written = [path for paths in written_by_format.values() for path in paths]

    now = report if "json" in requested else before
    if now is None:
        return written
    now = _settled(folder, before, now, written_by_format)
    # With report.json the folder is finished: it is written last.
    if "json" in requested:
        written += write_format("json", now)
    elif now != before:
        write_format("json", now)
    return written


def write_files(files: Iterable[File], folder: Path) -> list[Path]:
    """Write files into a report's folder, each whole or not at all; their paths."""
    written = []
    for name, content, private in files:
        data = content.encode() if isinstance(content, str) else content
        mode = 0o600 if private else 0o644
        write_atomically(folder / name, methodcaller("write", data), mode=mode)
        written.append(folder / name)
    return written


def _before(folder: Path) -> Report | None:
    """Return the report in a folder that is written to; None if it cannot be read."""
    check_links(folder, *REPORT_FOLDERS)
    if not os.path.lexists(folder / "report.json"):
        return None
    try:
        return read_report(folder)
    except (InputError, OutputError):
        return None


def _settled(
    folder: Path,
    before: Report | None,
    now: Report,
    written_by_format: Mapping[str, Sequence[Path]],
) -> Report:
    """Delete files that contradict a report; return it with the names of the others.

    Only files that the previous report names are deleted: others are the user's.
    """
    files_before = {} if before is None else before.files
    is_same = (
        before is not None and now.model_copy(update={"files": files_before}) == before
    )
    if is_same:
        # Files of a format that no longer exists go: nothing would write them again.
        files = {
            name: names
            for name, names in files_before.items()
            if name in (SCORES_FOLDER, *WRITERS)
        }
    else:
        files = {SCORES_FOLDER: now.files.get(SCORES_FOLDER, [])}
    for name, paths in written_by_format.items():
        files[name] = sorted(path.relative_to(folder).as_posix() for path in paths)

    kept = set(chain(*files.values()))
    for name in set(chain(*files_before.values())) - kept:
        with suppress(OSError):
            (folder / name).unlink()

    existing = {}
    for name, names in sorted(files.items()):
        existing_names = [one for one in names if os.path.lexists(folder / one)]
        if existing_names:
            existing[name] = existing_names
    return now.model_copy(update={"files": existing})


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that there is not.

    Raises
    ------
    InputError
        It lists those that there are.
    """
    for name in formats:
        one_of(name, "--format", WRITERS)

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
    """The report folder that a path is, or lies in: its page, a table, a figure.

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
    except Exception as error:  # whatever a template does with unfit facts
        what = "a finding or guard has no sentence of its facts"
        raise InputError(what, where=str(path), fix=again) from error
    return report


def write_report(
    report: Report,
    folder: Path,
    *,
    formats: Sequence[str] = (),
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write a report in the given formats (default: all that are not only on request).

    All but ``report.json`` hold it as it can be shared, pages with words too: else the
    two would differ, and what is copied from one would undo the other.

    The ``report.json`` in the folder names what was written beside it. Of what the one
    before named, that goes which would contradict the new one: all that was not written
    again, or, of a report that is only rendered again, that of the formats given.

    Parameters
    ----------
    manifest
        For the words of examples, in formats that show some.

    Raises
    ------
    InputError
        If a format is unknown, or a folder in it is a link out of it;
        then nothing is written.
    """
    check_formats(formats)
    shared = disclosed(report)
    before = _before(folder)
    written_before = {"report.json"}
    if before is not None:
        written_before.update(chain(*before.files.values()))

    # Drawing takes longest: the page and the files share what is drawn.
    drawn = cache(partial(drawing.drawings, shared))
    how = WriterInput(drawn, manifest, show_text)

    def run(name: str, told: Report) -> list[Path]:
        files = [*WRITERS[name](told, folder, how)]
        if before is None:
            return write_files(files, folder)
        # A file that the report before does not name is the user's.
        users = [
            folder / file.name for file in files if file.name not in written_before
        ]
        with keeping_previous(users):
            return write_files(files, folder)

    usual = [name for name in WRITERS if name not in FORMATS_ON_REQUEST]
    asked = dict.fromkeys(formats or usual)
    made = {name: run(name, shared) for name in asked if name != "json"}
    written = [path for paths in made.values() for path in paths]
    now = report if "json" in asked else before
    if now is not None:
        now = _settled(folder, before, now, made)
        # With report.json the folder is finished: it is written last.
        if "json" in asked:
            written += run("json", now)
        elif now != before:
            run("json", now)
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
    """The report in a folder that is written to; one that cannot be read is none."""
    check_links(folder, *REPORT_FOLDERS)
    if not os.path.lexists(folder / "report.json"):
        return None
    try:
        return read_report(folder)
    except (InputError, OutputError):
        return None


def _settled(
    folder: Path, before: Report | None, now: Report, made: Mapping[str, Sequence[Path]]
) -> Report:
    """The report with the names of what stands beside it; what contradicts it goes.

    Nothing but what the report before names is deleted: other files are the user's.

    Parameters
    ----------
    made
        The files of each format that was written.
    """
    old = {} if before is None else before.files
    # Formats that were not written stay where the report is the one that they tell of.
    same = before is not None and now.model_copy(update={"files": old}) == before
    # Those of a writer that there is no more go: nothing would render them again.
    files = {k: v for k, v in old.items() if k in (SCORES_FOLDER, *WRITERS)}
    if not same:
        files = {SCORES_FOLDER: now.files.get(SCORES_FOLDER, [])}
    for kind, paths in made.items():
        files[kind] = sorted(path.relative_to(folder).as_posix() for path in paths)
    for name in set(chain(*old.values())).difference(*files.values()):
        with suppress(OSError):
            (folder / name).unlink()
    told = {}
    for kind, names in sorted(files.items()):
        if there := [name for name in names if os.path.lexists(folder / name)]:
            told[kind] = there
    return now.model_copy(update={"files": told})


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that there is not.

    Raises
    ------
    InputError
        It lists those that there are.
    """
    for name in formats:
        one_of(name, "--format", WRITERS)

"""A report's folder: all other files are rendered from ``report.json``.

:func:`write_report` names the files it wrote in ``report.json``. It writes all formats
of an earlier report again, and sets aside files that the new one does not have.

What each format is made of stands in :mod:`~spark_audit.report.formats`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from spark_audit.audits import audit_names
from spark_audit.collector import collector_paused
from spark_audit.errors import InputError, OutputError, memory_failure
from spark_audit.files import (
    check_links,
    data_bytes,
    field_path,
    parse_json,
    read_regular,
    write_bytes,
)
from spark_audit.manifest.schema import Manifest
from spark_audit.previous import keeping_previous, set_aside
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.figures import drawing
from spark_audit.report.figures.paper.drawing import (
    figures_not_drawn,
)
from spark_audit.report.figures_line import with_figures
from spark_audit.report.formats import (
    EXACT_FORMATS,
    FORMATS_ON_REQUEST,
    REPORT_FILE,
    REPORT_FOLDERS,
    SCORES_FOLDER,
    WRITERS,
    check_formats,
)
from spark_audit.report.kept import keep_if_replaced, subject_that_changed
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import (
    exact_files,
    table_files,
)
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import OF_REPORT, Report
from spark_audit.wrong_paths import instead, no_such_path

RUN_AGAIN = "run the audit again with this version"
"""Remedy for a report that cannot be read."""


def folder_of(path: str | Path) -> Path:
    """Return the report folder of one of its files: its page, a table, a figure.

    Any other path is returned unchanged, including every folder. A folder inside of a
    report's folder may hold runs, data or an unfinished report; a gate or a writer must
    not take the report around it for the intended one.
    """
    path = Path(path)
    if not path.is_file():
        return path

    for folder in path.parents:
        if (folder / REPORT_FILE).is_file():
            folder_inside = path.parent.relative_to(folder).as_posix()
            is_of_report = folder_inside in (".", *REPORT_FOLDERS)
            return folder if is_of_report else path
    return path


@collector_paused()
def read_report(folder: str | Path) -> Report:
    """Read ``report.json`` of a report folder.

    Raises
    ------
    InputError
        If the folder has no report or an unreadable one, or a part of it is a link to a
        place outside.
    OutputError
        If the file cannot be read.
    """
    # The report may come from somebody else, so read nothing through links inside.
    folder = Path(folder)
    check_links(folder, *REPORT_FOLDERS)
    path = folder / REPORT_FILE
    try:
        text = read_regular(path, most=data_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        _refuse_missing_report(folder, error)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot be read ({reason})", where=str(path)) from error

    # Parse strictly first, since pydantic accepts NaN and any depth.
    parse_json(text, place=str(path))
    try:
        report = Report.model_validate_json(text)
    except ValidationError as error:
        # Name only the field of the first fault, since its value may be text of the
        # data.
        first = error.errors(include_input=False, include_url=False)[0]
        field = field_path(first["loc"], Report.model_json_schema())
        problem = f"field {field}: {first['msg']}" if field else "is not JSON"
        raise InputError(problem, where=str(path), fix=RUN_AGAIN) from None

    try:
        # Reading a sentence raises if its template or a fact is missing, as it may be
        # in a foreign report.
        for finding in report.findings:
            _ = finding.sentence
        for guard in report.guards:
            _ = guard.detail

        # The lines of figures may contradict the figures, so make them again.
        return with_figures(report)
    except Exception as error:  # whatever a template does with unfit facts
        raise _unreadable_sentence(report, path) from memory_failure(error)


def _unreadable_sentence(report: Report, path: Path) -> InputError:
    """Return the error of a report whose sentences cannot be made."""
    # An audit of a package, or of a notebook, has sentences of its own.
    unknown = {finding.audit for finding in report.findings}
    unknown -= {OF_REPORT, *audit_names()}
    if unknown:
        names = ", ".join(sorted(unknown))
        return InputError(
            f"holds claims of audits that are not known here: {names}",
            where=str(path),
            fix="install their package, or give their class to `sa.audits.register`",
        )
    return InputError(
        "the facts of a finding or guard do not fit its sentence",
        where=str(path),
        fix=RUN_AGAIN,
    )


def _refuse_missing_report(folder: Path, error: OSError) -> NoReturn:
    """Refuse a path that is no report folder, with advice.

    Raises
    ------
    InputError
        Always.
    """
    fix = "give a report folder"
    if not folder.exists():
        raise no_such_path(folder, otherwise=fix) from error

    if folder.is_file():
        problem = "is a file"
        fix = instead(folder, fix)
    elif (folder / SCORES_FOLDER).is_dir():
        problem = "holds scores and no report.json: its audit has not finished"
        fix = "run its command again: it goes on where it stopped"
    else:
        problem = "is a folder without report.json"
        fix = instead(folder, fix)
        for parent in folder.parents:
            if (parent / REPORT_FILE).is_file():
                fix = f"give {parent}, the report that it lies in"
                break
    raise InputError(problem, where=str(folder), fix=fix) from error


@collector_paused()
def write_report(
    report: Report,
    folder: Path,
    *,
    formats: Sequence[str] = (),
    manifest: Manifest | None = None,
    show_text: bool = False,
    shared: Report | None = None,
    previous: Report | None = None,
    evidence_folder: Path | None = None,
    keeps_replaced: bool = False,
    exact: bool = False,
) -> list[Path]:
    """Write a report into its folder, and return the files that were written.

    ``report.json`` holds the exact figures, and so do the files in ``exact/``, which
    are written on request. All other files hold the shared report, since a comparison
    of two files could otherwise undo the rounding.

    ``report.json`` names the files next to it, and none of them may contradict it:

    - Of the same report, which is only rendered again, the files of other formats stay,
      or are written again, too, if no formats are given. Deleted are only old files of
      the written formats, and those of a format that this version no longer has.
    - Of an earlier report on the same subject, all formats are written again. A file
      that the new report does not have is moved to ``previous/``.
    - Of a report about something else, every file that was not written again is
      deleted: the caller has kept it whole (``kept.keep_if_replaced``).

    If ``json`` is not among the formats, another report in the folder stays, and files
    of it that are replaced are kept in ``previous/``.

    Parameters
    ----------
    formats
        Default: all formats that are not written on request only.
    manifest
        The report's manifest, for formats that show words of examples.
    show_text
        Whether those words may show identifiers.
    shared
        The report's shared form, if it is known (``disclosed``).
    previous
        The report in the folder, if it was read just now.
    evidence_folder
        The report folder whose ``scores`` formats are made of; default: ``folder``.
    keeps_replaced
        Whether a report about something else is kept beside the folder, once all
        formats are made; else the caller has kept it.
    exact
        Write CSV and LaTeX with exact figures instead, for the owner alone.

    Raises
    ------
    InputError
        If a format is unknown or lacks its evidence, or has no exact figures although
        they are asked for; or a folder inside is a link to a place outside. Nothing is
        written then.
    """
    check_formats(formats, exact=exact)
    if exact:
        exact_files.check_exact(report, folder)
        formats = [EXACT_FORMATS[name] for name in formats]
    # Lines of figures come last, for the exact report and for the shared one.
    report = with_figures(report)
    if shared is None:
        shared = disclosed(report)
    if previous is None:
        previous = previous_report(folder)
    usual_formats = [name for name in WRITERS if name not in FORMATS_ON_REQUEST]
    requested = list(dict.fromkeys(formats or usual_formats))
    is_same_report = previous is not None and _is_same_report(report, previous)
    is_update = (
        "json" in requested
        and not is_same_report
        and previous is not None
        and not subject_that_changed(previous, report)
    )

    further_formats: list[str] = []
    if is_update:
        further_formats = [*_further_formats(previous, requested)]
    elif is_same_report and not formats:
        # A dossier stays as it is: nothing says whether it shows text of the manifest.
        further_formats = [
            name for name in _further_formats(previous, requested) if name != "dossier"
        ]

    # Drawing takes longest, so the page and the files share the drawings.
    @cache
    def drawn() -> Sequence[drawing.Drawing]:
        return drawing.drawings(shared)

    prepared = PreparedReport(shared)
    writer_input = WriterInput(
        drawn=drawn, manifest=manifest, show_text=show_text, exact=report
    )
    # A report does not name its own file. Without the format json, files of another
    # report are not replaced by this one's.
    replaceable = {REPORT_FILE}
    if "json" in requested or is_same_report:
        replaceable |= _all_files(previous)

    # All formats are made before the first is written: a refusal leaves nothing behind.
    source = evidence_folder or folder
    files_by_format: dict[str, list[File]] = {}
    for name in requested:
        if name != "json":
            files_by_format[name] = list(WRITERS[name](prepared, source, writer_input))
    for name in further_formats:
        # Nobody asked for it now, so what it lacks is no error: the files of an earlier
        # report are set aside, and those of the same one stay.
        with suppress(InputError, OutputError):
            files = list(WRITERS[name](prepared, source, writer_input))
            files_by_format[name] = files

    if keeps_replaced and "json" in requested:
        keep_if_replaced(folder, previous, report)

    paths_by_format = {}
    for name, files in files_by_format.items():
        paths_by_format[name] = _write_keeping_files_of_user(
            files, folder, previous, replaceable
        )
    written = [path for paths in paths_by_format.values() for path in paths]

    # Without the format json, the report in the folder stays and names the new files.
    report_of_folder = report if "json" in requested else previous
    if report_of_folder is None:
        return written
    updated_report = _updated_report(
        report_of_folder, previous, paths_by_format, folder
    )
    _remove_unnamed_files(updated_report, previous, folder, is_needed=is_update)

    # report.json marks the folder as finished, so it is written last.
    if "json" in requested or updated_report != previous:
        files = list(
            WRITERS["json"](PreparedReport(updated_report), folder, writer_input)
        )
        json_paths = write_files(files, folder)
        if "json" in requested:
            written += json_paths
    return written


def what_is_not_written(
    report: Report, formats: Sequence[str], *, shared: Report | None = None
) -> list[str]:
    """Return a line for each file of named formats that a report has no data for.

    These are the paper's figures, and the lists of named rows.

    Parameters
    ----------
    formats
        The formats that were asked for. Without ``figures`` and ``named`` nothing is
        missing.
    shared
        The report's shared form, if it is known (``disclosed``).
    """
    lines = []
    if "figures" in formats:
        if shared is None:
            shared = disclosed(report)
        lines += figures_not_drawn(PreparedReport(shared), PreparedReport(report))
    if "named" in formats:
        lines += table_files.lists_not_written(report)
    return lines


def write_files(files: Iterable[File], folder: Path) -> list[Path]:
    """Write files into a report's folder, each whole or not at all; return the paths.

    Only the owner can read a private file.
    """
    written = []
    for file in files:
        path = folder / file.name
        # Text is written as UTF-8.
        data = file.content
        if isinstance(data, str):
            data = data.encode()
        write_bytes(path, data, mode=0o600 if file.private else 0o644)
        written.append(path)
    return written


def _further_formats(
    previous: Report | None, requested: Sequence[str]
) -> Iterator[str]:
    """Yield the formats of the previous report that are not requested now."""
    if previous is None:
        return
    for name in WRITERS:
        if name in previous.files and name not in requested:
            yield name


def _write_keeping_files_of_user(
    files: Sequence[File],
    folder: Path,
    previous: Report | None,
    replaceable: Set[str],
) -> list[Path]:
    """Write files of one format; return the paths.

    An existing file that may not be replaced is the user's, or another report's, and is
    kept under another name. Without a previous report the owner of files is unknown,
    and they are replaced.

    Parameters
    ----------
    replaceable
        Names of files that are replaced without being kept.
    """
    if previous is None:
        return write_files(files, folder)

    paths_to_keep = [
        folder / file.name for file in files if file.name not in replaceable
    ]
    with keeping_previous(paths_to_keep):
        return write_files(files, folder)


def previous_report(folder: Path) -> Report | None:
    """Return the report in a folder that is written to; None if it cannot be read."""
    check_links(folder, *REPORT_FOLDERS)
    if not os.path.lexists(folder / REPORT_FILE):
        return None
    try:
        return read_report(folder)
    except (InputError, OutputError):
        # A broken report must not prevent a new one.
        return None


def _all_files(report: Report | None) -> set[str]:
    """Return the names of all files that a report names."""
    names: set[str] = set()
    if report is not None:
        for names_of_format in report.files.values():
            names.update(names_of_format)
    return names


def _updated_report(
    report: Report,
    previous: Report | None,
    paths_by_format: Mapping[str, Sequence[Path]],
    folder: Path,
) -> Report:
    """Return a report that names the files of its folder, after some were written.

    Parameters
    ----------
    paths_by_format
        The files that were written just now.
    """
    files_by_format = _files_by_format(report, previous, paths_by_format, folder)
    named_report = report.model_copy(update={"files": files_by_format})
    return _with_existing_files(named_report, folder)


def _files_by_format(
    report: Report,
    previous: Report | None,
    paths_by_format: Mapping[str, Sequence[Path]],
    folder: Path,
) -> dict[str, list[str]]:
    """Return the names of a report's files, by format, and of the evidence.

    If a report is only rendered again, files of other formats stay. Files of a format
    that this version no longer has are dropped, since nothing would write them again.

    Parameters
    ----------
    paths_by_format
        The files that were written just now.
    """
    files: dict[str, list[str]] = {}
    if previous is not None and _is_same_report(report, previous):
        for name, names in previous.files.items():
            if name in WRITERS or name == SCORES_FOLDER:
                files[name] = names
    else:
        # Drop the files of another report, except the evidence of this one.
        files[SCORES_FOLDER] = report.files.get(SCORES_FOLDER, [])

    for name, paths in paths_by_format.items():
        files[name] = sorted(path.relative_to(folder).as_posix() for path in paths)
    return files


def _is_same_report(report: Report, previous: Report) -> bool:
    """Return whether two reports are equal apart from the files that they name."""
    return report.model_copy(update={"files": previous.files}) == previous


def _remove_unnamed_files(
    report: Report, previous: Report | None, folder: Path, *, is_needed: bool
) -> None:
    """Remove files that the previous report names and this one does not.

    Files that neither of them names are the user's.

    Parameters
    ----------
    is_needed
        Whether nothing else holds what is in them: they are moved to ``previous/``, not
        deleted.
    """
    for name in sorted(_all_files(previous) - _all_files(report)):
        # The file may be gone, or the folder may not let it go.
        with suppress(OSError, OutputError):
            if is_needed:
                set_aside(folder / name)
            else:
                (folder / name).unlink()


def _with_existing_files(report: Report, folder: Path) -> Report:
    """Return a report that names only existing files, sorted by format name."""
    # Users may delete evidence, since it is as private as the data.
    existing = {}
    for name, names in sorted(report.files.items()):
        existing_names = [file for file in names if os.path.lexists(folder / file)]
        if existing_names:
            existing[name] = existing_names
    return report.model_copy(update={"files": existing})

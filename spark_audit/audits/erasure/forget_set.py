"""Forget sets: the trained rows that a model should have forgotten.

Each value of ``--forget`` is a request, and a report has a line for each:

===============  =======================================================================
``FILE``         a line for each id: of a row, of a source, or of a group of rows that
                 share a source or a person (``cluster`` in the manifest)
``task=NAME``    all trained rows of a task
``stage=K``      all trained rows of the task that the K-th stage of a series learned
===============  =======================================================================

:func:`requests_of` reads the option and its files, :func:`forget_set` finds the rows in
a manifest. What does not fit the manifest is refused by :func:`check_forget_set`,
before anything is scored. A further form of a request is a branch of :func:`_request`
and of :func:`_rows_of`.

Ids, and the name of a file too, may be of persons who asked to be forgotten. Reports
therefore name a request by its number, and errors name the lines of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_audit.audits.of_series import listed, tasks_in_order
from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError, choose
from spark_audit.files import read_regular
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest

FORGET_OPTION = "--forget"

TASK_PREFIX = "task="
STAGE_PREFIX = "stage="

FORMS_OF_REQUESTS = "a file of one id per line, task=NAME or stage=K"
"""What the option takes, for errors."""

MAX_LINES_NAMED = 3
"""Most lines of a file that an error names."""


@dataclass(frozen=True)
class ForgetRequest:
    """One request to forget rows: those of a file, of a task or of a stage.

    Attributes
    ----------
    number
        Its place among the values of the option, from 1.
    path
        The file that lists its ids; None: it is for a task or a stage.
    line_by_id
        Id of a row, source or group of rows -> the number of its line in the file, from
        1; empty without a file.
    task
        The task whose rows are to be forgotten, if the request is for a task.
    stage
        The stage of a series whose rows are to be forgotten, from 1; 0: another kind.
    """

    number: int
    path: Path | None = None
    line_by_id: Mapping[str, int] = field(default_factory=dict)
    task: str = ""
    stage: int = 0

    @property
    def name(self) -> str:
        """Its name in reports, which anybody may read: no name of a file."""
        if self.path is not None:
            return f"request {self.number}, from a file"
        if self.stage:
            return f"request {self.number}, {STAGE_PREFIX}{self.stage}"
        return f"request {self.number}, {TASK_PREFIX}{self.task}"

    @property
    def where(self) -> str:
        """Its place in errors, which only its owner reads."""
        if self.path is not None:
            return _place_of_file(self.number, self.path)
        return _place_of_value(self.number)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its file, each once, in their order."""
        return tuple(self.line_by_id)


def is_file(text: str) -> bool:
    """Return whether a value of the option names a file, and no task or stage."""
    return not text.startswith((TASK_PREFIX, STAGE_PREFIX))


def file_of(text: str) -> Path:
    """Return the path of a request that is a file."""
    return Path(os.path.expanduser(text))


def requests_of(texts: Sequence[str]) -> list[ForgetRequest]:
    """Return the requests that the option names.

    Raises
    ------
    InputError
        If there is none, or a value cannot be read.
    """
    if not texts:
        raise InputError(
            "nothing is named that should be forgotten",
            where=FORGET_OPTION,
            fix="give a file of ids (of rows, sources or persons), task=NAME or "
            "stage=K",
        )
    return [_request(text, number) for number, text in enumerate(texts, start=1)]


def _request(text: str, number: int) -> ForgetRequest:
    """Return the request of one value of the option, which has a number from 1."""
    if text.startswith(TASK_PREFIX):
        return ForgetRequest(number, task=text.removeprefix(TASK_PREFIX))

    if text.startswith(STAGE_PREFIX):
        stage = text.removeprefix(STAGE_PREFIX)
        if not stage.isascii() or not stage.isdecimal() or int(stage) < 1:
            raise InputError(
                "the stage is not a number from 1",
                where=_place_of_value(number),
                fix="write stage=K with K from 1",
            )
        return ForgetRequest(number, stage=int(stage))

    path = file_of(text)
    return ForgetRequest(number, path=path, line_by_id=_line_by_id(path, number))


def _place_of_value(number: int) -> str:
    """Return the place of a value of the option, without the value."""
    return f"{FORGET_OPTION}, value {number}"


def _place_of_file(number: int, path: Path) -> str:
    """Return the place of a file, by its path unless that holds an identifier."""
    names = (*path.parts, path.stem)
    if any(find_identifiers(name) for name in names):
        return _place_of_value(number)
    return f"{FORGET_OPTION} {path}"


def _line_by_id(path: Path, number: int) -> dict[str, int]:
    """Return the ids that a file lists, in their order, with their first lines.

    Raises
    ------
    InputError
        If there is no such file, if it cannot be read, is no text in UTF-8, or is
        empty. What names no file is not repeated: it may be the id of a person.
    """
    where = _place_of_file(number, path)
    try:
        content = read_regular(path, follow=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "is no text in UTF-8", where=where, fix="give a file of one id per line"
        ) from error
    except FileNotFoundError:
        raise InputError(
            "there is no such file",
            where=_place_of_value(number),
            fix=f"give {FORMS_OF_REQUESTS}, and no id itself",
        ) from None
    except OSError as error:
        raise InputError(
            error.strerror or "cannot be read",
            where=where,
            fix=f"give {FORMS_OF_REQUESTS}",
        ) from error

    line_by_id: dict[str, int] = {}
    for line_number, line in enumerate(content.splitlines(), start=1):
        key = line.strip()
        if key:
            line_by_id.setdefault(key, line_number)
    if not line_by_id:
        raise InputError(
            "has no id", where=where, fix="write one id per line into the file"
        )
    return line_by_id


def check_forget_set(
    requests: Sequence[ForgetRequest], manifest: Manifest, order: str | None
) -> None:
    """Refuse requests that do not fit a manifest.

    Raises
    ------
    InputError
        If an id is in no row of the manifest, or only in rows that were never trained
        on; if there is no such task or stage; if a request has only rows of earlier
        ones. The first lines with such ids are named, and never the ids: they may be of
        persons who asked to be forgotten.
    """
    # Refuses an order with unknown tasks.
    ordered_tasks = [] if order is None else tasks_in_order(manifest, order)
    for request in requests:
        if request.path is not None:
            _check_ids(request, manifest)
        else:
            _check_task(request, manifest, ordered_tasks)

    request_by_row = forget_set(requests, manifest, order)
    requests_with_rows = {*request_by_row.values()}
    for request in requests:
        if request.name not in requests_with_rows:
            raise InputError(
                "all its rows are those of earlier requests",
                where=request.where,
                fix="leave it out: a row counts for the first request that names it",
            )


def _check_ids(request: ForgetRequest, manifest: Manifest) -> None:
    """Refuse ids without trained rows: those of no row first, then of held-out ones."""
    ids_by_split = {"train": set[str](), "test": set[str]()}
    for example in manifest.examples:
        ids_by_split[example.split] |= {example.id, example.source_id, example.cluster}

    untrained = [key for key in request.ids if key not in ids_by_split["train"]]
    unknown = [key for key in untrained if key not in ids_by_split["test"]]
    if unknown:
        raise InputError(
            f"{_counted(unknown, len(request.ids))} in no row of the manifest: "
            f"{_lines_named(unknown, request)}",
            where=request.where,
            fix="give values of the fields `id` or `source_id` of rows in the file of "
            "--data that `spark-audit manifest build` read, or of `cluster` in the "
            "manifest",
        )
    if untrained:
        raise InputError(
            f"{_counted(untrained, len(request.ids))} only in held-out rows, which "
            f"were never trained on: {_lines_named(untrained, request)}",
            where=request.where,
            fix="leave them out: only trained rows can be forgotten",
        )


def _check_task(
    request: ForgetRequest, manifest: Manifest, ordered_tasks: Sequence[str]
) -> None:
    """Refuse a task without trained rows, and a stage of no such task.

    An unknown task is not repeated: it may be the id of a person.
    """
    trained_tasks = dict.fromkeys(
        example.task for example in manifest.examples if example.split == "train"
    )
    task = _task_of(request, ordered_tasks)
    if task not in trained_tasks:
        raise InputError(
            "no trained row is of this task",
            where=request.where,
            fix=choose(task, trained_tasks),
        )


def _task_of(request: ForgetRequest, ordered_tasks: Sequence[str]) -> str:
    """Return the task of a request for a task or for a stage.

    Parameters
    ----------
    ordered_tasks
        Tasks in the order of training; empty: no order is known.

    Raises
    ------
    InputError
        If the request is for a stage, and the order is not known or has fewer stages.
    """
    if not request.stage:
        return request.task

    n_stages = len(ordered_tasks)
    if not n_stages:
        raise InputError(
            "it is not known which task a stage was trained on",
            where=request.where,
            fix="add --order with the tasks in the order of training: t1,t2,...",
        )
    if request.stage > n_stages:
        stages = "is 1 stage" if n_stages == 1 else f"are {n_stages} stages"
        choice = "stage=1" if n_stages == 1 else f"a stage from 1 to {n_stages}"
        raise InputError(f"there {stages}", where=request.where, fix=f"give {choice}")
    return ordered_tasks[request.stage - 1]


def _counted(ids: Sequence[str], total: int) -> str:
    """Return the beginning of a sentence on some of the ids of a file."""
    verb = "is" if len(ids) == 1 else "are"
    return f"{len(ids)} of {total} ids {verb}"


def _lines_named(ids: Sequence[str], request: ForgetRequest) -> str:
    """Return the first lines of a request's file that hold some ids, for an error."""
    numbers = [str(request.line_by_id[key]) for key in ids[:MAX_LINES_NAMED]]
    lines = "line" if len(ids) == 1 else "lines"
    rest = ", ..." if len(ids) > MAX_LINES_NAMED else ""
    return f"{lines} {', '.join(numbers)}{rest}"


def forget_set(
    requests: Iterable[ForgetRequest], manifest: Manifest, order: str | None
) -> dict[str, str]:
    """Return the trained rows that should be forgotten: row id -> name of its request.

    A row of several requests counts for the first one. Ids that a manifest does not
    have are left out: a part of it may have been taken.

    Raises
    ------
    InputError
        If a request is for a stage of which the task is not known.
    """
    request_by_row: dict[str, str] = {}
    for request in requests:
        for example in _rows_of(request, manifest, order):
            request_by_row.setdefault(example.id, request.name)
    return request_by_row


def _rows_of(
    request: ForgetRequest, manifest: Manifest, order: str | None
) -> list[ManifestExample]:
    """Return the trained rows of one request.

    An id of a row stands for that row alone, an id of a source for the rows of that
    source, and any other id for the rows of the group with that name. The name of a
    group is the first of its sources' ids in alphabetical order, and stands for that
    source alone where the source has trained rows.
    """
    trained = [example for example in manifest.examples if example.split == "train"]
    if request.path is None:
        task = _task_of(request, listed(order))
        return [example for example in trained if example.task == task]

    row_ids = {example.id for example in trained}
    sources = {example.source_id for example in trained}
    ids = set(request.ids)
    ids_of_sources = (ids - row_ids) & sources
    ids_of_groups = ids - row_ids - sources

    rows = []
    for example in trained:
        is_named = (
            example.id in ids
            or example.source_id in ids_of_sources
            or example.cluster in ids_of_groups
        )
        if is_named:
            rows.append(example)
    return rows

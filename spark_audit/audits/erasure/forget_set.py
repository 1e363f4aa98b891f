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
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_audit.audits.of_series import listed, tasks_in_order
from spark_audit.errors import InputError, choose
from spark_audit.files import read_regular
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest

FORGET_OPTION = "--forget"

TASK_PREFIX = "task="
STAGE_PREFIX = "stage="

MAX_LINES_NAMED = 3
"""Most lines of a file that an error names."""


@dataclass(frozen=True)
class ForgetRequest:
    """One request to forget rows.

    Attributes
    ----------
    name
        Its name in reports: the stem of its file, or the text of the option.
    line_by_id
        Id of a row, source or group of rows -> the number of its line in the file, from
        1; empty for a task or a stage.
    task
        The task whose rows are to be forgotten; empty: another kind of request.
    stage
        The stage of a series whose rows are to be forgotten, from 1; 0: another kind.
    """

    name: str
    line_by_id: Mapping[str, int] = field(default_factory=dict)
    task: str = ""
    stage: int = 0

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
        If there is none, a value cannot be read, or two have one name.
    """
    if not texts:
        raise InputError(
            "nothing is named that should be forgotten",
            where=FORGET_OPTION,
            fix="give a file of ids (of rows, sources or persons), task=NAME or "
            "stage=K",
        )

    requests: list[ForgetRequest] = []
    for text in texts:
        request = _request(text)
        if any(request.name == earlier.name for earlier in requests):
            raise InputError(
                f"two requests are called {request.name!r}",
                where=FORGET_OPTION,
                fix="give each file another name",
            )
        requests.append(request)
    return requests


def _request(text: str) -> ForgetRequest:
    """Return the request of one value of the option."""
    if text.startswith(TASK_PREFIX):
        return ForgetRequest(name=text, task=text.removeprefix(TASK_PREFIX))

    if text.startswith(STAGE_PREFIX):
        number = text.removeprefix(STAGE_PREFIX)
        if not number.isascii() or not number.isdecimal() or int(number) < 1:
            raise InputError(
                f"{number!r} is no number of a stage",
                where=FORGET_OPTION,
                fix="write stage=K with K from 1",
            )
        return ForgetRequest(name=text, stage=int(number))

    path = file_of(text)
    return ForgetRequest(name=path.stem, line_by_id=_line_by_id(path))


def _line_by_id(path: Path) -> dict[str, int]:
    """Return the ids that a file lists, in their order, with their first lines.

    Raises
    ------
    InputError
        If the file cannot be read, is no text in UTF-8, or is empty.
    """
    where = f"{FORGET_OPTION} {path}"
    try:
        content = read_regular(path, follow=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "is no text in UTF-8", where=where, fix="give a file of one id per line"
        ) from error
    except OSError as error:
        raise InputError(
            error.strerror or "cannot be read",
            where=where,
            fix="give a file of one id per line, task=NAME or stage=K",
        ) from error

    line_by_id: dict[str, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        key = line.strip()
        if key:
            line_by_id.setdefault(key, number)
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
        on; if there is no such task or stage. The first lines with such ids are named,
        and never the ids: they may be of persons who asked to be forgotten.
    """
    known = {"train": set[str](), "test": set[str]()}
    for example in manifest.examples:
        known[example.split] |= {example.id, example.source_id, example.cluster}

    for request in requests:
        where = f"{FORGET_OPTION} {request.name}"
        unknown = [key for key in request.ids if key not in known["train"]]
        never_known = [key for key in unknown if key not in known["test"]]
        if never_known:
            raise InputError(
                f"{_counted(never_known, len(request.ids))} in no row of the manifest: "
                f"{_lines_named(never_known, request)}",
                where=where,
                fix="give ids of rows, sources or groups of this manifest "
                "(`spark-audit manifest rows` writes them)",
            )
        if unknown:
            raise InputError(
                f"{_counted(unknown, len(request.ids))} only in held-out rows, which "
                f"were never trained on: {_lines_named(unknown, request)}",
                where=where,
                fix="leave them out: only trained rows can be forgotten",
            )
        if not request.ids:
            _check_task(request, manifest, order)


def _check_task(request: ForgetRequest, manifest: Manifest, order: str | None) -> None:
    """Refuse a task or a stage without trained rows."""
    tasks = dict.fromkeys(
        example.task for example in manifest.examples if example.split == "train"
    )
    if request.stage:
        if order is None:
            raise InputError(
                "it is not known which task a stage was trained on",
                where=f"{FORGET_OPTION} {request.name}",
                fix="add --order with the tasks in the order of training: t1,t2,...",
            )
        ordered = listed(order)
        tasks_in_order(manifest, order)
        if request.stage > len(ordered):
            raise InputError(
                f"there are {len(ordered)} stages",
                where=f"{FORGET_OPTION} {request.name}",
                fix=f"give a stage from 1 to {len(ordered)}",
            )

    task = _task_of(request, order)
    if task not in tasks:
        raise InputError(
            f"no trained row is of a task {task!r}",
            where=f"{FORGET_OPTION} {request.name}",
            fix=choose(task, tasks),
        )


def _task_of(request: ForgetRequest, order: str | None) -> str:
    """Return the task of a request; empty: it is of ids, or no order is known."""
    if request.stage and order is not None:
        ordered = listed(order)
        return ordered[request.stage - 1] if request.stage <= len(ordered) else ""
    return request.task


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

    An id of a row is that row alone, one of a source its rows, and any other one the
    rows of its group: a group has the name of its smallest source.
    """
    trained = [example for example in manifest.examples if example.split == "train"]
    if not request.ids:
        task = _task_of(request, order)
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

"""Other people's data as examples: JSON lines, CSV, Parquet, datasets, TRACE, O-LoRA.

Every reader yields rows with the place they stand in; one function turns a row into an
example, by a column map or a template.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from spark_audit.data.examples import (
    REQUIRED,
    SPLIT_FIX,
    Example,
    Ranges,
    Span,
    Split,
    bad_field,
    check_task,
    from_row,
    located,
    spans_field,
    text_field,
    unique_ids,
)
from spark_audit.data.readers import Row, read_rows, split_of
from spark_audit.data.templates import task_templates, template_ranges
from spark_audit.errors import InputError

Format = Literal["auto", "jsonl", "csv", "parquet", "datasets", "trace", "olora"]
_IMPORTED = ("prompt", "response", "id", "source_id", "split")
_LAYOUTS = {
    "own": ("prompt", "response"),
    "trace": ("prompt", "answer"),
    "olora": ("sentence", "label"),
    "simple": ("text", "label"),
}
"""Usual column names of prompt and response."""


def import_examples(
    source: str | Path,
    *,
    task: str,
    format: Format = "auto",
    split: Split | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Example]:
    r"""Read somebody else's data as examples of one task.

    A prompt is its column as it stands, or the template with the row's columns in it.
    The template's fixed wording is recorded in ``Example.template``, together with what
    all prompts begin and end with (data may bring a ``Title:`` of its own).
    A response gets one leading blank unless it, or the end of the prompt, brings white
    space **[ours]**: ``"...Label:" + " dovish"``. JSON lines that already have all
    fields of this project are copied as they are, under the given task name.

    Parameters
    ----------
    source
        A file; a folder with files train*, test*, eval*, dev* or val*; a folder that
        ``datasets`` saved; a data set on the hub, ``hf:OWNER/NAME[:CONFIG]``.
    task
        Name of the task.
    format
        ``auto`` tells by content.
    split
        For rows without one; refused where a file name or a row says otherwise. A file
        called ``train`` or ``test`` (``eval``, ``dev``, ``val``) gives it by itself.
    template
        Fixed wording with ``{column}`` fields; ``{{`` and ``}}`` for braces, ``\n``,
        ``\t`` and ``\\`` for line end, tab and backslash.
    columns
        Which column holds ``prompt``, ``response``, ``id``, ``source_id``, ``split``.
        Left out: the column of that name, or one of the pairs prompt/response,
        prompt/answer (TRACE), sentence/label (O-LoRA), text/label. ``id`` mapped to
        the empty string: new ids.

    Raises
    ------
    InputError
        Naming file, line or row, and field of the first bad row.
    OutputError
        If a file cannot be read.
    """
    check_task(task, where="option --task")
    by_name = _named_file(Path(source))
    columns = dict(columns or {})
    _check_options(split, by_name, columns, templated=template is not None)
    pieces = None if template is None else _pieces(template)
    asked = {*columns.values(), *(column for _, column in pieces or ())}
    counts = {"train": 0, "test": 0}

    def example(place: str, named: Split | None, row: Row) -> Example:
        if pieces is None and not columns and set(REQUIRED) <= set(row):
            ours = {"task": task, "split": _one_split(split, named, row["split"])}
            return from_row(row | ours, place=place)
        wanted = _wanted(row, format, columns, templated=pieces is not None)
        cell = _cell(row, wanted.get("split")) or by_name
        given = _one_split(split, named, cell)
        counts[given] += 1
        made = f"{task}-{given}-{counts[given]:06d}"
        return _imported(row, wanted, pieces, task=task, split=given, made=made)

    def examples() -> Iterator[tuple[str, Example]]:
        for place, named, row in read_rows(str(source), format):
            try:
                yield place, example(place, named, row)
            except _NoColumn as error:
                what = f"{error.what} ({_listed(row, asked)})"
                raise located(place, bad_field(error.field, what, fix=error.fix)) from (
                    error
                )
            except InputError as error:
                if not str(error.where).startswith("field"):
                    raise
                raise located(place, error) from error

    found = unique_ids(examples())
    if not found:
        raise InputError("holds no rows", where=str(source))
    if pieces is None:
        return found
    common = task_templates(found)
    return [replace(example, template=_joined(example, common)) for example in found]


def _check_options(
    split: Split | None,
    by_name: Split | None,
    columns: Mapping[str, str],
    *,
    templated: bool,
) -> None:
    if split not in (None, *get_args(Split)):
        raise InputError(
            "is neither train nor test", where="option --split", fix=SPLIT_FIX
        )
    if split and by_name and split != by_name:
        raise InputError(
            f"the file's name says {by_name}",
            where="option --split",
            fix="leave it out, or rename the file",
        )
    for field in columns:
        if field not in _IMPORTED:
            fix = f"use one of: {', '.join(_IMPORTED)}"
            raise InputError(
                f"{field!r} is no field of an example", where="option --map", fix=fix
            )
    if templated and "prompt" in columns:
        raise InputError(
            "a template makes the prompt, so no column can be mapped to it",
            where="option --map",
            fix="give `--template` or `--map prompt=`, not both",
        )


def _joined(example: Example, common: Mapping[str, tuple[int, int]]) -> Ranges:
    """Ranges of the template and of the common wording; those that touch are one."""
    both = [*template_ranges(replace(example, template=None), common)]
    both += example.template or ()
    joined: list[tuple[int, int]] = []
    for start, end in sorted(both):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)


def _imported(
    row: Row,
    wanted: Mapping[str, str],
    pieces: list[tuple[str, str | None]] | None,
    *,
    task: str,
    split: Split,
    made: str,
) -> Example:
    template: Ranges | None = None
    spans = spans_field(row)
    if pieces is None:
        prompt = _value(row, wanted["prompt"])
    elif spans:
        raise bad_field("spans", "index a text that the template changes")
    else:
        prompt, template = _filled(pieces, row)
    response = _value(row, wanted["response"])
    if not prompt[-1].isspace() and not response[0].isspace():
        response = f" {response}"
        spans = tuple(_moved(span, len(prompt)) for span in spans)
    name = _cell(row, wanted.get("id")) or made
    return Example(
        id=name,
        task=task,
        prompt=prompt,
        response=response,
        split=split,
        source_id=_cell(row, wanted.get("source_id")) or name,
        spans=spans,
        template=template,
    )


def _moved(span: Span, place: int) -> Span:
    """The span after one blank was put in at ``place``."""
    start, end = span.start + (span.start >= place), span.end + (span.end > place)
    return replace(span, start=start, end=end)


def _wanted(
    row: Row, format: str, columns: Mapping[str, str], *, templated: bool
) -> dict[str, str]:
    """Field -> column: what was mapped, and else the columns with usual names."""
    found = {name: name for name in ("id", "source_id", "split") if name in row}
    needed = [
        field
        for field in ("prompt", "response")
        if field not in columns and not (templated and field == "prompt")
    ]
    for pair in [_LAYOUTS[format]] if format in _LAYOUTS else _LAYOUTS.values():
        names = dict(zip(("prompt", "response"), pair, strict=True))
        if all(names[field] in row for field in needed):
            return found | {field: names[field] for field in needed} | dict(columns)
    absent = {
        field
        for field in needed
        if not any(pair[field == "response"] in row for pair in _LAYOUTS.values())
    }
    field = next(iter(sorted(absent or needed)))
    fix = f"give `--map {field}=COLUMN`"
    if field == "prompt":
        fix += " or `--template`"
    raise _NoColumn(field, "has no column of a usual name", fix=fix)


class _NoColumn(Exception):
    """A column that the row has not; the error that is shown lists those it has."""

    def __init__(self, field: str, what: str, *, fix: str | None = None) -> None:
        self.field, self.what, self.fix = field, what, fix


def _listed(row: Row, asked: Collection[str | None]) -> str:
    """The row's columns, unless they may be text (a CSV without a first line).

    They are names where one is known as such: it was ``asked`` for, or is a usual one.
    """
    names = [str(name) for name in row]
    usual = dict.fromkeys(name for pair in _LAYOUTS.values() for name in pair)
    if not {*_IMPORTED, *usual, *asked}.isdisjoint(names):
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return f"columns: {', '.join(map(_short, names[:20]))}{more}"
    count = f"{len(names)} column{'s' * (len(names) != 1)}"
    return (
        f"{count}, not shown as their names may be data, and none of "
        f"{', '.join(usual)}: is there a first line of names?"
    )


def _short(name: str) -> str:
    told = name if name.isprintable() else ascii(name)
    return told if len(told) <= 40 else f"{told[:37]}..."


def _value(row: Row, column: str) -> str:
    """A column's text; whole numbers, as label columns hold them, become text."""
    if column not in row:
        raise _NoColumn(column, "is no column")
    if type(row[column]) is int:
        return str(row[column])
    value = text_field(row, column)
    if not value.strip():
        raise bad_field(column, "is blank")
    return value


def _cell(row: Row, column: str | None) -> str | None:
    """An optional field: no column, no value and a blank one are None."""
    if not column or (column in row and row[column] in (None, "")):
        return None
    return _value(row, column)


def _named_file(path: Path) -> Split | None:
    """What a single file's name says: the words themselves, also with a number."""
    words = r"(train(ing)?|test(ing)?|eval(uation)?|dev|val(id(ation)?)?)"
    named = re.fullmatch(rf"{words}([-_.]?\d[\w.-]*)?", path.stem.lower())
    return split_of(path.stem) if named and path.is_file() else None


def _one_split(option: Split | None, named: Split | None, cell: object) -> Split:
    """The row's split, by whichever of option, file name and row gives it."""
    given = {name for name in (option, named) if name is not None}
    if cell not in (None, ""):
        of_row = split_of(cell) if isinstance(cell, str) else None
        if of_row is None:
            raise bad_field("split", "is neither train nor test", fix=SPLIT_FIX)
        given.add(of_row)
    if not given:
        raise bad_field("split", "is missing", fix=SPLIT_FIX)
    if len(given) > 1:
        what = "is one thing by the option and another by file name or row"
        raise bad_field("split", what, fix="leave out `--split`")
    return given.pop()


_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def _pieces(template: str) -> list[tuple[str, str | None]]:
    """A template as (fixed wording, column behind it).

    Of the language of ``str.format`` only fields and doubled braces are read, and a
    field is looked up among the row's columns by its whole name: no attribute, no
    index, no conversion, no format.
    """

    def wrong(what: str) -> InputError:
        fix = "write it like 'Text: {text}\\nLabel:'"
        return InputError(what, where="option --template", fix=fix)

    def escape(found: re.Match[str]) -> str:
        if found[1] not in _ESCAPES:
            raise wrong("has a backslash that is none of \\n, \\t, \\\\")
        return _ESCAPES[found[1]]

    pieces: list[tuple[str, str | None]] = []
    try:
        for fixed, column, form, conversion in string.Formatter().parse(template):
            if form or conversion:
                raise wrong("has a field with ':' or '!'")
            if column == "":
                raise wrong("has a field without a name")
            pieces.append((re.sub(r"(?s)\\(.|$)", escape, fixed), column))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise wrong(f"is malformed ({error})") from error
    if not any(column for _, column in pieces):
        raise wrong("names no column")
    return pieces


def _filled(pieces: list[tuple[str, str | None]], row: Row) -> tuple[str, Ranges]:
    """The prompt, and where the fixed wording stands in it."""
    prompt, ranges = "", []
    for fixed, column in pieces:
        if fixed:
            ranges.append((len(prompt), len(prompt) + len(fixed)))
        prompt += fixed + ("" if column is None else _value(row, column))
    return prompt, tuple(ranges)

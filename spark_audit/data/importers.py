"""Other people's data as examples: JSON lines, CSV, Parquet, datasets, TRACE, O-LoRA.

Every reader yields rows with the place they stand in; one function turns a row into an
example, by a column map or a template.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from spark_audit.data.chat.formats import is_chat
from spark_audit.data.csv_rows import TextLine
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
    unique,
    write_examples,
)
from spark_audit.data.fixed_wording import FixedWording, with_shared_wording
from spark_audit.data.foreign_spans import (
    OFFSET_UNITS,
    Offsets,
    SpanReader,
    looks_annotated,
)
from spark_audit.data.json_rows import EMPTY_FIX
from spark_audit.data.sources import read_rows, rows_of, split_of
from spark_audit.data.task_wording import task_templates
from spark_audit.errors import InputError, at, shown
from spark_audit.json_values import Row

Format = Literal[
    "auto", "jsonl", "csv", "parquet", "text", "datasets", "trace", "olora"
]
Empty = Literal["keep", "drop"]
_ROWS_PER_PROGRESS_CALL = 1000
"""Rows between two calls of a progress."""
_IMPORTED = ("prompt", "response", "id", "source_id", "split")
_OWN_FIELDS = frozenset(field.name for field in fields(Example))
_COLUMNS_OF_FORMAT = {
    "own": {"prompt": "prompt", "response": "response"},
    "trace": {"prompt": "prompt", "response": "answer"},
    "olora": {"prompt": "sentence", "response": "label"},
    "simple": {"prompt": "text", "response": "label"},
}
"""Usual column names of prompt and response."""
_ALL_LAYOUTS = [*_COLUMNS_OF_FORMAT.values()]


def import_rows(
    source: str | Path,
    output: str | Path,
    *,
    task: str,
    format: Format = "auto",
    split: Split | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
    encoding: str | None = None,
    empty: Empty | None = None,
    offsets: Offsets | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> dict[Split, int]:
    r"""Read somebody else's data and write it as JSON lines, row by row.

    A prompt is its column as it stands, or the template with the row's columns in it.
    The template's fixed wording is recorded in ``Example.template``, together with what
    all prompts begin and end with (data may bring a ``Title:`` of its own): the source
    is then read twice.
    A response gets one leading blank unless it, or the end of the prompt, brings white
    space **[ours]**: ``"...Label:" + " dovish"``. JSON lines that already have all
    fields of this project are copied as they are, under the given task name.
    The file is written whole or not at all.

    Parameters
    ----------
    source
        A file; a folder with files train*, test*, eval*, dev* or val*; a folder that
        ``datasets`` saved; a data set on the hub, ``hf:OWNER/NAME[:CONFIG]``.
    output
        The JSONL to write.
    task
        Name of the task.
    format
        ``auto`` tells by content.
    split
        For rows without one; refused where a file name or a row says otherwise. A file
        whose name begins with the word ``train`` or ``test`` (``eval``, ``dev``,
        ``val``) gives it by itself.
    template
        Fixed wording with ``{column}`` fields; ``{{`` and ``}}`` for braces, ``\n``,
        ``\t`` and ``\\`` for line end, tab and backslash. ``spans`` are then positions
        in the text of its only column.
    columns
        Which column holds ``prompt``, ``response``, ``id``, ``source_id``, ``split``.
        Left out: the column of that name, or one of the pairs prompt/response,
        prompt/answer (TRACE), sentence/label (O-LoRA), text/label. Mapped to the
        empty string: new ids, no prompt, no response. Lines of plain text, which
        files named .txt hold, have none.
    encoding
        What files of text are written in; left out: UTF-8.
    empty
        Rows with an empty field are kept, or dropped and counted. Left out: a
        template's columns may be empty, which is counted, and prompt and response may
        not.
    offsets
        What the rows' ``spans`` count: ``characters``, ``utf-16`` units or ``bytes``.
        Left out: characters, unless the annotated strings stand in the rows and show
        otherwise.
    progress
        Called with a stage's name, the rows done and 0 (their number is not known).
    note
        Called with each thing that was dropped, left out or converted.

    Returns
    -------
    dict
        Rows by split.

    Raises
    ------
    InputError
        Naming file, line or row, and field of the first bad row.
    OutputError
        If a file cannot be read.
    """
    show = progress or (lambda what, done, total: None)
    rows = _Import(
        str(source),
        task,
        format,
        split,
        template,
        dict(columns or {}),
        encoding=encoding,
        empty=empty,
        offsets=offsets,
    )
    if rows.pieces is not None:
        read = partial(show, "rows read")
        rows.common = task_templates(example for _, example in rows.read(read))
    written = unique(rows.read(partial(show, "rows written")))
    write_examples(output, map(rows.worded, written))
    if note is not None:
        for remark in rows.notes():
            note(remark)
    return dict(rows.counts)


class _Import:
    """A source, and how its rows become examples."""

    def __init__(
        self,
        source: str,
        task: str,
        format: Format,
        split: Split | None,
        template: str | None,
        columns: dict[str, str],
        *,
        encoding: str | None,
        empty: Empty | None,
        offsets: Offsets | None,
    ) -> None:
        check_task(task)
        _check_choice("--empty", empty, get_args(Empty))
        _check_choice("--offsets", offsets, OFFSET_UNITS)
        if split not in (None, *get_args(Split)):
            raise InputError(
                "is neither train nor test", where="option --split", fix=SPLIT_FIX
            )
        for field in columns:
            if field not in _IMPORTED or (field == "prompt" and template is not None):
                what = f"{field!r} is no field, or the template makes it"
                fix = f"use one of: {', '.join(_IMPORTED)}"
                raise InputError(what, where="option --map", fix=fix)
        self.source, self.task, self.format, self.split = source, task, format, split
        self.columns, path = columns, Path(source)
        # As a file's in a folder; a folder's own name says nothing.
        self.by_name = split_of(path.stem) if path.is_file() else None
        self.pieces = None if template is None else parse_template(template)
        self.common: dict[str, FixedWording] = {}
        self.encoding, self.empty, self.offsets = encoding, empty, offsets
        self._begin()

    def _begin(self) -> None:
        """Forget what was counted: the source is read again."""
        self.counts: Counter[Split] = Counter()
        self.spans = SpanReader(self.offsets)
        self._told: dict[str, None] = {}
        self._n_empty: Counter[str] = Counter()
        self._dropped: list[str] = []
        self._n_decomposed = 0

    def notes(self) -> Iterator[str]:
        """Yield what was dropped, left out or converted."""
        yield from self._told
        if self._dropped:
            first = ", ".join(self._dropped[:3])
            rows = rows_of(len(self._dropped))
            yield f"{rows} with an empty field dropped, first: {first}"
        for column, count in self._n_empty.items():
            yield f"{rows_of(count)} with an empty field {column!r} kept"
        for (theirs, ours), count in self.spans.renamed.items():
            yield f"{count} spans of type {theirs} count as {ours}"
        for unit, count in self.spans.converted.items():
            yield f"{count} spans counted in {unit} are converted to characters"
        if self._n_decomposed:
            yield (
                f"{rows_of(self._n_decomposed)} with decomposed letters (a letter and "
                "its accent apart) kept so: the same name written otherwise is another "
                "string"
            )

    def worded(self, example: Example) -> Example:
        """Return the example; of a template, with what all prompts share."""
        if self.pieces is None:
            return example
        return with_shared_wording(example, self.common)

    def read(
        self, progress: Callable[[int, int], None]
    ) -> Iterator[tuple[str, Example]]:
        """The examples with their places; at least one. ``counts`` begins anew."""
        self._begin()
        rows = read_rows(
            self.source, self.format, encoding=self.encoding, note=self._tell
        )
        for place, named, row in rows:
            with at(place):
                try:
                    self._tell_of_annotations(row)
                    example = self._example(named, row, place)
                except _EmptyFieldError:
                    self._dropped.append(place)
                    continue
            if not example.text.isascii():
                is_composed = unicodedata.is_normalized("NFC", example.text)
                self._n_decomposed += not is_composed
            yield place, example
            if self.counts.total() % _ROWS_PER_PROGRESS_CALL == 0:
                progress(self.counts.total(), 0)
        if not self.counts:
            what, fix = "holds no rows", EMPTY_FIX
            if self._dropped:
                what, fix = "holds an empty field in every row", "leave out `--empty`"
            raise InputError(what, where=self.source, fix=fix)

    def _tell(self, remark: str) -> None:
        self._told[remark] = None

    def _tell_of_annotations(self, row: Row) -> None:
        """Say which columns hold places of identifiers and are not read."""
        if row.get("spans") is not None:
            return
        for column, value in row.items():
            if looks_annotated(value):
                remark = f"column {shown(column)!r} holds places in a text and is not "
                self._tell(f"{remark}read: name it 'spans' if they are identifiers")

    def _example(self, named: Split | None, row: Row, place: str) -> Example:
        whole = self.pieces is None and not self.columns and {*REQUIRED} <= {*row}
        column = {"split": "split"} if whole else self._column(row)
        split = self._split(named, _name(row, column.get("split")))
        if whole:
            row = self._own_fields(row)
            spans = self.spans.read(row, f"{row['prompt']}{row['response']}")
            example = from_row(
                {**row, "task": self.task, "split": split, "spans": None}, place=place
            )
            self.counts[split] += 1
            return replace(example, spans=spans)

        response, template = self._value(row, column["response"]), None
        if self.pieces is None:
            prompt = self._value(row, column["prompt"])
            spans = self.spans.read(row, prompt + response)
        else:
            values = [self._value(row, one, must=False) for _, one in self.pieces]
            prompt, template, starts = _filled(self.pieces, values)
            spans = self._spans_of_column(row, starts)
        if prompt and response and not (prompt[-1].isspace() or response[0].isspace()):
            response = f" {response}"
            n = len(prompt)  # where the blank stands
            spans = tuple(
                replace(s, start=s.start + (s.start >= n), end=s.end + (s.end > n))
                for s in spans
            )
        self.counts[split] += 1
        name = _name(row, column.get("id"))
        name = name or f"{self.task}-{split}-{self.counts[split]:06d}"
        return Example(
            id=name,
            task=self.task,
            prompt=prompt,
            response=response,
            split=split,
            source_id=_name(row, column.get("source_id")) or name,
            spans=spans,
            template=template,
        )

    def _own_fields(self, row: Row) -> Row:
        """Return the fields of a row of our own format; other columns are told."""
        for column in row:
            if column not in _OWN_FIELDS:
                # Another name may be anything of the data.
                is_plain = re.fullmatch(r"[A-Za-z]+(_[A-Za-z0-9]+)*", column)
                name = repr(column[:40]) if is_plain else "of another name"
                self._tell(f"column {name} is not read")
        return {name: value for name, value in row.items() if name in _OWN_FIELDS}

    def _spans_of_column(
        self, row: Row, starts: list[tuple[int, str]]
    ) -> tuple[Span, ...]:
        """The spans of the template's only column, in the prompt."""
        if row.get("spans") is None:
            return ()
        by, text = starts[0]
        spans = self.spans.read(row, text)
        if spans and (len(starts) > 1 or max(span.end for span in spans) > len(text)):
            raise bad_field(
                "spans",
                "are not positions in the text of the template's only column",
                fix="make the prompt before the import, and give it as a column",
            )
        return tuple(span.moved(by) for span in spans)

    def _value(self, row: Row, column: str | None, *, must: bool = True) -> str:
        """A column's text; no column gives none.

        Parameters
        ----------
        must
            Whether it may not be empty unless ``--empty`` says so.
        """
        if not column:
            return ""
        text = _text(row, column)
        if text is not None and text.strip():
            return text
        if self.empty == "drop":
            raise _EmptyFieldError(column)
        if must and self.empty is None:
            what = "is missing" if text is None else "is blank"
            fix = "leave the row out, or give `--empty drop` or `--empty keep`"
            raise bad_field(column, what, fix=fix)
        self._n_empty[column] += 1
        return text or ""

    def _split(self, named: Split | None, cell: str) -> Split:
        """The row's split, by whichever of option, file name and row gives it."""
        if cell and split_of(cell) is None:
            raise bad_field("split", "is neither train nor test", fix=SPLIT_FIX)
        # A single file's name counts where no row says otherwise.
        by_row = split_of(cell) if cell else self.by_name
        given = [split for split in (self.split, named, by_row) if split is not None]
        if not given:
            raise bad_field("split", "is missing", fix=SPLIT_FIX)
        if len({*given}) > 1:
            what = "is one thing by the option and another by file name or row"
            raise bad_field("split", what, fix="leave out `--split`")
        return given[0]

    def _column(self, row: Row) -> dict[str, str]:
        """Field -> column: what was mapped, and else the columns with usual names."""
        usual = ("id", "source_id", "split")
        found: dict[str, str] = {name: name for name in usual if name in row}
        if column_of_split := _usual_column(row, "split"):
            found["split"] = column_of_split
        if isinstance(row, TextLine):
            found |= {"prompt": "text", "response": ""}
        found |= self.columns
        made = ["prompt"] if self.pieces else []  # by the template
        needed = {"prompt", "response"}.difference(found, made)
        layouts = (
            [_COLUMNS_OF_FORMAT[self.format]]
            if self.format in _COLUMNS_OF_FORMAT
            else _ALL_LAYOUTS
        )
        for names in layouts:
            columns = {field: _usual_column(row, names[field]) for field in needed}
            if all(columns.values()):
                return found | columns
        if is_chat(row):
            raise bad_field(
                "prompt",
                "has no column of a usual name: the row is chat data",
                fix="give `--chat-template CHECKPOINT`, whose tokenizer it was "
                "trained with, or name columns by `--map` and `--template`",
            )
        absent = {
            field
            for field in needed
            if not any(_usual_column(row, names[field]) for names in layouts)
        }
        field = min(absent or needed)
        other = " or `--template`" if field == "prompt" else ", or `--map response=`"
        fix = f"give `--map {field}=COLUMN`{other}"
        what = f"has no column of a usual name ({_listed(row)})"
        raise bad_field(field, what, fix=fix)


def _usual_column(row: Row, name: str) -> str:
    """Return the column of a usual name, or the only one that differs in case alone.

    Empty where there is none, or several differ in case.
    """
    if name in row:
        return name
    columns = [column for column in row if column.lower() == name]
    return columns[0] if len(columns) == 1 else ""


def _listed(row: Row) -> str:
    """The row's columns, unless they may be text: a CSV may lack its line of names."""
    usual = {*chain.from_iterable(names.values() for names in _ALL_LAYOUTS)}
    columns = [*map(str, row)]
    plain = (re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in columns)
    if not usual.isdisjoint(columns) or all(plain):
        shown = (name[:40] for name in columns[:20] if name.isprintable())
        return f"columns: {', '.join(shown)}"
    told = "columns are not shown, as they may be data: does the first line hold names?"
    return f"its {len(columns)} {told}"


class _EmptyFieldError(Exception):
    """A row has an empty field, and such rows are dropped."""


def _text(row: Row, column: str) -> str | None:
    """A column's text; numbers and truth values as JSON writes them.

    ``None`` where the value is missing, as NaN is.
    """
    if column not in row:
        raise bad_field(column, f"is no column ({_listed(row)})")
    value = row[column]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    fix = "make the column one of text, numbers or truth values"
    raise bad_field(column, "is not text", fix=fix)


def _name(row: Row, column: str | None) -> str:
    """An id, a source or a split, which may be missing; whole numbers become text."""
    if not column:
        return ""
    if column not in row:
        raise bad_field(column, f"is no column ({_listed(row)})")
    value = row[column]
    if value is None or value == "":
        return ""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise bad_field(column, "is not text")
    if not value.strip():
        raise bad_field(column, "is blank", fix="leave the row out")
    return value


def _check_choice(option: str, value: object, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        fix = f"use {' or '.join(known)}"
        raise InputError("is not a known choice", where=f"option {option}", fix=fix)


_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def parse_template(template: str) -> list[tuple[str, str | None]]:
    """A template as (fixed wording, column behind it).

    Of the language of ``str.format`` only fields and doubled braces are read, and a
    field is looked up among the row's columns by its whole name: no attribute, no
    index, no conversion, no format.
    """
    try:
        pieces = [*string.Formatter().parse(template)]
        if any(form or conversion for _, _, form, conversion in pieces):
            raise ValueError("it has a field with ':' or '!'")
        columns = [column for _, column, _, _ in pieces if column is not None]
        if not columns or "" in columns:
            raise ValueError("it names no column, or a field has no name")
        return [
            (re.sub(r"(?s)\\(.|$)", lambda found: _ESCAPES[found[1]], fixed), column)
            for fixed, column, _, _ in pieces
        ]
    except (ValueError, KeyError) as error:
        why = "a backslash" if isinstance(error, KeyError) else error
        fix = "write it like 'Text: {text}\\nLabel:', with no other backslash"
        raise InputError(
            f"is no template ({why})", where="option --template", fix=fix
        ) from error


def _filled(
    pieces: list[tuple[str, str | None]], values: list[str]
) -> tuple[str, Ranges, list[tuple[int, str]]]:
    """The prompt, where the fixed wording stands in it, and where each column."""
    prompt, ranges, starts = "", [], []
    for (fixed, column), value in zip(pieces, values, strict=True):
        if fixed:
            ranges.append((len(prompt), len(prompt) + len(fixed)))
        prompt += fixed
        if column is not None:
            starts.append((len(prompt), value))
        prompt += value
    return prompt, tuple(ranges), starts

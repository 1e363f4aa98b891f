"""Import other people's data: JSON lines, CSV, Parquet, datasets, TRACE, O-LoRA.

Every reader yields rows and their places. One function turns a row into an example, by
a map of columns or a template.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, get_args

from spark_audit.arguments import checked_call
from spark_audit.data.chat.formats import is_chat
from spark_audit.data.columns import (
    COLUMNS_OF_LAYOUT,
    listed_columns,
    name_in,
    text_in,
    usual_column,
)
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
from spark_audit.data.prompt_templates import PromptTemplate
from spark_audit.data.sources import agreed_split, read_rows, rows_of, split_of
from spark_audit.data.task_wording import task_templates
from spark_audit.errors import InputError, at, shown
from spark_audit.json_values import Row

Format = Literal[
    "auto", "jsonl", "csv", "parquet", "text", "datasets", "trace", "olora"
]
Empty = Literal["keep", "drop"]
_ROWS_PER_PROGRESS_CALL = 1000
"""Rows between two calls of a progress callback."""
_IMPORTED = ("prompt", "response", "id", "source_id", "split")
"""Fields for which ``--map`` gives a column."""
_OWN_FIELDS = frozenset(own_field.name for own_field in fields(Example))
_PLACES_NAMED = 3
"""Number of example places that a note names."""
_PLAIN_COLUMN = re.compile(r"[A-Za-z]+(_[A-Za-z0-9]+)*")
"""Pattern of a column name that may be shown: another name may be text of the data."""


@checked_call
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
    r"""Read other people's data and write it as JSON lines, row by row.

    A prompt is the cell of its column, or the template filled with the row's columns.
    The template's fixed wording is recorded in ``Example.template``, together with the
    common beginning and end of all prompts (the data may have a ``Title:`` of its own).
    With a template the source is therefore read twice. A response gets one leading
    blank unless it begins, or the prompt ends, with white space **[ours]**:
    ``"...Label:" + " dovish"``. JSON lines that already have all fields of this project
    are copied unchanged, under the given task name. The file is written whole or not at
    all.

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
        ``auto`` recognises the format by content.
    split
        The split of rows without one. It is refused if a file name or a row says
        otherwise. A file whose name begins with the word ``train`` or ``test``
        (``eval``, ``dev``, ``val``) needs no split.
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
        Encoding of text files; default: UTF-8.
    empty
        Whether rows with an empty field are kept, or dropped and counted. By default, a
        template's columns may be empty, which is counted, and prompt and response may
        not.
    offsets
        Unit of the rows' ``spans``: ``characters``, ``utf-16`` units or ``bytes``.
        Default: characters, unless the rows hold annotated strings that show another
        unit.
    progress
        Called with a stage's name, the number of rows done, and 0 (the total is
        unknown).
    note
        Called with a note on everything that was dropped, left out or converted.

    Returns
    -------
    dict
        Rows by split.

    Raises
    ------
    InputError
        Names file, line or row, and field of the first bad row.
    OutputError
        If a file cannot be read.
    """
    _check_options(
        task=task,
        split=split,
        template=template,
        columns=columns or {},
        empty=empty,
        offsets=offsets,
    )
    rows = _RowSource(
        str(source),
        task=task,
        format=format,
        split=split,
        template=None if template is None else PromptTemplate.parse(template),
        columns=columns or {},
        encoding=encoding,
        empty=empty,
        offsets=offsets,
    )

    def show(stage: str, n_rows: int) -> None:
        if progress is not None:
            progress(stage, n_rows, 0)  # the total number of rows is unknown

    # The fixed wording that the data itself adds to a template is known only after all
    # rows were read.
    shared_wording: dict[str, FixedWording] | None = None
    if template is not None:
        first_reading = rows.read(lambda n_rows: show("rows read", n_rows))
        shared_wording = task_templates(example for _, example in first_reading)

    reading = unique(rows.read(lambda n_rows: show("rows written", n_rows)))
    if shared_wording is None:
        write_examples(output, reading)
    else:
        write_examples(
            output,
            (with_shared_wording(example, shared_wording) for example in reading),
        )

    if note is not None:
        for remark in rows.tally.notes():
            note(remark)
    return dict(rows.tally.rows_by_split)


def _check_options(
    *,
    task: str,
    split: str | None,
    template: str | None,
    columns: Mapping[str, str],
    empty: str | None,
    offsets: str | None,
) -> None:
    """Refuse invalid option values before a row is read."""
    check_task(task)
    _check_choice("--empty", empty, get_args(Empty))
    _check_choice("--offsets", offsets, OFFSET_UNITS)
    if split not in (None, *get_args(Split)):
        raise InputError(
            "is neither train nor test", where="option --split", fix=SPLIT_FIX
        )

    for name in columns:
        is_made_by_template = name == "prompt" and template is not None
        if name not in _IMPORTED or is_made_by_template:
            raise InputError(
                f"{name!r} is not a field, or the template makes it",
                where="option --map",
                fix=f"use one of: {', '.join(_IMPORTED)}",
            )


def _check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Refuse a given value that is not one of the choices."""
    if value is not None and value not in choices:
        raise InputError(
            "is not a known choice",
            where=f"option {option}",
            fix=f"use {' or '.join(choices)}",
        )


@dataclass
class _ImportTally:
    """Counts of one reading of a source, for the notes of the import.

    Attributes
    ----------
    spans
        The reader of the rows' spans, which counts renamed and converted spans.
    rows_by_split
        Number of examples by split.
    remarks
        Remarks of readers and rows, each once, in order.
    places_dropped
        Places of the rows that were dropped because of an empty field.
    rows_by_empty_field
        Number of kept rows with an empty field, by column.
    n_decomposed
        Number of rows in which letters and their accents are separate characters.
    """

    spans: SpanReader
    rows_by_split: Counter[Split] = field(default_factory=Counter)
    remarks: dict[str, None] = field(default_factory=dict)
    places_dropped: list[str] = field(default_factory=list)
    rows_by_empty_field: Counter[str] = field(default_factory=Counter)
    n_decomposed: int = 0

    def remark(self, remark: str) -> None:
        """Add a remark unless it is already there."""
        self.remarks[remark] = None

    def notes(self) -> Iterator[str]:
        """Yield notes on rows that were dropped, left out or converted."""
        yield from self.remarks

        if self.places_dropped:
            first = ", ".join(self.places_dropped[:_PLACES_NAMED])
            rows = rows_of(len(self.places_dropped))
            yield f"{rows} with an empty field dropped, first: {first}"
        for column, n_rows in self.rows_by_empty_field.items():
            yield f"{rows_of(n_rows)} with an empty field {column!r} kept"

        for (foreign_type, our_type), n_spans in self.spans.renamed.items():
            yield f"{n_spans} spans of type {foreign_type} count as {our_type}"
        for unit, n_spans in self.spans.converted.items():
            yield f"{n_spans} spans counted in {unit} are converted to characters"
        if self.n_decomposed:
            yield (
                f"{rows_of(self.n_decomposed)} with decomposed letters (a letter and "
                "its accent apart) kept so: the same name written otherwise is another "
                "string"
            )


class _EmptyFieldError(Exception):
    """The row has an empty field, and the options drop such rows."""


class _RowSource:
    """A source of rows, which can be read several times.

    Attributes
    ----------
    tally
        Counts of the last reading.
    """

    def __init__(
        self,
        source: str,
        *,
        task: str,
        format: Format,
        split: Split | None,
        template: PromptTemplate | None,
        columns: Mapping[str, str],
        encoding: str | None,
        empty: Empty | None,
        offsets: Offsets | None,
    ) -> None:
        self._source = source
        self._task = task
        self._format = format
        self._split_option = split
        self._template = template
        self._columns = columns
        self._encoding = encoding
        self._empty = empty
        self._offsets = offsets

        # The name of a folder says nothing about its rows.
        path = Path(source)
        self._split_of_file = split_of(path.stem) if path.is_file() else None
        self.tally = _ImportTally(SpanReader(offsets))

    def read(self, progress: Callable[[int], None]) -> Iterator[tuple[str, Example]]:
        """Yield the examples with their places, and start a new tally.

        Raises
        ------
        InputError
            Names the first bad row. Also raised if there is no example at all.
        """
        # Both readings give the same counts; the notes use the last one.
        self.tally = _ImportTally(SpanReader(self._offsets))
        rows = read_rows(
            self._source, self._format, encoding=self._encoding, note=self.tally.remark
        )
        for place, split_of_part, row in rows:
            # Only errors of reading get the row's place, not errors of the consumer.
            with at(place):
                try:
                    self._remark_annotations(row)
                    example = self._example(split_of_part, row, place)
                except _EmptyFieldError:
                    self.tally.places_dropped.append(place)
                    continue

            # Normalisation takes longer than reading, and ASCII text does not need it.
            if not example.text.isascii():
                is_composed = unicodedata.is_normalized("NFC", example.text)
                self.tally.n_decomposed += not is_composed
            yield place, example

            n_rows = self.tally.rows_by_split.total()
            if n_rows % _ROWS_PER_PROGRESS_CALL == 0:
                progress(n_rows)

        if not self.tally.rows_by_split:
            raise self._no_rows()

    def _no_rows(self) -> InputError:
        """Return the error of a source without a single example."""
        if self.tally.places_dropped:
            return InputError(
                "holds an empty field in every row",
                where=self._source,
                fix="leave out `--empty`",
            )
        return InputError("holds no rows", where=self._source, fix=EMPTY_FIX)

    def _remark_annotations(self, row: Row) -> None:
        """Add a remark on columns that hold annotations and are not read."""
        if row.get("spans") is not None:
            return
        # Their author would believe that these annotations count.
        for column, value in row.items():
            if looks_annotated(value):
                self.tally.remark(
                    f"column {shown(column)!r} holds places in a text and is not "
                    "read: name it 'spans' if they are identifiers"
                )

    def _example(self, split_of_part: Split | None, row: Row, place: str) -> Example:
        """Return the example of a row, by its columns and the options."""
        # A row with all our fields is used as it is, unless an option says otherwise.
        has_own_fields = all(name in row for name in REQUIRED)
        if has_own_fields and self._template is None and not self._columns:
            split = self._split(split_of_part, name_in(row, "split"))
            return self._own_example(row, split, place)

        # Otherwise the options or the usual names assign the columns.
        column_of_field = self._column_of_field(row)
        split = self._split(split_of_part, name_in(row, column_of_field.get("split")))
        response = self._required(row, column_of_field["response"])

        template_ranges: Ranges | None = None
        if self._template is None:
            prompt = self._required(row, column_of_field["prompt"])
            spans = self.tally.spans.read(row, prompt + response)
        else:
            values = [self._value(row, name) for name in self._template.columns]
            filled = self._template.fill(values)
            prompt = filled.text
            template_ranges = filled.fixed_ranges
            spans = self._spans_of_column(row, filled.column_starts, values)

        # A blank separates prompt and response, as in most training scripts.
        has_white_space = prompt[-1:].isspace() or response[:1].isspace()
        if prompt and response and not has_white_space:
            response = f" {response}"
            spans = _moved_behind(spans, border=len(prompt))

        # Rows without an id are numbered as they are read.
        self.tally.rows_by_split[split] += 1
        n_rows = self.tally.rows_by_split[split]
        row_id = name_in(row, column_of_field.get("id"))
        row_id = row_id or f"{self._task}-{split}-{n_rows:06d}"
        source_id = name_in(row, column_of_field.get("source_id"))
        return Example(
            id=row_id,
            task=self._task,
            prompt=prompt,
            response=response,
            split=split,
            source_id=source_id or row_id,
            spans=spans,
            template=template_ranges,
        )

    def _own_example(self, row: Row, split: Split, place: str) -> Example:
        """Return the example of a row in our own format; note its other columns."""
        for column in row:
            if column not in _OWN_FIELDS:
                is_plain = _PLAIN_COLUMN.fullmatch(column) is not None
                name = repr(column[:40]) if is_plain else "of another name"
                self.tally.remark(f"column {name} is not read")

        # The spans may have another tool's type names and units.
        fields_of_row = {
            name: value for name, value in row.items() if name in _OWN_FIELDS
        }
        text = f"{row['prompt']}{row['response']}"
        spans = self.tally.spans.read(fields_of_row, text)
        example = from_row(
            {**fields_of_row, "task": self._task, "split": split, "spans": None},
            place=place,
        )
        self.tally.rows_by_split[split] += 1
        return replace(example, spans=spans)

    def _split(self, split_of_part: Split | None, cell: str) -> Split:
        return agreed_split(
            option=self._split_option,
            part=split_of_part,
            cell=cell,
            file=self._split_of_file,
        )

    def _spans_of_column(
        self, row: Row, column_starts: list[int], values: list[str]
    ) -> tuple[Span, ...]:
        """Return the spans of the template's only column, in the prompt.

        Parameters
        ----------
        column_starts, values
            Start of each of the template's columns in the prompt, and the columns'
            texts.
        """
        if row.get("spans") is None:
            return ()

        # With several columns, the one that the spans index is unknown.
        spans = self.tally.spans.read(row, values[0])
        last_end = max((span.end for span in spans), default=0)
        if spans and (len(values) > 1 or last_end > len(values[0])):
            raise bad_field(
                "spans",
                "are not positions in the text of the template's only column",
                fix="make the prompt before the import, and give it as a column",
            )
        return tuple(span.moved(column_starts[0]) for span in spans)

    def _required(self, row: Row, column: str) -> str:
        """Return the text of a column that may be empty only with ``--empty``.

        Without a column, the text is empty.
        """
        if not column:
            return ""

        text = text_in(row, column)
        is_empty = text is None or not text.strip()
        if is_empty and self._empty is None:
            raise bad_field(
                column,
                "is missing" if text is None else "is blank",
                fix="leave the row out, or give `--empty drop` or `--empty keep`",
            )
        return self._value(row, column)

    def _value(self, row: Row, column: str) -> str:
        """Return the text of a column; an empty text is counted or drops the row."""
        text = text_in(row, column)
        if text is not None and text.strip():
            return text
        if self._empty == "drop":
            raise _EmptyFieldError(column)
        self.tally.rows_by_empty_field[column] += 1
        return text or ""

    def _column_of_field(self, row: Row) -> dict[str, str]:
        """Return the column of each field: the mapped one, or else a usual name.

        Raises
        ------
        InputError
            If prompt or response has no column.
        """
        column_of_field: dict[str, str] = {}
        for name in ("id", "source_id", "split"):
            if name in row:
                column_of_field[name] = name

        # Options win over usual names, and a file of plain lines has no columns at all.
        column_of_split = usual_column(row, "split")
        if column_of_split:
            column_of_field["split"] = column_of_split
        if isinstance(row, TextLine):
            column_of_field |= {"prompt": "text", "response": ""}
        column_of_field |= self._columns

        needed = {"prompt", "response"} - column_of_field.keys()
        if self._template is not None:
            needed -= {"prompt"}

        # One layout must provide all needed fields: a "text" column beside "answer" may
        # be anything.
        layouts = list(COLUMNS_OF_LAYOUT.values())
        if self._format in COLUMNS_OF_LAYOUT:
            layouts = [COLUMNS_OF_LAYOUT[self._format]]
        for usual_names in layouts:
            columns = {name: usual_column(row, usual_names[name]) for name in needed}
            if all(columns.values()):
                return column_of_field | columns
        raise _no_column(row, needed, layouts)


def _no_column(row: Row, needed: set[str], layouts: list[dict[str, str]]) -> InputError:
    """Return the error of a row that lacks a column with a usual name.

    Parameters
    ----------
    needed
        The needed fields, one of which has no column.
    layouts
        Usual column names by field, one map per layout.
    """
    if is_chat(row):
        return bad_field(
            "prompt",
            "has no column of a usual name: the row is chat data",
            fix="give `--chat-template CHECKPOINT`, whose tokenizer it was "
            "trained with, or name columns by `--map` and `--template`",
        )

    # A field that is missing in every layout is named before one that only lacks its
    # partner.
    absent = set()
    for name in needed:
        if not any(usual_column(row, usual_names[name]) for usual_names in layouts):
            absent.add(name)
    missing = min(absent or needed)
    otherwise = " or `--template`" if missing == "prompt" else ", or `--map response=`"
    return bad_field(
        missing,
        f"has no column of a usual name ({listed_columns(row)})",
        fix=f"give `--map {missing}=COLUMN`{otherwise}",
    )


def _moved_behind(spans: tuple[Span, ...], *, border: int) -> tuple[Span, ...]:
    """Return spans for a text with one character inserted at a border."""
    moved = []
    for span in spans:
        start = span.start + (span.start >= border)
        end = span.end + (span.end > border)
        moved.append(replace(span, start=start, end=end))
    return tuple(moved)

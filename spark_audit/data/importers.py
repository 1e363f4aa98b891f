"""Import other people's data: JSON lines, CSV, Parquet, datasets, TRACE, O-LoRA.

The rows come from ``sources.py``, and ``import_loop.py`` goes through them. This file
turns one row with its prompt and response in columns into an example. A usual column
name is added in ``columns.py``, a further note in :class:`_ImportTally`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from spark_audit.arguments import checked_call
from spark_audit.data.columns import columns_of_fields, name_in, text_in
from spark_audit.data.examples import (
    REQUIRED,
    Example,
    Ranges,
    Span,
    Split,
    bad_field,
    check_task,
    from_row,
)
from spark_audit.data.foreign_spans import (
    OFFSET_UNITS,
    Offsets,
    SpanReader,
    looks_annotated,
)
from spark_audit.data.import_loop import (
    RowConverter,
    check_split_option,
    first_places,
    write_imported,
)
from spark_audit.data.json_rows import EMPTY_FIX
from spark_audit.data.prompt_templates import PromptTemplate
from spark_audit.data.sources import rows_of
from spark_audit.errors import InputError, shown
from spark_audit.json_values import Row

Format = Literal[
    "auto", "jsonl", "csv", "parquet", "text", "datasets", "trace", "olora"
]
Empty = Literal["keep", "drop"]
_MAPPED_FIELDS = ("prompt", "response", "id", "source_id", "split")
"""Fields for which ``--map`` gives a column."""
_EXAMPLE_FIELDS = frozenset(example_field.name for example_field in fields(Example))
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
    progress: Callable[[str, int, int], None] | bool | None = None,
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
        unknown). ``True``: a bar, which is the default if a person waits.
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

    Examples
    --------
    >>> sa.import_rows("mail.csv", "mail.jsonl", task="mail", split="train")
    {'train': 2}
    """
    _check_options(
        task=task,
        split=split,
        template=template,
        columns=columns or {},
        empty=empty,
        offsets=offsets,
    )
    prompt_template = None if template is None else PromptTemplate.parse(template)

    def new_converter() -> RowConverter:
        return _ColumnConverter(
            str(source),
            task=task,
            split=split,
            template=prompt_template,
            mapped_columns=columns or {},
            format=format,
            empty=empty,
            offsets=offsets,
        )

    # The data may add fixed wording of its own to that of a template.
    return write_imported(
        output,
        source=str(source),
        format=format,
        encoding=encoding,
        new_converter=new_converter,
        finds_shared_wording=template is not None,
        progress=progress,
        note=note,
    )


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
    check_split_option(split)

    for name in columns:
        is_made_by_template = name == "prompt" and template is not None
        if name not in _MAPPED_FIELDS or is_made_by_template:
            raise InputError(
                f"{name!r} is not a field, or the template makes it",
                where="option --map",
                fix=f"use one of: {', '.join(_MAPPED_FIELDS)}",
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

    A place is a file and line, or row number.

    Attributes
    ----------
    spans
        The reader of the rows' spans, which counts renamed and converted spans.
    places_dropped
        Places of the rows that were dropped because of an empty field.
    rows_by_empty_field
        Number of kept rows with an empty field, by column.
    n_decomposed
        Number of rows in which letters and their accents are separate characters.
    """

    spans: SpanReader
    places_dropped: list[str] = field(default_factory=list)
    rows_by_empty_field: Counter[str] = field(default_factory=Counter)
    n_decomposed: int = 0

    def notes(self) -> Iterator[str]:
        """Yield notes on rows that were dropped, left out or converted."""
        if self.places_dropped:
            rows = rows_of(len(self.places_dropped))
            first = first_places(self.places_dropped)
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


class _Prompt(NamedTuple):
    """A row's prompt, with the annotated spans of the row.

    ``spans`` are in characters of prompt and response together. ``fixed_ranges`` are
    the template's wording in the prompt; ``None`` if there is no template.
    """

    text: str
    spans: tuple[Span, ...]
    fixed_ranges: Ranges | None


class _ColumnConverter(RowConverter):
    """A converter of rows that hold prompt and response in columns.

    Parameters
    ----------
    source, task, split
        As for :class:`RowConverter`.
    template
        Makes the prompt of a row's columns; ``None``: the prompt is one column.
    mapped_columns
        Column of each field that ``--map`` names.
    format, empty, offsets
        The options of :func:`import_rows`.
    """

    def __init__(
        self,
        source: str,
        *,
        task: str,
        split: Split | None,
        template: PromptTemplate | None,
        mapped_columns: Mapping[str, str],
        format: Format,
        empty: Empty | None,
        offsets: Offsets | None,
    ) -> None:
        super().__init__(source, task=task, split=split)
        self._template = template
        self._mapped_columns = mapped_columns
        self._format = format
        self._empty = empty
        self._tally = _ImportTally(SpanReader(offsets))

    def examples_of(
        self, row: Row, place: str, split_by_name: Split | None
    ) -> list[Example]:
        """Return the example of a row; none if it has an empty field and is dropped."""
        self._remark_annotations(row)

        # A row with all our fields is used as it is, unless an option says otherwise.
        has_our_fields = all(name in row for name in REQUIRED)
        has_options = self._template is not None or bool(self._mapped_columns)
        try:
            if has_our_fields and not has_options:
                example = self._example_in_our_format(row, place, split_by_name)
            else:
                example = self._example_of_columns(row, split_by_name)
        except _EmptyFieldError:
            self._tally.places_dropped.append(place)
            return []

        # Normalisation takes longer than reading, and ASCII text does not need it.
        if not example.text.isascii():
            is_composed = unicodedata.is_normalized("NFC", example.text)
            self._tally.n_decomposed += not is_composed
        return [example]

    def no_rows(self) -> InputError:
        """Return the error of a source without a single example."""
        if self._tally.places_dropped:
            return InputError(
                "holds an empty field in every row",
                where=self.source,
                fix="leave out `--empty`",
            )
        return InputError("holds no rows", where=self.source, fix=EMPTY_FIX)

    def counted_notes(self) -> Iterator[str]:
        """Yield notes on rows that were dropped, left out or converted."""
        return self._tally.notes()

    def _remark_annotations(self, row: Row) -> None:
        """Add a remark on columns that hold annotations and are not read."""
        if row.get("spans") is not None:
            return
        # Their author would believe that these annotations count.
        for column, value in row.items():
            if looks_annotated(value):
                self.remark(
                    f"column {shown(column)!r} holds places in a text and is not "
                    "read: name it 'spans' if they are identifiers"
                )

    def _example_in_our_format(
        self, row: Row, place: str, split_by_name: Split | None
    ) -> Example:
        """Return the example of a row that has our fields; note its other columns."""
        split = self.split_of_row(split_by_name, cell=name_in(row, "split"))
        for column in row:
            if column not in _EXAMPLE_FIELDS:
                is_plain = _PLAIN_COLUMN.fullmatch(column) is not None
                name = repr(column[:40]) if is_plain else "of another name"
                self.remark(f"column {name} is not read")

        # The spans may have another tool's type names and units.
        our_fields = {
            name: value for name, value in row.items() if name in _EXAMPLE_FIELDS
        }
        text = f"{row['prompt']}{row['response']}"
        spans = self._tally.spans.read(our_fields, text)
        example = from_row(
            {**our_fields, "task": self.task, "split": split, "spans": None},
            place=place,
        )
        self.rows_by_split[split] += 1
        return replace(example, spans=spans)

    def _example_of_columns(self, row: Row, split_by_name: Split | None) -> Example:
        """Return the example of a row whose fields stand in other columns.

        Raises
        ------
        InputError
            Names the column that is missing or does not fit.
        _EmptyFieldError
            If a field is empty, and ``--empty drop`` is given.
        """
        column_of_field = columns_of_fields(
            row,
            mapped=self._mapped_columns,
            format=self._format,
            needs_prompt=self._template is None,
        )
        split_cell = name_in(row, column_of_field.get("split"))
        split = self.split_of_row(split_by_name, cell=split_cell)

        response = self._required_text(row, column_of_field["response"])
        if self._template is None:
            prompt = self._prompt_of_column(row, column_of_field["prompt"], response)
        else:
            prompt = self._prompt_of_template(row, self._template)

        # A blank separates prompt and response, as in most training scripts.
        spans = prompt.spans
        has_white_space = prompt.text[-1:].isspace() or response[:1].isspace()
        if prompt.text and response and not has_white_space:
            response = f" {response}"
            spans = _after_blank_inserted(spans, position=len(prompt.text))

        # Rows without an id are numbered as they are read.
        self.rows_by_split[split] += 1
        row_id = name_in(row, column_of_field.get("id")) or self.new_id(split)
        source_id = name_in(row, column_of_field.get("source_id")) or row_id
        return Example(
            id=row_id,
            task=self.task,
            prompt=prompt.text,
            response=response,
            split=split,
            source_id=source_id,
            spans=spans,
            template=prompt.fixed_ranges,
        )

    def _prompt_of_column(self, row: Row, column: str, response: str) -> _Prompt:
        """Return the prompt of a column; the row's spans may reach into the response.

        Parameters
        ----------
        column
            The prompt's column; empty if the row has no prompt.
        """
        text = self._required_text(row, column)
        spans = self._tally.spans.read(row, text + response)
        return _Prompt(text, spans, fixed_ranges=None)

    def _prompt_of_template(self, row: Row, template: PromptTemplate) -> _Prompt:
        """Return the prompt that a template makes of a row's columns.

        The row's spans are positions in the text of the template's only column.
        """
        values = [self._text_or_drop(row, column) for column in template.columns]
        filled = template.fill(values)
        if row.get("spans") is None:
            return _Prompt(filled.text, (), filled.fixed_ranges)

        # With several columns, the one that the spans index is unknown.
        spans_in_column = self._tally.spans.read(row, values[0])
        last_end = max((span.end for span in spans_in_column), default=0)
        if spans_in_column and (len(values) > 1 or last_end > len(values[0])):
            raise bad_field(
                "spans",
                "are not positions in the text of the template's only column",
                fix="make the prompt before the import, and give it as a column",
            )

        column_start = filled.column_starts[0]
        spans = tuple(span.moved(column_start) for span in spans_in_column)
        return _Prompt(filled.text, spans, filled.fixed_ranges)

    def _required_text(self, row: Row, column: str) -> str:
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
        return self._text_or_drop(row, column)

    def _text_or_drop(self, row: Row, column: str) -> str:
        """Return the text of a column; an empty text is counted or drops the row.

        Raises
        ------
        _EmptyFieldError
            If the text is empty, and ``--empty drop`` is given.
        """
        text = text_in(row, column)
        if text is not None and text.strip():
            return text
        if self._empty == "drop":
            raise _EmptyFieldError(column)
        self._tally.rows_by_empty_field[column] += 1
        return text or ""


def _after_blank_inserted(
    spans: tuple[Span, ...], *, position: int
) -> tuple[Span, ...]:
    """Return the spans as they are after a blank was inserted at a position.

    A span on both sides of the position includes the blank; one that ends at the
    position does not.
    """
    moved = []
    for span in spans:
        start = span.start + (span.start >= position)
        end = span.end + (span.end > position)
        moved.append(replace(span, start=start, end=end))
    return tuple(moved)

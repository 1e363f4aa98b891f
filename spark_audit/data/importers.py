"""Other people's data as examples: JSON lines, CSV, Parquet, datasets, TRACE, O-LoRA.

Every reader yields rows with the place they stand in; one function turns a row into an
example, by a column map or a template.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar, get_args

from spark_audit.data.examples import (
    EMPTY_FIX,
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
    unique,
    write_examples,
)
from spark_audit.data.readers import Cells, Line, Row, read_rows, split_of
from spark_audit.data.templates import parse_template, task_templates, template_ranges
from spark_audit.errors import InputError

Format = Literal[
    "auto", "jsonl", "csv", "parquet", "text", "datasets", "trace", "olora"
]
T = TypeVar("T")
_EVERY = 1000
"""Rows between two calls of a progress."""
_IMPORTED = ("prompt", "response", "id", "source_id", "split")
_LAYOUTS = {
    "own": ("prompt", "response"),
    "trace": ("prompt", "answer"),
    "olora": ("sentence", "label"),
    "simple": ("text", "label"),
}
"""Usual column names of prompt and response."""
_ALL_LAYOUTS = [*_LAYOUTS.values()]


def import_rows(
    source: str | Path,
    output: str | Path,
    *,
    task: str,
    format: Format = "auto",
    split: Split | None = None,
    template: str | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
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
    progress
        Called with a stage's name, the rows done and 0 (their number is not known).

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
    rows = _Import(str(source), task, format, split, template, dict(columns or {}))
    counts = Counter[Split]()
    if rows.pieces is not None:
        read = _counted(rows.read(), "rows read", progress)
        rows.common = task_templates(example for _, example in read)

    def examples() -> Iterator[Example]:
        for example in unique(_counted(rows.read(), "rows written", progress)):
            counts[example.split] += 1
            yield rows.worded(example)

    write_examples(output, examples())
    return dict(counts)


def _counted(
    rows: Iterable[T], what: str, progress: Callable[[str, int, int], None] | None
) -> Iterator[T]:
    for done, row in enumerate(rows, start=1):
        yield row
        if progress is not None and done % _EVERY == 0:
            progress(what, done, 0)


@dataclass
class _Import:
    """A source, and how its rows become examples."""

    source: str
    task: str
    format: Format
    split: Split | None
    template: str | None
    columns: dict[str, str]
    common: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_task(self.task, where="option --task")
        self.by_name = named_file(Path(self.source))
        if self.split not in (None, *get_args(Split)):
            raise InputError(
                "is neither train nor test", where="option --split", fix=SPLIT_FIX
            )
        if self.split and self.by_name and self.split != self.by_name:
            raise InputError(
                f"the file's name says {self.by_name}",
                where="option --split",
                fix="leave it out, or rename the file",
            )
        for field in self.columns:
            if field not in _IMPORTED:
                what = f"{field!r} is no field of an example"
                fix = f"use one of: {', '.join(_IMPORTED)}"
                raise InputError(what, where="option --map", fix=fix)
        if self.template is not None and "prompt" in self.columns:
            raise InputError(
                "a template makes the prompt, so no column can be mapped to it",
                where="option --map",
                fix="give `--template` or `--map prompt=`, not both",
            )
        self.pieces = None if self.template is None else parse_template(self.template)
        named = (column for _, column in self.pieces or ())
        self.asked = {*self.columns.values(), *named}

    def worded(self, example: Example) -> Example:
        """The example of a template, with what all prompts share as fixed wording."""
        if self.pieces is None:
            return example
        # Ranges that overlap or touch are one.
        fixed = bytearray(len(example.text))
        shared = template_ranges(replace(example, template=None), self.common)
        for start, end in (*shared, *(example.template or ())):
            fixed[start:end] = b"\1" * (end - start)
        ranges = tuple(found.span() for found in re.finditer(b"\1+", fixed))
        return replace(example, template=ranges)

    def read(self) -> Iterator[tuple[str, Example]]:
        """The examples with their places; at least one."""
        counts: Counter[Split] = Counter()
        for place, named, row in read_rows(self.source, self.format):
            try:
                yield place, self._example(named, row, counts, place)
            except InputError as error:
                if not str(error.where).startswith("field"):
                    raise
                what = f"{error.what} ({_listed(row, self.asked)})"
                named_columns = InputError(what, where=error.where, fix=error.fix)
                raise located(place, named_columns) from error
        if not counts:
            raise InputError("holds no rows", where=self.source, fix=EMPTY_FIX)

    def _example(
        self, named: Split | None, row: Row, counts: Counter[Split], place: str
    ) -> Example:
        whole = self.pieces is None and not self.columns and set(REQUIRED) <= set(row)
        wanted = {} if whole else self._wanted(row)
        by_row = _cell(row, wanted.get("split")) or self.by_name
        split = _one_split(self.split, named, row["split"] if whole else by_row)
        counts[split] += 1
        if whole:
            return from_row(row | {"task": self.task, "split": split}, place=place)
        template: Ranges | None = None
        spans = spans_field(row)
        if self.pieces is None:
            prompt = _value(row, wanted["prompt"]) if wanted["prompt"] else ""
        else:
            prompt, template, spans = _filled(self.pieces, row, spans)
        response = _value(row, wanted["response"]) if wanted["response"] else ""
        if prompt and response and not (prompt[-1].isspace() or response[0].isspace()):
            response = f" {response}"
            at = len(prompt)  # of the blank
            spans = tuple(
                replace(s, start=s.start + (s.start >= at), end=s.end + (s.end > at))
                for s in spans
            )
        made = f"{self.task}-{split}-{counts[split]:06d}"
        name = _cell(row, wanted.get("id")) or made
        return Example(
            id=name,
            task=self.task,
            prompt=prompt,
            response=response,
            split=split,
            source_id=_cell(row, wanted.get("source_id")) or name,
            spans=spans,
            template=template,
        )

    def _wanted(self, row: Row) -> dict[str, str]:
        """Field -> column: what was mapped, and else the columns with usual names."""
        usual = {name: name for name in ("id", "source_id", "split") if name in row}
        if isinstance(row, Line):
            return usual | {"prompt": "text", "response": ""} | self.columns
        made = {*self.columns, *(["prompt"] if self.pieces else [])}
        needed = [field for field in ("prompt", "response") if field not in made]
        layouts = [_LAYOUTS[self.format]] if self.format in _LAYOUTS else _ALL_LAYOUTS
        for pair in layouts:
            names = dict(zip(("prompt", "response"), pair, strict=True))
            if all(names[field] in row for field in needed):
                return usual | {field: names[field] for field in needed} | self.columns
        absent = {
            field
            for field in needed
            if not any(pair[field == "response"] in row for pair in _ALL_LAYOUTS)
        }
        field = min(absent or needed)
        other = ", or `--map response=` for none"
        fix = f"give `--map {field}=COLUMN`"
        fix += " or `--template`" if field == "prompt" else other
        raise bad_field(field, "has no column of a usual name", fix=fix)


def _listed(row: Row, asked: Collection[str | None]) -> str:
    """The row's columns, unless they may be text (a CSV without a first line).

    Known as names: a usual one, one nearly ``asked`` for; no CSV's also single words.
    """
    names = [str(name) for name in row]
    usual = dict.fromkeys(name for pair in _ALL_LAYOUTS for name in pair)
    known = {*_IMPORTED, *usual, *asked} & {*names}
    known |= {near for a in asked for near in get_close_matches(a or "", names)}
    # Of a CSV, "Maria" is data and "hunter2" may be; "review_text" is a name.
    word = r"[a-z]+(_[a-z]+)*" if isinstance(row, Cells) else r"[A-Za-z_][\w-]*"
    if known or all(re.fullmatch(word, name) for name in names):
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        shown = (name if name.isprintable() else ascii(name) for name in names[:20])
        short = ", ".join(n if len(n) <= 40 else f"{n[:37]}..." for n in shown)
        return f"columns: {short}{more}"
    count = f"{len(names)} column{'s' * (len(names) != 1)}"
    return (
        f"{count}, not shown as their names may be data, and none of "
        f"{', '.join(usual)}: does the first line hold names?"
    )


def _value(row: Row, column: str) -> str:
    """A column's text; whole numbers, as label columns hold them, become text."""
    if column not in row:
        raise bad_field(column, "is no column")
    value = row[column]
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise bad_field(column, "is missing" if value is None else "is not text")
    if not value.strip():
        raise bad_field(column, "is blank", fix="leave the row out")
    return value


def _cell(row: Row, column: str | None) -> str | None:
    """An optional field: no column, no value and a blank one are None."""
    if not column or (column in row and row[column] in (None, "")):
        return None
    return _value(row, column)


def named_file(path: Path) -> Split | None:
    """What a single file's name says by its first word, as in a folder of files."""
    words = r"(train(ing)?|test(ing)?|eval(uation)?|dev|val(id(ation)?)?)(?![a-z])"
    named = re.match(words, path.stem.lower())
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


def _filled(
    pieces: list[tuple[str, str | None]], row: Row, spans: tuple[Span, ...]
) -> tuple[str, Ranges, tuple[Span, ...]]:
    """The prompt, where the fixed wording stands in it, and the only column's spans."""
    prompt, ranges, columns = "", [], {}
    for fixed, column in pieces:
        if fixed:
            ranges.append((len(prompt), len(prompt) + len(fixed)))
        prompt += fixed
        if column is not None:
            value = _value(row, column)
            columns[len(prompt), column] = value
            prompt += value
    (by, column), *others = columns
    if spans and others:
        raise bad_field(
            "spans",
            f"are positions in one text, and the template holds {len(columns)} columns",
            fix="make the prompt before the import, and give it as a column",
        )
    if any(span.end > len(value) for span in spans):
        raise bad_field("spans", f"end behind the text of {column!r}")
    return prompt, tuple(ranges), tuple(span.moved(by) for span in spans)

"""Examples with annotated identifiers, and the files that hold them.

An example is ``prompt + response`` as one causal-LM sequence. All character offsets
index this joint text. A bad row raises an error that names file, line and field and
never shows the text.

A further field of :class:`Example` is declared in the class and, if it is not a plain
string, in :func:`_has_field_types`; what its values must satisfy stands in
``Example.__post_init__``. Reading and writing follow from the declaration.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from spark_audit.arguments import checked_call, checked_value
from spark_audit.data import file_kinds
from spark_audit.data.json_rows import json_lines
from spark_audit.data.training_input import TrainingInput, answer_end
from spark_audit.errors import InputError, at
from spark_audit.files import write_atomically
from spark_audit.json_values import JsonObject

Split = Literal["train", "test"]
Origin = Literal["natural", "injected"]
Part = Literal["name", "password", "ssn"]
"""A part of a canary."""
Ranges = tuple[tuple[StrictInt, StrictInt], ...]
"""Character ranges ``(start, end)`` of a text, end exclusive."""
# A million spans have only a few types: interning keeps each type once.
Word = Annotated[StrictStr, AfterValidator(sys.intern)]


def _id_as_text(value: object) -> object:
    """Return an id as text if it is a whole number, else the value as it is."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return str(value) if is_whole else value


Id = Annotated[StrictStr, BeforeValidator(_id_as_text)]
"""An id: text, or a whole number, which becomes text."""
T = TypeVar("T")
PII_TYPES = tuple("NAME EMAIL PHONE SSN PASSWORD CREDIT_CARD ADDRESS ID OTHER".split())
TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
"""A type of identifiers: one of :data:`PII_TYPES`, or a type of the user's own."""
REQUIRED = ("id", "task", "prompt", "response", "split")
"""Fields that every row of a data file has."""
_OTHER_FORMATS = (".csv", ".tsv", ".parquet", ".xlsx", ".arrow")
"""Endings of data files that must be imported first."""
SPLIT_FIX = (
    "give `--split train` or `--split test`, a column `split` with these words, or a "
    "folder whose files are named train* and test* (or eval*, dev*)"
)
MAX_ID_LENGTH = 1000
"""Most letters of an id or a source."""
SAME_AS_ID = "\0same as id"
"""Stands for a source that was not given; no source can hold the character."""
_NUMBERED_ID = re.compile(r"(?:row|r|example|ex)?[-_ ]?[0-9]{1,6}", re.IGNORECASE)
"""An id that only counts rows, such as ``77`` or ``r77``."""
_TASK = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,199}")


# A file's objects hold no other keys, and no value is coerced. Errors of pydantic leave
# out their input, which may be text of a row.
_CLOSED = ConfigDict(extra="forbid", hide_input_in_errors=True)
# A file leaves these fields out if they are empty.
_UNSAID = Field(exclude_if=lambda value: not value)
# A file leaves this field out if it is None; an empty tuple is written.
_UNSAID_IF_NONE = Field(exclude_if=lambda value: value is None)


@dataclass(frozen=True, slots=True)
class Span:
    """An annotated identifier: characters ``start:end`` of ``prompt + response``.

    ``origin`` is ``injected`` if this package put the identifier there. Only the spans
    of a canary have a ``part``.

    Examples
    --------
    >>> span = sa.Span(5, 13, "PHONE")
    >>> "Call 555-0142"[span.start : span.end]
    '555-0142'
    """

    start: StrictInt
    end: StrictInt
    type: Word
    origin: Origin = "natural"
    part: Part | None = None

    __pydantic_config__ = _CLOSED

    def moved(self, by: int) -> Span:
        """Return the span, moved by so many characters."""
        return dataclasses.replace(self, start=self.start + by, end=self.end + by)


@dataclass(frozen=True)
class Canary:
    """The canary that stands in an example.

    ``dose`` is the number of train rows that hold the canary (0 if it is held out).
    ``seed`` is the seed of its parts, and ``format`` the name of its frame. Two
    canaries with the same ``pair`` were drawn alike, and a fair coin chose which one is
    held out.
    """

    id: StrictStr
    format: StrictStr
    dose: StrictInt
    held_out: StrictBool
    seed: StrictInt
    pair: Annotated[StrictStr | None, _UNSAID] = None

    __pydantic_config__ = _CLOSED


@dataclass(frozen=True, slots=True)
class Example:
    """A row of data: train rows are members, test rows are non-members.

    ``spans`` are kept in text order and must not overlap. ``template`` holds the
    character ranges of the task's fixed wording; ``None`` means that
    :mod:`spark_audit.data.task_wording` finds it from the task's prompts. ``frames``
    holds the ranges of injected sentences, identifiers included: other rows hold the
    same sentences. ``training_input`` says how a training run read a row of chat data.

    The rules are those of rows in files: a row without a ``source_id`` is a source of
    its own, an id may be a whole number, and spans may be given as mappings.

    Raises
    ------
    InputError
        Names the field, if spans or ranges do not fit the text, if the text is blank or
        not valid Unicode, or if the task, the split or the type of a span is invalid.

    Examples
    --------
    >>> spans = [{"start": 5, "end": 13, "type": "PHONE"}]
    >>> row = sa.Example("r1", "calls", "Call 555-0142", " now", "train", spans=spans)
    >>> row.text
    'Call 555-0142 now'
    """

    id: Id
    task: Word
    prompt: StrictStr = dataclasses.field(repr=False)
    response: StrictStr = dataclasses.field(repr=False)
    split: Split
    source_id: Id = SAME_AS_ID
    spans: tuple[Span, ...] = ()
    canary: Canary | None = None
    template: Annotated[Ranges | None, _UNSAID_IF_NONE] = None
    frames: Annotated[Ranges, _UNSAID] = ()
    training_input: Annotated[TrainingInput | None, _UNSAID] = None

    __pydantic_config__ = _CLOSED

    def __post_init__(self) -> None:
        # The class is frozen, so its own setter cannot change a field.
        if self.source_id == SAME_AS_ID:
            object.__setattr__(self, "source_id", self.id)

        # Values as a file has them become values of the fields' types, or are refused:
        # from_row makes a second example, whose fields this one takes.
        if not _has_field_types(self):
            checked = from_row(_fields_of(self), place=_place_of(self.id))
            for name, value in _fields_of(checked).items():
                object.__setattr__(self, name, value)
            return

        check_task(self.task)
        _check_name("id", self.id)
        _check_name("source_id", self.source_id)

        # JSON may hold half a surrogate pair ("\ud83d"), which a UTF-8 file cannot.
        for field, text in (("prompt", self.prompt), ("response", self.response)):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise bad_field(
                    field,
                    "holds half a surrogate pair",
                    fix="remove what stands for half a character",
                ) from None
        if not self.text.strip():
            raise bad_field("prompt", "and response are blank", fix="leave the row out")

        # Spans are checked in text order, but errors name their number in the file.
        numbered_spans = sorted(enumerate(self.spans), key=lambda item: item[1].start)
        _check_spans(numbered_spans, self.text)
        _check_ranges("template", self.template or (), self.text)
        _check_ranges("frames", self.frames, self.text)
        if self.training_input is not None:
            _check_training_input(self.training_input, self.text)

        object.__setattr__(self, "spans", tuple(span for _, span in numbered_spans))

    @property
    def text(self) -> str:
        """``prompt + response``."""
        return self.prompt + self.response

    @property
    def answer(self) -> str:
        """The response without the text that a chat template writes behind it."""
        turns: Ranges = ()
        if self.training_input is not None:
            turns = tuple((turn.start, turn.end) for turn in self.training_input.turns)

        start = len(self.prompt)
        end = answer_end(turns, start, len(self.text))
        return self.text[start:end]


def _place_of(id: object) -> str:
    """Return the name of an example for errors, with its id if that is a number.

    Other ids are left out, because a name or an address may serve as one.
    """
    text = str(_id_as_text(id))
    return f"Example {text!r}" if _NUMBERED_ID.fullmatch(text) else "Example"


def _fields_of(example: Example) -> dict[str, Any]:
    """Return the values of the fields by name."""
    # dataclasses.asdict would turn spans into dictionaries.
    return {
        field.name: getattr(example, field.name)
        for field in dataclasses.fields(example)
    }


def _has_field_types(example: Example) -> bool:
    """Return whether fields have their types, which Python itself does not check.

    If not, ``Example`` validates them as those of a file's row, which takes longer.
    """
    names = (example.id, example.task, example.source_id)
    texts = (*names, example.prompt, example.response)
    return (
        all(isinstance(text, str) for text in texts)
        and example.split in get_args(Split)
        and isinstance(example.spans, tuple | list)
        and all(isinstance(span, Span) for span in example.spans)
        and isinstance(example.canary, Canary | None)
        and isinstance(example.template, tuple | None)
        and isinstance(example.frames, tuple)
        and isinstance(example.training_input, TrainingInput | None)
    )


def check_task(name: str) -> None:
    """Refuse a task name that cannot be a file name."""
    if not _TASK.fullmatch(name):
        raise bad_field(
            "task",
            "is not a plain name",
            fix="use letters, digits, '.', '_', '+', '-'",
        )


def _check_name(field: str, name: str) -> None:
    """Refuse an id or a source that cannot stand in a line of a table."""
    if not name.strip() or not name.isprintable():
        raise bad_field(
            field,
            "is blank or holds control characters",
            fix="give it letters and digits",
        )
    if len(name) > MAX_ID_LENGTH:
        raise bad_field(
            field, f"is longer than {MAX_ID_LENGTH} characters", fix="shorten it"
        )


def _check_spans(numbered_spans: Sequence[tuple[int, Span]], text: str) -> None:
    """Refuse spans that have an unknown type, overlap, or lie outside of the text.

    Parameters
    ----------
    numbered_spans
        The spans in text order, each with its number in the file.
    """
    for number, span in numbered_spans:
        if not TYPE.fullmatch(span.type):
            raise bad_field(
                f"spans[{number}].type",
                "is not a type",
                fix=f"use one of: {', '.join(PII_TYPES)}, or your own in capitals",
            )

    last_end = 0
    for number, span in numbered_spans:
        _check_range(f"spans[{number}]", span.start, span.end, last_end, text)
        last_end = span.end


def _check_ranges(field: str, ranges: Iterable[tuple[int, int]], text: str) -> None:
    """Refuse ranges that are out of order, overlap, or lie outside of the text."""
    last_end = 0
    for number, (start, end) in enumerate(ranges):
        _check_range(f"{field}[{number}]", start, end, last_end, text)
        last_end = end


def _check_range(field: str, start: int, end: int, last_end: int, text: str) -> None:
    """Refuse a range that begins before the last one ends or leaves the text."""
    if not last_end <= start < end <= len(text):
        raise bad_field(
            field,
            f"{start}:{end} is empty, out of order, overlaps another or lies outside "
            f"0:{len(text)}",
        )


def _check_training_input(training: TrainingInput, text: str) -> None:
    """Refuse a training input that cannot belong to the text."""
    turns = [(turn.start, turn.end) for turn in training.turns]
    _check_ranges("training_input.turns", turns, text)
    _check_ranges("training_input.supervised", training.supervised, text)
    if training.max_length is not None and training.max_length < 1:
        raise bad_field("training_input.max_length", "is below 1")
    if any(token < 0 for token in training.token_ids or ()):
        raise bad_field("training_input.token_ids", "holds a number below 0")


def bad_field(field: str, problem: str, *, fix: str | None = None) -> InputError:
    """Return the error of one field; the caller adds file and line."""
    return InputError(f"field '{field}' {problem}", fix=fix)


def data_files(paths: Iterable[Path]) -> list[Path]:
    """Return the given JSON-lines files and those in the given folders, in order.

    Raises
    ------
    InputError
        If a folder holds none, or a file is given twice.
    """
    file_by_target: dict[Path, Path] = {}
    for path in paths:
        for file in _files_at(path):
            # A link or another spelling of the path leads to the same file.
            target = file.resolve()
            if target in file_by_target:
                raise InputError("is given twice", where=str(file), fix="leave one out")
            file_by_target[target] = file
    return list(file_by_target.values())


def _files_at(path: Path) -> list[Path]:
    """Return the JSON-lines file at a path, or the JSON-lines files of a folder."""
    advice = "make one with `spark-audit data import`"
    if not path.is_dir():
        if path.suffix in _OTHER_FORMATS:
            raise InputError("is not a JSON-lines file", where=str(path), fix=advice)
        return [path]

    # A file with another ending would be left out silently.
    files = sorted(path.glob("*.jsonl"))
    file_kinds.check_left_out(
        path, read=files, others=path.iterdir(), endings=file_kinds.JSON_LINES
    )
    if not files:
        raise InputError("holds no .jsonl file", where=str(path), fix=advice)
    return files


@checked_call
def read_examples(*paths: str | Path) -> list[Example]:
    """Read data files (JSON lines as ``write_examples`` writes them), in order.

    Raises
    ------
    OutputError
        If a file cannot be read.
    InputError
        Names file, line and field of the first bad row. Also raised for an id that
        occurs twice, in one file or in two.

    Examples
    --------
    >>> rows = sa.read_examples("rows.jsonl")
    >>> rows[0].split
    'train'
    """
    if not paths:
        raise InputError("no data file was given", fix="give at least one")
    return list(unique(_rows_of(paths)))


def _rows_of(paths: Iterable[str | Path]) -> Iterator[tuple[str, Example]]:
    """Yield the examples of data files with their places."""
    for path in paths:
        for place, row in json_lines(Path(path)):
            yield place, from_row(row, place=place)


@checked_call
def write_examples(path: str | Path, examples: Iterable[Example]) -> None:
    """Write examples as JSON lines, whole or not at all, readable by the owner only.

    ``examples`` may be lazy: if it raises an error, no file is written. Equal examples
    give equal bytes, and :func:`read_examples` returns the same examples.

    Examples
    --------
    >>> sa.write_examples("first.jsonl", rows[:2])
    >>> len(sa.read_examples("first.jsonl"))
    2
    """

    def write(file: IO[bytes]) -> None:
        for number, example in enumerate(examples):
            # Lazy examples are looked at one by one.
            checked_value(f"examples[{number}]", example, Example)
            row = _EXAMPLE.dump_python(example, mode="json")
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    write_atomically(Path(path), write, mode=0o600)


def from_row(row: JsonObject, *, place: str) -> Example:
    """Return the example of a JSON object.

    Parameters
    ----------
    row
        A line of a data file. A key whose value is null counts as absent.
    place
        File and line, for errors.

    Raises
    ------
    InputError
        Names the first bad field.
    """
    fields = {
        key: _without_nulls(value) for key, value in row.items() if value is not None
    }
    # A row without a source counts as a source of its own.
    if "source_id" not in fields and "id" in fields:
        fields["source_id"] = fields["id"]
    with at(place):
        return _validated(_EXAMPLE, fields)


def spans_field(row: JsonObject) -> tuple[Span, ...]:
    """Return the field ``spans``; empty if it is absent or null."""
    spans = row.get("spans")
    if spans is None:
        return ()
    return _validated(_SPANS, _without_nulls(spans), "spans")


_EXAMPLE = TypeAdapter(Example)
_SPANS = TypeAdapter(tuple[Span, ...], config=ConfigDict(hide_input_in_errors=True))
_FIXES = {"id": "`data import` makes ids", "split": SPLIT_FIX}
"""Advice on bad fields."""
_WORDS_OF_KINDS: Mapping[type, str] = {
    bool: "a truth value",
    Integral: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    tuple: "a list",
    Mapping: "an object",
}
"""Kind of a value -> its words. A truth value is a whole number to Python, too."""


def _without_nulls(value: object) -> object:
    """Return JSON without null keys, because null means the same as absent."""
    if isinstance(value, Mapping):
        return {
            key: _without_nulls(item) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _validated(adapter: TypeAdapter[T], value: object, *inside: str | int) -> T:
    """Return a validated value, or raise an error that names only the field.

    Parameters
    ----------
    inside
        Path of the value in its row.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        # The input is left out of the error, because it is text of the row.
        first = error.errors(include_input=False, include_url=False)[0]
        steps = (*inside, *first["loc"])
        problem = first["msg"].lower()
        if first["type"] == "unexpected_keyword_argument":
            # An unknown key is not shown, because it may be text of the data.
            steps = steps[:-1] or ("*",)
            problem = "a key that is not known"
        elif first["type"].endswith("_type"):
            # Of the value only its kind is named.
            problem = f"{problem}, and is {_kind_of(error.errors()[0]['input'])}"
        field = _field_path(steps)
        raise bad_field(field, f"({problem})", fix=_FIXES.get(field)) from None


def _kind_of(value: object) -> str:
    """Return the kind of a value in words, such as ``NaN`` or ``a list``."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    for kind, words in _WORDS_OF_KINDS.items():
        if isinstance(value, kind):
            return words
    return f"of the type {type(value).__name__}"


def _field_path(steps: Iterable[str | int]) -> str:
    """Return the path of a value in a row, such as ``spans[2].start``."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def unique(rows: Iterable[tuple[str, Example]]) -> Iterator[Example]:
    """Yield the examples of ``(place, example)``; refuse an id that occurs twice."""
    place_of_id: dict[str, str] = {}
    for place, example in rows:
        if example.id in place_of_id:
            raise InputError(
                f"the id occurs twice, first at {place_of_id[example.id]}",
                where=f"{place}, field 'id'",
                fix="give every row a unique id (`data import --map id=` makes new "
                "ones)",
            )
        place_of_id[example.id] = place
        yield example


def parts_outside(ranges: Ranges, length: int) -> Iterator[tuple[int, int]]:
    """Yield the character ranges before, between and behind the given ranges.

    The ranges are in text order and do not overlap. Between two that touch, the range
    that is yielded is empty.

    Examples
    --------
    >>> list(parts_outside(((2, 4), (4, 6)), 9))
    [(0, 2), (4, 4), (6, 9)]
    """
    last_end = 0
    for start, end in ranges:
        yield last_end, start
        last_end = end
    yield last_end, length

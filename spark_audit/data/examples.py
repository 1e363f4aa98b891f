"""Examples with annotated identifiers, their files, and their fixed wording.

An example is ``prompt + response`` over one causal-LM sequence; all character offsets
index that joint text. A bad row is an error that names file, line and field and never
shows the text.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from spark_audit.errors import InputError, OutputError
from spark_audit.files import (
    data_bytes,
    open_regular,
    parse_json,
    read_regular,
    write_atomically,
)

Split = Literal["train", "test"]
Origin = Literal["natural", "injected"]
Part = Literal["name", "password", "ssn"]
Ranges = tuple[tuple[int, int], ...]
PII_TYPES = (
    "NAME",
    "EMAIL",
    "PHONE",
    "SSN",
    "PASSWORD",
    "CREDIT_CARD",
    "ADDRESS",
    "ID",
    "OTHER",
)
SPLIT_FIX = (
    "give `--split train` or `--split test`, or import a folder whose files are named"
    " train* and test* (or eval*, dev*)"
)
LINE_BYTES = 1 << 24
"""The longest line of a file of examples that is read."""
_TASK = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,199}")


@dataclass(frozen=True)
class Span:
    """An annotated identifier: characters ``start:end`` of ``prompt + response``.

    ``part`` is set on a canary's spans only.
    """

    start: int
    end: int
    type: str
    origin: Origin = "natural"
    part: Part | None = None


@dataclass(frozen=True)
class Canary:
    """The canary that stands in an example.

    ``dose`` is the number of train rows that hold it (0 when held out), ``seed`` the
    one its parts were drawn with, ``format`` the name of its frame.
    """

    id: str
    format: str
    dose: int
    held_out: bool
    seed: int


@dataclass(frozen=True)
class Example:
    """One row: a train row is a member, a test row a non-member.

    ``spans`` are kept in the order of the text and must not overlap. ``template`` holds
    the character ranges of the task's fixed wording; ``None`` means that it is found
    from the task's prompts (:func:`task_templates`). ``frames`` holds those of the
    sentences that were injected, identifiers included: other rows hold them too.

    Raises
    ------
    InputError
        Naming the field, if spans or ranges do not fit the text, if the text is blank
        or no valid Unicode, or if task, split or a span's type is unknown.
    """

    id: str
    task: str
    prompt: str = dataclasses.field(repr=False)
    response: str = dataclasses.field(repr=False)
    split: Split
    source_id: str
    spans: tuple[Span, ...] = ()
    canary: Canary | None = None
    template: Ranges | None = None
    frames: Ranges = ()

    def __post_init__(self) -> None:
        check_task(self.task, where="field 'task'")
        for field in ("id", "source_id"):
            value = getattr(self, field)
            if not value.strip() or not value.isprintable():
                raise bad_field(field, "is blank or holds control characters")
            if len(value) > 1000:
                raise bad_field(field, "is longer than 1000 characters")
        if self.split not in ("train", "test"):
            raise bad_field("split", "is neither 'train' nor 'test'")
        for field in ("prompt", "response"):
            try:
                getattr(self, field).encode()
            except UnicodeEncodeError as error:
                raise bad_field(field, "holds half a surrogate pair") from error
        if not self.text.strip():
            raise bad_field("prompt", "and response are blank")
        ordered = sorted(enumerate(self.spans), key=lambda item: item[1].start)
        _check_spans(ordered, len(self.text))
        for field in ("template", "frames"):
            _check_ranges(field, getattr(self, field) or (), len(self.text))
        object.__setattr__(self, "spans", tuple(span for _, span in ordered))

    @property
    def text(self) -> str:
        """``prompt + response``."""
        return self.prompt + self.response


def check_task(name: str, *, where: str) -> None:
    """Refuse a task name that could not name a file."""
    if not _TASK.fullmatch(name):
        raise InputError(
            "is no plain name",
            where=where,
            fix="use letters, digits, '.', '_', '+', '-'",
        )


def _check_spans(ordered: list[tuple[int, Span]], length: int) -> None:
    last = 0
    for i, span in ordered:
        place, field = f"{span.start}:{span.end}", f"spans[{i}]"
        if span.type not in PII_TYPES:
            fix = f"use one of: {', '.join(PII_TYPES)}"
            raise bad_field(f"{field}.type", "is no known type", fix=fix)
        if span.origin not in get_args(Origin):
            raise bad_field(f"{field}.origin", "is neither 'natural' nor 'injected'")
        if span.part is not None and span.part not in get_args(Part):
            raise bad_field(f"{field}.part", "is not name, password, ssn or null")
        if span.start >= span.end:
            raise bad_field(field, f"{place} is empty")
        if span.start < 0 or span.end > length:
            raise bad_field(field, f"{place} lies outside its text (0:{length})")
        if span.start < last:
            raise bad_field(field, f"{place} overlaps another span")
        last = span.end


def _check_ranges(field: str, ranges: Ranges, length: int) -> None:
    last = 0
    for i, (start, end) in enumerate(ranges):
        if not last <= start < end <= length:
            what = f"{start}:{end} is empty, out of order or outside 0:{length}"
            raise bad_field(f"{field}[{i}]", what)
        last = end


def bad_field(field: str, what: str, *, fix: str | None = None) -> InputError:
    """The error of one field, not yet located in a file (see :func:`located`)."""
    return InputError(what, where=f"field '{field}'", fix=fix)


def located(place: str, error: InputError) -> InputError:
    """The error of a field with the file and line it stands in."""
    return InputError(error.what, where=f"{place}, {error.where}", fix=error.fix)


REQUIRED = ("id", "task", "prompt", "response", "split")
_FIELDS = (*REQUIRED, "source_id", "spans", "canary", "template", "frames")


def data_files(given: Iterable[Path]) -> list[Path]:
    """JSON-lines files: those given, and those in folders given.

    Raises
    ------
    InputError
        If a folder holds none.
    """
    found: list[Path] = []
    for path in given:
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise InputError(
                "holds no .jsonl file", where=str(path), fix="see `data import`"
            )
        found += inside
    return found


def read_examples(*paths: str | Path) -> list[Example]:
    """Read data files (JSON lines as :func:`write_examples` writes them), in order.

    Raises
    ------
    OutputError
        If a file cannot be read.
    InputError
        Naming file, line and field of the first bad row; also for ids that stand twice,
        in one file or in two.
    """
    if not paths:
        raise InputError("no data file was given", fix="give at least one")
    return unique_ids(
        (place, from_row(row, place=place))
        for path in paths
        for place, row in json_lines(Path(path))
    )


def write_examples(path: str | Path, examples: Iterable[Example]) -> None:
    """Write JSON lines, whole or not at all, readable by the owner only.

    The same examples give the same bytes; :func:`read_examples` gives them back.
    """
    rows = [json.dumps(_row(example), ensure_ascii=False) for example in examples]

    def write(file: IO[bytes]) -> None:
        file.writelines(row.encode() + b"\n" for row in rows)

    write_atomically(Path(path), write, mode=0o600)


def _row(example: Example) -> dict[str, Any]:
    row = {name: getattr(example, name) for name in (*REQUIRED, "source_id")}
    row["spans"] = [dict(vars(span)) for span in example.spans]
    row["canary"] = dict(vars(example.canary)) if example.canary else None
    if example.template is not None:
        row["template"] = [list(place) for place in example.template]
    if example.frames:
        row["frames"] = [list(place) for place in example.frames]
    return row


def from_row(row: Mapping[str, Any], *, place: str) -> Example:
    """An example from one JSON object; ``place`` (file and line) is for errors."""
    try:
        for field in row:
            if field not in _FIELDS:
                # Its name is not told: it may be anything of the data.
                raise InputError(
                    f"is none of {', '.join(_FIELDS)}",
                    where="a field",
                    fix="remove it, or convert the file with `data import`",
                )
        if row.get("split") is None:
            raise bad_field("split", "is missing", fix=SPLIT_FIX)
        if row.get("id") is None:
            fix = "convert the file with `data import`, which makes ids"
            raise bad_field("id", "is missing", fix=fix)
        return Example(
            **{name: text_field(row, name) for name in REQUIRED},  # type: ignore[arg-type]
            source_id=text_field(
                row, "id" if row.get("source_id") is None else "source_id"
            ),
            spans=spans_field(row),
            canary=_canary(row.get("canary")),
            template=_ranges(row, "template"),
            frames=_ranges(row, "frames") or (),
        )
    except InputError as error:
        raise located(place, error) from error


def text_field(row: Mapping[str, Any], field: str) -> str:
    """A field that must be there and be text."""
    value = row.get(field)
    if value is None:
        raise bad_field(field, "is missing")
    if not isinstance(value, str):
        raise bad_field(field, f"is {_kind(value)}, not text")
    return value


def spans_field(row: Mapping[str, Any]) -> tuple[Span, ...]:
    """The field ``spans``; absent or null: none."""
    value = row.get("spans")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise bad_field("spans", f"is {_kind(value)}, not a list")
    kinds = {"start": int, "end": int, "type": str, "origin": str, "part": str}
    return tuple(
        Span(**_object(item, f"spans[{i}]", kinds, optional=("origin", "part")))
        for i, item in enumerate(value)
    )


def _canary(value: Any) -> Canary | None:
    kinds = {"id": str, "format": str, "dose": int, "held_out": bool, "seed": int}
    return None if value is None else Canary(**_object(value, "canary", kinds))


def _object(
    value: Any, field: str, kinds: Mapping[str, type], *, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """An object's values, each of the kind that its name asks for; null: left out."""
    if not isinstance(value, Mapping):
        raise bad_field(field, f"is {_kind(value)}, not an object")
    for name in value:
        if name not in kinds:
            raise bad_field(field, f"has a key that is none of {', '.join(kinds)}")
    given = {name: item for name, item in value.items() if item is not None}
    for name, kind in kinds.items():
        if name not in given and name not in optional:
            raise bad_field(f"{field}.{name}", "is missing")
        if name in given and type(given[name]) is not kind:
            what = f"is {_kind(given[name])}, not {_KINDS[kind]}"
            raise bad_field(f"{field}.{name}", what)
    return given


_KINDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a decimal number",
    list: "a list",
    dict: "an object",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _ranges(row: Mapping[str, Any], field: str) -> Ranges | None:
    value = row.get(field)
    if value is None:
        return None
    if not isinstance(value, list):
        raise bad_field(field, f"is {_kind(value)}, not a list")
    for i, item in enumerate(value):
        kinds = [type(n) for n in item] if isinstance(item, list) else []
        if kinds != [int, int]:
            raise bad_field(f"{field}[{i}]", "is not [start, end]")
    return tuple((start, end) for start, end in value)


def unique_ids(rows: Iterable[tuple[str, Example]]) -> list[Example]:
    """The examples of ``(place, example)``; an id that stands twice is an error."""
    first: dict[str, str] = {}
    found = []
    for place, example in rows:
        if example.id in first:
            raise InputError(
                f"the id stands twice, first at {first[example.id]}",
                where=f"{place}, field 'id'",
                fix="give every row its own (`data import --map id=` makes new ones)",
            )
        first[example.id] = place
        found.append(example)
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What cannot be read is an ``OutputError``."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path)
        ) from error


def read_bytes(path: Path, *, follow: bool = True, head: int | None = None) -> bytes:
    """A file's bytes; what cannot be read is an ``OutputError``.

    Parameters
    ----------
    follow
        Links out of the folder: data may lie anywhere.
    head
        So many bytes of its beginning only.
    """
    with _reading(path):
        if head is None:
            return read_regular(path, follow=follow, most=data_bytes())
        with open_regular(path, follow=follow) as file:
            return file.read(head)


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(file:line, object)`` of each line of a JSON-lines file."""
    lines, empty = _lines(path), True
    # Only \n ends a row: str.splitlines would also split at U+2028 inside a text.
    for number, line in enumerate(lines, start=1):
        place = f"{path}:{number}"
        if len(line) > LINE_BYTES:
            raise InputError(f"is longer than {LINE_BYTES:,} bytes", where=place)
        if not line.strip():
            if empty and not any(map(bytes.strip, lines)):
                break
            raise InputError("is a blank line", where=place, fix="remove it")
        empty = False
        row = parse_json(line, place=place)
        if not isinstance(row, dict):
            raise InputError(f"is {_kind(row)}, not an object", where=place)
        yield place, row
    if empty:
        raise InputError("is empty", where=str(path))


def _lines(path: Path) -> Iterator[bytes]:
    """Lines as they are read, each a byte longer than it may be at the most."""
    with _reading(path), open_regular(path, follow=True) as file:
        while line := file.readline(LINE_BYTES + 1):
            yield line.removesuffix(b"\n")

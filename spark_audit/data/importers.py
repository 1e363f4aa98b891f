"""Other people's data as examples: JSON lines, CSV, Parquet, datasets, TRACE, O-LoRA.

Every reader yields rows with the place they stand in; one function turns a row into an
example, by a column map or a template.
"""

from __future__ import annotations

import csv
import io
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from spark_audit.data import file_kinds
from spark_audit.data.examples import (
    EMPTY_FIX,
    LINE_BYTES,
    REQUIRED,
    SPLIT_FIX,
    Example,
    Ranges,
    Span,
    Split,
    bad_field,
    byte_lines,
    check_task,
    from_row,
    json_lines,
    read_bytes,
    reading,
    spans_field,
    unique,
    write_examples,
)
from spark_audit.data.fixed_wording import (
    FixedWording,
    task_templates,
    template_ranges,
)
from spark_audit.errors import InputError, SparkError, at
from spark_audit.files import (
    lies_inside,
    no_such_path,
    open_regular,
    parse_json,
    read_regular,
)

Format = Literal[
    "auto", "jsonl", "csv", "parquet", "text", "datasets", "trace", "olora"
]
Row: TypeAlias = dict[str, Any]
HUB = "hf:"
_PARQUET, _ARROW = b"PAR1", b"ARROW1"
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_EVERY = 1000
"""Rows between two calls of a progress."""
_IMPORTED = ("prompt", "response", "id", "source_id", "split")
_LAYOUTS = {
    "own": {"prompt": "prompt", "response": "response"},
    "trace": {"prompt": "prompt", "response": "answer"},
    "olora": {"prompt": "sentence", "response": "label"},
    "simple": {"prompt": "text", "response": "label"},
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
    show = progress or (lambda what, done, total: None)
    rows = _Import(str(source), task, format, split, template, dict(columns or {}))
    if rows.pieces is not None:
        read = partial(show, "rows read")
        rows.common = task_templates(example for _, example in rows.read(read))
    written = unique(rows.read(partial(show, "rows written")))
    write_examples(output, map(rows.worded, written))
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
    ) -> None:
        check_task(task)
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
        self.counts: Counter[Split] = Counter()

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

    def read(
        self, progress: Callable[[int, int], None]
    ) -> Iterator[tuple[str, Example]]:
        """The examples with their places; at least one. ``counts`` begins anew."""
        self.counts.clear()
        for place, named, row in read_rows(self.source, self.format):
            with at(place):
                example = self._example(named, row, place)
            yield place, example
            if self.counts.total() % _EVERY == 0:
                progress(self.counts.total(), 0)
        if not self.counts:
            raise InputError("holds no rows", where=self.source, fix=EMPTY_FIX)

    def _example(self, named: Split | None, row: Row, place: str) -> Example:
        whole = self.pieces is None and not self.columns and {*REQUIRED} <= {*row}
        column = {"split": "split"} if whole else self._column(row)
        split = self._split(named, _value(row, column.get("split"), must=False))
        self.counts[split] += 1
        if whole:
            return from_row(row | {"task": self.task, "split": split}, place=place)
        spans, template = spans_field(row), None
        response = _value(row, column["response"])
        if self.pieces is None:
            prompt = _value(row, column["prompt"])
        else:
            prompt, template, spans = _filled(self.pieces, row, spans)
        if prompt and response and not (prompt[-1].isspace() or response[0].isspace()):
            response = f" {response}"
            n = len(prompt)  # where the blank stands
            spans = tuple(
                replace(s, start=s.start + (s.start >= n), end=s.end + (s.end > n))
                for s in spans
            )
        made = f"{self.task}-{split}-{self.counts[split]:06d}"
        name = _value(row, column.get("id"), must=False) or made
        return Example(
            id=name,
            task=self.task,
            prompt=prompt,
            response=response,
            split=split,
            source_id=_value(row, column.get("source_id"), must=False) or name,
            spans=spans,
            template=template,
        )

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
        if isinstance(row, Line):
            found |= {"prompt": "text", "response": ""}
        found |= self.columns
        made = ["prompt"] if self.pieces else []  # by the template
        needed = {"prompt", "response"}.difference(found, made)
        layouts = [_LAYOUTS[self.format]] if self.format in _LAYOUTS else _ALL_LAYOUTS
        for names in layouts:
            if all(names[field] in row for field in needed):
                return found | {field: names[field] for field in needed}
        absent = {f for f in needed if not any(names[f] in row for names in layouts)}
        field = min(absent or needed)
        other = " or `--template`" if field == "prompt" else ", or `--map response=`"
        fix = f"give `--map {field}=COLUMN`{other}"
        what = f"has no column of a usual name ({_listed(row)})"
        raise bad_field(field, what, fix=fix)


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


def _value(row: Row, column: str | None, *, must: bool = True) -> str:
    """A column's text; whole numbers, as label columns hold them, become text.

    No column gives none, and a value that need not be there may be empty.
    """
    if not column:
        return ""
    if column not in row:
        raise bad_field(column, f"is no column ({_listed(row)})")
    value = row[column]
    if not must and value in (None, ""):
        return ""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise bad_field(column, "is missing" if value is None else "is not text")
    if not value.strip():
        raise bad_field(column, "is blank", fix="leave the row out")
    return value


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
    pieces: list[tuple[str, str | None]], row: Row, spans: tuple[Span, ...]
) -> tuple[str, Ranges, tuple[Span, ...]]:
    """The prompt, where the fixed wording stands in it, and the only column's spans."""
    prompt, ranges, starts = "", [], {}
    for fixed, column in pieces:
        if fixed:
            ranges.append((len(prompt), len(prompt) + len(fixed)))
        prompt += fixed
        starts[len(prompt)] = value = _value(row, column)
        prompt += value
    columns = [(start, value) for start, value in starts.items() if value]
    by, text = columns[0]
    if spans and (len(columns) > 1 or spans[-1].end > len(text)):
        raise bad_field(
            "spans",
            "are not positions in the text of the template's only column",
            fix="make the prompt before the import, and give it as a column",
        )
    return prompt, tuple(ranges), tuple(span.moved(by) for span in spans)


# --- readers --------------------------------------------------------------------------


def split_of(name: str) -> Split | None:
    """The split that a file, a part or a cell is named for by its first word."""
    test = r"tests?|testing|eval(?:uation)?|dev|val(?:id(?:ation)?)?"
    found = re.match(rf"(?:(train(?:ing)?)|{test})(?![a-z])", name.lower())
    return None if found is None else "train" if found[1] else "test"


def read_rows(source: str, format: str) -> Iterator[tuple[str, Split | None, Row]]:
    """Each row with its place, and the split that its file or part is named for."""
    if source.startswith(HUB):
        yield from _hub(source)
        return
    path = Path(source)
    if not path.exists():
        error = no_such_path(path, otherwise="give a file or a folder")
        fix = f"{error.fix} (a data set on the hub is written {HUB}OWNER/NAME[:CONFIG])"
        raise InputError(error.what, where=source, fix=fix)
    files: list[tuple[Path, Split | None]] = [(path, None)]
    if path.is_dir():
        saved = _saved(path) if format in ("auto", "datasets") else []
        named = saved or [
            (file, split_of(file.name))
            for file in sorted(path.iterdir())
            if file.suffix.lower() in _SUFFIXES
        ]
        files = [(file, split) for file, split in named if split] or saved
        if not saved:
            others = [file for file in path.iterdir() if split_of(file.name)]
            file_kinds.check_left_out(
                path,
                read=[file for file, _ in files],
                others=others,
                endings=file_kinds.UNREAD,
            )
        if not files:
            raise InputError(
                "has no data file named train*, test*, eval*, dev* or val*",
                where=source,
                fix=f"name the files so ({', '.join(_SUFFIXES)}), or give one file",
            )
    for file, split in sorted(files, key=lambda item: item[1] == "test"):
        for place, row in _reader(file, format)(file):
            yield place, split, row


def _saved(folder: Path) -> list[tuple[Path, Split | None]]:
    """Data files of a folder that `datasets` saved, and their part's split.

    What it left there of an earlier ``map`` is not listed, and no data.
    """
    parts: list[tuple[Path, Split | None]] = []
    if (index := folder / "dataset_dict.json").exists():
        parts = [(part, split_of(part.name)) for part in _named(index, "splits")]
    elif (folder / "state.json").exists():
        parts = [(folder, None)]
    return [
        (file, split)
        for part, split in parts
        for file in _named(part / "state.json", "_data_files")
    ]


def _named(path: Path, key: str) -> list[Path]:
    """What a file of `datasets` names under a key: each lies beside it."""
    with reading(path):
        raw = read_regular(path)
    try:
        listed = parse_json(raw, place=str(path))[key]
        names = [one["filename"] for one in listed] if key == "_data_files" else listed
        found = [path.with_name(name) for name in names]  # a ValueError for a path
        if all(lies_inside(one) for one in found):
            return found
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    what = "names no data, or data outside of its folder"
    raise InputError(what, where=str(path), fix="copy the data into the folder")


def _reader(path: Path, format: str) -> Callable[[Path], Iterator[tuple[str, Row]]]:
    with reading(path), open_regular(path, follow=True) as file:
        head = file.read(file_kinds.HEAD_BYTES)
    file_kinds.check_kind(path, head)
    if format in _READERS:
        return _READERS[format]
    if head.startswith((_PARQUET, _ARROW)) or path.suffix in (".parquet", ".arrow"):
        return _arrow
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"["):
        return _json_list
    if head.startswith(b"{") or path.suffix in (".jsonl", ".json"):
        return json_lines
    return _text if path.suffix.lower() == ".txt" else _csv


def _json_list(path: Path) -> Iterator[tuple[str, Row]]:
    rows = parse_json(read_bytes(path), place=str(path))
    if not isinstance(rows, list):
        raise InputError("is not a JSON list", where=str(path))
    for number, row in enumerate(rows, start=1):
        place = f"{path}, row {number}"
        if not isinstance(row, dict):
            raise InputError("is not an object", where=place)
        yield place, row


class Line(dict[str, Any]):
    """A line of plain text, as the column ``text``: it has no response."""


def _csv(path: Path) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(LINE_BYTES)
    with reading(path), open_regular(path, follow=True) as raw:
        # Spreadsheets begin UTF-8 files with a byte order mark, which is no part of a
        # name; ends of line inside of quotes are the cell's.
        file = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        lines, number = iter(lambda: file.readline(LINE_BYTES), ""), 1
        try:
            head = next(lines, "")
            cut = max(",;\t", key=head.count)
            reader = csv.reader(chain([head], lines), delimiter=cut, strict=True)
            columns = [name.strip() for name in next(reader)]
            if len(set(columns)) < len(columns) or not all(columns):
                what = "the first line is empty, or does not name every column once"
                raise InputError(what, where=f"{path}:1", fix=EMPTY_FIX)
            for cells in reader:
                number = reader.line_num
                if len(cells) != len(columns):
                    what = f"has {len(cells)} cells where the first line has "
                    where = f"{path}:{number}"
                    raise InputError(f"{what}{len(columns)}", where=where)
                yield f"{path}:{number}", dict(zip(columns, cells, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            what = "is not UTF-8, or not CSV: check its quotes"
            where = f"{path}, behind line {number}"
            raise InputError(what, where=where, fix="save as UTF-8") from error


def _text(path: Path) -> Iterator[tuple[str, Row]]:
    for place, line in byte_lines(path):
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            fix = "save as UTF-8"
            raise InputError("is not UTF-8", where=place, fix=fix) from error
        if text:
            yield place, Line(text=text)


def _arrow(path: Path) -> Iterator[tuple[str, Row]]:
    """Rows of Parquet, or of Arrow: a file, or a stream as `datasets` saves it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def batches() -> Iterator[Any]:
        with reading(path):
            file = open_regular(path, follow=True)
        with file:
            left = path.stat().st_size
            if file.peek(4).startswith(_PARQUET):
                parquet = pq.ParquetFile(file)
                if parquet.metadata.num_rows > left:  # before a batch is decoded
                    raise ValueError
                found = parquet.iter_batches(1024)
            elif file.peek(6).startswith(_ARROW):  # a file of it, as Feather is
                arrow = pa.ipc.open_file(file)
                found = map(arrow.get_batch, range(arrow.num_record_batches))
            else:
                found = pa.ipc.open_stream(file)
            for batch in found:
                left -= batch.num_rows
                if left < 0:  # rows that differ take more than a byte
                    raise ValueError
                yield batch

    return _rows(batches(), str(path))


def _rows(batches: Iterator[Any], place: str) -> Iterator[tuple[str, Row]]:
    """Rows of Arrow's batches; labels that `datasets` numbers are told by name.

    Nothing else of a column is decoded: an image or a sound would be opened where the
    row names it, be it a file of this machine or a host.
    """
    import pyarrow as pa

    number = 0
    try:
        for batch in batches:
            batch.validate(full=True)
            labels = _labels(batch.schema, place)
            slices = (batch.slice(i, 1024) for i in range(0, batch.num_rows, 1024))
            for row in chain.from_iterable(part.to_pylist() for part in slices):
                for column, names in labels.items():
                    # -1 is how `datasets` writes a missing label.
                    known = row[column] is not None and row[column] >= 0
                    row[column] = names[row[column]] if known else None
                number += 1
                yield f"{place}, row {number}", row
    except SparkError:
        raise
    # Text that is no UTF-8, dates that no calendar has, labels without a name.
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        OverflowError,
        LookupError,
    ) as error:
        raise InputError("is not readable as Parquet or Arrow", where=place) from error


def _labels(schema: Any, place: str) -> dict[str, list[str]]:
    """Column of whole numbers -> what they stand for, as far as `datasets` wrote it."""
    import pyarrow as pa

    labels = {}
    told = (schema.metadata or {}).get(b"huggingface", b"{}")
    match parse_json(told, place=place):
        case {"info": {"features": dict(features)}}:
            for column, feature in features.items():
                index = schema.get_field_index(column)  # -1: none, or several
                match feature:
                    case {"_type": "ClassLabel", "names": [*names]} if (
                        index >= 0
                        and pa.types.is_integer(schema.field(index).type)
                        and all(isinstance(name, str) for name in names)
                    ):
                        labels[column] = names
    return labels


_READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Row]]]] = {
    "jsonl": json_lines,
    "csv": _csv,
    "parquet": _arrow,
    "text": _text,
    "datasets": _arrow,
    "trace": _json_list,
    "olora": _json_list,
}


def _hub(source: str) -> Iterator[tuple[str, Split | None, Row]]:
    try:
        import datasets

        hub_id, _, config = source.removeprefix(HUB).partition(":")
        found = datasets.load_dataset(hub_id, config or None)
    except Exception as error:  # its own kinds, the hub's, and the network's
        raise InputError(
            f"is nothing that `datasets` can load ({type(error).__name__})",
            where=source,
            fix=f"give {HUB}OWNER/NAME[:CONFIG]; the package comes, where spark-audit "
            "lies, by pip install '.[hub]'",
        ) from error
    parts = dict(found) if isinstance(found, Mapping) else {"": found}
    # Not an "unsupervised" part beside train and test.
    for name in [name for name in parts if split_of(name)] or parts:
        batches = iter(parts[name].data.to_batches())
        for place, row in _rows(batches, f"{source} ({name})"):
            yield place, split_of(name), row

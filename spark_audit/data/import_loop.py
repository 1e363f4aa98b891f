"""Read other people's rows, turn each into examples, and write them: the import loop.

The loop is the same for every import. What differs is a :class:`RowConverter`, which
knows what a row means: ``importers.py`` has one for prompts and responses in columns,
``chat/import_chat.py`` one for conversations and token ids. A further kind of rows
gets a converter of its own; a further *file format* belongs in ``sources.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from spark_audit.data.examples import (
    SPLIT_FIX,
    Example,
    Split,
    bad_field,
    unique,
    write_examples,
)
from spark_audit.data.fixed_wording import FixedWording, with_shared_wording
from spark_audit.data.sources import read_rows, split_of
from spark_audit.data.task_wording import task_wordings
from spark_audit.errors import InputError, at
from spark_audit.json_values import Row
from spark_audit.messages import is_watched
from spark_audit.messages import progress as shown_progress

_PLACES_NAMED = 3
"""Number of example places that a note names."""


class RowConverter(ABC):
    """Turn the rows of one reading of a source into examples, and count for notes.

    Each reading gets a new converter, so that a source that is read twice is counted
    once.

    Parameters
    ----------
    source
        The file, the folder or the ``hf:`` name that is read.
    task
        Name of the task that all rows get.
    split
        The split by the option ``--split``, if it is given.

    Attributes
    ----------
    rows_by_split
        Number of examples made so far, by split.
    """

    rows_per_progress_call = 1000
    """Examples between two calls of a progress callback."""

    def __init__(self, source: str, *, task: str, split: Split | None) -> None:
        self.source = source
        self.task = task
        self.rows_by_split: Counter[Split] = Counter()

        self._split_option = split
        # The name of a folder says nothing about its rows.
        path = Path(source)
        self._split_of_file = split_of(path.stem) if path.is_file() else None
        # The keys are the remarks; a dictionary keeps each once, in order.
        self._remarks: dict[str, None] = {}

    @abstractmethod
    def examples_of(
        self, row: Row, place: str, split_by_name: Split | None
    ) -> Sequence[Example]:
        """Return the examples of a row, and count them; none if it is left out.

        Parameters
        ----------
        place
            File and line or row number, which the loop adds to errors.
        split_by_name
            The split by the name of the row's file in a folder, or of its part of a
            data set; ``None`` if the name gives none. Pass it to :meth:`split_of_row`.

        Raises
        ------
        InputError
            Names the field that is bad.
        """

    @abstractmethod
    def no_rows(self) -> InputError:
        """Return the error of a source that gave no example at all."""

    @abstractmethod
    def counted_notes(self) -> Iterator[str]:
        """Yield notes on what was counted: rows left out, changed or assumed."""

    def remark(self, remark: str) -> None:
        """Add a remark to the notes, unless it is already there."""
        self._remarks[remark] = None

    def notes(self) -> Iterator[str]:
        """Yield the notes of the import, after the last row: remarks, then counts."""
        yield from self._remarks
        yield from self.counted_notes()

    def split_of_row(self, split_by_name: Split | None, *, cell: str) -> Split:
        """Return a row's split, on which all who give one must agree.

        They are the option, ``split_by_name`` (see :meth:`examples_of`), and the row
        itself. The name of a single file counts only if the row gives none.

        Parameters
        ----------
        cell
            The row's own column ``split``; empty if it has none.

        Raises
        ------
        InputError
            If there is no split at all, or two of them differ.
        """
        split_by_row = split_of(cell) if cell else self._split_of_file
        if cell and split_by_row is None:
            raise bad_field("split", "is neither train nor test", fix=SPLIT_FIX)

        candidates = (self._split_option, split_by_name, split_by_row)
        splits = [split for split in candidates if split is not None]
        if not splits:
            raise bad_field("split", "is missing", fix=SPLIT_FIX)
        if len(set(splits)) > 1:
            raise bad_field(
                "split",
                "is one thing by the option and another by file name or row",
                fix="leave out `--split`",
            )
        return splits[0]

    def new_id(self, split: Split) -> str:
        """Return an id for the example that was counted last: rows are numbered."""
        return f"{self.task}-{split}-{self.rows_by_split[split]:06d}"


def write_imported(
    output: str | Path,
    *,
    source: str,
    format: str,
    encoding: str | None,
    new_converter: Callable[[], RowConverter],
    finds_shared_wording: bool,
    progress: Callable[[str, int, int], None] | bool | None,
    note: Callable[[str], None] | None,
) -> dict[Split, int]:
    """Write the examples of a source as JSON lines, whole or not at all.

    Parameters
    ----------
    output
        The JSONL to write.
    source, format, encoding
        As for :func:`spark_audit.data.sources.read_rows`.
    new_converter
        Makes the converter of one reading.
    finds_shared_wording
        Whether the wording that all prompts of a task share is added to
        ``Example.template``. It is known only after the last row, so the source is
        then read twice.
    progress
        Called with a stage's name, the number of examples, and 0 (the total is
        unknown). ``True``: a bar, which is the default if a person waits.
    note
        Called with each note of the last reading.

    Returns
    -------
    dict
        Number of examples by split.
    """
    if progress is None:
        progress = is_watched()
    with shown_progress(quiet=progress is not True) as show:
        converter = _write_rows(
            output,
            source=source,
            format=format,
            encoding=encoding,
            new_converter=new_converter,
            finds_shared_wording=finds_shared_wording,
            # With False, nothing is shown, because `show` is quiet.
            progress=show if isinstance(progress, bool) else progress,
        )

    # Notes follow the bar, which would overwrite them.
    if note is not None:
        for remark in converter.notes():
            note(remark)
    return dict(converter.rows_by_split)


def _write_rows(
    output: str | Path,
    *,
    source: str,
    format: str,
    encoding: str | None,
    new_converter: Callable[[], RowConverter],
    finds_shared_wording: bool,
    progress: Callable[[str, int, int], None],
) -> RowConverter:
    """Write the examples of a source, and return the converter that counted them.

    Parameters are those of :func:`write_imported`.
    """

    def read(converter: RowConverter, stage: str) -> Iterator[tuple[str, Example]]:
        rows = read_rows(source, format, encoding=encoding, note=converter.remark)
        for place_and_example in _examples_of_rows(rows, converter):
            yield place_and_example

            n_examples = converter.rows_by_split.total()
            is_due = n_examples % converter.rows_per_progress_call == 0
            if is_due:
                progress(stage, n_examples, 0)

    shared_wording: dict[str, FixedWording] | None = None
    if finds_shared_wording:
        first_reading = read(new_converter(), "rows read")
        shared_wording = task_wordings(example for _, example in first_reading)

    # Both readings give the same counts and remarks; those of the last one are used.
    converter = new_converter()
    examples = unique(read(converter, "rows written"))
    if shared_wording is None:
        write_examples(output, examples)
    else:
        write_examples(
            output,
            (with_shared_wording(example, shared_wording) for example in examples),
        )
    return converter


def _examples_of_rows(
    rows: Iterable[tuple[str, Split | None, Row]], converter: RowConverter
) -> Iterator[tuple[str, Example]]:
    """Yield the examples of ``(place, split by name, row)``, with their places.

    Raises
    ------
    InputError
        Names the first bad row. Also raised if there is no example at all.
    """
    for place, split_by_name, row in rows:
        # Only errors of reading get the row's place, not errors of the consumer.
        with at(place):
            examples = converter.examples_of(row, place, split_by_name)
        for example in examples:
            yield place, example

    if not converter.rows_by_split:
        raise converter.no_rows()


def check_split_option(split: str | None) -> None:
    """Refuse a value of ``--split`` that is neither train nor test."""
    if split not in (None, *get_args(Split)):
        raise InputError(
            "is neither train nor test", where="option --split", fix=SPLIT_FIX
        )


def first_places(places: Sequence[str]) -> str:
    """Return the first places of a list for a note, such as ``a.csv:2, a.csv:5``."""
    return ", ".join(places[:_PLACES_NAMED])

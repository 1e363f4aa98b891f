"""Examples that lie in a file without a name, by id, each made when it is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import overload

from spark_audit.data.examples import (
    Example,
    as_json,
    from_json,
    id_twice,
    placed_examples,
)
from spark_audit.manifest.packed import Scratch


class Stored(Sequence[Example]):
    """The rows of data files by id; in memory is of each its id and its place.

    Parameters
    ----------
    paths
        As :func:`spark_audit.data.examples.read_examples` takes them.

    Raises
    ------
    InputError, OutputError
        As that one does.

    Attributes
    ----------
    ids
        The rows' ids, rising.
    """

    def __init__(self, *paths: Path) -> None:
        self._file, self._ends = Scratch(), array("q", [0])
        number: dict[str, int] = {}
        for i, (place, example) in enumerate(placed_examples(*paths)):
            if number.setdefault(example.id, i) != i:
                before = islice(placed_examples(*paths), number[example.id], None)
                raise id_twice(place, next(before)[0])
            line = as_json(example)
            self._file.write(self._ends[-1], line)
            self._ends.append(self._ends[-1] + len(line))
        self.ids = sorted(number)
        self._order = array("q", map(number.__getitem__, self.ids))

    @overload
    def __getitem__(self, at: int) -> Example: ...
    @overload
    def __getitem__(self, at: slice) -> list[Example]: ...
    def __getitem__(self, at: int | slice) -> Example | list[Example]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        row = self._order[at]
        start, end = self._ends[row], self._ends[row + 1]
        return from_json(self._file.read(start, end - start))

    def __iter__(self) -> Iterator[Example]:
        return map(self.__getitem__, range(len(self)))

    def __len__(self) -> int:
        return len(self.ids)

"""Which rows of a manifest are one unit: its clusters, and what joined them.

Rows that share a source, a canary, an identifier or nearly all of their words tell
about the same thing. Whatever draws, flips or deals out rows does so with whole
clusters.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spark_audit.data.occurrences import SHORT, finder, folded
from spark_audit.manifest.layout import Outline
from spark_audit.manifest.packed_lists import Indexed
from spark_audit.stats.duplicates import cluster_labels

WIDESPREAD_ROWS, WIDESPREAD_SHARE = 100, 0.1
"""A string in more than so many rows, and in more than this share of all, joins none.

It is nobody's, like a shop's own telephone number, and would make a tenth of the data
and whatever hangs on it one unit **[ours]**. No fewer rows: sixteen of sixty that hold
the same number are one person's sixteen, and a dose of 64 is one string.
"""

BARE = ("NAME", "ADDRESS")
"""Types whose strings of one word ("Anna", "Berlin") many share: they join no rows, or
they would chain people together who have nothing to do with each other. Nor do strings
of one or two characters, whatever their type **[ours]**."""

LARGE = 0.25
"""A cluster with more than this share of the rows is told of in a note."""


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row, and for people how they came about."""

    labels: list[str]
    counts: dict[str, int]
    notes: list[str]


def clusters(rows: Sequence[Outline], groups: np.ndarray) -> Clusters:
    """Clusters of rows: joined by source, canary, identifier and near-duplicate text.

    An identifier joins the rows that it stands in, annotated there or not; one of a
    single word that may be many people's, and one that stands nearly everywhere, join
    none (:data:`BARE`, :data:`WIDESPREAD_SHARE`).

    Parameters
    ----------
    groups
        Near-duplicate group of each row, shape ``(n,)``.
    """
    strings, notes = _strings(rows)
    sources, canaries = list[str](), list[str | None]()
    for row in rows:
        sources.append(row.example.source_id)
        canaries.append(row.example.canary.id if row.example.canary else None)
    labels = cluster_labels(sources, canaries, groups, strings)
    sizes = Counter(labels)
    largest = max(sizes.values(), default=0)
    if largest > max(LARGE * len(rows), 2):
        apart = Counter(cluster_labels(sources, canaries, groups))
        notes.append(
            f"one cluster holds {largest} of {len(rows)} rows "
            f"({max(apart.values())} if shared identifiers joined none): intervals "
            f"over {len(sizes)} clusters are wide, or there are none. If a value that "
            "belongs to no person joins them, remove its annotations"
        )
    return Clusters(
        labels,
        {
            "clusters": len(sizes),
            "largest_cluster": largest,
            "rows_joined": sum(n for n in sizes.values() if n > 1),
            "joined_by_source": _shared(sources),
            "joined_by_canary": _shared(canaries),
            "joined_by_string": strings.sharing(),
            "joined_by_near_duplicate": _shared(groups.tolist()),
        },
        notes,
    )


class _Held(Indexed[list[int]]):
    """Numbers of the strings in each row, in 4 bytes each."""

    def __init__(self) -> None:
        self._numbers, self._ends = array("i"), array("q", [0])

    def append(self, numbers: Iterable[int]) -> None:
        """Take one more row's."""
        self._numbers.extend(numbers)
        self._ends.append(len(self._numbers))

    def rows(self) -> np.ndarray:
        """In how many rows each number stands, shape ``(largest + 1,)``."""
        return np.bincount(np.array(self._numbers, np.int64), minlength=1)

    def without(self, numbers: Collection[int]) -> _Held:
        """The same, some numbers left out."""
        found = _Held()
        for own in self:
            found.append(number for number in own if number not in numbers)
        return found

    def sharing(self) -> int:
        """How many rows have a number that another row has too."""
        count = self.rows()
        return sum(any(count[number] > 1 for number in own) for own in self)

    def _at(self, at: int) -> list[int]:
        return self._numbers[self._ends[at] : self._ends[at + 1]].tolist()

    def __len__(self) -> int:
        return len(self._ends) - 1


def _strings(rows: Sequence[Outline]) -> tuple[_Held, list[str]]:
    """The identifiers in each row that join it to others, and what joins none."""
    number: dict[str, int] = {}
    bare: Counter[str] = Counter()
    for row in rows:
        own = _annotated(row)
        whole = {string for string, tells in own if tells}
        for string in whole:
            number.setdefault(string, len(number))
        bare.update({string for string, _ in own} - whole)
    # A password may be a plain word: it is one only where it is annotated.
    find = finder({string for string in number if not string.isalpha()})
    held = _Held()
    for row in rows:
        told = {string for string, _ in _annotated(row)} & number.keys()
        stands = find(folded(row.example.text)) | told
        held.append(sorted(number[string] for string in stands))
    most = max(WIDESPREAD_ROWS, WIDESPREAD_SHARE * len(rows))
    spread = held.rows()
    wide = np.flatnonzero(spread > most).tolist()
    notes = []
    if wide:
        notes.append(
            f"{len(wide)} annotated strings stand in more than {most:g} of "
            f"{len(rows)} rows, up to {spread.max()}: they are "
            "not counted as personal and join no rows into a cluster"
        )
    if shared := sum(n > 1 for string, n in bare.items() if string not in number):
        notes.append(
            f"{shared} annotated strings occur in several rows and are too short to "
            "identify a person (a name or place of one word, one or two characters): "
            "they join no rows into a cluster"
        )
    return held.without(wide) if wide else held, notes


def _annotated(row: Outline) -> set[tuple[str, bool]]:
    """The strings that are annotated in a row, and whether each tells who it is."""
    found = set()
    for span in row.example.spans:
        string = folded(row.example.text[span.start : span.end]).strip()
        word = len(string.split()) == 1 and not any(map(str.isdigit, string))
        bare = word and span.type in BARE
        found.add((string, len(string) >= SHORT and not bare))
    return found


def _shared(keys: Iterable[Hashable | None]) -> int:
    """How many rows have the key of another row."""
    count = Counter(key for key in keys if key is not None)
    return sum(n for n in count.values() if n > 1)

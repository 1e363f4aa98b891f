"""Clusters of rows that share a source or an identifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from spark_audit.data.examples import Example
from spark_audit.data.occurrences import SHORT, finder, folded, string_of
from spark_audit.stats.duplicates import cluster_labels

WIDESPREAD_ROWS = 100
WIDESPREAD_SHARE = 0.1
"""A string in more than so many rows, and in more than this share of all, joins none.

It is nobody's, like a shop's own telephone number, and would make a tenth of the data
and whatever hangs on it one unit **[ours]**. No fewer rows: sixteen of sixty that hold
the same number are one person's sixteen, and a dose of 64 is one string.
"""

BARE = ("NAME", "ADDRESS")
"""Types whose strings of one word ("Anna", "Berlin") many share: they join no rows, or
they would chain people together who have nothing to do with each other. Nor do strings
of one or two characters, whatever their type **[ours]**."""

LARGE_CLUSTER_SHARE = 0.25
"""A cluster with more than this share of the rows is told of in a note."""


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row, and how they came about.

    Attributes
    ----------
    labels
        Name of each row's cluster, in the order of the rows.
    counts
        How many clusters there are, and how many rows each cause joined.
    notes
        What a reader must know of them.
    """

    labels: list[str]
    counts: dict[str, int]
    notes: list[str]


def clusters(examples: Sequence[Example], groups: np.ndarray) -> Clusters:
    """Return clusters of rows that share source, canary, identifier or text.

    An identifier joins the rows that it stands in, annotated there or not; one of a
    single word that may be many people's, and one that stands nearly everywhere, join
    none (:data:`BARE`, :data:`WIDESPREAD_SHARE`).

    Parameters
    ----------
    groups
        Near-duplicate group of each row, shape ``(n,)``.
    """
    strings, notes = _joining_strings(examples)
    sources = [example.source_id for example in examples]
    canaries = [row.canary.id if row.canary else None for row in examples]

    labels = cluster_labels(sources, canaries, groups, strings)
    sizes = Counter(labels)
    largest = max(sizes.values(), default=0)

    if largest > max(LARGE_CLUSTER_SHARE * len(examples), 2):
        # How large it would be without identifiers says whether they are the cause.
        without_strings = Counter(cluster_labels(sources, canaries, groups))
        notes.append(
            f"one cluster holds {largest} of {len(examples)} rows "
            f"({max(without_strings.values())} if shared identifiers joined none): "
            f"intervals over {len(sizes)} clusters are wide, or there are none. If a "
            "value that belongs to no person joins them, remove its annotations"
        )

    counts = {
        "clusters": len(sizes),
        "largest_cluster": largest,
        "rows_joined": sum(size for size in sizes.values() if size > 1),
        "joined_by_source": _n_sharing_key(sources),
        "joined_by_canary": _n_sharing_key(canaries),
        "joined_by_string": _n_sharing_any(strings),
        "joined_by_near_duplicate": _n_sharing_key(groups.tolist()),
    }
    return Clusters(labels=labels, counts=counts, notes=notes)


def _joining_strings(
    examples: Sequence[Example],
) -> tuple[list[list[int]], list[str]]:
    """Return the numbers of the identifiers that join each row to others, and notes."""
    number_of: dict[str, int] = {}
    rows_by_bare_string: Counter[str] = Counter()
    for example in examples:
        for string, is_telling in _annotated_strings(example).items():
            if is_telling:
                number_of.setdefault(string, len(number_of))
            else:
                rows_by_bare_string[string] += 1

    # A password may be a plain word: it is one only where it is annotated.
    find = finder({string for string in number_of if not string.isalpha()})
    numbers_by_row: list[list[int]] = []
    for example in examples:
        annotated = _annotated_strings(example).keys() & number_of.keys()
        strings = find(folded(example.text)) | annotated
        numbers_by_row.append([number_of[string] for string in strings])

    notes = _leave_out_widespread(numbers_by_row)

    # A reader may wonder why two rows of "Anna" are two clusters.
    n_bare_shared = 0
    for string, n_rows in rows_by_bare_string.items():
        n_bare_shared += n_rows > 1 and string not in number_of
    if n_bare_shared:
        notes.append(
            f"{n_bare_shared} annotated strings occur in several rows and are too "
            "short to identify a person (a name or place of one word, one or two "
            "characters): they join no rows into a cluster"
        )
    return numbers_by_row, notes


def _leave_out_widespread(numbers_by_row: list[list[int]]) -> list[str]:
    """Take strings that stand nearly everywhere out of all rows; return a note on them.

    There is no note where there is no such string.
    """
    n_rows_by_number: Counter[int] = Counter()
    for numbers in numbers_by_row:
        n_rows_by_number.update(numbers)

    n_rows = len(numbers_by_row)
    most_rows = max(WIDESPREAD_ROWS, WIDESPREAD_SHARE * n_rows)
    widespread = {
        number for number, count in n_rows_by_number.items() if count > most_rows
    }
    if not widespread:
        return []

    for row_number, numbers in enumerate(numbers_by_row):
        personal = [number for number in numbers if number not in widespread]
        numbers_by_row[row_number] = personal
    return [
        f"{len(widespread)} annotated strings stand in more than {most_rows:g} of "
        f"{n_rows} rows, up to {max(n_rows_by_number.values())}: they are "
        "not counted as personal and join no rows into a cluster"
    ]


def _annotated_strings(example: Example) -> dict[str, bool]:
    """Return the strings annotated in a row, and whether each tells who it is."""
    is_telling: dict[str, bool] = {}
    for span in example.spans:
        # A word with a digit, such as a flat's number, is rarely two people's.
        string = string_of(example, span)
        has_digit = any(character.isdigit() for character in string)
        is_word = len(string.split()) == 1 and not has_digit
        is_bare = len(string) < SHORT or (is_word and span.type in BARE)

        # Annotated twice, it tells if it does under one of its types.
        is_telling[string] = is_telling.get(string, False) or not is_bare
    return is_telling


def _n_sharing_key(key_of_row: Sequence[Hashable | None]) -> int:
    """Return how many rows have a key that another row has, too; ``None`` is no key."""
    n_rows_by_key = Counter(key_of_row)
    del n_rows_by_key[None]
    return sum(n_rows for n_rows in n_rows_by_key.values() if n_rows > 1)


def _n_sharing_any(keys_by_row: Sequence[Collection[Hashable]]) -> int:
    """Return how many rows have one of their keys in common with another row."""
    n_rows_by_key: Counter[Hashable] = Counter()
    for keys in keys_by_row:
        n_rows_by_key.update(keys)

    n_sharing = 0
    for keys in keys_by_row:
        n_sharing += any(n_rows_by_key[key] > 1 for key in keys)
    return n_sharing

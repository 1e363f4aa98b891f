"""Group rows into clusters that share a source, a canary, an identifier or a text.

Rows of one cluster are not independent, so audits resample clusters, not rows. A
further cause that joins rows is a further sequence for
:func:`spark_audit.stats.duplicates.cluster_labels`, and a count ``joined_by_...``. A
*string* is an identifier in its form for comparison (``data/occurrences.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from spark_audit.data.examples import Example
from spark_audit.data.occurrences import SHORT_BELOW, finder, folded, string_of
from spark_audit.stats.duplicates import cluster_labels

WIDESPREAD_ROWS = 100
WIDESPREAD_SHARE = 0.1
"""Rows, and share of all rows: a string above both is widespread, and joins none.

Such a string belongs to nobody, like a shop's own telephone number. It would join a
tenth of the data, and everything connected with it, to one unit **[ours]**. The number
of rows must not be smaller: sixteen rows of sixty with the same number belong to one
person, and a dose of 64 is one string.
"""

ONE_WORD_TYPES = ("NAME", "ADDRESS")
"""Types whose strings of one word ("Anna", "Berlin") belong to many people. They join
no rows, because they would chain unrelated people together. Strings of one or two
characters join none either, whatever their type **[ours]**."""

LARGE_CLUSTER_SHARE = 0.25
"""Share of the rows from which a cluster gets a note."""


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row, and the causes of the clusters.

    Attributes
    ----------
    labels
        Name of each row's cluster, in the order of the rows.
    counts
        The number of clusters, and the number of rows that each cause joined.
    notes
        Notes on the clusters, for readers of the manifest.
    """

    labels: list[str]
    counts: dict[str, int]
    notes: list[str]


def clusters(examples: Sequence[Example], groups: np.ndarray) -> Clusters:
    """Return the clusters of rows that share a source, canary, identifier or text.

    An identifier joins all rows that hold it, annotated there or not. Two kinds of
    identifiers join none: a single word that may belong to many people, and a string
    that stands nearly everywhere (:data:`ONE_WORD_TYPES`, :data:`WIDESPREAD_SHARE`).

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
        # The sizes without identifiers show whether identifiers cause a large cluster.
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
    """Return for each row the identifiers that join it to others, and notes.

    The identifiers are numbered, because they are compared for all rows.
    """
    number_of: dict[str, int] = {}
    n_rows_by_impersonal: Counter[str] = Counter()
    for example in examples:
        for string, is_personal in _annotated_strings(example).items():
            if is_personal:
                number_of.setdefault(string, len(number_of))
            else:
                n_rows_by_impersonal[string] += 1

    # Other rows may hold an identifier without its annotation. But a password may be a
    # plain word, so plain words count only where annotated.
    find = finder({string for string in number_of if not string.isalpha()})
    numbers_by_row: list[list[int]] = []
    for example in examples:
        annotated = _annotated_strings(example).keys() & number_of.keys()
        strings = find(folded(example.text)) | annotated
        numbers_by_row.append([number_of[string] for string in strings])

    notes = _leave_out_widespread(numbers_by_row)

    # A note explains why two rows of "Anna" are two clusters.
    n_shared = 0
    for string, n_rows in n_rows_by_impersonal.items():
        n_shared += n_rows > 1 and string not in number_of
    if n_shared:
        notes.append(
            f"{n_shared} annotated strings occur in several rows and are too "
            "short to identify a person (a name or place of one word, one or two "
            "characters): they join no rows into a cluster"
        )
    return numbers_by_row, notes


def _leave_out_widespread(numbers_by_row: list[list[int]]) -> list[str]:
    """Remove widespread strings from all rows in place; return a note on them, if any.

    See :data:`WIDESPREAD_SHARE`.
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
        numbers_by_row[row_number] = [
            number for number in numbers if number not in widespread
        ]
    return [
        f"{len(widespread)} annotated strings stand in more than {most_rows:g} of "
        f"{n_rows} rows, up to {max(n_rows_by_number.values())}: they are "
        "not counted as personal and join no rows into a cluster"
    ]


def _annotated_strings(example: Example) -> dict[str, bool]:
    """Return the strings annotated in a row, and whether each identifies its owner."""
    is_personal: dict[str, bool] = {}
    for span in example.spans:
        # A word with a digit, such as a flat number, rarely belongs to two people.
        string = string_of(example, span)
        has_digit = any(character.isdigit() for character in string)
        is_word = len(string.split()) == 1 and not has_digit
        is_impersonal = len(string) < SHORT_BELOW or (
            is_word and span.type in ONE_WORD_TYPES
        )

        # A string annotated twice identifies its owner if it does under one of its
        # types.
        is_personal[string] = is_personal.get(string, False) or not is_impersonal
    return is_personal


def _n_sharing_key(key_of_row: Sequence[Hashable | None]) -> int:
    """Count the rows whose key another row has, too; ``None`` is not a key."""
    n_rows_by_key = Counter(key_of_row)
    del n_rows_by_key[None]
    return sum(n_rows for n_rows in n_rows_by_key.values() if n_rows > 1)


def _n_sharing_any(keys_by_row: Sequence[Collection[Hashable]]) -> int:
    """Count the rows that share at least one key with another row."""
    n_rows_by_key: Counter[Hashable] = Counter()
    for keys in keys_by_row:
        n_rows_by_key.update(keys)

    n_sharing = 0
    for keys in keys_by_row:
        n_sharing += any(n_rows_by_key[key] > 1 for key in keys)
    return n_sharing

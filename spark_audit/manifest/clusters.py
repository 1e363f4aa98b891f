"""Clusters of rows that share a source or an identifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from spark_audit.data.examples import Example
from spark_audit.data.occurrences import SHORT, finder, folded, string_of
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

LARGE_CLUSTER_SHARE = 0.25
"""A cluster with more than this share of the rows is told of in a note."""


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row, and for people how they came about."""

    labels: list[str]
    counts: dict[str, int]
    notes: list[str]


def clusters(examples: Sequence[Example], groups: np.ndarray) -> Clusters:
    """Clusters of rows: joined by source, canary, identifier and near-duplicate text.

    An identifier joins the rows that it stands in, annotated there or not; one of a
    single word that may be many people's, and one that stands nearly everywhere, join
    none (:data:`BARE`, :data:`WIDESPREAD_SHARE`).

    Parameters
    ----------
    groups
        Near-duplicate group of each row, shape ``(n,)``.
    """
    strings, notes = _strings(examples)
    sources = [example.source_id for example in examples]
    canaries = [row.canary.id if row.canary else None for row in examples]
    labels = cluster_labels(sources, canaries, groups, strings)
    sizes = Counter(labels)
    largest = max(sizes.values(), default=0)
    if largest > max(LARGE_CLUSTER_SHARE * len(examples), 2):
        apart = Counter(cluster_labels(sources, canaries, groups))
        notes.append(
            f"one cluster holds {largest} of {len(examples)} rows "
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
            "joined_by_source": _sharing([[key] for key in sources]),
            "joined_by_canary": _sharing([[key] if key else [] for key in canaries]),
            "joined_by_string": _sharing(strings),
            "joined_by_near_duplicate": _sharing([[key] for key in groups.tolist()]),
        },
        notes,
    )


def _strings(examples: Sequence[Example]) -> tuple[list[list[int]], list[str]]:
    """Numbers of the identifiers in each row that join it to others, and notes."""
    number: dict[str, int] = {}
    bare: Counter[str] = Counter()
    for example in examples:
        for string, tells in _annotated(example).items():
            if tells:
                number.setdefault(string, len(number))
            else:
                bare[string] += 1
    # A password may be a plain word: it is one only where it is annotated.
    find = finder({string for string in number if not string.isalpha()})
    held = []
    for example in examples:
        told = _annotated(example).keys() & number.keys()
        held.append([number[one] for one in find(folded(example.text)) | told])
    most = max(WIDESPREAD_ROWS, WIDESPREAD_SHARE * len(examples))
    spread = Counter(one for own in held for one in own)
    wide = {one for one, count in spread.items() if count > most}
    notes = []
    if wide:
        notes.append(
            f"{len(wide)} annotated strings stand in more than {most:g} of "
            f"{len(examples)} rows, up to {max(spread.values())}: they are "
            "not counted as personal and join no rows into a cluster"
        )
        held = [[one for one in own if one not in wide] for own in held]
    if shared := sum(n > 1 for string, n in bare.items() if string not in number):
        notes.append(
            f"{shared} annotated strings occur in several rows and are too short to "
            "identify a person (a name or place of one word, one or two characters): "
            "they join no rows into a cluster"
        )
    return held, notes


def _annotated(example: Example) -> dict[str, bool]:
    """The strings that are annotated in a row, and whether each tells who it is."""
    found: dict[str, bool] = {}
    for span in example.spans:
        string = string_of(example, span)
        word = len(string.split()) == 1 and not any(map(str.isdigit, string))
        bare = len(string) < SHORT or (word and span.type in BARE)
        found[string] = found.get(string, False) or not bare
    return found


def _sharing(keys: Sequence[Collection[Hashable]]) -> int:
    """How many rows have a key that another row has too."""
    count = Counter(key for own in keys for key in own)
    return sum(any(count[key] > 1 for key in own) for own in keys)

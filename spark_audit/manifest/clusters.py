"""Which rows of a manifest are one unit: its clusters, and what joined them.

Rows that share a source, a canary, an identifier or nearly all of their words tell
about the same thing. Whatever draws, flips or deals out rows does so with whole
clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from spark_audit.data.occurrences import SHORT, folded, standing
from spark_audit.manifest.layout import Layout
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


def clusters(rows: Sequence[Layout], groups: np.ndarray) -> Clusters:
    """Clusters of rows: joined by source, canary, identifier and near-duplicate text.

    An identifier joins the rows that it stands in, annotated there or not; one of a
    single word that may be many people's, and one that stands nearly everywhere, join
    none (:data:`BARE`, :data:`WIDESPREAD_SHARE`).

    Parameters
    ----------
    groups
        Near-duplicate group of each row, shape ``(n,)``.
    """
    examples = [row.example for row in rows]
    strings, notes = _strings(rows)
    sources = [example.source_id for example in examples]
    canaries = [example.canary.id if example.canary else None for example in examples]
    labels = cluster_labels(sources, canaries, groups, strings)
    held = [{canary} - {None} for canary in canaries]
    sizes = Counter(labels)
    largest = max(sizes.values(), default=0)
    if largest > max(LARGE * len(rows), 2):
        apart = Counter(cluster_labels(sources, canaries, groups))
        notes.append(
            f"one cluster holds {largest} of {len(rows)} rows "
            f"({max(apart.values())} if shared identifiers joined none): intervals "
            f"over {len(sizes)} clusters are wide, or there are none. If a value that "
            "belongs to nobody joins them, take its annotations away"
        )
    return Clusters(
        labels,
        {
            "clusters": len(sizes),
            "largest_cluster": largest,
            "rows_joined": sum(n for n in sizes.values() if n > 1),
            "joined_by_source": _shared([{source} for source in sources]),
            "joined_by_canary": _shared(held),
            "joined_by_string": _shared(strings),
            "joined_by_near_duplicate": _shared([{g} for g in groups.tolist()]),
        },
        notes,
    )


def _strings(rows: Sequence[Layout]) -> tuple[list[set[str]], list[str]]:
    """The identifiers in each row that join it to others, and what joins none."""
    annotated = [
        {
            (folded(row.example.text[span.start : span.end]).strip(), span.type in BARE)
            for span in row.example.spans
        }
        for row in rows
    ]
    whole = {
        string
        for found in annotated
        for string, may_be_bare in found
        if len(string) >= SHORT and not (may_be_bare and _is_bare(string))
    }
    # A password may be a plain word: it is one only where it is annotated.
    told = {string for string in whole if not string.isalpha()}
    texts = [row.example.text for row in rows]
    held = [
        stands | ({string for string, _ in own} & whole)
        for stands, own in zip(standing(texts, told), annotated, strict=True)
    ]
    spread = Counter(string for found in held for string in found)
    most = max(WIDESPREAD_ROWS, WIDESPREAD_SHARE * len(rows))
    wide = {string: n for string, n in spread.items() if n > most}
    notes = []
    if wide:
        notes.append(
            f"{len(wide)} annotated strings stand in more than {most:g} of "
            f"{len(rows)} rows, up to {max(wide.values())}: they are taken for "
            "nobody's and join no rows into a cluster"
        )
    bare = Counter(s for found in annotated for s in {s for s, _ in found} - whole)
    if shared := sum(n > 1 for n in bare.values()):
        notes.append(
            f"{shared} annotated strings stand in several rows and are too little to "
            "tell whose they are (a name or place of one word, one or two characters): "
            "they join no rows into a cluster"
        )
    return [found - wide.keys() for found in held], notes


def _is_bare(string: str) -> bool:
    return len(string.split()) == 1 and not any(char.isdigit() for char in string)


def _shared(keys: Sequence[Collection[Hashable]]) -> int:
    """How many rows have a key that another row has too."""
    count = Counter(key for found in keys for key in found)
    return sum(any(count[key] > 1 for key in found) for found in keys)

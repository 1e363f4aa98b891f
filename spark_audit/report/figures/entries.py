"""Which rows and records of a report a figure shows: entries before replicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from spark_audit.names import BASE, entry_of, series_of
from spark_audit.report.figures.theme import LIGHT, MARKERS
from spark_audit.results import Contrast, Report, Row

R = TypeVar("R", bound=Row)


def names_of(report: Report) -> dict[str, str]:
    """Every checkpoint that a report tells of -> its entry, the reference first.

    The entry of a replicate ``NAME[2]`` is ``NAME``, that of any other name itself.
    Stages of a series, of which nothing is told but in the series' own rows, are none.
    """
    names = [f.name for f in report.checkpoints if series_of(f.name) == f.name]
    names += [row.checkpoint for row in report.results]
    names += [n for row in report.contrasts for n in (row.checkpoint, row.baseline)]
    for records in report.tables.values():
        names += [r["checkpoint"] for r in records if r.get("checkpoint")]
    ordered = sorted(dict.fromkeys(names), key=lambda name: name != BASE)
    return {name: entry_of(name) for name in ordered}


def rows_of(report: Report, audit: str, metric: str, **more: str) -> dict[str, Row]:
    """Checkpoint -> its row; one row an entry, with the widest interval there is.

    ``of`` and ``group`` are fields of the rows wanted; pooled rows, if not told.
    """
    rows = _matching(report.results, audit, metric, **more)
    chosen = _chosen(rows, lambda row: (row.checkpoint,))
    return {key[0]: row for key, row in _ordered(report, chosen).items()}


def contrasts_of(
    report: Report, audit: str, metric: str, **more: str
) -> dict[tuple[str, str], Contrast]:
    """(checkpoint, baseline) -> its contrast, chosen as in ``rows_of``."""
    rows = _matching(report.contrasts, audit, metric, **more)
    chosen = _chosen(rows, lambda row: (row.checkpoint, row.baseline))
    return {(key[0], key[1]): row for key, row in _ordered(report, chosen).items()}


def _matching(
    rows: Iterable[R], audit: str, metric: str, *, of: str = "", group: str = "pooled"
) -> list[R]:
    wanted = (audit, metric, of, group)
    return [r for r in rows if (r.audit, r.metric, r.of, r.group) == wanted]


def _chosen(rows: Sequence[R], key: Any) -> dict[tuple[str, ...], R]:
    by_key: dict[tuple[str, ...], list[R]] = {}
    for row in rows:
        by_key.setdefault(key(row), []).append(row)
    entries = {name[0] for name in by_key}
    return {
        name: _widest(some)
        for name, some in by_key.items()
        if entry_of(name[0]) == name[0] or entry_of(name[0]) not in entries
    }


def _widest(rows: Sequence[R]) -> R:
    def rank(row: R) -> tuple[bool, bool, bool, float]:
        bounded = row.low is not None and row.high is not None
        width = (row.high or 0.0) - (row.low or 0.0) if bounded else 0.0
        return row.value is not None, bounded, bounded and row.over == "both", width

    return max(rows, key=rank)


def _ordered(report: Report, rows: dict[tuple[str, ...], R]) -> dict[Any, R]:
    entries = names_of(report)
    places = list(dict.fromkeys(entries.values()))

    def place(item: tuple[tuple[str, ...], R]) -> list[int]:
        return [places.index(entries[name]) for name in item[0]]

    return dict(sorted(rows.items(), key=place))


def records_of(
    report: Report, table: str
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Entry -> checkpoint -> its records of a table; replicates stand side by side."""
    places = names_of(report)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    records = [r for r in report.tables.get(table, []) if r.get("checkpoint")]
    for name in sorted({r["checkpoint"] for r in records}, key=list(places).index):
        mine = [record for record in records if record["checkpoint"] == name]
        found.setdefault(places[name], {})[name] = mine
    return found


def known(records: Iterable[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """The records in which none of the columns is missing."""
    return [r for r in records if all(r.get(c) is not None for c in columns)]


def palette(report: Report) -> dict[str, tuple[int, str]]:
    """Colour (0 to 7, as in ``LIGHT`` and ``--c0`` ...) and marker of each checkpoint.

    Replicates share those of their entry. From the ninth checkpoint on, colours come
    again with another marker, from the fifteenth, markers with another colour.
    """
    places: dict[str, tuple[int, str]] = {}
    found = {}
    for name, entry in names_of(report).items():
        place = len(places)
        if entry not in places:
            places[entry] = (place % len(LIGHT), MARKERS[place % len(MARKERS)])
        found[name] = places[entry]
        found.setdefault(entry, places[entry])
    return found


K = TypeVar("K")


def estimable(rows: Mapping[K, R]) -> dict[K, R]:
    """Those of some rows that have a value."""
    return {key: row for key, row in rows.items() if row.value is not None}


def means(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    """The mean of the values of each key, in the keys' order."""
    values: dict[K, list[float]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(float(value))
    return {key: sum(some) / len(some) for key, some in values.items()}

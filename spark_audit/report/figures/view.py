"""What figures read of a report: rows, states, and a look for every checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_audit.names import BASE
from spark_audit.report.cells import VOID
from spark_audit.report.figures.chosen_rows import chosen_of, frame_of
from spark_audit.report.figures.styling import (
    ALARM,
    INK,
    LIGHT,
    MARKERS,
    MUTED,
    WARN,
    palette,
)
from spark_audit.report.standings import Standing, standings
from spark_audit.report.tried import method_of
from spark_audit.results import Contrast, Report, Row, grouped

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Look:
    """How a mark is drawn: its shape says what its colour says."""

    marker: str
    colour: str
    filled: bool = True


FOUND_LOOK = Look("o", ALARM)

LESS_LOOK = Look("v", WARN)

NOTHING_LOOK = Look("o", INK, filled=False)

DOUBT_LOOK = Look("x", MUTED)

PLAIN_LOOK = Look("o", INK)

HELD_OUT_LOOK = Look("s", MUTED, filled=False)


@dataclass(frozen=True)
class Sketch:
    """A drawn figure, and what its words are made of.

    Attributes
    ----------
    rows
        Rows that are drawn: the caption says the level of their intervals.
    counted
        How many were measured, for the title.
    values
        What the alt text tells, one checkpoint or part each.
    remarks
        Keys of sentences that the caption needs for this report.
    """

    figure: Figure
    rows: Sequence[Row] = ()
    counted: str = ""
    values: Sequence[str] = ()
    remarks: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


RowPlace = tuple[str, str, str, str]
"""Audit, metric, variant and group of a row."""


@dataclass(frozen=True)
class View:
    """A report whose states, places and rows are looked up once for all figures."""

    report: Report
    standings: Mapping[str, Standing]
    places: Mapping[str, int]
    by_place: Mapping[RowPlace, Sequence[Row]]

    @classmethod
    def of_report(cls, report: Report) -> View:
        """Return the view of a report."""
        return cls(
            report=report,
            standings={one.name: one for one in standings(report)},
            places=palette(report),
            by_place=grouped(
                report.results, lambda row: (row.audit, row.metric, row.of, row.group)
            ),
        )

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Return checkpoints, the worst first, and the base last."""
        ranks = {name: rank for rank, name in enumerate(self.standings)}
        last = len(ranks)

        def place(name: str) -> tuple[bool, int, int]:
            rank = ranks.get(method_of(name), last)
            return name == BASE, rank, self.places.get(name, last)

        return sorted(dict.fromkeys(names), key=place)

    def rows(
        self, audit: str, metric: str, *, of: str = "", group: str = "pooled"
    ) -> dict[str, Row]:
        """Return each checkpoint's row that has a value, the worst first."""
        chosen = chosen_of(
            self.by_place.get((audit, metric, of, group), ()), self.places
        )
        rows = {name: row for (name, _), row in chosen.items() if row.value is not None}
        return {name: rows[name] for name in self.ordered(rows)}

    def contrasts(self, audit: str, metric: str) -> dict[str, dict[str, Row]]:
        """Return baseline -> checkpoint -> pooled contrast that has a value."""
        wanted: list[Contrast] = [
            row
            for row in self.report.contrasts
            if (row.audit, row.metric, row.of, row.group)
            == (audit, metric, "", "pooled")
        ]
        found: dict[str, dict[str, Row]] = {}
        for (name, baseline), row in chosen_of(wanted, self.places).items():
            if row.value is not None:
                found.setdefault(baseline, {})[name] = row
        return found

    def groups(self, audit: str, metric: str, kind: str, *, of: str = "") -> list[str]:
        """Return the parts of a kind, such as types, that a metric has values of."""
        found: dict[str, None] = {}
        for row in self.report.results:
            is_wanted = (row.audit, row.metric, row.of) == (audit, metric, of)
            if is_wanted and row.grouping[0] == kind and row.value is not None:
                found[row.grouping[1]] = None
        return list(found)

    def groups_of_stages(self, audit: str, metric: str) -> list[tuple[int, str]]:
        """Return the (stage, task) that a metric has values of."""
        found: dict[tuple[int, str], None] = {}
        for row in self.report.results:
            if (row.audit, row.metric) != (audit, metric) or row.value is None:
                continue
            if row.grouping[0] == "task" and row.of.isdigit():
                found[int(row.of), row.grouping[1]] = None
        return list(found)

    def frame(
        self, table: str, *columns: str, also: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Return the records of a table with the ``entry`` of each."""
        return frame_of(self.report, table, *columns, also=also, places=self.places)

    def outcome(self, name: str, audit: str) -> str:
        """Return what an audit came to on a checkpoint; empty if it did not try."""
        standing = self.standings.get(method_of(name))
        for tried in standing.tried if standing else ():
            if tried.audit == audit:
                return tried.outcome
        return ""

    def doubt(self, name: str, audit: str, row: Row | None = None) -> str:
        """Return why nothing can be concluded, in capitals; empty if something can."""
        if row is not None and row.status in VOID:
            return row.status.replace("_", " ").upper()
        standing = self.standings.get(method_of(name))
        return standing.doubt_of(audit).upper() if standing else ""

    def look(self, name: str, audit: str, row: Row, *, is_leak: bool = True) -> Look:
        """Return the look of a checkpoint's figure: found, nothing found, or void."""
        if self.doubt(name, audit, row):
            return DOUBT_LOOK
        if self.outcome(name, audit) == "FOUND":
            return FOUND_LOOK if is_leak else LESS_LOOK
        return NOTHING_LOOK

    def own_look(self, name: str, audit: str = "", row: Row | None = None) -> Look:
        """Return a checkpoint's own colour and marker; grey where it is void."""
        if self.doubt(name, audit, row):
            return DOUBT_LOOK
        place = self.places.get(name, 0)
        return Look(MARKERS[place % len(MARKERS)], LIGHT[place % len(LIGHT)])

    def leaking(self, rows: Mapping[str, Row], audit: str) -> list[str]:
        """Return the checkpoints of rows in which an audit found something."""
        return [
            name
            for name, row in rows.items()
            if self.outcome(name, audit) == "FOUND" and not self.doubt(name, audit, row)
        ]

"""The view of a report for figures: rows, states, and a look for each checkpoint.

A figure is a drawing here, and a value is the number of a row. Seeds of one method
share its state and its number in the palette.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_audit.names import BASE
from spark_audit.report.cells import VOID
from spark_audit.report.checkpoint_states import CheckpointState, checkpoint_states
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
from spark_audit.report.tried import method_of
from spark_audit.results import Contrast, Report, Row, grouped

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Look:
    """The look of a mark; its shape repeats the meaning of its colour."""

    marker: str
    colour: str
    filled: bool = True


FOUND_LOOK = Look("o", ALARM)
"""A leak was found."""

LESS_LOOK = Look("v", WARN)
"""Trained strings are less likely than by chance, which betrays them, too."""

NOTHING_LOOK = Look("o", INK, filled=False)
"""Nothing was found."""

DOUBT_LOOK = Look("x", MUTED)
"""Nothing can be concluded: void or confounded."""

PLAIN_LOOK = Look("o", INK)
"""A figure that describes and attacks nothing."""

HELD_OUT_LOOK = Look("s", MUTED, filled=False)
"""Identifiers that were never trained on."""


def look_of_number(number: int) -> Look:
    """Return the colour and the marker of a number in the palette.

    Both repeat, but the same pair only after 56 checkpoints, the least common multiple
    of 14 markers and 8 colours.
    """
    return Look(
        marker=MARKERS[number % len(MARKERS)],
        colour=LIGHT[number % len(LIGHT)],
    )


@dataclass(frozen=True)
class Sketch:
    """A drawn figure, and the inputs of its words.

    Attributes
    ----------
    rows
        Rows that are drawn: the caption says the level of their intervals.
    counted
        How many canaries, rows or identifiers were measured, for the title.
    values
        Texts of the alt text, each on one checkpoint or one group.
    remarks
        Keys of sentences that the caption needs for this report.
    facts
        Facts that the template of the caption asks for.
    """

    figure: Figure
    rows: Sequence[Row] = ()
    counted: str = ""
    values: Sequence[str] = ()
    remarks: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


RowKey = tuple[str, str, str, str]
"""Audit, metric, variant and group: what rows of all checkpoints share."""


@dataclass(frozen=True)
class View:
    """A report whose states, colours and rows are looked up once for all figures.

    Attributes
    ----------
    checkpoint_states
        Method -> its state and attacks, the worst first.
    palette_numbers
        Checkpoint or method -> its number in the palette, from which colour and marker
        follow. Seeds and their method have one number.
    by_key
        Audit, metric, variant and group -> the rows of all checkpoints.
    """

    report: Report
    checkpoint_states: Mapping[str, CheckpointState]
    palette_numbers: Mapping[str, int]
    by_key: Mapping[RowKey, Sequence[Row]]

    @classmethod
    def of_report(cls, report: Report) -> View:
        """Return the view of a report."""
        return cls(
            report=report,
            checkpoint_states={
                checkpoint_state.name: checkpoint_state
                for checkpoint_state in checkpoint_states(report)
            },
            palette_numbers=palette(report),
            by_key=grouped(
                report.results,
                lambda row: (row.audit, row.metric, row.variant, row.group),
            ),
        )

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Return checkpoints, the worst first, and the base last."""
        ranks = {name: rank for rank, name in enumerate(self.checkpoint_states)}
        last = len(ranks)

        def order(name: str) -> tuple[bool, int, int]:
            rank = ranks.get(method_of(name), last)
            return name == BASE, rank, self.palette_numbers.get(name, last)

        return sorted(dict.fromkeys(names), key=order)

    def rows(
        self, audit: str, metric: str, *, variant: str = "", group: str = "pooled"
    ) -> dict[str, Row]:
        """Return the row of each checkpoint that has a value, the worst first.

        Seeds are left out where their method has a row.
        """
        candidates = self.by_key.get((audit, metric, variant, group), ())
        rows = {}
        for (name, _), row in chosen_of(candidates, self.palette_numbers).items():
            if row.value is not None:
                rows[name] = row

        # Chosen rows are in the order of the palette; sort the worst first.
        return {name: rows[name] for name in self.ordered(rows)}

    def contrasts(self, audit: str, metric: str) -> dict[str, dict[str, Row]]:
        """Return baseline -> checkpoint -> pooled contrast that has a value.

        Seeds are left out where their method has a contrast.
        """
        # Contrasts of a variant or of a group are tables, not figures.
        wanted = (audit, metric, "", "pooled")
        candidates: list[Contrast] = []
        for row in self.report.contrasts:
            if (row.audit, row.metric, row.variant, row.group) == wanted:
                candidates.append(row)

        by_baseline: dict[str, dict[str, Row]] = {}
        chosen = chosen_of(candidates, self.palette_numbers)
        for (name, baseline), row in chosen.items():
            if row.value is not None:
                by_baseline.setdefault(baseline, {})[name] = row
        return by_baseline

    def groups(
        self, audit: str, metric: str, kind: str, *, variant: str = ""
    ) -> list[str]:
        """Return the groups of a kind, such as types, that a metric has values of."""
        # Keys of a dict keep the order in which the report has them.
        groups: dict[str, None] = {}
        for row in self.report.results:
            is_wanted = (row.audit, row.metric, row.variant) == (audit, metric, variant)
            if is_wanted and row.group_kind == kind and row.value is not None:
                groups[row.group_value] = None
        return list(groups)

    def groups_of_stages(self, audit: str, metric: str) -> list[tuple[int, str]]:
        """Return the (stage, task) that a metric has values of."""
        stages: dict[tuple[int, str], None] = {}
        for row in self.report.results:
            if (row.audit, row.metric) != (audit, metric) or row.value is None:
                continue

            # The variant of such a row is the number of its stage.
            if row.group_kind == "task" and row.variant.isdigit():
                stages[int(row.variant), row.group_value] = None
        return list(stages)

    def frame(
        self, table: str, *columns: str, also: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Return the records of a table, each with its ``entry``.

        Parameters
        ----------
        columns
            Columns without which a record is left out.
        also
            Columns that may be missing.

        Returns
        -------
        A row per record, in the order of the palette; ``entry`` is the method that
        seeds share.
        """
        return frame_of(
            self.report,
            table,
            *columns,
            also=also,
            palette_numbers=self.palette_numbers,
        )

    def outcome(self, name: str, audit: str) -> str:
        """Return the outcome of an audit on a checkpoint; empty: it was not tried."""
        checkpoint_state = self.checkpoint_states.get(method_of(name))
        if checkpoint_state is None:
            return ""

        for tried in checkpoint_state.tried:
            if tried.audit == audit:
                return tried.outcome
        return ""

    def doubt(self, name: str, audit: str, row: Row | None = None) -> str:
        """Return why nothing can be concluded, in capitals; empty if something can."""
        if row is not None and row.status in VOID:
            return row.status.replace("_", " ").upper()
        checkpoint_state = self.checkpoint_states.get(method_of(name))
        return checkpoint_state.doubt_of(audit).upper() if checkpoint_state else ""

    def look(self, name: str, audit: str, row: Row, *, is_leak: bool = True) -> Look:
        """Return the look of a checkpoint's mark: found, less, nothing or doubt.

        Parameters
        ----------
        is_leak
            Of what was found: False where trained strings are less likely than by
            chance (:data:`LESS_LOOK`).
        """
        if self.doubt(name, audit, row):
            return DOUBT_LOOK
        if self.outcome(name, audit) == "FOUND":
            return FOUND_LOOK if is_leak else LESS_LOOK
        return NOTHING_LOOK

    def own_look(self, name: str, audit: str = "", row: Row | None = None) -> Look:
        """Return a checkpoint's own colour and marker; grey where it is void."""
        if self.doubt(name, audit, row):
            return DOUBT_LOOK

        return look_of_number(self.palette_numbers.get(name, 0))

    def leaking(self, rows: Mapping[str, Row], audit: str) -> list[str]:
        """Return the checkpoints of rows in which an audit found something."""
        names = []
        for name, row in rows.items():
            is_found = self.outcome(name, audit) == "FOUND"
            if is_found and not self.doubt(name, audit, row):
                names.append(name)
        return names

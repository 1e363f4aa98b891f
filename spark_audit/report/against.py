"""Figures of two reports side by side, as ``report --against`` shows them.

A further difference between two figures is a line of :func:`_differences`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_audit.errors import InputError, choose
from spark_audit.names import entry_of
from spark_audit.report.cells import ReportTable, figure, records_table
from spark_audit.results import Report, Row
from spark_audit.sentences import render

OVER_ORDER = ("both", "sources", "seeds")
"""What the intervals of a method with several seeds are over; the first is shown."""


class FigureInReport(NamedTuple):
    """The key of a figure, by which the rows of two reports are matched."""

    checkpoint: str
    audit: str
    metric: str
    variant: str
    group: str

    @classmethod
    def of_row(cls, row: Row) -> FigureInReport:
        """Return the key of a row's figure; the case of group names does not matter."""
        return cls(
            row.checkpoint, row.audit, row.metric, row.variant, row.group.casefold()
        )


def against(report: Report, other: Report) -> ReportTable:
    """Return the figures that both reports hold for checkpoints of the same name.

    Raises
    ------
    InputError
        If the reports share no checkpoint or no figure.
    """
    rows = _rows_by_figure(report)
    rows_of_other = _rows_by_figure(other)

    records = []
    for figure_in_report, row in rows.items():
        row_of_other = rows_of_other.get(figure_in_report)
        if row_of_other is None:
            continue
        if row.value is not None and row_of_other.value is not None:
            records.append(_record(row, row_of_other, report=report, other=other))
    if not records:
        names_in_other = dict.fromkeys(name.checkpoint for name in rows_of_other)
        names = choose("", names_in_other)
        raise InputError(
            "the two reports share no figure of a checkpoint with the same name",
            where="--against",
            fix=f"run the other's audits with --ckpt NAME=PATH; {names}",
        )

    title = render("against.title", name=other.manifest.name)
    return records_table(records, title=title, remarks=tuple(other.caveats))


def _rows_by_figure(report: Report) -> dict[FigureInReport, Row]:
    """Return the rows by figure; a method with several seeds has only its own rows."""
    names = {row.checkpoint for row in report.results}
    rows: dict[FigureInReport, Row] = {}
    for row in report.results:
        # Compare methods, since the other report may have another number of seeds.
        method = entry_of(row.checkpoint)
        is_seed = method != row.checkpoint
        if is_seed and method in names:
            continue

        figure_in_report = FigureInReport.of_row(row)
        first = rows.get(figure_in_report)
        if first is None or _is_before(row, first):
            rows[figure_in_report] = row
    return rows


def _is_before(row: Row, other: Row) -> bool:
    """Return whether a row goes before another row of the same figure."""
    return OVER_ORDER.index(row.interval_over) < OVER_ORDER.index(other.interval_over)


def _record(
    row: Row, row_of_other: Row, *, report: Report, other: Report
) -> dict[str, str]:
    """Return a figure of both reports as a line of the table.

    Parameters
    ----------
    row, row_of_other
        The figure in ``report``, and in ``other``.
    """
    label = ".".join(name for name in (row.audit, row.metric, row.variant) if name)
    if row.group != "pooled":
        label += f" {row.group}"

    # The name alone does not identify the checkpoint of the other report.
    sources = {facts.name: facts.source for facts in other.checkpoints}
    source = sources.get(row_of_other.checkpoint) or row_of_other.checkpoint
    return {
        "checkpoint": row.checkpoint,
        "figure": label,
        "here": figure(row).text,
        "there": f"{figure(row_of_other).text} ({source})",
        render("against.differences"): _differences(
            row, row_of_other, report=report, other=other
        ),
    }


def _differences(row: Row, row_of_other: Row, *, report: Report, other: Report) -> str:
    """Return other differences of the two figures, and the note of the other one."""
    here_and_there: dict[str, tuple[Any, Any]] = {
        "base": (_base(row, report), _base(row_of_other, other)),
        "n": (row.n, row_of_other.n),
        "clusters": (row.clusters, row_of_other.clusters),
        "interval": (row.interval_method, row_of_other.interval_method),
        "over": (row.interval_over, row_of_other.interval_over),
    }
    differences = []
    for name, (here, there) in here_and_there.items():
        # 0: the other report does not state the number.
        if here != there and there != 0:
            differences.append(f"{name} {here} / {there}")
    if row_of_other.note:
        differences.append(row_of_other.note)
    return "; ".join(differences)


def _base(row: Row, report: Report) -> str:
    """Return the base of a row's checkpoint, or the reference of its report."""
    bases = {entry_of(facts.name): facts.base for facts in report.checkpoints}
    base = bases.get(row.checkpoint)
    return base or str(report.settings.get("reference", "unknown"))

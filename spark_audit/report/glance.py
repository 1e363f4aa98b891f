"""The main figures of a report: a line per checkpoint, a figure per audit.

Which figures these are, each metric declares itself (``glance`` of
:class:`~spark_audit.audits.metrics.Metric`): the variants that have a column. Their
heads are the sentences ``metric.AUDIT.METRIC.glance.VARIANT``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_audit import sentences
from spark_audit.audits import about, in_order
from spark_audit.audits.claims import carriers
from spark_audit.names import ANY_NAME, entry_of
from spark_audit.report.cells import (
    EMPTY_CELL,
    Cell,
    ReportTable,
    TableLine,
    figure,
    limited,
    line_name,
)
from spark_audit.results import Contrast, Report, Row, grouped

SCORE_WITHOUT_FINDING = "loss"
"""Score of a checkpoint whose finding rests on no score."""


class MainFigure(NamedTuple):
    """One column of the table: a figure with the rows of all checkpoints.

    Attributes
    ----------
    variant
        As the metric declares it: :data:`~spark_audit.names.ANY_NAME` where each
        checkpoint has the variant that its finding rests on.
    """

    title: str
    variant: str
    rows: list[Row]


def main_rows(report: Report) -> Iterator[MainFigure]:
    """Yield the main figures: title, variant as it was declared, rows.

    Among several scores it is the one that the verdict rests on, by default the loss.
    """
    by_metric = grouped(_pooled(report), lambda row: (row.audit, row.metric))
    for audit in in_order({audit for audit, _ in by_metric}):
        for metric in about(audit).metrics:
            candidates = by_metric.get((audit, metric.name), [])
            for variant in metric.glance:
                if variant == ANY_NAME:
                    rows = _rows_of_verdict(report, audit, candidates)
                else:
                    rows = [row for row in candidates if row.variant == variant]

                # An audit that did not run, or found nothing to measure, has no column.
                if rows:
                    key = f"metric.{audit}.{metric.name}.glance.{variant}"
                    yield MainFigure(sentences.render(key), variant, rows)


def _rows_of_verdict(
    report: Report, audit: str, candidates: Sequence[Row]
) -> list[Row]:
    """Return each checkpoint's row of the score that its finding rests on."""
    score_by_name = carriers(report.findings, audit)
    rows = []
    for row in candidates:
        # Skip differences between checkpoints, which are no scores.
        if isinstance(row, Contrast):
            continue

        score = score_by_name.get(entry_of(row.checkpoint), SCORE_WITHOUT_FINDING)
        if row.variant == score:
            rows.append(row)
    return rows


def _pooled(report: Report) -> list[Row]:
    """Return the rows and contrasts of all groups together."""
    pooled = []
    for row in (*report.results, *report.contrasts):
        if row.group == "pooled":
            pooled.append(row)
    return pooled


def glance(report: Report) -> ReportTable | None:
    """Return a line per checkpoint, a figure per audit; ``None``: no figures.

    Figures are chosen beforehand, never by their results (:func:`main_rows`).
    """
    columns: dict[str, dict[str, Cell]] = {}
    chance_cells: list[Cell] = []
    for main_figure in main_rows(report):
        columns[main_figure.title] = _column(main_figure)
        chance_cells.append(_chance_of(main_figure.rows))

    lines = []
    for line, checkpoint in _checkpoint_by_line(_pooled(report)).items():
        # A checkpoint that has only other figures gets no line.
        cells = [column.get(line, EMPTY_CELL) for column in columns.values()]
        if any(cell is not EMPTY_CELL for cell in cells):
            lines.append(TableLine((Cell(line), *cells), checkpoint))
    if not lines:
        return None

    # Chance is the last line, if any figure has a null.
    if not all(cell.missing for cell in chance_cells):
        label = Cell(sentences.render("table.chance"))
        lines.append(TableLine((label, *chance_cells)))

    header = []
    for name in ("checkpoint", *columns):
        header.append(sentences.translated("column", name))
    return ReportTable(
        title=sentences.render("page.glance"),
        header=tuple(header),
        rows=lines_with_figures(lines),
        remarks=(sentences.render("page.glance_remark"),),
        key="glance",
    )


def _column(main_figure: MainFigure) -> dict[str, Cell]:
    """Return line -> cell; a cell names its variant where checkpoints differ in it."""
    cells: dict[str, Cell] = {}
    for row in main_figure.rows:
        variant = ""
        if main_figure.variant == ANY_NAME:
            variant = f"{row.variant} "
        # The first of several rows of a line is shown.
        cells.setdefault(line_name(row), figure(row, before=variant))
    return cells


def _chance_of(rows: Sequence[Row]) -> Cell:
    """Return the cell of chance of a figure; empty: its audit has none."""
    if not about(rows[0].audit).chance:
        return EMPTY_CELL

    # The null of a difference between checkpoints is not chance.
    of_checkpoints = []
    for row in rows:
        if not isinstance(row, Contrast):
            of_checkpoints.append(row)
    return chance_cell(of_checkpoints)


def _checkpoint_by_line(rows: Sequence[Row]) -> Mapping[str, str]:
    """Return line -> the checkpoint that it is of.

    Several seeds share a line, with the widest interval.
    """
    with_seeds = set()
    for row in rows:
        if row.interval_over == "both":
            with_seeds.add(row.checkpoint)

    # Rows over sources and seeds come last: of equal lines theirs stays.
    checkpoint_by_line: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.interval_over == "both"):
        is_of_seeds = entry_of(row.checkpoint) in with_seeds
        if row.interval_over == "both" or not is_of_seeds:
            checkpoint_by_line[line_name(row)] = row.checkpoint
    return checkpoint_by_line


def chance_cell(rows: Sequence[Row]) -> Cell:
    """Return the null and its band; nothing where checkpoints have different ones."""
    bands = set()
    for row in rows:
        if row.value is not None:
            bands.add((row.no_effect, row.no_effect_low, row.no_effect_high))
    if len(bands) != 1:
        return EMPTY_CELL

    null, low, high = bands.pop()
    if null is None:
        return EMPTY_CELL
    return Cell(limited(null, low, high), numeric=True)


def lines_with_figures(lines: Sequence[TableLine]) -> tuple[TableLine, ...]:
    """Return the lines with a figure that is estimable, or withheld; all if none has.

    Why the others have none stands below the table.
    """
    lines_with_any = []
    for line in lines:
        n_rows = 0
        n_figures = 0
        for cell in line.cells:
            if cell.row is not None:
                n_rows += 1
                n_figures += cell.row.value is not None or cell.row.withheld

        # Lines without rows, such as that of chance, are no checkpoint's.
        if n_figures or not n_rows:
            lines_with_any.append(line)
    return tuple(lines_with_any or lines)

"""The tables that readers of a report see, in order.

:func:`tables` has a table for each panel of an audit, and for its contrasts;
:func:`further_tables` has the records that audits add (``report.tables``). A further
kind of group gets its table by an item of :data:`GROUP_KINDS` and a sentence
``table.by_KIND``; a column before the figures by :func:`_layout` and
:func:`_leading_text`. Cells and lines are in ``cells.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_audit import sentences
from spark_audit.audits import about, label, metric_of
from spark_audit.names import entry_of
from spark_audit.report.cells import (
    EMPTY_CELL,
    FURTHER_TABLES,
    Cell,
    ReportTable,
    TableLine,
    cell,
    figure,
    line_name,
    records_table,
    shown,
)
from spark_audit.report.disclosure.tables import MATCHING_TABLE
from spark_audit.report.figures.styling import palette
from spark_audit.report.glance import chance_cell, lines_with_figures
from spark_audit.report.training_table import is_training_table, training_for_readers
from spark_audit.results import Contrast, Report, Row, grouped
from spark_audit.results.rows import ROW_GROUP

DRAWN_TABLES = ("mia_roc",)
"""Further tables that are only drawn and not shown as tables."""

GROUP_KINDS = ("dose", "type", "task", "group", "split")
"""Kinds of groups that have a table of their own, in order."""

EXPLORATORY = " (exploratory)"
"""End of the title of a table without a primary test."""

FEW_CLUSTERS = 10
"""Fewer clusters draw a remark that the interval rests on little data."""


def entries(report: Report) -> list[str]:
    """Return the audited entries in order; a method with seeds, or a series, is one."""
    names = [entry_of(name) for name in palette(report)]
    return list(dict.fromkeys(names))


def tables(report: Report, *, brief: bool = False) -> list[ReportTable]:
    """Return the tables of figures that a person reads, in order.

    Parameters
    ----------
    brief
        Whether to show only figures of all rows and by group of rows, as a terminal
        does for many audits.
    """
    shown = []
    for audit, rows in grouped(report.results, lambda row: row.audit).items():
        for panel, panel_rows in _panels(audit, rows, brief=brief).items():
            title = sentences.optional(f"table.{panel}") or about(audit).over
            title += _units(panel_rows)
            if not about(audit).wide:
                title += EXPLORATORY
            shown.append(
                _table(
                    audit, panel_rows, title, panel, outcomes=_outcomes(audit, report)
                )
            )

    for audit, contrasts in grouped(report.contrasts, lambda row: row.audit).items():
        if brief:
            # A terminal has no room for types and tasks.
            contrasts = [row for row in contrasts if row.group == "pooled"]
        if not contrasts:
            continue

        # A table with one primary contrast is not exploratory.
        title = sentences.render("table.change")
        if all(row.family != "primary" for row in contrasts):
            title += EXPLORATORY
        shown.append(_table(audit, contrasts, title))

    matching = report.tables.get(MATCHING_TABLE)
    if matching and not brief:
        title = sentences.render("table.matching")
        shown.append(records_table(matching, title=title, section="manifest"))
    return shown


def further_tables(report: Report) -> list[ReportTable]:
    """Return the report's tables of records that readers are shown, in order."""
    shown = []
    for name, records in report.tables.items():
        if not records or name == MATCHING_TABLE or name in DRAWN_TABLES:
            continue
        # Outcomes stand behind the figures that they are of.
        if name == about(report.origins.get(name, "")).outcome_table:
            continue
        if is_training_table(name, report):
            shown.append(training_for_readers(report))
            continue

        section = report.origins.get(name, FURTHER_TABLES)
        table = records_table(
            records,
            title=name.replace("_", " "),
            short=name.removeprefix(f"{section}_").replace("_", " "),
            section=section,
            key=name,
        )
        shown.append(table)
    return shown


def _panels(audit: str, rows: Sequence[Row], *, brief: bool) -> dict[str, list[Row]]:
    """Return the rows of each table of an audit, by the key of the table's title.

    The pooled rows come first, in a table for each panel of the audit's metrics. Then
    each kind of group has a table, or one for each panel where variants do not stand
    side by side.
    """
    pooled = [row for row in rows if row.group == "pooled"]
    panels = _by_panel(audit, pooled)

    rows_by_kind = grouped(rows, lambda row: row.group_kind)
    # Groups of rows were asked for: they have their table everywhere.
    for group_kind in (ROW_GROUP,) if brief else GROUP_KINDS:
        if group_kind not in rows_by_kind:
            continue

        rows_of_kind = rows_by_kind[group_kind]
        if about(audit).wide:
            panels[f"by_{group_kind}"] = rows_of_kind
            continue
        for panel, panel_rows in _by_panel(audit, rows_of_kind).items():
            panels[f"by_{group_kind}_{panel}".rstrip("_")] = panel_rows
    return panels


def _by_panel(audit: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each panel of an audit's metrics, the unnamed one first."""
    panels = grouped(rows, lambda row: metric_of(audit, row.metric).panel)
    without_name = panels.pop("", [])
    return {"": without_name, **panels} if without_name else panels


def _units(rows: Sequence[Row]) -> str:
    """Return the units of rows as the end of a title; empty where there is none."""
    units = sorted({row.unit for row in rows if row.unit})
    return f", in {', '.join(units)}" if units else ""


class FigureColumn(NamedTuple):
    """A column of figures: a metric, and its variant where each has a column."""

    metric: str
    variant: str


@dataclass(frozen=True)
class _Layout:
    """Columns of a table of rows.

    Attributes
    ----------
    is_wide
        Whether variants of a metric stand side by side; else each has its lines.
    leading
        Names of the columns before the figures: ``checkpoint``, and of ``baseline``,
        ``group`` and ``variant`` those in which lines differ. Where the audit has a
        word for its variants, the header has that word.
    columns
        The columns of figures, in the order of the rows.
    main_column
        For a wide table, the column whose sizes are shown in a line.
    """

    is_wide: bool
    leading: tuple[str, ...]
    columns: tuple[FigureColumn, ...]
    main_column: FigureColumn

    def column_of(self, row: Row) -> FigureColumn:
        """Return the column in which a row's figure stands."""
        return FigureColumn(row.metric, row.variant if self.is_wide else "")


def _layout(audit: str, rows: Sequence[Row], panel: str) -> _Layout:
    """Return the columns of a table of an audit's rows."""
    is_of_contrasts = isinstance(rows[0], Contrast)
    is_wide = about(audit).wide and not is_of_contrasts

    leading = ["checkpoint"]
    if is_of_contrasts:
        leading.append("baseline")
    if any(row.group != "pooled" for row in rows):
        leading.append("group")
    has_variants = any(row.variant for row in rows)
    if not is_wide and (has_variants or not is_of_contrasts):
        leading.append("variant")

    # Where variants do not stand side by side, they share the column of their metric.
    columns = [FigureColumn(row.metric, row.variant if is_wide else "") for row in rows]
    return _Layout(
        is_wide=is_wide,
        leading=tuple(leading),
        columns=tuple(dict.fromkeys(columns)),
        main_column=_counted_column(audit, panel) or columns[0],
    )


def _counted_column(audit: str, panel: str) -> FigureColumn | None:
    """Return the column of a table whose sizes and smallest effect are shown."""
    for metric in about(audit).metrics:
        if metric.panel == panel and metric.counted:
            return FigureColumn(metric.name, metric.counted[0])
    return None


def _outcomes(audit: str, report: Report) -> dict[tuple[str, str], str]:
    """Return the outcomes of an audit's figures; empty: it has no such table.

    The keys are checkpoint and variant.
    """
    records = report.tables.get(about(audit).outcome_table, [])
    outcomes = {}
    for record in records:
        place = (str(record.get("checkpoint")), str(record.get("variant")))
        outcomes[place] = str(record.get("says", ""))
    return outcomes


def _table(
    audit: str,
    rows: Sequence[Row],
    title: str,
    panel: str = "",
    *,
    outcomes: Mapping[tuple[str, str], str] | None = None,
) -> ReportTable:
    """Return one table of an audit: a line for each group, variant and checkpoint.

    Where variants stand side by side, a line holds all of them.

    Parameters
    ----------
    rows
        Rows or contrasts of the audit, at least one.
    title
        Title of the table, without the audit's name.
    panel
        Key of the table among those of the audit; empty: its only one.
    outcomes
        Outcome of a figure by checkpoint and variant, in words, for a last column;
        default: there is no such column.
    """
    rows_to_show = []
    for row in rows:
        if row.variant not in metric_of(audit, row.metric).hidden:
            rows_to_show.append(row)
    # A table of hidden variants alone is better than none.
    rows = rows_to_show or rows
    layout = _layout(audit, rows, panel)
    is_by_group = all(row.group_kind == ROW_GROUP for row in rows)

    def block_of(row: Row) -> tuple[str, str]:
        # Variants that have a word are compared within a checkpoint.
        if about(audit).bracket:
            return row.group, row.checkpoint
        return row.group, "" if layout.is_wide else row.variant

    def line_of(row: Row) -> tuple[str, str, str]:
        variant = "" if layout.is_wide else row.variant
        return line_name(row), _baseline(row), variant

    # A block of lines is of one group and variant; its values by chance come last.
    lines = []
    for block in grouped(rows, block_of).values():
        rows_by_line = grouped(block, line_of)
        for rows_of_line in rows_by_line.values():
            line = _line(rows_of_line, layout)
            if is_by_group:
                effect = _smallest_effect_cell(rows_of_line)
                line = replace(line, cells=(*line.cells, effect))
            if outcomes:
                first = rows_of_line[0]
                says = outcomes.get((first.checkpoint, first.variant), "")
                line = replace(line, cells=(*line.cells, cell(says)))
            lines.append(line)

        if about(audit).chance:
            chance_line = _chance_line(block, layout)
            if chance_line is not None and is_by_group:
                cells = (*chance_line.cells, EMPTY_CELL)
                chance_line = replace(chance_line, cells=cells)
            if chance_line is not None:
                lines.append(chance_line)

    labels = [label(audit, column.metric, column.variant) for column in layout.columns]
    size_label = about(audit).counts if layout.is_wide else "n"
    bracket = about(audit).bracket
    leading = [
        bracket if bracket and name == "variant" else name for name in layout.leading
    ]
    last_headers = []
    if is_by_group:
        last_headers.append(sentences.render("table.smallest_effect"))
    if outcomes:
        last_headers.append(sentences.render("table.outcome"))
    return ReportTable(
        title=f"{audit}: {title}",
        header=(*leading, *labels, size_label, "clusters", *last_headers),
        rows=lines_with_figures(lines),
        remarks=_remarks(rows),
        section=audit,
        short=title,
    )


def _line(rows: Sequence[Row], layout: _Layout) -> TableLine:
    """Return the line of a checkpoint, from its rows of one group and variant."""
    row_by_column = {layout.column_of(row): row for row in rows}
    cells = [Cell(_leading_text(name, rows[0])) for name in layout.leading]
    for column in layout.columns:
        # Not every checkpoint has every metric.
        if column in row_by_column:
            cells.append(_figure_cell(row_by_column[column]))
        else:
            cells.append(EMPTY_CELL)

    # Variants side by side may have different sizes: that of the main column is shown.
    sized_rows = rows
    if layout.is_wide:
        main_row = row_by_column.get(layout.main_column, rows[0])
        sized_rows = [rows[0] if main_row.value is None else main_row]
    cells.append(cell(max(row.n for row in sized_rows)))
    cells.append(cell(max(row.clusters for row in sized_rows)))
    return TableLine(tuple(cells), rows[0].checkpoint)


def _smallest_effect_cell(rows: Sequence[Row]) -> Cell:
    """Return the smallest effect that is detected in a group, at a claim's level."""
    for row in rows:
        _, metric, _ = about(row.audit).group_rule
        if row.metric == metric and row.mde is not None:
            return Cell(shown(row.mde))
    return EMPTY_CELL


def _chance_line(rows: Sequence[Row], layout: _Layout) -> TableLine | None:
    """Return the line of values by chance of a block of lines; None: none is known."""
    rows_by_column = grouped(rows, layout.column_of)
    chance = [chance_cell(rows_by_column.get(column, [])) for column in layout.columns]
    if all(chance_value.missing for chance_value in chance):
        return None

    # The last two cells are sizes, which chance does not have.
    cells = [Cell("chance")]
    for name in layout.leading[1:]:
        cells.append(Cell(_leading_text(name, rows[0])))
    return TableLine((*cells, *chance, EMPTY_CELL, EMPTY_CELL))


def _leading_text(name: str, row: Row) -> str:
    """Return the text of a row in a column before the figures."""
    if name == "checkpoint":
        return line_name(row)
    if name == "baseline":
        return _baseline(row)
    if name == "group":
        return row.group_value or row.group_kind
    return sentences.optional(f"variant.{row.audit}.{row.variant}") or row.variant


def _baseline(row: Row) -> str:
    """Return the baseline of a contrast; empty for any other row."""
    return row.baseline if isinstance(row, Contrast) else ""


def _figure_cell(row: Row) -> Cell:
    """Return the cell of a figure; a contrast also has p and smallest effect."""
    if not isinstance(row, Contrast):
        return figure(row)

    after = ""
    p = row.best_p
    if p is not None:
        adjusted = "" if row.p_adjusted is None else " (primary) adjusted"
        after += f", p{adjusted} {sentences.probability(p)}"
    if row.mde is not None:
        after += f", MDE {shown(row.mde)}"
    return figure(row, after=after)


def _remarks(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the remarks on figures, each once: missing, noted, or of little data."""
    names_by_reason: dict[str, dict[str, None]] = {}
    withheld_reasons = set()
    names_of_few = set()
    for row in rows:
        name = _group_or_checkpoint(row)
        if row.status == "not_estimable":
            names_by_reason.setdefault(row.note, {})[name] = None
        if row.withheld:
            withheld_reasons.add(row.note)
        if _rests_on_little(row):
            names_of_few.add(name)

    remarks = []
    for note, names in names_by_reason.items():
        # A reason to withhold already says that the figures are withheld.
        is_withheld = note in withheld_reasons
        key = "table.withheld" if is_withheld else "table.not_estimable"
        reason = sentences.translated("reason", note)
        remarks.append(sentences.render(key, places=names, note=reason))

    remarks += _remarks_on_notes(rows)
    if names_of_few:
        names = dict.fromkeys(sorted(names_of_few))
        remarks.append(sentences.render("table.few", few=FEW_CLUSTERS, places=names))
    return tuple(remarks)


def _remarks_on_notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the notes on values of metrics whose notes readers are shown.

    A note of several metrics, groups or checkpoints is one remark.
    """
    noted_rows = []
    for row in rows:
        is_remarked = metric_of(row.audit, row.metric).remarked
        if is_remarked and row.note and row.value is not None:
            noted_rows.append(row)

    for note, rows_of_note in grouped(noted_rows, lambda row: row.note).items():
        labels = [label(row.audit, row.metric, "") for row in rows_of_note]
        names = [_group_or_checkpoint(row) for row in rows_of_note]
        yield sentences.render(
            "table.noted",
            metrics=list(dict.fromkeys(labels)),
            note=sentences.translated("reason", note),
            places=list(dict.fromkeys(names)),
        )


def _group_or_checkpoint(row: Row) -> str:
    """Return the name of a row's group; of a pooled row that of its checkpoint."""
    return row.group_value or row.checkpoint


def _rests_on_little(row: Row) -> bool:
    """Return whether a selectivity is of few clusters."""
    is_selectivity = row.status == "ok" and row.metric == "delta_sel"
    return is_selectivity and row.clusters < FEW_CLUSTERS


def general(report: Report) -> list[tuple[str, str]]:
    """Return terms that several audits use, each with its meaning.

    They say how the intervals of the report were made.
    """
    return sentences.terms("definition.all", methods=methods_of(report.results))


def methods_of(rows: Iterable[Row]) -> list[str]:
    """Return the methods of the rows' intervals as readers see them."""
    names = sorted({row.interval_method for row in rows} - {"none"})
    return [sentences.render(f"interval.{name}") for name in names]

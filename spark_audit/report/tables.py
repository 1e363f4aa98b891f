"""The tables that a reader of a report is shown, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from spark_audit import sentences
from spark_audit.audits import about, label, metric_of
from spark_audit.names import entry_of
from spark_audit.report.figures.styling import palette
from spark_audit.results import Contrast, Report, Row, grouped, number

if TYPE_CHECKING:
    pass
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
)
from spark_audit.report.glance import chance_cell, lines_with_figures

DRAWN_TABLES = ("mia_roc",)
"""Further tables that are there to be drawn: no reader is shown them as tables."""


def entries(report: Report) -> list[str]:
    """What was audited, in order; seeds of a method, and a series, count once."""
    return list(dict.fromkeys(map(entry_of, palette(report))))


RowT = TypeVar("RowT", bound=Row)

GROUP_KINDS = ("dose", "type", "task", "split")


def tables(report: Report, *, brief: bool = False) -> list[ReportTable]:
    """The tables that a person reads, in order.

    Parameters
    ----------
    brief
        Only pooled figures: what a terminal shows of many audits.
    """
    made: list[ReportTable] = []
    for audit, rows in grouped(report.results, lambda row: row.audit).items():
        pooled = [row for row in rows if row.group == "pooled"]
        wide = about(audit).wide
        parts = {"": pooled}
        if wide:
            parts = grouped(pooled, lambda row: metric_of(row.audit, row.metric).panel)
        if not brief:
            kinds = grouped(rows, lambda row: row.grouping[0])
            parts |= {f"by_{kind}": kinds.get(kind, []) for kind in GROUP_KINDS}
        for panel, part in parts.items():
            if part:
                words = sentences.optional(f"table.{panel}") or about(audit).over
                words += _units(part) + " (exploratory)" * (not wide)
                made.append(_table(audit, part, words, panel))
    for audit, contrasts in grouped(report.contrasts, lambda row: row.audit).items():
        if part := [row for row in contrasts if not brief or row.group == "pooled"]:
            primary = any(row.family == "primary" for row in part)
            words = sentences.render("table.change")
            made.append(_table(audit, part, words + " (exploratory)" * (not primary)))
    if not brief and (records := report.tables.get("matching_by_type")):
        title = sentences.render("table.matching")
        made.append(records_table(records, title=title, section="manifest"))
    return made


def further_tables(report: Report) -> list[ReportTable]:
    """The report's tables of records that readers are shown, in order."""
    return [
        records_table(
            records,
            title=name.replace("_", " "),
            key=name,
            section=(section := report.origins.get(name, FURTHER_TABLES)),
            short=name.removeprefix(f"{section}_").replace("_", " "),
        )
        for name, records in report.tables.items()
        if records and name != "matching_by_type" and name not in DRAWN_TABLES
    ]


def _units(rows: Sequence[Row]) -> str:
    units = sorted({row.unit for row in rows if row.unit})
    return f", in {', '.join(units)}" if units else ""


def _table(
    audit: str, rows: Sequence[RowT], words: str, panel: str = ""
) -> ReportTable:
    """One line a checkpoint and part, one column a metric; variants as either."""
    wide = about(audit).wide and not isinstance(rows[0], Contrast)
    named = [r for r in rows if r.of not in metric_of(audit, r.metric).hidden]
    rows = named or rows
    lead: dict[str, Callable[[RowT], str]] = {"checkpoint": line_name}
    if isinstance(rows[0], Contrast):
        lead["baseline"] = _baseline
    if any(row.group != "pooled" for row in rows):
        lead["group"] = lambda row: row.grouping[1] or row.group
    if not wide and (any(row.of for row in rows) or "baseline" not in lead):
        lead["of"] = lambda row: row.of

    def column(row: RowT) -> tuple[str, str]:
        return row.metric, row.of if wide else ""

    columns = list(grouped(rows, column))
    # The column that is counted, where variants stand side by side.
    of_panel = (one for one in about(audit).metrics if one.panel == panel)
    main = next(((one.name, of) for one in of_panel for of in one.counted), columns[0])
    lines = []
    for part in grouped(rows, lambda row: (row.group, "" if wide else row.of)).values():
        own = grouped(part, lambda row: (line_name(row), _baseline(row)))
        for mine in own.values():
            cells = {column(row): row for row in mine}
            counted = mine
            if wide:
                seen = cells.get(main, mine[0])
                counted = [mine[0] if seen.value is None else seen]
            sizes = max(r.n for r in counted), max(r.clusters for r in counted)
            texts = (Cell(of(mine[0])) for of in lead.values())
            shown = (_change(cells[c]) if c in cells else EMPTY_CELL for c in columns)
            whole = (*texts, *shown, *map(cell, sizes))
            lines.append(TableLine(whole, mine[0].checkpoint))
        by_column = grouped(part, column)
        chance = [chance_cell(by_column.get(one, [])) for one in columns]
        if about(audit).chance and not all(one.missing for one in chance):
            texts = (Cell(of(part[0])) for of in [*lead.values()][1:])
            whole = (Cell("chance"), *texts, *chance, EMPTY_CELL, EMPTY_CELL)
            lines.append(TableLine(whole))
    names = (label(audit, *one) if wide else label(audit, one[0]) for one in columns)
    counts = about(audit).counts if wide else "n"
    return ReportTable(
        title=f"{audit}: {words}",
        header=(*lead, *names, counts, "clusters"),
        rows=lines_with_figures(lines),
        remarks=_remarks(rows),
        section=audit,
        short=words,
    )


def _baseline(row: Row) -> str:
    return row.baseline if isinstance(row, Contrast) else ""


def _change(row: Row) -> Cell:
    """A figure; that of a contrast with its p and the smallest effect to be seen."""
    if not isinstance(row, Contrast):
        return figure(row)
    after = ""
    if (p := row.best_p) is not None:
        adjusted = "" if row.p_adjusted is None else " (primary) adjusted"
        after = f", p{adjusted} {sentences.probability(p)}"
    if row.mde is not None:
        after += f", MDE {number(row.mde)}"
    return figure(row, after=after)


FEW_CLUSTERS = 10
"""Clusters below which an interval rests on little, and readers are told."""


def _remarks(rows: Sequence[Row]) -> tuple[str, ...]:
    """Why figures are missing, each reason once, and which rest on little."""
    reasons: dict[tuple[str, bool], dict[str, None]] = {}
    for row in rows:
        if row.status == "not_estimable":
            place = row.grouping[1] or row.checkpoint
            # A reason to withhold says so itself.
            reasons.setdefault((row.note, row.withheld), {})[place] = None
    few = {
        row.grouping[1] or row.checkpoint
        for row in rows
        if row.status == "ok"
        and row.metric == "delta_sel"
        and row.clusters < FEW_CLUSTERS
    }
    remarks = []
    for (note, withheld), places in reasons.items():
        key = "table.withheld" if withheld else "table.not_estimable"
        reason = sentences.translated("reason", note)
        remarks.append(sentences.render(key, places=places, note=reason))
    if few:
        remarks.append(
            sentences.render("table.few", few=FEW_CLUSTERS, places=sorted(few))
        )
    return tuple(remarks)


def general(report: Report) -> list[tuple[str, str]]:
    """Term and meaning of what several audits give; what intervals were made by."""
    return sentences.terms("definition.all", methods=methods_of(report.results))


def methods_of(rows: Iterable[Row]) -> list[str]:
    """What readers see for the methods of the rows' intervals."""
    used = sorted({row.interval for row in rows} - {"none"})
    return [sentences.render(f"interval.{name}") for name in used]

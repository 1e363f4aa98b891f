"""What a person reads of a report first: the same tables in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from spark_audit import sentences
from spark_audit.audits import about, in_order, label, metric_of
from spark_audit.audits.base import carriers
from spark_audit.names import ANY, entry_of
from spark_audit.report.figures.entries import palette
from spark_audit.report.table_cells import (
    FURTHER,
    NONE,
    Cell,
    Line,
    Table,
    cell,
    figure,
    limited,
    records_table,
)
from spark_audit.results import Contrast, Report, Row, grouped, number

DRAWN = ("mia_roc",)
"""Further tables that are there to be drawn: no reader is shown them as tables."""


def entries(report: Report) -> list[str]:
    """What was audited, in order; seeds of a method, and a series, count once."""
    return list(dict.fromkeys(map(entry_of, palette(report))))


# --- all tables -----------------------------------------------------------------------

R = TypeVar("R", bound=Row)
GROUPS = ("dose", "type", "task", "split")


def tables(report: Report, *, brief: bool = False) -> list[Table]:
    """The tables that a person reads, in order.

    Parameters
    ----------
    brief
        Only pooled figures: what a terminal shows of many audits.
    """
    made: list[Table] = []
    for audit, rows in grouped(report.results, lambda row: row.audit).items():
        made += audit_tables(audit, rows, brief=brief)
    for audit, contrasts in grouped(report.contrasts, lambda row: row.audit).items():
        if part := [row for row in contrasts if not brief or row.group == "pooled"]:
            primary = any(row.family == "primary" for row in part)
            words = sentences.render("table.change")
            made.append(_table(audit, part, words + " (exploratory)" * (not primary)))
    if not brief and (records := report.tables.get("matching_by_type")):
        title = sentences.render("table.matching")
        made.append(records_table(records, title=title, section="manifest"))
    return made


def audit_tables(
    audit: str, rows: Sequence[Row], *, brief: bool = False
) -> list[Table]:
    """The tables of one audit's rows: pooled, and by type, task and split."""
    pooled = [row for row in rows if row.group == "pooled"]
    parts = {"": pooled}
    if wide := about(audit).wide:
        parts = grouped(pooled, lambda row: metric_of(audit, row.metric).panel)
    if not brief:
        kinds = grouped(rows, lambda row: row.grouping[0])
        parts |= {f"by_{kind}": kinds.get(kind, []) for kind in GROUPS}
    made = []
    for panel, part in parts.items():
        if part:
            words = sentences.optional(f"table.{panel}") or about(audit).over
            words += _units(part) + " (exploratory)" * (not wide)
            made.append(_table(audit, part, words, panel))
    return made


def further_tables(report: Report) -> list[Table]:
    """The report's tables of records that readers are shown, in order."""
    return [
        records_table(
            records,
            title=name.replace("_", " "),
            key=name,
            section=(section := report.origins.get(name, FURTHER)),
            short=name.removeprefix(f"{section}_").replace("_", " "),
        )
        for name, records in report.tables.items()
        if records and name != "matching_by_type" and name not in DRAWN
    ]


# --- at a glance ----------------------------------------------------------------------


def main_rows(report: Report) -> Iterator[tuple[str, str, list[Row]]]:
    """The main figures: title, variant as it was declared, rows of all checkpoints.

    Of several scores it is the one that the verdict rests on, where it rests on none
    the loss.
    """
    rows = _pooled(report)
    for audit in in_order({row.audit for row in rows}):
        for metric in about(audit).metrics:
            known = [r for r in rows if (r.audit, r.metric) == (audit, metric.name)]
            for of in metric.glance:
                mine = [row for row in known if row.of == of]
                if of == ANY:
                    resting = carriers(report.findings, audit)
                    mine = [
                        row
                        for row in known
                        if not isinstance(row, Contrast)
                        and row.of == resting.get(entry_of(row.checkpoint), "loss")
                    ]
                if mine:
                    key = f"metric.{audit}.{metric.name}.glance.{of}"
                    yield sentences.render(key), of, mine


def _pooled(report: Report) -> list[Row]:
    rows = (*report.results, *report.contrasts)
    return [row for row in rows if row.group == "pooled"]


def glance(report: Report) -> Table | None:
    """One line a checkpoint, one figure an audit; ``None`` where there is none.

    Figures are chosen beforehand, never by what came out (:func:`main_rows`).
    """
    columns: dict[str, dict[str, Cell]] = {}
    chance: list[Cell] = []
    for title, variant, mine in main_rows(report):
        columns[title] = {}
        for row in mine:
            named = f"{row.of} " if variant == ANY else ""
            columns[title].setdefault(line_name(row), figure(row, before=named))
        own = [row for row in mine if not isinstance(row, Contrast)]
        chance.append(_chance(own) if about(mine[0].audit).chance else NONE)
    rows = _pooled(report)
    several = {r.checkpoint for r in rows if r.over == "both"}
    # Of several seeds one line stands for all, with the widest interval there is.
    alone = [r for r in rows if entry_of(r.checkpoint) not in several]
    seen = [*alone, *(r for r in rows if r.over == "both")]
    lines = [
        Line((Cell(who), *(c.get(who, NONE) for c in columns.values())), name)
        for who, name in {line_name(row): row.checkpoint for row in seen}.items()
        if any(who in cells for cells in columns.values())
    ]
    if not lines:
        return None
    if not all(cell.missing for cell in chance):
        lines.append(Line((Cell(sentences.render("table.chance")), *chance)))
    return Table(
        title=sentences.render("page.glance"),
        header=tuple(
            sentences.translated("column", name) for name in ("checkpoint", *columns)
        ),
        rows=_telling(lines),
        remarks=(sentences.render("page.glance_remark"),),
        key="glance",
    )


# --- tables of rows -------------------------------------------------------------------


def line_name(row: Row) -> str:
    """A checkpoint, and what its intervals are over where that is no source."""
    return row.checkpoint if row.over == "sources" else f"{row.checkpoint}, {row.over}"


def _chance(rows: Sequence[Row]) -> Cell:
    """The null value and its band where all checkpoints have the same; else nothing."""
    bands = {(r.null, r.null_low, r.null_high) for r in rows if r.value is not None}
    null, low, high = bands.pop() if len(bands) == 1 else (None, None, None)
    return NONE if null is None else Cell(limited(null, low, high), numeric=True)


def _units(rows: Sequence[Row]) -> str:
    units = sorted({row.unit for row in rows if row.unit})
    return f", in {', '.join(units)}" if units else ""


def _table(audit: str, rows: Sequence[R], words: str, panel: str = "") -> Table:
    """One line a checkpoint and part, one column a metric; variants as either."""
    wide = about(audit).wide and not isinstance(rows[0], Contrast)
    named = [r for r in rows if r.of not in metric_of(audit, r.metric).hidden]
    rows = named or rows
    lead: dict[str, Callable[[R], str]] = {"checkpoint": line_name}
    if isinstance(rows[0], Contrast):
        lead["baseline"] = _baseline
    if any(row.group != "pooled" for row in rows):
        lead["group"] = lambda row: row.grouping[1] or row.group
    if not wide and (any(row.of for row in rows) or "baseline" not in lead):
        lead["of"] = lambda row: row.of

    def column(row: R) -> tuple[str, str]:
        return row.metric, row.of if wide else ""

    columns = list(dict.fromkeys(map(column, rows)))
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
            shown = (_change(cells[c]) if c in cells else NONE for c in columns)
            whole = (*texts, *shown, *map(cell, sizes))
            lines.append(Line(whole, mine[0].checkpoint))
        chance = [_chance([row for row in part if column(row) == c]) for c in columns]
        if about(audit).chance and not all(one.missing for one in chance):
            texts = (Cell(of(part[0])) for of in [*lead.values()][1:])
            whole = (Cell("chance"), *texts, *chance, NONE, NONE)
            lines.append(Line(whole))
    names = (label(audit, *one) if wide else label(audit, one[0]) for one in columns)
    counts = about(audit).counts if wide else "n"
    return Table(
        title=f"{audit}: {words}",
        header=(*lead, *names, counts, "clusters"),
        rows=_telling(lines),
        remarks=_remarks(rows),
        section=audit,
        short=words,
    )


def _telling(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Lines with a figure that is estimable, or withheld; all where there is none.

    Why the others have none stands below the table.
    """
    rows = [[cell.row for cell in line.cells if cell.row] for line in lines]
    return tuple(
        line
        for line, own in zip(lines, rows, strict=True)
        if not own or any(row.value is not None or row.withheld for row in own)
    ) or tuple(lines)


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


FEW = 10
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
        if row.status == "ok" and row.metric == "delta_sel" and row.clusters < FEW
    }
    remarks = []
    for (note, withheld), places in reasons.items():
        facts = {"note": sentences.translated("reason", note), "withheld": withheld}
        remarks.append(sentences.render("table.not_estimable", places=places, **facts))
    if few:
        remarks.append(sentences.render("table.few", few=FEW, places=sorted(few)))
    return tuple(remarks)


def general(report: Report) -> list[tuple[str, str]]:
    """Term and meaning of what several audits give; what intervals were made by."""
    return sentences.terms("definition.all", methods=methods_of(report.results))


def methods_of(rows: Iterable[Row]) -> list[str]:
    """What readers see for the methods of the rows' intervals."""
    used = sorted({row.interval for row in rows} - {"none"})
    return [sentences.render(f"interval.{name}") for name in used]

"""What a person reads of a report first: the same tables in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from spark_audit import sentences
from spark_audit.audits import about, in_order, label, metric_of
from spark_audit.audits.claims import carriers
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
    records_table,
)
from spark_audit.results import Contrast, Report, Row, grouped, number

DRAWN = ("mia_roc",)
"""Further tables that are there to be drawn: no reader is shown them as tables."""


def entries(report: Report) -> dict[str, int]:
    """What was audited, in order, and how many replicates each has.

    A series counts once: its stages have no figures but in the series' own.
    """
    counts: dict[str, int] = {}
    for name in palette(report):
        entry = entry_of(name)
        counts[entry] = counts.get(entry, 0) + (entry != name)
    return counts


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
            made.append(_long(audit, part, words + " (exploratory)" * (not primary)))
    if not brief and (records := report.tables.get("matching_by_type")):
        title = sentences.render("table.matching")
        names = {"type": "type", "matched": "matched", "unmatched": "unmatched"}
        names["reasons"] = "why"
        table = records_table(records, title=title, header=names, section="manifest")
        made.append(table)
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
            if wide:
                made.append(_wide(audit, part, words, panel))
            else:
                made.append(_long(audit, part, f"{words}{_units(part)} (exploratory)"))
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
    seen = [r for r in rows if entry_of(r.checkpoint) not in several]
    # Of several seeds one line stands for all, with the widest interval there is.
    seen += [r for r in rows if r.checkpoint in several and r.over == "both"]
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
    )


# --- tables of rows -------------------------------------------------------------------


def line_name(row: Row) -> str:
    """A checkpoint, and what its intervals are over where that is no source."""
    return row.checkpoint if row.over == "sources" else f"{row.checkpoint}, {row.over}"


def _chance(rows: Sequence[Row]) -> Cell:
    """The null value and its band where all checkpoints have the same; else nothing."""
    bands = {(r.null, r.null_low, r.null_high) for r in rows if r.value is not None}
    if len(bands) != 1:
        return NONE
    null, low, high = bands.pop()
    if null is None:
        return NONE
    return Cell("", null) if None in (low, high) else Cell("", null, low, high)


def _units(rows: Sequence[Row]) -> str:
    units = sorted({row.unit for row in rows if row.unit})
    return f", in {', '.join(units)}" if units else ""


def _long(audit: str, rows: Sequence[R], words: str) -> Table:
    """One line a checkpoint, part and variant, one column a metric."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    paired = isinstance(rows[0], Contrast)
    lead: dict[str, Callable[[R], str]] = {"checkpoint": line_name}
    if paired:
        lead["baseline"] = _baseline
    if any(row.group != "pooled" for row in rows):
        lead["group"] = lambda row: row.grouping[1] or row.group
    if not paired or any(row.of for row in rows):
        lead["of"] = lambda row: row.of
    lines = []
    for part in grouped(rows, lambda row: (row.group, row.of)).values():
        own = grouped(part, lambda row: (line_name(row), _baseline(row)))
        for mine in own.values():
            cells = {row.metric: _change(row) for row in mine}
            sizes = max(row.n for row in mine), max(row.clusters for row in mine)
            texts = (Cell(of(mine[0])) for of in lead.values())
            shown = (cells.get(metric, NONE) for metric in metrics)
            whole = (*texts, *shown, *map(cell, sizes))
            lines.append(Line(whole, mine[0].checkpoint, mine[0].group))
        chance = [_chance([row for row in part if row.metric == m]) for m in metrics]
        if about(audit).chance and not all(one.missing for one in chance):
            texts = (Cell(of(part[0])) for of in [*lead.values()][1:])
            whole = (Cell("chance"), *texts, *chance, NONE, NONE)
            lines.append(Line(whole, group=part[0].group))
    header = (*lead, *(label(audit, metric) for metric in metrics), "n", "clusters")
    return _table(audit, words, rows, header, lines)


def _wide(audit: str, rows: Sequence[Row], words: str, panel: str) -> Table:
    """One line a checkpoint, one column a metric and variant."""
    rows = [r for r in rows if r.of not in metric_of(audit, r.metric).hidden]
    parted = any(row.group != "pooled" for row in rows)
    columns = list(dict.fromkeys((row.metric, row.of) for row in rows))
    # The column that counts and the smallest effect are of.
    of_panel = (one for one in about(audit).metrics if one.panel == panel)
    named = ((metric.name, of) for metric in of_panel for of in metric.counted)
    main = next(named, columns[0])
    lines = []
    for (group, who), mine in grouped(rows, lambda r: (r.group, line_name(r))).items():
        cells = {(row.metric, row.of): row for row in mine}
        first = next(cells[column] for column in columns if column in cells)
        seen = first if parted else cells.get(main, first)
        counted = first if seen.value is None else seen
        figures = [figure(cells[c]) if c in cells else NONE for c in columns]
        lead = (Cell(first.grouping[1]), Cell(who)) if parted else (Cell(who),)
        least = () if parted else (cell(seen.mde),)
        sizes = (*least, cell(counted.n), cell(counted.clusters))
        lines.append(Line((*lead, *figures, *sizes), first.checkpoint, group))
    header = ["checkpoint", *(label(audit, *column) for column in columns)]
    if parted:
        header.insert(0, "group")
    else:
        called = sentences.optional(f"metric.{audit}.{main[0]}.counted.{main[1]}")
        header.append(f"MDE of the {called or 'first figure'}")
        words += _units(rows)
    header += [about(audit).counts, "clusters"]
    return _table(audit, words, rows, header, lines)


def _table(
    audit: str,
    words: str,
    rows: Sequence[Row],
    header: Sequence[str],
    lines: Sequence[Line],
) -> Table:
    title, remarks = f"{audit}: {words}", _remarks(rows)
    return Table(title, tuple(header), _telling(lines), remarks, "", audit, words)


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

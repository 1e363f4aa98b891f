"""Cells, lines and tables: what every format of a report is written from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from spark_audit import sentences
from spark_audit.audits import about, in_order, label, metric_of
from spark_audit.audits.claims import carriers
from spark_audit.errors import InputError, choose
from spark_audit.names import ANY_NAME, entry_of
from spark_audit.report.figures.drawing import palette
from spark_audit.results import Contrast, Report, Row, grouped, number
from spark_audit.sentences import render
from spark_audit.stats.estimate import Status

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.report.figures.drawing import Drawn

LARGE_NUMBER = 1e6
"""Values from which powers of ten are shown."""
MAX_SHOWN_VALUE = 1e12
"""Values of which no more is said than that they are beyond it."""
SHA256 = 64
"""Letters of a digest that is not keyed."""
FURTHER_TABLES = "further"
"""Where tables stand that belong to no audit of a report."""
VOID: tuple[Status, ...] = ("void", "invalid", "insensitive", "not_resolvable")
"""Statuses of figures that stand in the report but must not be read as found."""


def shown(value: float | None) -> str:
    """A number as every table shows it."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= MAX_SHOWN_VALUE:
        return "> 1e12" if value > 0 else "< -1e12"
    if abs(value) >= LARGE_NUMBER:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return number(value)


def limited(value: float, low: float | None, high: float | None) -> str:
    """A number with its interval in brackets."""
    text = shown(value)
    if text[0] in "<>" and {shown(low), shown(high)} <= {text, "-"}:
        return text  # what is beyond all bounds says so once
    if low is None:
        return text if high is None else f"{text} [≤ {shown(high)}]"
    ends = f"≥ {shown(low)}" if high is None else f"{shown(low)}, {shown(high)}"
    return f"{text} [{ends}]"


def is_shared(report: Report) -> bool:
    """Whether it is a report as files for others hold it: rounded, its digest keyed."""
    return not report.manifest.key and len(report.manifest.digest) != SHA256


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and the figure of the report that it shows.

    ``numeric`` is whether it begins with a number.
    """

    text: str
    numeric: bool = False
    row: Row | None = None

    @property
    def void(self) -> bool:
        """Whether nothing can be concluded from its figure."""
        return self.row is not None and self.row.status in VOID

    @property
    def missing(self) -> bool:
        """Whether nothing stands in it, or only that a figure is missing."""
        return self.text in ("", "-") or bool(self.row and self.row.value is None)


EMPTY_CELL = Cell("-")
"""Stands where there is nothing."""


def figure(row: Row, *, before: str = "", after: str = "") -> Cell:
    """Value and decision interval of a row, or why there is none."""
    if row.value is None:
        lacking = "withheld" if row.withheld else "not estimable"
        return Cell(f"{before}{lacking}{after}", row=row)
    text = limited(row.value, row.low, row.high)
    if row.status in VOID:
        text += f" {row.status.upper().replace('_', ' ')}"
    return Cell(f"{before}{text}{after}", not before, row)


def cell(value: object) -> Cell:
    """A value of a record: a number, or words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(shown(value), numeric=True)
    return EMPTY_CELL if value is None or value == "" else Cell(str(value))


@dataclass(frozen=True)
class TableLine:
    """One row of a table: its cells, and whose it is."""

    cells: tuple[Cell, ...]
    checkpoint: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The cells as text."""
        return tuple(cell.text for cell in self.cells)


@dataclass(frozen=True)
class ReportTable:
    """One table for a reader; ``remarks`` stand below it.

    Attributes
    ----------
    key
        The name of a table of records; empty of one that is made of rows.
    section
        Audit that it is of, or ``manifest``, or where else it stands on the page.
    title, short
        By itself, and under the heading of its section.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[TableLine, ...]
    remarks: tuple[str, ...] = ()
    section: str = FURTHER_TABLES
    short: str = ""
    key: str = ""


def records_table(records: Iterable[Mapping[str, Any]], **facts: Any) -> ReportTable:
    """Records as a table, a column a key.

    ``facts`` are the other fields of :class:`ReportTable`, of which ``title`` is
    needed.
    """
    records = list(records)
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [
        TableLine(
            tuple(cell(record.get(name)) for name in names),
            checkpoint=str(record.get("checkpoint") or ""),
        )
        for record in records
    ]
    header = tuple(name.replace("_", " ") for name in names)
    return ReportTable(header=header, rows=tuple(rows), **facts)


class File(NamedTuple):
    """A file of a report's folder; a ``private`` one is for its owner only."""

    name: str
    content: str | bytes
    private: bool = False


@dataclass(frozen=True)
class WriterInput:
    """What a writer is given beside the report.

    Attributes
    ----------
    drawn
        Draws the figures, once for all writers.
    manifest, show_text
        For the words of examples; whether identifiers among them may be shown.
    """

    drawn: Drawn = tuple
    manifest: Manifest | None = None
    show_text: bool = False


DRAWN_TABLES = ("mia_roc",)
"""Further tables that are there to be drawn: no reader is shown them as tables."""


def entries(report: Report) -> list[str]:
    """What was audited, in order; seeds of a method, and a series, count once."""
    return list(dict.fromkeys(map(entry_of, palette(report))))


# --- all tables -----------------------------------------------------------------------

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


# --- at a glance ----------------------------------------------------------------------


def main_rows(report: Report) -> Iterator[tuple[str, str, list[Row]]]:
    """The main figures: title, variant as it was declared, rows of all checkpoints.

    Of several scores it is the one that the verdict rests on, where it rests on none
    the loss.
    """
    rows = grouped(_pooled(report), lambda row: (row.audit, row.metric))
    for audit in in_order({audit for audit, _ in rows}):
        for metric in about(audit).metrics:
            for of in metric.glance:
                mine = rows.get((audit, metric.name), [])
                if of == ANY_NAME:
                    resting = carriers(report.findings, audit)
                    mine = [
                        row
                        for row in mine
                        if not isinstance(row, Contrast)
                        and row.of == resting.get(entry_of(row.checkpoint), "loss")
                    ]
                else:
                    mine = [row for row in mine if row.of == of]
                if mine:
                    key = f"metric.{audit}.{metric.name}.glance.{of}"
                    yield sentences.render(key), of, mine


def _pooled(report: Report) -> list[Row]:
    rows = (*report.results, *report.contrasts)
    return [row for row in rows if row.group == "pooled"]


def glance(report: Report) -> ReportTable | None:
    """One line a checkpoint, one figure an audit; ``None`` where there is none.

    Figures are chosen beforehand, never by what came out (:func:`main_rows`).
    """
    columns: dict[str, dict[str, Cell]] = {}
    chance: list[Cell] = []
    for title, variant, mine in main_rows(report):
        columns[title] = {}
        for row in mine:
            named = f"{row.of} " if variant == ANY_NAME else ""
            columns[title].setdefault(line_name(row), figure(row, before=named))
        own = [row for row in mine if not isinstance(row, Contrast)]
        chance.append(_chance(own) if about(mine[0].audit).chance else EMPTY_CELL)
    rows = _pooled(report)
    several = {row.checkpoint for row in rows if row.over == "both"}
    whose: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.over == "both"):
        # Of several seeds one line stands for all, with the widest interval there is.
        if row.over == "both" or entry_of(row.checkpoint) not in several:
            whose[line_name(row)] = row.checkpoint
    lines = []
    for who, name in whose.items():
        cells = [column.get(who) for column in columns.values()]
        if any(cells):
            lines.append(
                TableLine((Cell(who), *(one or EMPTY_CELL for one in cells)), name)
            )
    if not lines:
        return None
    if not all(cell.missing for cell in chance):
        lines.append(TableLine((Cell(sentences.render("table.chance")), *chance)))
    names = ("checkpoint", *columns)
    return ReportTable(
        title=sentences.render("page.glance"),
        header=tuple(sentences.translated("column", name) for name in names),
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
    return EMPTY_CELL if null is None else Cell(limited(null, low, high), numeric=True)


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
        chance = [_chance(by_column.get(one, [])) for one in columns]
        if about(audit).chance and not all(one.missing for one in chance):
            texts = (Cell(of(part[0])) for of in [*lead.values()][1:])
            whole = (Cell("chance"), *texts, *chance, EMPTY_CELL, EMPTY_CELL)
            lines.append(TableLine(whole))
    names = (label(audit, *one) if wide else label(audit, one[0]) for one in columns)
    counts = about(audit).counts if wide else "n"
    return ReportTable(
        title=f"{audit}: {words}",
        header=(*lead, *names, counts, "clusters"),
        rows=_telling(lines),
        remarks=_remarks(rows),
        section=audit,
        short=words,
    )


def _telling(lines: Sequence[TableLine]) -> tuple[TableLine, ...]:
    """Lines with a figure that is estimable, or withheld; all where there is none.

    Why the others have none stands below the table.
    """
    telling = []
    for line in lines:
        rows = [cell.row for cell in line.cells if cell.row]
        if not rows or any(row.value is not None or row.withheld for row in rows):
            telling.append(line)
    return tuple(telling or lines)


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
        facts = {"note": sentences.translated("reason", note), "withheld": withheld}
        remarks.append(sentences.render("table.not_estimable", places=places, **facts))
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


OVER_ORDER = ("both", "sources", "seeds")
"""Of a method with several seeds the first that there is is shown."""


def against(report: Report, other: Report) -> ReportTable:
    """Figures that both reports hold of checkpoints of one name, one per line.

    Raises
    ------
    InputError
        If the reports share no checkpoint or no figure.
    """
    ours, theirs = _figures(report), _figures(other)
    records = [
        _record(row, theirs[key], report, other)
        for key, row in ours.items()
        if key in theirs and None not in (row.value, theirs[key].value)
    ]
    if not records:
        names = choose("", dict.fromkeys(key[0] for key in theirs))
        raise InputError(
            "the two reports have no figure of a checkpoint of one name in common",
            where="--against",
            fix=f"run the other's audits with --ckpt NAME=PATH; {names}",
        )
    title = render("against.title", name=other.manifest.name)
    return records_table(records, title=title, remarks=tuple(other.caveats))


def _figures(report: Report) -> dict[tuple[str, ...], Row]:
    """Rows by checkpoint, audit, metric, variant and group; seeds by their method."""
    names = {row.checkpoint for row in report.results}
    rows: dict[tuple[str, ...], Row] = {}
    for row in report.results:
        method = entry_of(row.checkpoint)
        if method != row.checkpoint and method in names:
            continue
        key = (row.checkpoint, row.audit, row.metric, row.of, row.group.casefold())
        if key not in rows or OVER_ORDER.index(row.over) < OVER_ORDER.index(
            rows[key].over
        ):
            rows[key] = row
    return rows


def _record(row: Row, match: Row, report: Report, other: Report) -> dict[str, str]:
    label = ".".join(part for part in (row.audit, row.metric, row.of) if part)
    label += "" if row.group == "pooled" else f" {row.group}"
    pairs: dict[str, Any] = {"base": (_base(row, report), _base(match, other))}
    for name in ("n", "clusters", "interval", "over"):
        pairs[name] = getattr(row, name), getattr(match, name)
    apart = [f"{k} {a} / {b}" for k, (a, b) in pairs.items() if a != b and b != 0]
    apart.append(match.note)
    source = {one.name: one.source for one in other.checkpoints}.get(match.checkpoint)
    return {
        "checkpoint": row.checkpoint,
        "figure": label,
        "here": figure(row).text,
        "there": f"{figure(match).text} ({source or match.checkpoint})",
        render("against.differences"): "; ".join(filter(None, apart)),
    }


def _base(row: Row, report: Report) -> str:
    bases = {entry_of(one.name): one.base for one in report.checkpoints}
    return bases.get(row.checkpoint) or str(report.settings.get("reference", "unknown"))

"""tables/*.tex: the paper's tables as LaTeX, to be read into a paper by input.

Every line states in which state its checkpoint is. What is void says so, and is grey
where the paper loads ``xcolor`` or ``color``, else in italics.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pandas as pd

from spark_audit.audits import about, all_audits
from spark_audit.audits.base import Audit, LatexColumn
from spark_audit.report.cells import EMPTY_CELL, VOID, figure, is_shared, line_name
from spark_audit.report.standings import standings, state_name
from spark_audit.report.tables import methods_of
from spark_audit.report.tried import method_of
from spark_audit.report.writers.pages import environment
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Report, Row
from spark_audit.sentences import optional, render

INLINE = 4
"""Columns of figures up to which an interval stands beside its value, not below."""


Shown: TypeAlias = Mapping[LatexColumn, Mapping[str, Row]]
"""Column -> name of a line -> row."""


class LatexTable(NamedTuple):
    """A table of the paper; its caption is the sentence ``latex.NAME``."""

    name: str
    audit: type[Audit]
    columns: Sequence[LatexColumn]


def write_latex(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``tables/*.tex``; no text of an example is ever in them."""
    tables = latex_tables(report)
    whole = environment().get_template("all.tex")
    empty = render("latex.empty")
    tables["all"] = whole.render(names=[*tables], empty=empty)
    yield from (File(f"tables/{name}.tex", text) for name, text in tables.items())


def latex_tables(report: Report) -> dict[str, str]:
    """Every table that the report holds figures for, as LaTeX, by its file's stem."""
    by_place = _rows(report)
    tables: dict[str, str] = {}
    for table in _layouts(report):
        figures: dict[LatexColumn, dict[str, Row]] = {}
        has_own_figure = False
        for column in table.columns:
            audit = column.audit or table.audit.name
            place = (audit, column.metric, column.of, column.group)
            rows = by_place.get(place)
            if rows is None:
                continue

            # The table's own audit is named too: notes ask whose rows a column has.
            figures[column._replace(audit=audit)] = rows
            if audit == table.audit.name:
                values = [row.value for row in rows.values()]
                has_own_figure |= any(value is not None for value in values)
        if has_own_figure:
            tables[table.name] = _table(table.name, report, figures)
    return tables


def _layouts(report: Report) -> list[LatexTable]:
    """Return the tables of all audits that have columns, in the paper's order."""
    paper = report.settings.get("preset") == "paper"
    tables = []
    for audit in sorted(all_audits().values(), key=lambda audit: audit.latex_place):
        columns = audit.latex_columns(report.results, report.findings, paper=paper)
        if columns:
            name = audit.latex_table or audit.name
            tables.append(LatexTable(name, audit, columns))
    return tables


def _rows(report: Report) -> dict[tuple[str, ...], dict[str, Row]]:
    """Rows by audit, metric, variant and group, then by line."""
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    # Of the stages of an accuracy the last one stays.
    stage = {id(r): int(r.of) for r in report.results if r.of.isdigit()}
    for row in sorted(report.results, key=lambda row: stage.get(id(row), 0)):
        of = "last" if row.metric == "accuracy" and id(row) in stage else row.of
        place = (row.audit, row.metric, of, row.group)
        found.setdefault(place, {})[line_name(row)] = row
    return found


def _table(name: str, report: Report, figures: Shown) -> str:
    """A floating table, smaller where it is higher or wider than a page, and notes."""
    # As the report has them, whichever column comes first.
    lines = [
        line
        for line in dict.fromkeys(map(line_name, report.results))
        if any(line in rows for rows in figures.values())
    ]
    states = _states(report, lines)
    cells = {render("latex.state"): [states[line] for line in lines]}
    is_void: dict[str, list[bool]] = {}
    for column, rows in figures.items():
        shown = [figure(rows[line]) if line in rows else EMPTY_CELL for line in lines]
        cells[column.header] = [cell.text for cell in shown]
        is_void[column.header] = [cell.void for cell in shown]

    frame = pd.DataFrame(cells, index=lines).rename_axis("Checkpoint", axis=1)
    marks = pd.DataFrame(is_void, index=lines).replace({True: VOID_STYLE, False: ""})
    style = (
        frame.style.format(_stacked if len(figures) > INLINE else _tex, escape="latex")
        .apply(lambda _: marks, axis=None, subset=[*is_void])
        .format_index(_tex, escape="latex", axis=0)
        .format_index(_tex, escape="latex", axis=1)
        .map_index(lambda _: "textbf:--rwrap;", axis=1)
    )
    paper = report.settings.get("preset") == "paper"
    # An audit of another package may have no words for its table.
    caption = optional(f"latex.{name}") or name
    if paper:
        caption = optional(f"latex.{name}_paper") or caption
    shape = f"@{{}}ll{'c' * len(figures)}@{{}}"
    tabular = style.to_latex(hrules=True, column_format=shape).strip()
    below = pd.DataFrame(_notes(report, figures)).style.hide(axis=0).hide(axis=1)
    below = below.format(_tex, escape="latex")
    notes = below.to_latex(column_format=r"@{}p{\textwidth}@{}").strip()
    template = environment().get_template("table.tex")
    return template.render(name=name, caption=caption, tabular=tabular, notes=notes)


VOID_STYLE = "sparkvoid:--rwrap;"
"""A cell in the argument of a command of :file:`table.tex`, as pandas writes it."""


def _states(report: Report, lines: Sequence[str]) -> dict[str, str]:
    """The state of each line's checkpoint, in words; ``-`` of the base."""
    by_name = {one.name: state_name(one.state) for one in standings(report)}
    whose = {line_name(row): row.checkpoint for row in report.results}
    return {line: by_name.get(method_of(whose[line]), "-") for line in lines}


def _notes(report: Report, figures: Shown) -> list[str]:
    """What stands below a table: of its intervals and sizes, then reasons and remarks.

    Each remark stands once, after the lines that it is on.
    """
    rows = [row for lines in figures.values() for row in lines.values()]
    remarks: dict[str, dict[str, None]] = {}
    for row in rows:
        state = row.status.replace("_", " ").removeprefix("ok")
        if row.status == "void":
            why = optional(f"check.{row.voided_by}") or row.voided_by
            note = render("latex.void", guard=why)
        elif state and not row.note.lower().startswith(state):
            note = f"{state}: {row.note or render(f'latex.{row.status}')}"
        else:  # some audits' notes begin with the word themselves
            note = row.note
        remarks.setdefault(note.rstrip("."), {})[line_name(row)] = None
    remarks.pop("", None)
    return [
        *_general_notes(report, figures, rows),
        *(f"{', '.join(lines)}: {note}." for note, lines in remarks.items()),
    ]


def _general_notes(
    report: Report, figures: Shown, rows: Sequence[Row]
) -> Iterator[str]:
    """Yield notes on the intervals, sizes and signs of a table, and failed guards."""
    if report.status == "partial":
        yield render("latex.note.partial")
    over_seeds = any(row.over != "sources" for row in rows)
    seeds = render("latex.note.seeds") if over_seeds else ""
    yield f"{_interval_note(report, rows)} {seeds}".rstrip()
    if sizes := _size_note(figures):
        yield sizes

    if any(column.header[-1] in "↑↓" for column in figures):
        yield render("latex.note.arrows")
    if len({frozenset(lines) for lines in figures.values()}) > 1:
        yield render("latex.note.gaps")
    if any(column.metric == "memory" for column in figures):
        yield render("latex.note.memory")
    if is_shared(report):
        yield render("latex.note.rounded")
    if any(row.status in VOID for row in rows):
        yield render("latex.note.void")

    failed = [
        render("states.with_remark", text=guard, remark=", ".join(names))
        if names
        else guard
        for guard, names in _failed(report).items()
    ]
    if failed:
        yield render("latex.note.failed", guards=failed)


def _interval_note(report: Report, rows: Sequence[Row]) -> str:
    """Return of which level the intervals are, over what, and how they were made."""
    bounded = [row for row in rows if row.low is not None or row.high is not None]
    if not bounded:
        return render("latex.note.no_interval")
    return render(
        "latex.note.intervals",
        levels=[f"{100 * level:g}%" for level in {row.level for row in bounded}],
        unit=_independent_units(row.audit for row in rows),
        manifest=report.manifest.name,
        methods=sorted(methods_of(bounded)),
    )


def _size_note(figures: Shown) -> str:
    """Return over how many the figures are, by column where columns differ."""
    sizes = _sizes(figures)
    if len(sizes) == 1:
        return render("latex.note.size", size=next(iter(sizes)))
    parts = [
        render("latex.note.size_of_columns", size=size, headers=headers)
        for size, headers in sizes.items()
    ]
    return f"{'; '.join(parts)}." if parts else ""


def _independent_units(audits: Iterable[str]) -> str:
    """Return what all intervals are over; audits that differ have clusters at least."""
    units = {about(audit).independent_units for audit in audits}
    return units.pop() if len(units) == 1 else Audit.independent_units


def _failed(report: Report) -> dict[str, list[str]]:
    """The guards that failed, with the checkpoints that they failed for, if of some."""
    failed: dict[str, list[str]] = {}
    for guard in report.guards:
        if guard.passed is False:
            names = failed.setdefault(guard.name, [])
            if guard.checkpoint:
                names.append(guard.checkpoint)
    return failed


def _sizes(figures: Shown) -> dict[str, list[str]]:
    """How many were averaged and in how many clusters -> headers of the columns."""
    headers: dict[str, list[str]] = {}
    for column, lines in figures.items():
        known = [r for r in lines.values() if r.value is not None and r.clusters]
        # Over seeds, clusters are seeds.
        if rows := [row for row in known if row.over == "sources"] or known:
            text = f"{_span(row.n for row in rows)} {column.counted}"
            if column.counted != "canaries":
                unit = about(column.audit).independent_units
                text += f" in {_span(row.clusters for row in rows)} {unit}"
            headers.setdefault(text, []).append(column.header.rstrip(" ↑↓"))
    return headers


def _span(values: Iterable[int]) -> str:
    known = sorted(set(values))
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


LATEX_SIGNS = {
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≈": r"$\approx$",
    "Δ": r"$\Delta$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': r"{\char34}",
    "`": r"{\char96}",
}
COMBINING_MARKS = "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327"
ACCENTS = dict(zip(COMBINING_MARKS, "`'^~\"rvc", strict=True))
"""Combining characters, and commands of TeX."""


def _tex(escaped: object) -> str:
    """What pandas escaped, in ASCII: it compiles in any encoding, with any engine.

    A character without a command of plain LaTeX appears by its code, as U+4E2D.
    """
    text = "".join(map(_sign, unicodedata.normalize("NFC", str(escaped))))
    if text.startswith(("[", "*")):  # after the end of a line these were its options
        text = f"{{{text}}}"
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", text)


def _sign(char: str) -> str:
    if char in LATEX_SIGNS or char.isascii():
        return LATEX_SIGNS.get(char, char)
    base, *marks = list(unicodedata.normalize("NFD", char))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in ACCENTS:
        return rf"\{ACCENTS[marks[0]]}{{{base}}}"
    return rf"\texttt{{U+{ord(char):04X}}}"


def _stacked(escaped: object) -> str:
    """Return the interval below its value, which stands on its checkpoint's line."""
    value, bracket, limits = _tex(escaped).partition(" [")
    lines = rf"{value}\\{{\scriptsize [{limits}}}"
    stack = rf"\begin{{tabular}}[t]{{@{{}}c@{{}}}}{lines}\end{{tabular}}"
    return stack if bracket else value

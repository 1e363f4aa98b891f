"""tables/*.tex: the paper's tables as LaTeX, to be read into a paper by input.

Every line states in which state its checkpoint is. What is void says so, and is grey
where the paper loads ``xcolor`` or ``color``, else in italics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pandas as pd

from spark_audit.audits import about, all_audits
from spark_audit.audits.base import Audit, LatexColumn
from spark_audit.report.cells import (
    EMPTY_CELL,
    VOID,
    ReportTable,
    figure,
    is_shared,
    line_name,
    records_table,
)
from spark_audit.report.checkpoint_states import checkpoint_states, state_name
from spark_audit.report.matrix import few_names
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.tables import methods_of
from spark_audit.report.training_table import (
    is_training_table,
    training_for_readers,
)
from spark_audit.report.tried import method_of
from spark_audit.report.writers.latex_text import stacked_text, tex_text
from spark_audit.report.writers.page_templates import environment
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Report, Row
from spark_audit.sentences import optional, render

EXACT_DIGITS = 4
"""Decimals of figures that are not rounded, as the paper prints them."""

INLINE = 4
"""Columns of figures up to which an interval stands beside its value, not below."""

VOID_STYLE = "sparkvoid:--rwrap;"
"""A cell in the argument of a command of :file:`table.tex`, as pandas writes it."""

RowsByColumn: TypeAlias = Mapping[LatexColumn, Mapping[str, Row]]
"""Column -> name of a line -> row."""

DIGEST_CHARACTERS = 12
"""Characters of a manifest's digest that identify it below a table."""


class LatexTable(NamedTuple):
    """A table of the paper; its caption is the sentence ``latex.NAME``."""

    name: str
    audit: type[Audit]
    columns: Sequence[LatexColumn]


def write_latex(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``tables/*.tex``, and ``all.tex`` that reads all of them.

    No text of an example is ever in them.
    """
    yield from latex_files(prepared.report)


def latex_files(report: Report, *, is_exact: bool = False) -> Iterator[File]:
    """Yield the tables of a report, and ``all.tex`` that reads all of them.

    Parameters
    ----------
    is_exact
        Whether the tables are for the owner: figures have the decimals of the paper,
        and a note says that they are not rounded.
    """
    tables = latex_tables(report, is_exact=is_exact)
    for name, text in tables.items():
        yield File(f"tables/{name}.tex", text)

    template = environment().get_template("all.tex")
    all_tables = template.render(names=list(tables), empty=render("latex.empty"))
    yield File("tables/all.tex", all_tables)


def latex_tables(report: Report, *, is_exact: bool = False) -> dict[str, str]:
    """Return every table that the report holds figures for, by the stem of its file.

    Parameters
    ----------
    is_exact
        As :func:`latex_files` has it.
    """
    tables: dict[str, str] = {}
    for table in _layouts(report):
        rows_by_column = rows_of_columns(report, table.audit.name, table.columns)
        if _has_figure(rows_by_column, table.audit.name):
            tables[table.name] = _table(
                table.name, report, rows_by_column, is_exact=is_exact
            )

    for table_of_records in _tables_of_records(report, is_exact=is_exact):
        name = table_of_records.key
        tables[name] = _table_of_records(table_of_records, report, is_exact=is_exact)
    return tables


def _tables_of_records(report: Report, *, is_exact: bool) -> Iterator[ReportTable]:
    """Yield the further tables of a report that LaTeX has too: of audits, of runs."""
    digits = EXACT_DIGITS if is_exact else None
    for name in report.tables:
        if is_training_table(name, report) and report.tables[name]:
            yield training_for_readers(report, digits=digits)

        audit = report.origins.get(name, "")
        if audit and name in about(audit).latex_records and report.tables[name]:
            title = name.replace("_", " ")
            yield records_table(
                report.tables[name], title=title, key=name, digits=digits
            )


def rows_of_columns(
    report: Report, table_audit: str, columns: Iterable[LatexColumn]
) -> RowsByColumn:
    """Return the rows of those columns of a table that the report has rows for.

    Parameters
    ----------
    table_audit
        The audit of columns that name none.
    """
    rows_by_figure = _rows_by_figure(report)
    rows_by_column: dict[LatexColumn, Mapping[str, Row]] = {}
    for column in columns:
        audit = column.audit or table_audit
        figure_name = (audit, column.metric, column.variant, column.group)
        rows = rows_by_figure.get(figure_name)
        if rows is not None:
            # The table's own audit is named too: notes ask whose rows a column has.
            rows_by_column[column._replace(audit=audit)] = rows
    return rows_by_column


def _has_figure(rows_by_column: RowsByColumn, audit: str) -> bool:
    """Return whether a column of an audit has a figure."""
    for column, rows in rows_by_column.items():
        if column.audit == audit and any(
            row.value is not None for row in rows.values()
        ):
            return True
    return False


def _layouts(report: Report) -> list[LatexTable]:
    """Return the tables of all audits that have columns, in the paper's order."""
    tables = []
    # Audits of other packages stand among them by their place.
    for audit in sorted(all_audits().values(), key=lambda audit: audit.latex_place):
        columns_by_table = audit.latex_tables(
            report.results, report.findings, paper=_is_for_paper(report)
        )
        for name, columns in columns_by_table.items():
            if columns:
                tables.append(LatexTable(name, audit, columns))
    return tables


def _rows_by_figure(report: Report) -> dict[tuple[str, ...], dict[str, Row]]:
    """Return rows by audit, metric, variant and group, then by the name of their line.

    Of an accuracy after each stage, the variant is the stage: ``last`` stands for that
    of the last one.
    """
    rows_by_figure: dict[tuple[str, ...], dict[str, Row]] = {}
    # Later rows replace earlier ones: of the stages the last one stays.
    for row in sorted(report.results, key=_stage):
        is_of_stage = row.metric == "accuracy" and row.variant.isdigit()
        variant = "last" if is_of_stage else row.variant
        if about(row.audit).latex_variants:
            # Each variant has lines of its own, in the same columns.
            variant = ""
        figure_name = (row.audit, row.metric, variant, row.group)
        rows_by_figure.setdefault(figure_name, {})[_line_of(row)] = row
    return rows_by_figure


def _line_of(row: Row) -> str:
    """Return the name of a row's line: its checkpoint, and perhaps its variant."""
    sign = about(row.audit).latex_variants
    return f"{line_name(row)}, {sign} = {row.variant}" if sign else line_name(row)


def _stage(row: Row) -> int:
    """Return the stage that a row is of; 0 of a row that is of none."""
    return int(row.variant) if row.variant.isdigit() else 0


def _table(
    name: str, report: Report, rows_by_column: RowsByColumn, *, is_exact: bool
) -> str:
    """Return a floating table with notes, smaller where it is larger than a page."""
    # An audit of another package may have no words for its table.
    caption = optional(f"latex.{name}") or name
    if _is_for_paper(report):
        caption = optional(f"latex.{name}_paper") or caption

    template = environment().get_template("table.tex")
    return template.render(
        name=name,
        caption=caption,
        tabular=_tabular(report, rows_by_column, is_exact=is_exact),
        notes=tabular_of_texts(notes_on(report, rows_by_column, is_exact=is_exact)),
    )


def lines_of(report: Report, rows_by_column: RowsByColumn) -> list[str]:
    """Return the names of a table's lines, in the order of the report."""
    lines_with_figures: set[str] = set()
    for rows in rows_by_column.values():
        lines_with_figures.update(rows)

    # Whichever column comes first: a line may lack a figure of it.
    lines: dict[str, None] = {}
    for row in report.results:
        if _line_of(row) in lines_with_figures:
            lines[_line_of(row)] = None
    return list(lines)


def _table_of_records(table: ReportTable, report: Report, *, is_exact: bool) -> str:
    """Return a table of records as a floating table, with its remarks as notes."""
    texts = [line.texts for line in table.rows]
    frame = pd.DataFrame(texts, columns=[*table.header])
    style = (
        frame.style.hide(axis=0)
        .format(tex_text, escape="latex")
        .format_index(tex_text, escape="latex", axis=1)
        .map_index(lambda _: "textbf:--rwrap;", axis=1)
    )
    column_format = f"@{{}}l{'c' * (len(table.header) - 1)}@{{}}"
    tabular = str(style.to_latex(hrules=True, column_format=column_format)).strip()

    notes = [*table.remarks, made_note(report)]
    if is_exact:
        notes.append(render("latex.note.exact"))
    template = environment().get_template("table.tex")
    return template.render(
        name=table.key,
        caption=optional(f"latex.{table.key}") or table.title,
        tabular=tabular,
        notes=tabular_of_texts(notes),
    )


def _is_for_paper(report: Report) -> bool:
    """Return whether the report was made as the paper asks for."""
    return report.settings.get("preset") == "paper"


class LineFrames(NamedTuple):
    """The cells of a table, a line for each checkpoint, and their styles.

    Attributes
    ----------
    texts
        A column for the state, then one for each column of figures.
    styles
        Styles of the figures, in the same lines and columns.
    """

    texts: pd.DataFrame
    styles: pd.DataFrame


def line_frames(
    report: Report, rows_by_column: RowsByColumn, *, is_exact: bool
) -> LineFrames:
    """Return the cells of a table and their styles, as frames indexed by line."""
    digits = EXACT_DIGITS if is_exact else None
    lines = lines_of(report, rows_by_column)
    texts: dict[str, list[str]] = {render("latex.state"): _states(report, lines)}
    styles: dict[str, list[str]] = {}
    for column, rows in rows_by_column.items():
        texts[column.header] = []
        styles[column.header] = []
        for line in lines:
            cell = EMPTY_CELL
            if line in rows:
                cell = figure(rows[line], digits=digits)
            texts[column.header].append(cell.text)
            styles[column.header].append(VOID_STYLE if cell.void else "")
    return LineFrames(
        texts=pd.DataFrame(texts, index=lines),
        styles=pd.DataFrame(styles, index=lines),
    )


def _tabular(report: Report, rows_by_column: RowsByColumn, *, is_exact: bool) -> str:
    """Return the figures of a table as LaTeX: a state and figures in each line."""
    frames = line_frames(report, rows_by_column, is_exact=is_exact)
    text_frame = frames.texts.rename_axis("Checkpoint", axis=1)
    return styled_tabular(LineFrames(text_frame, frames.styles))


def styled_tabular(frames: LineFrames, *, has_blocks: bool = False) -> str:
    """Return cells and their styles as LaTeX.

    Parameters
    ----------
    has_blocks
        Whether lines are in blocks, with a rule between them: their index then has two
        levels.
    """
    n_figures = frames.styles.shape[1]
    in_latex = tex_text if n_figures <= INLINE else stacked_text
    style = (
        frames.texts.style.format(in_latex, escape="latex")
        .apply(lambda _: frames.styles, axis=None, subset=list(frames.styles))
        .format_index(tex_text, escape="latex", axis=0)
        .format_index(tex_text, escape="latex", axis=1)
        .map_index(lambda _: "textbf:--rwrap;", axis=1)
    )
    n_names = frames.texts.index.nlevels + 1  # those of lines, and the state
    column_format = f"@{{}}{'l' * n_names}{'c' * n_figures}@{{}}"
    latex = style.to_latex(
        hrules=True,
        column_format=column_format,
        clines="skip-last;data" if has_blocks else None,
        multirow_align="naive",
    )
    lines = str(latex).strip().splitlines()
    # Behind the last block stands the rule of the table's end.
    end = lines.index(r"\bottomrule")
    if lines[end - 1].startswith(r"\cline"):
        del lines[end - 1]
    return "\n".join(lines)


def tabular_of_texts(texts: Sequence[str]) -> str:
    """Return texts as LaTeX, one in a line."""
    # Pandas escapes what TeX would take for a command.
    notes = pd.DataFrame(texts)  # one column
    style = notes.style.hide(axis=0).hide(axis=1).format(tex_text, escape="latex")
    return str(style.to_latex(column_format=r"@{}p{\textwidth}@{}")).strip()


def _states(report: Report, lines: Sequence[str]) -> list[str]:
    """Return the state of each line's checkpoint, in words; ``-`` of the base."""
    state_by_name = {}
    for checkpoint_state in checkpoint_states(report):
        state_by_name[checkpoint_state.name] = state_name(checkpoint_state.state)

    # A line may be named after its checkpoint and what its intervals are over.
    checkpoint_by_line = {}
    for row in report.results:
        checkpoint_by_line[_line_of(row)] = row.checkpoint

    states = []
    for line in lines:
        # States are of methods, lines may be of seeds and of stages.
        method = method_of(checkpoint_by_line[line])
        states.append(state_by_name.get(method, "-"))
    return states


def notes_on(
    report: Report, rows_by_column: RowsByColumn, *, is_exact: bool
) -> list[str]:
    """Return the notes below a table: on intervals and sizes, then on single lines.

    A note on lines stands once, after the names of the lines.
    """
    rows: list[Row] = []
    for rows_of_column in rows_by_column.values():
        rows += rows_of_column.values()

    notes = list(_general_notes(report, rows_by_column, rows))
    notes += _notes_on_lines(rows_by_column)
    if is_exact:
        notes.append(render("latex.note.exact"))
    return notes


def _notes_on_lines(rows_by_column: RowsByColumn) -> Iterator[str]:
    """Yield the notes on single figures, after the names of their lines.

    A note that is not on all columns of a line names the first that it is on: else "not
    detected" of one score would read as if it were of the whole line.
    """
    n_columns_by_line = Counter[str]()
    headers_by_place: dict[tuple[str, str], list[str]] = {}
    for column, rows in rows_by_column.items():
        for row in rows.values():
            line = _line_of(row)
            n_columns_by_line[line] += 1
            note = _note_of_row(row).rstrip(".")
            if note:
                header = _without_arrow(column.header)
                headers_by_place.setdefault((note, line), []).append(header)

    # Lines that have a note on the same columns share it.
    lines_by_note: dict[tuple[str, str], list[str]] = {}
    for (note, line), headers in headers_by_place.items():
        is_on_all = len(headers) == n_columns_by_line[line]
        columns = "" if is_on_all else few_names(headers)
        lines_by_note.setdefault((note, columns), []).append(line)

    for (note, columns), lines in lines_by_note.items():
        names = ", ".join(lines)
        if columns:
            names = render("states.with_remark", text=names, remark=columns)
        yield f"{names}: {note}."


def _without_arrow(header: str) -> str:
    """Return a column's header without the arrow or the null at its end."""
    return header.partition(" ≈")[0].rstrip(" ↑↓")


def _note_of_row(row: Row) -> str:
    """Return the reason why a figure is missing or void, or its remark, or nothing."""
    if row.status == "void":
        guard = optional(f"check.{row.voided_by}") or row.voided_by
        return render("latex.void", guard=guard)

    status = row.status.replace("_", " ")
    if row.status == "ok" or row.note.lower().startswith(status):
        # Some notes of audits begin with the status themselves.
        return row.note

    reason = row.note or render(f"latex.{row.status}")
    return f"{status}: {reason}"


def _general_notes(
    report: Report, rows_by_column: RowsByColumn, rows: Sequence[Row]
) -> Iterator[str]:
    """Yield notes on the intervals, sizes and signs of a table, and failed guards."""
    if report.status == "partial":
        yield render("latex.note.partial")

    # This note stands below every table.
    intervals = _interval_note(report, rows)
    if any(row.interval_over != "sources" for row in rows):
        intervals = f"{intervals} {render('latex.note.seeds')}"
    yield intervals.rstrip()

    sizes = _size_note(rows_by_column)
    if sizes:
        yield sizes

    if any(column.header[-1] in "↑↓" for column in rows_by_column):
        yield render("latex.note.arrows")
    sets_of_lines = {frozenset(rows) for rows in rows_by_column.values()}
    if len(sets_of_lines) > 1:
        # Some line has no figure in some column.
        yield render("latex.note.gaps")
    if any(column.metric == "memory" for column in rows_by_column):
        yield render("latex.note.memory")
    if is_shared(report):
        yield render("latex.note.rounded")
    if any(row.status in VOID for row in rows):
        yield render("latex.note.void")

    failed_guards = _failed_guards(report)
    if failed_guards:
        yield render("latex.note.failed", guards=failed_guards)

    yield made_note(report)


def made_note(report: Report) -> str:
    """Return the note that names the program and the texts that a table is about."""
    version = report.versions.get("spark-audit", "of an unknown version")
    kind, separator, digits = report.manifest.digest.rpartition(":")
    digest = f"{kind}{separator}{digits[:DIGEST_CHARACTERS]}"
    return render("latex.note.made", version=version, digest=digest)


def _interval_note(report: Report, rows: Sequence[Row]) -> str:
    """Return of which level the intervals are, over what, and how they were made."""
    with_interval = [row for row in rows if row.low is not None or row.high is not None]
    if not with_interval:
        return render("latex.note.no_interval")

    levels = {f"{100 * row.interval_level:g}%": None for row in with_interval}
    return render(
        "latex.note.intervals",
        levels=list(levels),
        unit=_independent_units(row.audit for row in rows),
        manifest=report.manifest.name,
        methods=sorted(methods_of(with_interval)),
    )


def _independent_units(audits: Iterable[str]) -> str:
    """Return what all intervals are over; audits that differ have clusters at least."""
    units = {about(audit).independent_units for audit in audits}
    return units.pop() if len(units) == 1 else Audit.independent_units


def _size_note(rows_by_column: RowsByColumn) -> str:
    """Return over how many the figures are, by column where columns differ.

    Empty where no figure says so.
    """
    headers_by_size: dict[str, list[str]] = {}
    for column, lines in rows_by_column.items():
        size = _size_of_column(column, lines.values())
        if size:
            header = _without_arrow(column.header)
            headers_by_size.setdefault(size, []).append(header)

    if len(headers_by_size) == 1:
        # All columns are of one size: it is said once, without their headers.
        (size,) = headers_by_size
        return render("latex.note.size", size=size)

    sizes_of_columns = []
    for size, headers in headers_by_size.items():
        sizes_of_columns.append(
            render("latex.note.size_of_columns", size=size, headers=headers)
        )
    return f"{'; '.join(sizes_of_columns)}." if sizes_of_columns else ""


def _size_of_column(column: LatexColumn, rows: Iterable[Row]) -> str:
    """Return how many were averaged and in how many clusters; empty: not known."""
    sized_rows = []
    over_sources = []
    for row in rows:
        if row.value is not None and row.clusters:
            sized_rows.append(row)
            if row.interval_over == "sources":
                over_sources.append(row)

    # Over seeds, clusters are seeds: the others say more.
    sized_rows = over_sources or sized_rows
    if not sized_rows:
        return ""

    size = f"{_range(row.n for row in sized_rows)} {column.counted}"
    if column.counted == "canaries":
        # A canary is a cluster by itself.
        return size

    clusters = _range(row.clusters for row in sized_rows)
    return f"{size} in {clusters} {about(column.audit).independent_units}"


def _range(counts: Iterable[int]) -> str:
    """Return the smallest and the largest of some counts, or the only one."""
    distinct = sorted(set(counts))
    if len(distinct) == 1:
        return str(distinct[0])
    return f"{distinct[0]} to {distinct[-1]}"


def _failed_guards(report: Report) -> list[str]:
    """Return the guards that failed, each with the checkpoints that it failed for."""
    names_by_guard: dict[str, list[str]] = {}
    for guard in report.guards:
        # A guard without a checkpoint failed for all of them.
        if guard.passed is False:
            names = names_by_guard.setdefault(guard.name, [])
            if guard.checkpoint:
                names.append(guard.checkpoint)

    failed = []
    for guard_name, names in names_by_guard.items():
        text = guard_name
        if names:
            remark = ", ".join(names)
            text = render("states.with_remark", text=guard_name, remark=remark)
        failed.append(text)
    return failed

"""tables/*.csv: the rows of the report, tidy, one figure a line; and named rows.

Columns have the names that frames and ``report.json`` have, too: none is a word that a
dialect of SQL reserves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from spark_audit.audits import Membership, about
from spark_audit.report.cases import cases_of, has_cases
from spark_audit.report.cells import (
    LARGE_NUMBER,
    MAX_SHOWN_VALUE,
    is_shared,
    shown,
)
from spark_audit.report.disclosure.rounding import step_of
from spark_audit.report.frames import prepared_frame
from spark_audit.report.named import NAMED_SHARE, evidence_of, named_rows
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Report, Row
from spark_audit.sentences import render

FORMULA_SIGNS = ("-", "=", "+", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a formula of a spreadsheet begins, after space; in full width too."""


def write_csv(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield results, contrasts, guards and the report's further tables as CSV."""
    report = prepared.report
    frames = {}
    for name in ("results", "contrasts", "guards"):
        frames[name] = prepared_frame(prepared, name)
    # In ``report.json`` itself nothing is rounded.
    if is_shared(report):
        _add_columns_of_rounding(frames["results"], report.results)
        _add_columns_of_rounding(frames["contrasts"], report.contrasts)

    for name in report.tables:
        frames[name] = prepared_frame(prepared, name)

    for name, frame in frames.items():
        yield File(f"tables/{name}.csv", csv_text(frame))


def _add_columns_of_rounding(frame: pd.DataFrame, rows: Sequence[Row]) -> None:
    """Say of each row in a frame whether it is rounded, and whether it is a bound."""
    is_rounded = [_is_rounded(row) for row in rows]
    frame["rounded"] = pd.array(is_rounded, dtype="boolean")
    bounds = [beyond_bound(row) for row in rows]
    frame["beyond"] = pd.array(bounds, dtype="string")


def _is_rounded(row: Row) -> bool:
    """Return whether the figures of a row are rounded to what its clusters allow."""
    has_step = row.unit == "tries" or step_of(row) is not None
    return row.value is not None and has_step


def beyond_bound(row: Row) -> str:
    """Return that the value is a bound, beyond which the figure lies; else nothing.

    >>> row = Row(audit="extract", checkpoint="a", metric="n50_median", value=1e12)
    >>> beyond_bound(row)
    'over 1e12'
    """
    if row.value is None or abs(row.value) < MAX_SHOWN_VALUE:
        return ""

    side = "over" if row.value > 0 else "under"
    bound = shown(row.value).lstrip("<> ")
    return f"{side} {bound}"


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV in which no cell is a formula to a spreadsheet.

    Text may be somebody else's: an apostrophe stands before what begins as a formula.

    Parameters
    ----------
    frame
        A line for each row; the index is left out.
    """
    # Not by `map`: it makes floats of counts beside a gap, so that 0 would read 0.0.
    columns = {}
    for column in frame:
        cells = [_csv_cell(value) for value in frame[column].astype(object)]
        columns[column] = pd.Series(cells, index=frame.index, dtype=object)
    safe = pd.DataFrame(columns, index=frame.index, columns=frame.columns)

    # Names of columns may be names of tasks, which are somebody else's text, too.
    header = [_without_formula(str(name)) for name in frame.columns]
    return str(safe.to_csv(index=False, header=header, lineterminator="\n"))


def _without_formula(text: str) -> str:
    """Return a text with an apostrophe in front of what begins as a formula."""
    is_formula = text.lstrip().startswith(FORMULA_SIGNS)
    return f"'{text}" if is_formula else text


def _csv_cell(value: object) -> object:
    """Return a value as a cell: no formula, and a large number as powers of ten.

    Powers of ten stand only where they have all digits of the number.
    """
    if isinstance(value, str):
        return _without_formula(value)
    if not isinstance(value, float) or abs(value) < LARGE_NUMBER:
        return value

    text = f"{value:g}"
    return text if float(text) == value else value


def write_named(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``named_rows.csv``, ``named_sources.csv`` and ``named_cases.csv``.

    ``named_found.csv`` is there if an audit knows the places of what it found. The
    first two say of each row or group only whether it is named: how familiar a
    single one looks stays in ``scores/``. They are left out where the report has no
    audit of membership. The last has the NLL of each row's identifiers, where the
    report has evidence of matched ones.
    """
    report = prepared.report
    for audit in dict.fromkeys(row.audit for row in report.results):
        if about(audit).evidence_file() in report.evidence:
            places = about(audit).found_places(evidence_of(report, folder, audit))
            if places is not None:
                yield File("tables/named_found.csv", csv_text(places), private=True)

    cases = cases_of(report, folder)
    if len(cases):
        yield File("tables/named_cases.csv", csv_text(cases), private=True)
    if not _has_membership(report):
        return

    lists = named_rows(report, evidence_of(report, folder))
    rows = {named.checkpoint: named.rows for named in lists}
    yield _named_file("named_rows", rows, ["row", "task"])

    groups = {named.checkpoint: named.groups for named in lists}
    yield _named_file("named_sources", groups, ["group", "rows"])


def lists_not_written(report: Report) -> list[str]:
    """Return a line for each list of named rows that a report has no data for."""
    lines = []
    if not _has_membership(report):
        lines.append(render("named.not_written.rows"))
    if not has_cases(report):
        lines.append(render("named.not_written.cases"))
    return lines


def _has_membership(report: Report) -> bool:
    """Return whether a report has the audit of membership, which names rows."""
    return any(row.audit == Membership.name for row in report.results)


def _named_file(
    name: str, table_by_checkpoint: Mapping[str, pd.DataFrame], columns: Sequence[str]
) -> File:
    """Return the file of what is named of each checkpoint; it is for its owner alone.

    Parameters
    ----------
    table_by_checkpoint
        Rows or groups with ``columns`` and ``named``: whether they are named.
    """
    tables = []
    for checkpoint, table in table_by_checkpoint.items():
        tables.append(table.assign(checkpoint=checkpoint, false_share=NAMED_SHARE))
    table = pd.concat(tables) if tables else pd.DataFrame()
    # An empty table may lack the columns.
    if len(table):
        is_named = table["named"]
        table = table.loc[is_named, ["checkpoint", *columns, "false_share"]]
        table = table.rename(columns={"group": "source"})
    return File(f"tables/{name}.csv", csv_text(table), private=True)

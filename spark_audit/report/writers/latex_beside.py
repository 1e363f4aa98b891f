"""Several reports in one LaTeX table: task orders, or models, as the paper has them.

A report is of one order of tasks and of one base. The paper sets the same methods in
three orders below each other, with their mean, and those on a second base in a table of
the same columns. Here a block of lines is a report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from spark_audit.audits import NLL, Membership
from spark_audit.audits.base import LatexColumn
from spark_audit.errors import InputError
from spark_audit.report.cells import shown
from spark_audit.report.writers.latex import (
    EXACT_DIGITS,
    LineFrames,
    RowsByColumn,
    line_frames,
    notes_on,
    rows_of_columns,
    styled_tabular,
    tabular_of_texts,
)
from spark_audit.report.writers.page_templates import environment
from spark_audit.results import Report
from spark_audit.sentences import render

COLUMNS = (
    *NLL.latex,
    LatexColumn("Loss AUC ≈0.5", "auc", "loss", counted="rows", audit=Membership.name),
)
"""Columns of the paper's table of orders: utility, NLL, and an AUC."""

ORDER_SETTINGS = ("utility.order", "stages.order", "series.order")
"""Settings of a report that have the order of its tasks."""


class Block(NamedTuple):
    """A report in the table.

    Attributes
    ----------
    label
        What tells it from the others: its order, its base, or its folder.
    """

    label: str
    report: Report
    rows_by_column: RowsByColumn


def table_beside(reports: Mapping[str, Report], *, is_exact: bool = False) -> str:
    """Return reports as one LaTeX table, a block of lines for each.

    Parameters
    ----------
    reports
        Name of a folder -> its report, at least two. They are exact reports where
        ``is_exact``, and else shared ones.

    Raises
    ------
    InputError
        If a report has no figure of the table.
    """
    labels, notes = _labels(reports)
    blocks = []
    for folder, label in zip(reports, labels, strict=True):
        report = reports[folder]
        rows_by_column = rows_of_columns(report, NLL.name, COLUMNS)
        if not any(rows_by_column.values()):
            raise InputError(
                "has no figure of this table",
                where=folder,
                fix="audit its checkpoints by utility, nll or mia",
            )
        blocks.append(Block(label, report, rows_by_column))

    frames = [
        line_frames(block.report, block.rows_by_column, is_exact=is_exact)
        for block in blocks
    ]
    texts = pd.concat([frame.texts for frame in frames], keys=labels)
    styles = pd.concat([frame.styles for frame in frames], keys=labels)
    if _are_orders_of_one_base(list(reports.values())):
        mean = _mean_over_blocks(blocks, is_exact=is_exact)
        if not mean.empty:
            texts = pd.concat([texts, mean])
            notes.append(render("latex.note.mean_over_orders"))

    # A report may lack a column that another one has.
    headers = [column.header for column in COLUMNS if column.header in texts]
    texts = texts[[render("latex.state"), *headers]].fillna("-")
    styles = styles.reindex(index=texts.index, columns=headers).fillna("")
    # The name of the columns stands above the names of the lines.
    texts = texts.rename_axis("Checkpoint", axis=1)

    tabular = styled_tabular(LineFrames(texts, styles), has_blocks=True)
    notes += _shared_notes(blocks, is_exact=is_exact)
    template = environment().get_template("table.tex")
    return template.render(
        name="beside",
        caption=render("latex.beside"),
        tabular=tabular,
        notes=tabular_of_texts(notes),
    )


def _labels(reports: Mapping[str, Report]) -> tuple[list[str], list[str]]:
    """Return the label of each report, and the notes that explain labels."""
    orders = [_order_of(report) for report in reports.values()]
    bases = [_base_of(report) for report in reports.values()]
    has_orders = _are_of_the_same_tasks(orders) and len(set(orders)) > 1
    has_bases = all(bases) and len(set(bases)) > 1

    number_by_order: dict[tuple[str, ...], int] = {}
    for order in orders:
        number_by_order.setdefault(order, len(number_by_order) + 1)

    labels = []
    for name, order, base in zip(reports, orders, bases, strict=True):
        parts = []
        if has_bases:
            parts.append(base)
        if has_orders:
            parts.append(render("latex.order", number=number_by_order[order]))
        labels.append(", ".join(parts) or name)
    if len(set(labels)) < len(labels):
        # Two reports of one order and base: their folders tell them apart.
        labels = list(reports)

    notes = []
    if has_orders:
        for order, number in number_by_order.items():
            label = render("latex.order", number=number)
            notes.append(f"{label}: {' → '.join(order)}.")
    return labels, notes


def _order_of(report: Report) -> tuple[str, ...]:
    """Return the order of a report's tasks; empty: it is not known."""
    for setting in ORDER_SETTINGS:
        order = report.settings.get(setting)
        if isinstance(order, str) and order:
            return tuple(task.strip() for task in order.split(","))

    # Without an audit of series, the runs themselves may tell.
    learned = set()
    for checkpoint in report.checkpoints:
        if checkpoint.training is not None and len(checkpoint.training.tasks) > 1:
            learned.add(tuple(checkpoint.training.tasks))
    return learned.pop() if len(learned) == 1 else ()


def _base_of(report: Report) -> str:
    """Return the name of the model that a report's manifest was built with."""
    return str(report.settings.get("reference") or "")


def _are_orders_of_one_base(reports: Sequence[Report]) -> bool:
    """Return whether all reports differ in their order of tasks, and in no base."""
    orders = [_order_of(report) for report in reports]
    bases = {_base_of(report) for report in reports}
    are_different = len(set(orders)) == len(reports)
    return _are_of_the_same_tasks(orders) and are_different and len(bases) == 1


def _are_of_the_same_tasks(orders: Sequence[Sequence[str]]) -> bool:
    """Return whether orders are known, and all of the same tasks.

    The first tasks of an order are an earlier stage of it, and no order of their own.
    """
    return all(orders) and len({frozenset(order) for order in orders}) == 1


def _mean_over_blocks(blocks: Sequence[Block], *, is_exact: bool) -> pd.DataFrame:
    """Return the cells of the last block: means over all reports, by line and column.

    A line has a mean where every report has a valid figure of it.
    """
    digits = EXACT_DIGITS if is_exact else None
    texts: dict[str, dict[str, str]] = {}
    for column, first_rows in blocks[0].rows_by_column.items():
        for line in first_rows:
            values = []
            for block in blocks:
                row = block.rows_by_column.get(column, {}).get(line)
                if row is not None and row.status == "ok" and row.value is not None:
                    values.append(row.value)
            if len(values) == len(blocks):
                mean = math.fsum(values) / len(values)
                texts.setdefault(line, {})[column.header] = shown(mean, digits)

    frame = pd.DataFrame.from_dict(texts, orient="index")
    frame.insert(0, render("latex.state"), "-")
    return pd.concat([frame], keys=[render("latex.mean")])


def _shared_notes(blocks: Sequence[Block], *, is_exact: bool) -> list[str]:
    """Return the notes of all reports: those of some alone after their labels."""
    labels_by_note: dict[str, list[str]] = {}
    for block in blocks:
        for note in notes_on(block.report, block.rows_by_column, is_exact=is_exact):
            labels_by_note.setdefault(note, []).append(block.label)

    notes = []
    for note, labels in labels_by_note.items():
        is_of_all = len(labels) == len(blocks)
        notes.append(note if is_of_all else f"{', '.join(labels)}: {note}")
    return notes

"""Accuracy on every task after every stage."""

from __future__ import annotations

from typing import Any

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import means, records_of
from spark_audit.report.figures.forest import CELL, Forest, Line, Mark, Section
from spark_audit.report.figures.picture import Look, looks, wrapped
from spark_audit.results import Report

PLACES = ("checkpoint", "stage")
"""Columns that are no task."""


@FIGURES.register(order=120)
def draw(report: Report) -> Forest | None:
    """A heat map a series with its figures, and one of all that have one stage."""
    series: dict[str, dict[Any, dict[str, float]]] = {}
    for name, members in records_of(report, "accuracy_matrix").items():
        cells = means(
            ((record.get("stage"), task), value)
            for records in members.values()
            for record in records
            for task, value in record.items()
            if task not in PLACES and isinstance(value, int | float)
        )
        for (stage, task), value in cells.items():
            series.setdefault(name, {}).setdefault(stage, {})[task] = value
    if not series:
        return None
    tasks = [task for stages in series.values() for s in stages.values() for task in s]
    tasks = list(dict.fromkeys(tasks))

    def line(label: str, look: Look, values: dict[str, float]) -> Line:
        marks = [Mark(values.get(t), column=i) for i, t in enumerate(tasks)]
        return Line(label, look, marks)

    look = looks(report)
    if all(len(stages) == 1 for stages in series.values()):
        ends = {name: next(iter(stages.values())) for name, stages in series.items()}
        every = [line(wrapped(name), look[name], end) for name, end in ends.items()]
        sections, side = [Section(every, references={})], ""
    else:
        width = int(CELL * len(tasks) / 0.07)
        sections, side = [], "after stage"
        for name, stages in series.items():
            lines = [line(f"{stage}", look[name], v) for stage, v in stages.items()]
            sections.append(Section(lines, wrapped(name, width=width), references={}))
    return Forest(
        audit="utility",
        title="Accuracy by task and stage",
        caption="Accuracy on the test rows of each task (columns) after each stage of "
        "training (rows); a stronger colour is a higher accuracy.",
        shows="Heat maps of accuracy after the last stage",
        sections=sections,
        most=3,
        columns=[wrapped(task, width=14) for task in tasks],
        side=side,
        digits=2,
    )

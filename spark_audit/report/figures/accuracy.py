"""Accuracy on every task after every stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spark_audit.names import BASE
from spark_audit.report.figures.entries import means, records_of
from spark_audit.report.figures.forest import CELL, Forest
from spark_audit.report.figures.forest_marks import Line, Mark, Section
from spark_audit.report.figures.picture import Look, looks, spanned, wrapped
from spark_audit.results import Report

PLACES = ("checkpoint", "stage")
"""Columns that are no task."""

Stages = dict[Any, dict[str, float]]
"""Stage -> task -> accuracy; stage 0 is the base, before any task."""


def draw(report: Report) -> Forest | None:
    """A heat map a series with its figures, and one of all that have one stage."""
    series: dict[str, Stages] = {}
    learned: dict[str, list[str]] = {}
    for name, members in records_of(report, "accuracy_matrix").items():
        every = [record for records in members.values() for record in records]
        stages = _stages(name, every)
        if stages:
            series[name] = stages
            after = {r["stage"]: str(r["after"]) for r in every if r.get("after")}
            learned[name] = [task for _, task in sorted(after.items())]
    if not series:
        return None
    tasks = [task for stages in series.values() for s in stages.values() for task in s]
    tasks = list(dict.fromkeys(tasks))
    look, staged = looks(report), any(len(stages) > 1 for stages in series.values())

    def line(label: str, name: str, stage: Any, values: dict[str, float]) -> Line:
        later = learned[name][stage:] if len(series[name]) > 1 else []
        pale = tasks if staged and name == BASE else later
        marks = [
            Mark(values.get(t), column=i, light=t in pale) for i, t in enumerate(tasks)
        ]
        return Line(label, look[name], marks)

    if not staged:
        ends = {name: next(iter(stages.items())) for name, stages in series.items()}
        lines = [line(wrapped(name), name, *end) for name, end in ends.items()]
        sections = [Section(lines, references={})]
    else:
        width = int(CELL * len(tasks) / 0.07)
        sections = []
        for name, stages in series.items():
            lines = [line(f"{stage}", name, stage, v) for stage, v in stages.items()]
            sections.append(Section(lines, wrapped(name, width=width), references={}))
    pale = any(m.light for s in sections for row in s.lines for m in row.marks)
    return Forest(
        audit="utility",
        title="Accuracy by task and stage",
        caption="Share of answers right on the test rows of each task (columns; in "
        "brackets how many) after each stage of training (rows); a darker cell is a "
        "higher accuracy."
        + " Cells that are not filled: the task was not trained on yet."
        * pale,
        shows="Heat maps of accuracy after the last stage",
        sections=sections,
        most=3,
        columns=_columns(report, tasks),
        keys={"task not trained on yet": Look(area=True, hollow=True)} if pale else {},
        side="tasks trained on so far" if staged else "",
        digits=2,
    )


def _stages(name: str, records: Iterable[dict[str, Any]]) -> Stages:
    """The mean over replicates."""
    cells = means(
        ((0 if name == BASE else record.get("stage"), task), value)
        for record in records
        for task, value in record.items()
        if task not in PLACES and isinstance(value, int | float)
    )
    found: Stages = {}
    for (stage, task), value in cells.items():
        found.setdefault(stage, {})[task] = value
    return found


def _columns(report: Report, tasks: list[str]) -> list[str]:
    """Each task with its number of test rows, where the report has it."""
    rows = [r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy")]
    found = []
    for task in tasks:
        sizes = {r.n for r in rows if r.grouping == ("task", task) and r.n}
        name = wrapped(task, width=14)
        found.append(f"{name} ({spanned(sizes)})" if sizes else name)
    return found

"""Accuracy on every task after every stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import records_of, replicates_said
from spark_audit.report.figures.style import (
    WIDTH,
    Look,
    belongs,
    canvas,
    inches,
    lines_of,
    looks,
    plain,
    wrapped,
)
from spark_audit.report.figures.theme import INK, LIGHT, MUTED, PAPER, Drawing
from spark_audit.results import Report

PLACES = ("checkpoint", "stage")
"""Columns that are no task."""
DARKEST = 0.55
"""How much of the colour an accuracy of 1 has: figures stay readable on it."""
CELL, TALL = 0.33, 0.21
"""Inches of a cell."""
COLOUR = LIGHT[2]


@dataclass(frozen=True)
class _Matrix:
    title: str
    labels: list[str]
    looks: list[Look]
    values: list[dict[str, float]]

    @property
    def height(self) -> float:
        return TALL * sum(map(lines_of, self.labels))


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """A heat map a series with its figures, and one of all that have one stage."""
    entries = {
        name: _means(members)
        for name, members in records_of(report, "accuracy_matrix").items()
    }
    entries = {name: stages for name, stages in entries.items() if stages}
    if not entries:
        return None
    tasks = list(
        dict.fromkeys(
            t for stages in entries.values() for s in stages.values() for t in s
        )
    )
    look = looks(report)
    together = all(len(stages) == 1 for stages in entries.values())
    if together:
        matrices = [
            _Matrix(
                title="",
                labels=[wrapped(name) for name in entries],
                looks=[look[name] for name in entries],
                values=[next(iter(stages.values())) for stages in entries.values()],
            )
        ]
    else:
        matrices = [
            _Matrix(
                title=wrapped(name, width=int(CELL * len(tasks) / 0.07)),
                labels=[f"{stage}" for stage in stages],
                looks=[look[name]] * len(stages),
                values=list(stages.values()),
            )
            for name, stages in entries.items()
        ]
    named = [wrapped(task, width=14, lines=2) for task in tasks]
    edge = max(inches(label) for m in matrices for label in m.labels) + 0.2
    each = CELL * len(tasks) + edge
    across = max(1, min(int((WIDTH - 0.2) / each), len(matrices)))
    across = -(-len(matrices) // -(-len(matrices) // across))
    bands = [matrices[i : i + across] for i in range(0, len(matrices), across)]
    heights = [max(m.height for m in band) for band in bands]
    title = sum(0.3 + 0.14 * max(m.title.count("\n") for m in band) for band in bands)
    below = 0.7 * max(map(inches, named)) + 0.35
    # Panels above a gap in the last row have their tasks written below them too.
    below += 0.7 * max(map(inches, named)) if len(matrices) % across else 0.0
    figure = canvas(
        sum(heights) + title + below, width=min(WIDTH, max(across * each + 0.3, 3.2))
    )
    grid = figure.subplots(
        len(bands), across, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for place, matrix in enumerate(matrices):
        last = place + across >= len(matrices)
        axes = grid.flat[place]
        _heat(axes, matrix, tasks, named if last else [""] * len(tasks))
        # Cells are as high in a short matrix as in the long one beside it.
        axes.set_ylim(max(len(m.values) for m in bands[place // across]) - 0.5, -0.5)
    for axes in grid.flat[len(matrices) :]:
        axes.remove()
    if not together:
        figure.supylabel("after stage", fontsize=8)
    return Drawing(
        name="accuracy",
        audit="utility",
        title="Accuracy by task and stage",
        caption=(
            "Accuracy on the test rows of each task (columns) after each stage of "
            "training (rows); a stronger colour is a higher accuracy."
            + replicates_said(report)
        ),
        alt=_alt(entries, tasks),
        figure=figure,
    )


def _means(members: dict[str, list[dict[str, Any]]]) -> dict[Any, dict[str, float]]:
    """Stage -> task -> accuracy, the mean over replicates."""
    found: dict[Any, dict[str, list[float]]] = {}
    for records in members.values():
        for record in records:
            cells = found.setdefault(record.get("stage"), {})
            for task, value in record.items():
                if task not in PLACES and isinstance(value, int | float):
                    cells.setdefault(task, []).append(float(value))
    return {
        stage: {task: sum(v) / len(v) for task, v in cells.items()}
        for stage, cells in found.items()
        if cells
    }


def _heat(axes: Axes, matrix: _Matrix, tasks: list[str], named: list[str]) -> None:
    for row, (values, look) in enumerate(zip(matrix.values, matrix.looks, strict=True)):
        for column, task in enumerate(tasks):
            value = values.get(task)
            cell = Rectangle(
                (column - 0.5, row - 0.5),
                1.0,
                1.0,
                facecolor=COLOUR if value is not None else PAPER,
                alpha=DARKEST * min(max(value or 0.0, 0.0), 1.0),
                linewidth=0,
            )
            axes.add_patch(cell)
            text = axes.text(
                column,
                row,
                "–" if value is None else f"{value:.2f}",
                ha="center",
                va="center",
                color=MUTED if value is None else INK,
            )
            belongs([cell, text], look)
    axes.set_xlim(-0.5, len(tasks) - 0.5)
    for edge in range(len(tasks) + 1):
        axes.axvline(edge - 0.5, color=PAPER, linewidth=1.5)
    for edge in range(len(matrix.values) + 1):
        axes.axhline(edge - 0.5, color=PAPER, linewidth=1.5)
    axes.set_yticks(range(len(matrix.labels)), matrix.labels)
    axes.set_xticks(
        range(len(tasks)), named, rotation=40, ha="right", rotation_mode="anchor"
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if matrix.title:
        title = axes.set_title(matrix.title)
        if len(set(matrix.looks)) == 1:
            belongs(title, matrix.looks[0])
    for tick, look in zip(axes.get_yticklabels(), matrix.looks, strict=True):
        belongs(tick, look)


def _alt(entries: dict[str, dict[Any, dict[str, float]]], tasks: list[str]) -> str:
    found = []
    for name, stages in entries.items():
        last = list(stages.values())[-1]
        cells = [f"{task} {plain(last[task], 2)}" for task in tasks if task in last]
        found.append(f"{name}: {', '.join(cells)}")
    return f"Heat maps of accuracy; after the last stage, {'; '.join(found)}."

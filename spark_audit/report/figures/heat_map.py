"""Heat maps: a block of tasks by stages for each checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from spark_audit.report.figures.canvas import TITLE_WIDTH, set_title
from spark_audit.report.figures.styling import CHECKPOINT, INK, MUTED
from spark_audit.report.figures.text_room import wrapped
from spark_audit.sentences import render

HEAT_ROW = 0.19
"""Inches of a row of a heat map."""

BESIDE_TASKS = 2.4
"""Further rows of a block: its name, the stages, and a gap."""

AROUND_HEAT = 0.7
"""Inches around the rows of a heat map."""

CELL_SIZE = 0.92
"""Share of a column and of a row that a cell fills."""

MAX_CELLS_WITH_NUMBERS = 400
"""Most cells of a heat map with printed numbers."""

MAX_STAGES_WITH_NUMBERS = 7
"""Most columns for which a number fits into a cell."""

MAX_STAGE_LABELS = 12
"""Most stages that are all numbered below a block."""


@dataclass(frozen=True)
class HeatCell:
    """A cell of a heat map.

    Attributes
    ----------
    colour, shade
        Colour, and how much of it the cell has, from 0 to 1.
    text
        The number in the cell, shown where there is room.
    is_marked
        Whether the cell is framed, as its change is significant.
    is_void
        Whether nothing can be concluded from it.
    """

    colour: str
    shade: float
    text: str
    is_marked: bool = False
    is_void: bool = False


Block = Mapping[tuple[str, int], HeatCell]
"""(task, stage) -> cell of one checkpoint."""


@dataclass(frozen=True)
class HeatGrid:
    """Where cells stand: tasks are rows of a block, stages its columns."""

    tasks: Sequence[str]
    stages: Sequence[int]

    def corner_of(self, task: str, stage: int, *, top: float) -> tuple[float, float]:
        """Return the corner of a cell of the block whose name stands at ``top``."""
        x, y = self.centre_of(task, stage, top=top)
        return x - CELL_SIZE / 2, y - CELL_SIZE / 2

    def centre_of(self, task: str, stage: int, *, top: float) -> tuple[float, float]:
        """Return the centre of a cell of the block whose name stands at ``top``."""
        return self.stages.index(stage), top + 1 + self.tasks.index(task)


def cells_of(blocks: Mapping[str, Block]) -> list[HeatCell]:
    """Return the cells of all blocks."""
    cells: list[HeatCell] = []
    for block in blocks.values():
        cells += block.values()
    return cells


def heat_height(blocks: Mapping[str, object], tasks: Sequence[str]) -> float:
    """Return the inches that a heat map needs."""
    return len(blocks) * (len(tasks) + BESIDE_TASKS) * HEAT_ROW + AROUND_HEAT


def draw_heat(
    axes: Axes,
    blocks: Mapping[str, Block],
    *,
    tasks: Sequence[str],
    stages: Sequence[int],
    title: str,
) -> None:
    """Draw a block of tasks by stages for each checkpoint, below each other."""
    grid = HeatGrid(tasks, stages)
    rows_per_block = len(tasks) + BESIDE_TASKS
    n_cells = len(blocks) * len(tasks) * len(stages)
    has_numbers = n_cells <= MAX_CELLS_WITH_NUMBERS
    has_numbers &= len(stages) <= MAX_STAGES_WITH_NUMBERS

    # Heights count rows downwards from the top; each block has its name first.
    task_labels: dict[float, str] = {}
    for index, (name, block) in enumerate(blocks.items()):
        top = index * rows_per_block
        for row, task in enumerate(tasks):
            task_labels[top + 1 + row] = wrapped(task, width=12)
        draw_block(axes, name, block, grid, top=top, has_numbers=has_numbers)

    set_title(axes, wrapped(title, width=TITLE_WIDTH, lines=3))
    axes.set_xlabel(render("figure.stages_axis"))
    # Each block has stages of its own below it.
    axes.set_xticks([])
    axes.set_yticks(list(task_labels), list(task_labels.values()))

    bottom = len(blocks) * rows_per_block - 0.8
    axes.set(xlim=(-0.55, len(stages) - 0.45), ylim=(bottom, -0.6))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.grid(visible=False)


def draw_block(
    axes: Axes,
    name: str,
    block: Block,
    grid: HeatGrid,
    *,
    top: float,
    has_numbers: bool,
) -> None:
    """Draw the cells of one checkpoint, its name above and the stages below them."""
    gid = CHECKPOINT + name
    head = wrapped(name, width=34, lines=1)
    if any(cell.is_void for cell in block.values()):
        head = f"{head} \N{MULTIPLICATION SIGN} {render('figure.key.doubt')}"

    axes.text(-0.5, top, head, va="center", weight="bold", gid=gid)
    _draw_stages(axes, grid.stages, y=top + 1 + len(grid.tasks), gid=gid)

    patches = []
    colours = []
    for (task, stage), cell in block.items():
        corner = grid.corner_of(task, stage, top=top)
        patches.append(Rectangle(corner, CELL_SIZE, CELL_SIZE))
        colours.append(to_rgba(cell.colour, cell.shade))

        if has_numbers:
            x, y = grid.centre_of(task, stage, top=top)
            weight = "bold" if cell.is_marked else "normal"
            text = axes.text(x, y, cell.text, ha="center", va="center", gid=gid)
            # Numbers lie inside of the panel: the layout need not measure them.
            text.set(weight=weight, in_layout=False)

    axes.add_collection(PatchCollection(patches, facecolors=colours, gid=gid))
    _draw_frames(axes, block, grid, top=top, gid=gid)


def _draw_stages(axes: Axes, stages: Sequence[int], *, y: float, gid: str) -> None:
    """Write the stages below a block; of many, as many as have room."""
    step = math.ceil(len(stages) / MAX_STAGE_LABELS)
    for x in range(0, len(stages), step):
        text = axes.text(x, y, f"{stages[x]}", ha="center", va="center", gid=gid)
        text.set(color=MUTED, in_layout=False)


def _draw_frames(
    axes: Axes, block: Block, grid: HeatGrid, *, top: float, gid: str
) -> None:
    """Frame the cells of a block that are significant."""
    # Draw frames after all cells, so that no neighbour covers them.
    frames = []
    for (task, stage), cell in block.items():
        if cell.is_marked:
            corner = grid.corner_of(task, stage, top=top)
            frames.append(Rectangle(corner, CELL_SIZE, CELL_SIZE))

    if frames:
        lines = PatchCollection(
            frames, facecolors="none", edgecolors=INK, linewidths=1.4, gid=gid
        )
        axes.add_collection(lines)

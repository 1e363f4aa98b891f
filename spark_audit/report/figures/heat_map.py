"""Heat maps: a block of tasks by stages for each checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from spark_audit.report.figures.parts import TITLE_WIDTH, set_title
from spark_audit.report.figures.styling import CHECKPOINT, INK, MUTED
from spark_audit.report.figures.text_room import wrapped
from spark_audit.sentences import render

HEAT_ROW = 0.19
"""Inches of a row of a heat map."""

BESIDE_TASKS = 2.4
"""Rows of a block beside its tasks: its name, the stages, and a gap."""

AROUND_HEAT = 0.7
"""Inches around the rows of a heat map."""

MAX_CELLS_WITH_NUMBERS = 400
"""Cells up to which a heat map prints its numbers."""

MAX_STAGES_WITH_NUMBERS = 7
"""Columns up to which a number fits in a cell."""

MAX_STAGE_LABELS = 12
"""Stages below a block, up to which each has its number."""


@dataclass(frozen=True)
class HeatCell:
    """A cell of a heat map: its shade from 0 to 1, its number, and a frame."""

    colour: str
    shade: float
    text: str
    is_marked: bool = False
    is_void: bool = False


Block = Mapping[tuple[str, int], HeatCell]
"""(task, stage) -> cell of one checkpoint."""


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
    step = len(tasks) + BESIDE_TASKS
    count = len(blocks) * len(tasks) * len(stages)
    has_numbers = count <= MAX_CELLS_WITH_NUMBERS
    has_numbers &= len(stages) <= MAX_STAGES_WITH_NUMBERS
    labels: dict[float, str] = {}
    for place, (name, block) in enumerate(blocks.items()):
        gid = CHECKPOINT + name
        top = place * step
        head = wrapped(name, width=34, lines=1)
        if any(cell.is_void for cell in block.values()):
            head = f"{head} \N{MULTIPLICATION SIGN} {render('figure.key.doubt')}"
        axes.text(-0.5, top, head, va="center", weight="bold", gid=gid)
        labels |= {top + 1 + row: task for row, task in enumerate(tasks)}
        _draw_stages(axes, stages, y=top + 1 + len(tasks), gid=gid)
        patches = []
        colours = []
        for (task, stage), cell in block.items():
            x = stages.index(stage)
            y = top + 1 + tasks.index(task)
            patches.append(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92))
            colours.append(to_rgba(cell.colour, cell.shade))
            if has_numbers:
                weight = "bold" if cell.is_marked else "normal"
                text = axes.text(x, y, cell.text, ha="center", va="center", gid=gid)
                text.set(weight=weight, in_layout=False)
        axes.add_collection(PatchCollection(patches, facecolors=colours, gid=gid))
        marked = [at for at, cell in block.items() if cell.is_marked]
        _draw_frames(axes, marked, tasks=tasks, stages=stages, top=top, gid=gid)

    set_title(axes, wrapped(title, width=TITLE_WIDTH, lines=3))
    axes.set_xlabel(render("figure.stages_axis"))
    axes.set_xticks([])
    axes.set_yticks(list(labels), [wrapped(task, width=12) for task in labels.values()])
    axes.set(xlim=(-0.55, len(stages) - 0.45), ylim=(len(blocks) * step - 0.8, -0.6))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.grid(visible=False)


def _draw_stages(axes: Axes, stages: Sequence[int], *, y: float, gid: str) -> None:
    """Write the stages below a block; of many, as many as have room."""
    step = -(-len(stages) // MAX_STAGE_LABELS)
    for x, stage in list(enumerate(stages))[::step]:
        text = axes.text(x, y, f"{stage}", ha="center", va="center", gid=gid)
        text.set(color=MUTED, in_layout=False)


def _draw_frames(
    axes: Axes,
    marked: Sequence[tuple[str, int]],
    *,
    tasks: Sequence[str],
    stages: Sequence[int],
    top: float,
    gid: str,
) -> None:
    """Frame the cells that are significant."""
    frames = []
    for task, stage in marked:
        x = stages.index(stage) - 0.46
        y = top + 1 + tasks.index(task) - 0.46
        frames.append(Rectangle((x, y), 0.92, 0.92))
    if frames:
        lines = PatchCollection(
            frames, facecolors="none", edgecolors=INK, linewidths=1.4, gid=gid
        )
        axes.add_collection(lines)

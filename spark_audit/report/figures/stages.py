"""The figure of stages: memory and accuracy by task, after each stage of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist

from spark_audit.report.cells import VOID
from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.heat_map import (
    Block,
    HeatCell,
    cells_of,
    draw_heat,
    heat_height,
)
from spark_audit.report.figures.marks import (
    draw_legend,
    frame_sample,
    legend_lines,
    patch_sample,
)
from spark_audit.report.figures.styling import ALARM, LIGHT, MUTED
from spark_audit.report.figures.text_room import plain
from spark_audit.report.figures.view import Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render

LESS_COLOUR = LIGHT[2]
"""Colour of what became less likely, and of accuracy."""

DARKEST = 0.55
"""Opacity of the strongest cell, on which letters stay readable."""

UNTRAINED_SHADE = 0.06
"""Opacity of a cell before its task's stage."""

MAX_GAIN_IN_CELL = 6.9
"""A cell's number is cut at this many nats: 1,000 times as likely."""

RowsByStage = Mapping[str, Mapping[tuple[str, int], Row]]
"""Checkpoint -> (task, stage) -> row."""


def draw_stages(view: View) -> Sketch | None:
    """Draw a heat map of memory by task and stage, and one of accuracy beside it."""
    records = view.report.tables.get("stages_states", [])
    trained_at = {}
    for record in records:
        trained_at[record["task"]] = record["trained_at"] or 0
    tasks = sorted(trained_at, key=lambda task: (trained_at[task], task))
    stages = sorted({record["stage"] for record in records})
    rows = rows_by_stage(view, "stages", "memory", tasks=tasks, stages=stages)
    if not rows:
        return None

    remembered = remembered_cells(records)
    largest = largest_gain(rows, trained_at)
    memory = memory_blocks(rows, trained_at, remembered, largest=largest)

    # Accuracy stands beside memory: checkpoints without memory are left out of it.
    learned = rows_by_stage(view, "utility", "accuracy", tasks=tasks, stages=stages)
    learned_with_memory = {name: learned[name] for name in memory if name in learned}
    accuracy = accuracy_blocks(learned_with_memory)

    heights = [heat_height(memory, tasks)]
    if accuracy:
        heights.append(heat_height(accuracy, tasks))
    samples = stages_samples(memory, accuracy, largest=largest)
    figure, panels = canvas(heights, legend_lines=legend_lines(samples))
    title = render("figure.stages.memory")
    draw_heat(panels[0], memory, tasks=tasks, stages=stages, title=title)
    if accuracy:
        title = render("figure.stages.accuracy")
        draw_heat(panels[1], accuracy, tasks=tasks, stages=stages, title=title)

    draw_legend(figure, samples)

    return Sketch(
        figure=figure,
        counted=render("figure.stages.counted", groups=most_groups(rows)),
        values=[marked_text(name, block) for name, block in memory.items()],
    )


def remembered_cells(
    records: Iterable[Mapping[str, Any]],
) -> set[tuple[str, str, int]]:
    """Return checkpoint, task and stage of what is significantly remembered."""
    cells = set()
    for record in records:
        if record["state"] == "remembered":
            cells.add((record["checkpoint"], record["task"], record["stage"]))
    return cells


def most_groups(rows: RowsByStage) -> int:
    """Return the largest number of groups that a cell is of."""
    sizes = []
    for cells in rows.values():
        sizes += [row.clusters for row in cells.values()]
    return max(sizes)


def marked_text(name: str, block: Block) -> str:
    """Return the number of remembered cells of a checkpoint, for the alt text."""
    n_marked = sum(cell.is_marked for cell in block.values())
    return render("figure.stages.marked", name=name, count=n_marked)


def stages_samples(
    memory: Mapping[str, Block], accuracy: Mapping[str, Block], *, largest: float
) -> dict[str, Artist]:
    """Return the legend of the cells that are drawn, and what the darkest stand for."""
    memory_cells = cells_of(memory)
    accuracy_cells = cells_of(accuracy)
    colours = {cell.colour for cell in memory_cells}
    samples: dict[str, Artist] = {}

    # Both colours of memory share a scale, that of the largest gain or loss.
    if ALARM in colours:
        label = render("figure.stages.more", most=gain_words(largest))
        samples[label] = patch_sample(ALARM, alpha=DARKEST)
    if LESS_COLOUR in colours:
        label = render("figure.stages.less", most=gain_words(-largest))
        samples[label] = patch_sample(LESS_COLOUR, alpha=DARKEST)

    if any(cell.colour == LESS_COLOUR for cell in accuracy_cells):
        label = render("figure.stages.right")
        samples[label] = patch_sample(LESS_COLOUR, alpha=DARKEST)
    if any(cell.is_marked for cell in memory_cells):
        samples[render("figure.stages.framed")] = frame_sample()

    if any(cell.is_void for cell in [*memory_cells, *accuracy_cells]):
        label = render("figure.key.doubt")
        samples[label] = patch_sample(MUTED, alpha=DARKEST)
    return samples


def rows_by_stage(
    view: View, audit: str, metric: str, *, tasks: Sequence[str], stages: Sequence[int]
) -> dict[str, dict[tuple[str, int], Row]]:
    """Return checkpoint -> (task, stage) -> row, where it has a value."""
    by_checkpoint: dict[str, dict[tuple[str, int], Row]] = {}
    for stage in stages:
        for task in tasks:
            rows = view.rows(audit, metric, variant=str(stage), group=f"task:{task}")
            for name, row in rows.items():
                by_checkpoint.setdefault(name, {})[task, stage] = row

    # The loop has met checkpoints stage by stage: here the worst comes first.
    return {name: by_checkpoint[name] for name in view.ordered(by_checkpoint)}


def largest_gain(rows: RowsByStage, trained_at: Mapping[str, int]) -> float:
    """Return the largest valid gain or loss of a trained task, in nats per token."""
    sizes = []
    for cells in rows.values():
        for (task, stage), row in cells.items():
            is_trained = stage >= trained_at.get(task, 0)
            if is_trained and row.status not in VOID:
                sizes.append(abs(row.value or 0.0))

    # If nothing moved, any divisor gives cells without a shade.
    return max(sizes, default=0.0) or 1.0


def memory_blocks(
    rows: RowsByStage,
    trained_at: Mapping[str, int],
    remembered: set[tuple[str, str, int]],
    *,
    largest: float,
) -> dict[str, Block]:
    """Return blocks of gains in per cent; before its stage a task has an empty cell.

    Parameters
    ----------
    remembered
        Checkpoint, task and stage of what is significant.
    largest
        Nats of the darkest cell.
    """
    blocks: dict[str, Block] = {}
    for name, rows_of_cells in rows.items():
        block = {}
        for (task, stage), row in rows_of_cells.items():
            # A task of unknown stage counts as trained from the first on.
            if stage < trained_at.get(task, 0):
                block[task, stage] = HeatCell(MUTED, UNTRAINED_SHADE, "·")
                continue

            is_remembered = (name, task, stage) in remembered
            block[task, stage] = memory_cell(
                row, is_remembered=is_remembered, largest=largest
            )

        blocks[name] = block
    return blocks


def memory_cell(row: Row, *, is_remembered: bool, largest: float) -> HeatCell:
    """Return a cell of memory: red is more likely, grey is void."""
    # The row is a change of NLL: below 0 identifiers became more likely.
    gain = -(row.value or 0.0)
    is_void = row.status in VOID

    colour = MUTED
    if not is_void:
        colour = ALARM if gain > 0 else LESS_COLOUR

    # A void gain can exceed the largest valid one, so cut its shade.
    return HeatCell(
        colour=colour,
        shade=DARKEST * min(abs(gain) / largest, 1.0),
        text=signed_percent(gain),
        is_marked=is_remembered and not is_void,
        is_void=is_void,
    )


def signed_percent(gain: float) -> str:
    """Return a gain in nats as per cent with its sign; from twice on as times."""
    if gain >= math.log(2):
        return f"×{math.exp(min(gain, MAX_GAIN_IN_CELL)):.2g}"
    text = plain(100 * math.expm1(gain), 0)
    return f"+{text}" if gain > 0 and text != "0" else text


def gain_words(gain: float) -> str:
    """Return the size of a change in nats: in per cent, from twice on as times."""
    if gain >= math.log(2):
        return signed_percent(gain)
    return f"{plain(abs(100 * math.expm1(gain)), 0)}%"


def accuracy_blocks(rows: RowsByStage) -> dict[str, Block]:
    """Return blocks of accuracies in per cent."""
    blocks: dict[str, Block] = {}
    for name, rows_of_cells in rows.items():
        block = {}
        for task_and_stage, row in rows_of_cells.items():
            share = row.value or 0.0
            is_void = row.status in VOID
            # Shares have a scale of their own: the darkest cell is 100%.
            block[task_and_stage] = HeatCell(
                colour=MUTED if is_void else LESS_COLOUR,
                shade=DARKEST * share,
                text=plain(100 * share, 0),
                is_void=is_void,
            )

        blocks[name] = block
    return blocks

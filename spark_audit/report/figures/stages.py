"""Figures by stage of training: memory and accuracy, and what a series gives away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.report.cells import VOID
from spark_audit.report.figures import heat_map, parts
from spark_audit.report.figures.styling import ALARM, CHECKPOINT, INK, LIGHT, MUTED
from spark_audit.report.figures.text_room import plain, wrapped
from spark_audit.report.figures.view import DOUBT_LOOK, Look, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render

LESS_COLOUR = LIGHT[2]
"""Colour of what became less likely, and of accuracy."""

DARKEST = 0.55
"""Opacity of the strongest cell: letters on it stay readable."""

SERIES_HEIGHT = 1.9
"""Inches of a panel of a series."""

SERIES_LOOKS = {"series": Look("o", INK), "last": Look("s", INK, filled=False)}
"""What is shared, all stages so far or the checkpoint of one, and how it is drawn."""

SERIES_FOUND_LOOK = Look("o", ALARM)
"""All stages so far, where they give away a leak."""


def draw_stages(view: View) -> Sketch | None:
    """Draw a heat map of memory by task and stage, and one of accuracy beside it."""
    records = view.report.tables.get("stages_states", [])
    trained_at = {one["task"]: one["trained_at"] or 0 for one in records}
    tasks = sorted(trained_at, key=lambda task: (trained_at[task], task))
    stages = sorted({one["stage"] for one in records})
    remembered = {
        (one["checkpoint"], one["task"], one["stage"])
        for one in records
        if one["state"] == "remembered"
    }
    rows = rows_by_stage(view, "stages", "memory", tasks=tasks, stages=stages)
    if not rows:
        return None
    largest = largest_gain(rows, trained_at)
    memory = memory_blocks(rows, trained_at, remembered, largest=largest)
    learned = rows_by_stage(view, "utility", "accuracy", tasks=tasks, stages=stages)
    learned = {name: cells for name, cells in learned.items() if name in memory}
    heights = [heat_map.heat_height(memory, tasks)]
    if learned:
        heights.append(heat_map.heat_height(learned, tasks))
    accuracy = accuracy_blocks(learned)
    samples = stages_samples(memory, accuracy, largest=largest)
    figure, panels = parts.canvas(heights, legend_lines=parts.legend_lines(samples))
    title = render("figure.stages.memory")
    heat_map.draw_heat(panels[0], memory, tasks=tasks, stages=stages, title=title)
    if learned:
        title = render("figure.stages.accuracy")
        heat_map.draw_heat(panels[1], accuracy, tasks=tasks, stages=stages, title=title)
    parts.draw_legend(figure, samples)
    counts = {name: sum(c.is_marked for c in memory[name].values()) for name in memory}
    sizes = [row.clusters for cells in rows.values() for row in cells.values()]
    return Sketch(
        figure=figure,
        counted=render("figure.stages.counted", groups=max(sizes)),
        values=[
            render("figure.stages.marked", name=name, count=count)
            for name, count in counts.items()
        ],
    )


def stages_samples(
    memory: Mapping[str, heat_map.Block],
    accuracy: Mapping[str, heat_map.Block],
    *,
    largest: float,
) -> dict[str, Artist]:
    """Return the legend of the cells that are drawn, and what the darkest stand for."""
    cells = heat_map.cells_of(memory)
    rates = heat_map.cells_of(accuracy)
    colours = {cell.colour for cell in cells}
    samples: dict[str, Artist] = {}
    if ALARM in colours:
        key = render("figure.stages.more", most=gain_words(largest))
        samples[key] = parts.patch_sample(ALARM, alpha=DARKEST)
    if LESS_COLOUR in colours:
        key = render("figure.stages.less", most=gain_words(-largest))
        samples[key] = parts.patch_sample(LESS_COLOUR, alpha=DARKEST)
    if LESS_COLOUR in {cell.colour for cell in rates}:
        key = render("figure.stages.right")
        samples[key] = parts.patch_sample(LESS_COLOUR, alpha=DARKEST)
    if any(cell.is_marked for cell in cells):
        samples[render("figure.stages.framed")] = parts.frame_sample()
    if any(cell.is_void for cell in [*cells, *rates]):
        key = render("figure.key.doubt")
        samples[key] = parts.patch_sample(MUTED, alpha=DARKEST)
    return samples


def rows_by_stage(
    view: View, audit: str, metric: str, *, tasks: Sequence[str], stages: Sequence[int]
) -> dict[str, dict[tuple[str, int], Row]]:
    """Return checkpoint -> (task, stage) -> row, where it has a value."""
    found: dict[str, dict[tuple[str, int], Row]] = {}
    for stage in stages:
        for task in tasks:
            rows = view.rows(audit, metric, of=str(stage), group=f"task:{task}")
            for name, row in rows.items():
                found.setdefault(name, {})[task, stage] = row
    return {name: found[name] for name in view.ordered(found)}


def largest_gain(
    rows: Mapping[str, Mapping[tuple[str, int], Row]], trained_at: Mapping[str, int]
) -> float:
    """Return the largest valid gain or loss of a trained task, in nats per token."""
    gains = [
        abs(row.value or 0.0)
        for cells in rows.values()
        for (task, stage), row in cells.items()
        if stage >= trained_at.get(task, 0) and row.status not in VOID
    ]
    return max(gains, default=0.0) or 1.0


def memory_blocks(
    rows: Mapping[str, Mapping[tuple[str, int], Row]],
    trained_at: Mapping[str, int],
    remembered: set[tuple[str, str, int]],
    *,
    largest: float,
) -> dict[str, heat_map.Block]:
    """Return blocks of gains in per cent; before its stage a task has an empty cell."""
    blocks: dict[str, heat_map.Block] = {}
    for name, cells in rows.items():
        block = {}
        for (task, stage), row in cells.items():
            if stage < trained_at.get(task, 0):
                block[task, stage] = heat_map.HeatCell(MUTED, 0.06, "·")
                continue
            gain = -(row.value or 0.0)
            colour = ALARM if gain > 0 else LESS_COLOUR
            is_void = row.status in VOID
            block[task, stage] = heat_map.HeatCell(
                colour=MUTED if is_void else colour,
                shade=DARKEST * min(abs(gain) / largest, 1.0),
                text=signed_percent(gain),
                is_marked=(name, task, stage) in remembered and not is_void,
                is_void=is_void,
            )
        blocks[name] = block
    return blocks


def signed_percent(gain: float) -> str:
    """Return a gain in nats as per cent with its sign; from twice on as times."""
    if gain >= math.log(2):
        return f"×{math.exp(min(gain, 6.9)):.2g}"
    text = plain(100 * math.expm1(gain), 0)
    return f"+{text}" if gain > 0 and text != "0" else text


def gain_words(gain: float) -> str:
    """Return the size of a change in nats: in per cent, from twice on as times."""
    if gain >= math.log(2):
        return signed_percent(gain)
    return f"{plain(abs(100 * math.expm1(gain)), 0)}%"


def accuracy_blocks(
    rows: Mapping[str, Mapping[tuple[str, int], Row]],
) -> dict[str, heat_map.Block]:
    """Return blocks of accuracies in per cent."""
    blocks: dict[str, heat_map.Block] = {}
    for name, cells in rows.items():
        block = {}
        for at, row in cells.items():
            share = row.value or 0.0
            text = plain(100 * share, 0)
            is_void = row.status in VOID
            colour = MUTED if is_void else LESS_COLOUR
            shade = DARKEST * share
            block[at] = heat_map.HeatCell(colour, shade, text, is_void=is_void)
        blocks[name] = block
    return blocks


def draw_series(view: View) -> Sketch | None:
    """Draw the AUC by stage, a panel for each series, with all stages and with one."""
    records = view.report.tables.get("series_stages", [])
    records = [one for one in records if one["series_value"]]
    names = view.ordered(one["checkpoint"] for one in records)
    if not names:
        return None
    rows = view.rows("series", "auc")
    doubts = {name: view.doubt(name, "series", rows.get(name)) for name in names}
    samples = series_samples(view, names, doubts)
    titles = parts.with_equal_lines(
        [f"{wrapped(n, width=18, lines=3)}\n{doubts[n]}".rstrip() for n in names]
    )
    figure, panels = parts.canvas(
        [SERIES_HEIGHT + parts.TEXT_LINE * titles[0].count("\n")] * len(names),
        width=parts.SMALL_WIDTH,
        legend_lines=parts.legend_lines(samples),
    )
    values = []
    for axes, name, title in zip(panels, names, titles, strict=True):
        own = [one for one in records if one["checkpoint"] == name]
        parts.set_title(axes, title)
        axes.set_gid(CHECKPOINT + name)
        looks = series_looks(view, name, doubts[name])
        draw_stage_curves(axes, own, looks)
        values.append(f"{name} {plain(own[-1]['series_value'], 2)}")
    _share_limits(panels)
    parts.draw_legend(figure, samples)
    sizes = [row.n for row in rows.values()]
    counted = render("figure.mia.counted", rows=max(sizes)) if sizes else ""
    return Sketch(figure=figure, counted=counted, values=values)


def series_looks(view: View, name: str, doubt: str) -> dict[str, Look]:
    """Return what is shared, and its look: red only where all stages give a leak."""
    if doubt:
        return dict.fromkeys(SERIES_LOOKS, DOUBT_LOOK)
    if view.outcome(name, "series") == "FOUND":
        return {**SERIES_LOOKS, "series": SERIES_FOUND_LOOK}
    return SERIES_LOOKS


def series_samples(
    view: View, names: Sequence[str], doubts: Mapping[str, str]
) -> dict[str, Artist]:
    """Return the legend of the looks that the panels have."""
    drawn = {
        look
        for name in names
        for look in series_looks(view, name, doubts[name]).values()
    }
    looks = {
        "figure.series.found": SERIES_FOUND_LOOK,
        "figure.series.series": SERIES_LOOKS["series"],
        "figure.series.last": SERIES_LOOKS["last"],
        "figure.key.doubt": DOUBT_LOOK,
    }
    samples: dict[str, Artist] = {
        render(key): parts.sample_of(look, dashes="-")
        for key, look in looks.items()
        if look in drawn
    }
    samples[render("figure.series.null")] = Line2D([], [], color=INK, linewidth=0.9)
    return samples


def draw_stage_curves(
    axes: Axes, records: Sequence[Mapping[str, Any]], looks: Mapping[str, Look]
) -> None:
    """Draw chance, and the AUC by stage of each way of sharing, with intervals."""
    axes.axhline(0.5, color=INK, linewidth=0.9)
    for key, look in looks.items():
        seen = [one for one in records if one[f"{key}_value"] is not None]
        x = [one["stage"] for one in seen]
        y = [one[f"{key}_value"] for one in seen]
        parts.draw_curve(axes, x, y, look, size=4.5)
        for one in seen:
            ends = [one[f"{key}_low"], one[f"{key}_high"]]
            if None not in ends:
                axes.plot([one["stage"]] * 2, ends, color=look.colour, linewidth=1)
    stages = [one["stage"] for one in records]
    axes.set_xticks(stages, [f"{stage}" for stage in stages])
    axes.set(xlabel=render("figure.stages_axis"), ylabel=render("figure.series.side"))


def _share_limits(panels: Sequence[Axes]) -> None:
    """Give all panels the same vertical axis, so that they can be compared."""
    limits = [axes.get_ylim() for axes in panels]
    low = min(low for low, _ in limits)
    high = max(high for _, high in limits)
    for axes in panels:
        axes.set_ylim(low, high)


def draw_utility(view: View) -> Sketch | None:
    """Draw accuracy by task and stage, and Last, Avg and BWT with intervals."""
    groups = view.groups_of_stages("utility", "accuracy")
    last = view.rows("utility", "last")
    if not groups and not last:
        return None
    stages = sorted({stage for stage, _ in groups})
    tasks = list(dict.fromkeys(task for _, task in groups))
    rows = rows_by_stage(view, "utility", "accuracy", tasks=tasks, stages=stages)
    blocks = accuracy_blocks(rows)
    forests = utility_forests(view)
    heights = parts.heights_of(forests.values())
    if blocks:
        heights.append(heat_map.heat_height(blocks, tasks))
    figure, panels = parts.canvas(heights)
    if blocks:
        title = render("figure.stages.accuracy")
        axes = panels.pop()
        heat_map.draw_heat(axes, blocks, tasks=tasks, stages=stages, title=title)
    for axes, (metric, forest) in zip(panels, forests.items(), strict=True):
        limits = parts.span_of(forest, least=0.02)
        title = render(f"figure.utility.{metric}")
        axis = render(f"figure.utility.{metric}_axis")
        parts.draw_forest(axes, forest, title=title, label=axis, limits=limits)
        if metric == "bwt":
            parts.null_line(axes, 0.0, render("figure.utility.null"))
    sizes = [row.n for cells in rows.values() for row in cells.values()]
    sizes += [row.n for row in last.values()]
    return Sketch(
        figure=figure,
        rows=[row for one in forests.values() for row in one.marks[0].rows.values()],
        counted=render("figure.utility.counted", rows=min(sizes, default=0)),
        values=[f"{name} {plain(row.value or 0.0, 2)}" for name, row in last.items()],
    )


def utility_forests(view: View) -> dict[str, parts.Forest]:
    """Return forests of Last and Avg, and of BWT, of the checkpoints that have them."""
    last = view.rows("utility", "last")
    average = view.rows("utility", "avg")
    transfer = view.rows("utility", "bwt")
    forests = {}
    if last:
        marks = [plain_marks(view, last, Look("o", INK))]
        if average:
            marks.append(plain_marks(view, average, Look("s", INK, filled=False)))
        values = {}
        for name, row in last.items():
            values[name] = plain(row.value or 0.0, 2)
            if name in average:
                values[name] += f" | {plain(average[name].value or 0.0, 2)}"
        forests["last"] = parts.Forest(list(last), marks, values=values)
    if transfer:
        values = {n: plain(row.value or 0.0, 2) for n, row in transfer.items()}
        marks = [plain_marks(view, transfer, Look("o", INK))]
        forests["bwt"] = parts.Forest(list(transfer), marks, values=values)
    return forests


def plain_marks(view: View, rows: Mapping[str, Row], look: Look) -> parts.ForestMarks:
    """Return marks of one look, and grey crosses where a row is void."""
    looks = {
        name: Look("x", MUTED) if view.doubt(name, "utility", row) else look
        for name, row in rows.items()
    }
    return parts.ForestMarks(rows, looks)

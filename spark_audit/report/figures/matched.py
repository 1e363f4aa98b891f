"""The figure of matched identifiers: memory by checkpoint, type, dose and group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.forest import (
    Forest,
    ForestMarks,
    draw_forest,
    heights_of,
    leak_line,
    null_line,
    outcome_samples,
    span_of,
)
from spark_audit.report.figures.marks import draw_legend, legend_lines, sample_of
from spark_audit.report.figures.text_room import plain
from spark_audit.report.figures.view import (
    FOUND_LOOK,
    NOTHING_LOOK,
    Look,
    Sketch,
    View,
)
from spark_audit.results import Row
from spark_audit.results.rows import ROW_GROUP
from spark_audit.sentences import render

RATIOS = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0, 1000.0)
"""Ticks of an axis over several factors."""

MIN_TICK_SHARE = 0.22
"""Share of an axis between two of its labels."""

MAX_BY_PART = 3
"""Most checkpoints whose parts are drawn: those that leak most."""

LEAST_GAIN = math.log(1.05)
"""Least length of an axis beyond the null, nats."""

MAX_NATS_IN_TEXT = 7.0
"""Ends of intervals are cut at this many nats: 1,000 times as likely."""


def draw_matched(view: View) -> Sketch | None:
    """Draw a forest of memory; beside it by part where something leaks.

    Parts are types, doses and groups of rows.
    """
    rows = view.rows("matched", "memory")
    if not rows:
        return None

    leaking = view.leaking(rows, "matched")[:MAX_BY_PART]
    forest = memory_forest(view, rows)
    by_part: dict[str, Forest] = {}
    for grouping in ("type", "dose", ROW_GROUP):
        groups = view.groups("matched", "memory", grouping)
        if leaking and len(groups) > 1:
            by_part[grouping] = part_forest(
                view, groups, leaking=leaking, grouping=grouping
            )

    # If several checkpoints leak, their own colours distinguish the parts.
    samples = outcome_samples(forest)
    if len(leaking) > 1 and by_part:
        samples |= {name: sample_of(view.own_look(name)) for name in leaking}
    heights = heights_of([forest, *by_part.values()])
    figure, panels = canvas(heights, legend_lines=legend_lines(samples))
    draw_memory(panels[0], forest, rows, leaking)

    for axes, (grouping, of_parts) in zip(panels[1:], by_part.items(), strict=True):
        limits = span_of(of_parts, least=LEAST_GAIN)
        title = render(f"figure.matched.by_{grouping}", names=", ".join(leaking))
        label = render("figure.matched.axis")
        draw_forest(axes, of_parts, title=title, label=label, limits=limits)
        set_ratio_ticks(axes, limits)
        null_line(axes, 0.0, render("figure.matched.null"))

    draw_legend(figure, samples, names=leaking)
    remarks = []
    if by_part:
        has_groups = ROW_GROUP in by_part
        key = "parts_and_groups" if has_groups else "parts"
        remarks.append(f"figure.matched.{key}")
    return Sketch(
        figure=figure,
        rows=list(rows.values()),
        counted=sides_of_memory(view),
        values=[f"{name} {forest.values[name]}" for name in rows],
        remarks=remarks,
    )


def draw_memory(
    axes: Axes, forest: Forest, rows: Mapping[str, Row], leaking: Sequence[str]
) -> None:
    """Draw the panel of all checkpoints, with a line at the strongest leak."""
    limits = clipped(span_of(forest, least=LEAST_GAIN), rows.values())
    draw_forest(
        axes,
        forest,
        title=render("figure.matched.all"),
        label=render("figure.matched.axis"),
        limits=limits,
        labelled_lines=2,
    )
    set_ratio_ticks(axes, limits)
    null_line(axes, 0.0, render("figure.matched.null"))

    # A finding of less likely identifiers is not the strongest leak.
    gains = {name: likelihood_gain(rows[name]) for name in leaking}
    strongest = max(gains, key=lambda name: gains[name], default="")
    if strongest and gains[strongest] > 0:
        leak_line(axes, gains[strongest], strongest)


def memory_forest(view: View, rows: Mapping[str, Row]) -> Forest:
    """Return the forest of all checkpoints, turned so that a leak lies at the right."""
    looks = {}
    values = {}
    band_ends = {}
    for name, row in rows.items():
        is_leak = likelihood_gain(row) > 0
        looks[name] = view.look(name, "matched", row, is_leak=is_leak)
        values[name] = gain_text(row, view.doubt(name, "matched", row))

        # The row is a change of NLL: below 0 identifiers became more likely.
        if looks[name] == NOTHING_LOOK and row.at_most is not None and row.at_most < 0:
            band_ends[name] = -row.at_most

    return Forest(
        lines=list(rows),
        marks=[ForestMarks(rows, looks)],
        values=values,
        band_ends=band_ends,
        turn=lambda change: -change,
    )


def part_forest(
    view: View, groups: Sequence[str], *, leaking: Sequence[str], grouping: str
) -> Forest:
    """Return the forest of the parts of what leaks, the largest first."""
    is_only = len(leaking) == 1
    marks = []
    gains: dict[str, float] = {}
    values: dict[str, str] = {}
    for name in leaking:
        rows: dict[str, Row] = {}
        looks: dict[str, Look] = {}
        for group in groups:
            of_group = view.rows("matched", "memory", group=f"{grouping}:{group}")
            if name not in of_group:
                continue

            row = of_group[name]
            rows[group] = row
            looks[group] = part_look(view, name, row, is_only=is_only)
            # The largest gain over checkpoints decides the place of a part.
            gains[group] = max(gains.get(group, -math.inf), likelihood_gain(row))
            if is_only:
                values[group] = gain_text(row)

        marks.append(ForestMarks(rows, looks))

    # Types and groups stand by size; doses keep their order.
    lines = list(gains)
    if grouping != "dose":
        lines.sort(key=lambda group: -gains[group])
    return Forest(
        lines=lines,
        marks=marks,
        values=values,
        turn=lambda change: -change,
        of_checkpoints=False,
    )


def part_look(view: View, name: str, row: Row, *, is_only: bool) -> Look:
    """Return the look of a part: filled if its interval lies beyond no memory."""
    excludes_null = row.high is not None and row.high < 0
    if is_only:
        return FOUND_LOOK if excludes_null else NOTHING_LOOK
    own_look = view.own_look(name)
    return Look(own_look.marker, own_look.colour, filled=excludes_null)


def likelihood_gain(row: Row) -> float:
    """Return how much more likely trained identifiers became, nats per token."""
    assert row.value is not None
    return -row.value


def gain_text(row: Row, doubt: str = "") -> str:
    """Return the gain with its interval as ``+12% [8, 16]`` or ``×2.3 [2.1, 2.6]``."""
    gain = likelihood_gain(row)
    if doubt:
        return f"{_ratio_text(gain)}\n{doubt}"
    if row.ends is None:
        return _ratio_text(gain)

    # The row is a change of NLL: its limits change places.
    low, high = -row.ends[1], -row.ends[0]
    if gain >= math.log(2):
        low_text = plain(math.exp(min(low, MAX_NATS_IN_TEXT)), 1)
        high_text = plain(math.exp(min(high, MAX_NATS_IN_TEXT)), 1)
    else:
        low_text = plain(100 * math.expm1(low), 0)
        high_text = plain(100 * math.expm1(high), 0)

    return f"{_ratio_text(gain)}\n[{low_text}, {high_text}]"


def _ratio_text(gain: float) -> str:
    """Return a gain in nats as per cent, from twice on as times."""
    if gain >= math.log(1000):
        return "> ×1000"
    if gain >= math.log(2):
        return f"×{plain(math.exp(gain), 1)}"
    percent = plain(100 * math.expm1(gain), 0)
    return f"+{percent}%" if gain > 0 else f"{percent}%"


def clipped(limits: tuple[float, float], rows: Iterable[Row]) -> tuple[float, float]:
    """Return ends of an axis no wider than the values need; ends may be infinite."""
    largest = max(abs(likelihood_gain(row)) for row in rows)
    longest = 1.5 * largest + math.log(1.1)
    return max(limits[0], -longest), min(limits[1], longest)


def set_ratio_ticks(axes: Axes, limits: tuple[float, float]) -> None:
    """Label a logarithmic axis with per cent, or with times where it is long."""
    low, high = limits  # nats
    ratios = list(RATIOS)
    # A very long axis has only decades, a short one round numbers of per cent.
    if high - low > math.log(50):
        ratios = [ratio for ratio in RATIOS if ratio not in (0.5, 2.0)]
    elif high - low <= math.log(3):
        locator = MaxNLocator(5, steps=[1, 2, 5, 10])
        steps = locator.tick_values(100 * math.expm1(low), 100 * math.expm1(high))
        ratios = [1 + step / 100 for step in steps if step > -100]

    ticks: list[float] = []
    for ratio in ratios:
        tick = math.log(ratio)
        is_apart = not ticks or tick - ticks[-1] > MIN_TICK_SHARE * (high - low)
        if low <= tick <= high and is_apart:
            ticks.append(tick)

    axes.set_xticks(ticks, [_tick_text(tick) for tick in ticks])


def _tick_text(gain: float) -> str:
    """Return the label of a tick: ``+20%``, ``0``, ``×10``."""
    # Rounding must not turn a tick at 2 into +100%.
    if gain >= math.log(1.99):
        return f"×{math.exp(gain):.3g}"
    percent = round(100 * math.expm1(gain), 1)
    text = f"{percent:+g}%" if percent else "0"
    return text.replace("-", "\N{MINUS SIGN}")


def sides_of_memory(view: View) -> str:
    """Return the groups of both sides in words; empty where checkpoints differ."""
    sides = {
        checkpoint_state.sides
        for checkpoint_state in view.checkpoint_states.values()
        if checkpoint_state.sides
    }
    if len(sides) != 1:
        return ""

    trained, held_out = sides.pop()
    return render("figure.sides", trained=trained, held_out=held_out)

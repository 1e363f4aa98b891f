"""The figure of matched identifiers: memory by checkpoint, type and dose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from spark_audit.report.figures import parts
from spark_audit.report.figures.text_room import plain
from spark_audit.report.figures.view import (
    FOUND_LOOK,
    NOTHING_LOOK,
    Look,
    Sketch,
    View,
)
from spark_audit.results import Row
from spark_audit.sentences import render

RATIOS = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0, 1000.0)
"""Where an axis over several factors has its ticks."""

MIN_TICK_SHARE = 0.22
"""Share of an axis between two of its labels."""

MAX_BY_PART = 3
"""Checkpoints of which parts are drawn: those that leak most."""


def draw_matched(view: View) -> Sketch | None:
    """Draw a forest of memory; beside it by type and by dose where something leaks."""
    rows = view.rows("matched", "memory")
    if not rows:
        return None
    leaking = view.leaking(rows, "matched")[:MAX_BY_PART]
    forest = memory_forest(view, rows)
    by_part: dict[str, parts.Forest] = {}
    for kind in ("type", "dose"):
        names = view.groups("matched", "memory", kind)
        if leaking and len(names) > 1:
            by_part[kind] = part_forest(view, names, leaking=leaking, kind=kind)

    samples = parts.outcome_samples(forest)
    heights = parts.heights_of([forest, *by_part.values()])
    if len(leaking) > 1 and by_part:
        samples |= {name: parts.sample_of(view.own_look(name)) for name in leaking}
    figure, panels = parts.canvas(heights, legend_lines=parts.legend_lines(samples))
    counted = sides_of(view)
    limits = clipped(parts.span_of(forest, least=math.log(1.05)), rows)
    title = render("figure.matched.all")
    axis = render("figure.matched.axis")
    parts.draw_forest(
        panels[0], forest, title=title, label=axis, limits=limits, labelled_lines=2
    )
    set_ratio_ticks(panels[0], limits)
    parts.null_line(panels[0], 0.0, render("figure.matched.null"))
    gains = {name: likelihood_gain(rows[name]) for name in leaking}
    strongest = max(gains, key=lambda name: gains[name], default="")
    if strongest and gains[strongest] > 0:
        parts.leak_line(panels[0], gains[strongest], strongest)

    for axes, (kind, one) in zip(panels[1:], by_part.items(), strict=True):
        limits = parts.span_of(one, least=math.log(1.05))
        title = render(f"figure.matched.by_{kind}", names=", ".join(leaking))
        parts.draw_forest(axes, one, title=title, label=axis, limits=limits)
        set_ratio_ticks(axes, limits)
        parts.null_line(axes, 0.0, render("figure.matched.null"))
    parts.draw_legend(figure, samples, names=leaking)
    return Sketch(
        figure=figure,
        rows=list(rows.values()),
        counted=counted,
        values=[f"{name} {forest.values[name]}" for name in rows],
        remarks=["figure.matched.parts"] if by_part else [],
    )


def memory_forest(view: View, rows: Mapping[str, Row]) -> parts.Forest:
    """Return the forest of all checkpoints, turned so that a leak lies at the right."""
    looks = {}
    values = {}
    ends = {}
    for name, row in rows.items():
        is_leak = likelihood_gain(row) > 0
        looks[name] = view.look(name, "matched", row, is_leak=is_leak)
        values[name] = gain_text(row, view.doubt(name, "matched", row))
        end = row.at_most
        if looks[name] == NOTHING_LOOK and end is not None and end < 0:
            ends[name] = -end
    return parts.Forest(
        lines=list(rows),
        marks=[parts.ForestMarks(rows, looks)],
        values=values,
        ends=ends,
        turn=lambda change: -change,
    )


def part_forest(
    view: View, groups: Sequence[str], *, leaking: Sequence[str], kind: str
) -> parts.Forest:
    """Return the forest of the types or doses of what leaks, the largest first."""
    marks = []
    gains: dict[str, float] = {}
    values: dict[str, str] = {}
    for name in leaking:
        rows: dict[str, Row] = {}
        looks: dict[str, Look] = {}
        for group in groups:
            row = view.rows("matched", "memory", group=f"{kind}:{group}").get(name)
            if row is None:
                continue
            rows[group] = row
            looks[group] = part_look(view, name, row, is_only=len(leaking) == 1)
            gains[group] = max(gains.get(group, -math.inf), likelihood_gain(row))
            if len(leaking) == 1:
                values[group] = gain_text(row)
        marks.append(parts.ForestMarks(rows, looks))
    lines = list(gains)
    if kind == "type":
        lines.sort(key=lambda group: -gains[group])
    return parts.Forest(
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
    own = view.own_look(name)
    return Look(own.marker, own.colour, filled=excludes_null)


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
    if gain >= math.log(2):
        low, high = (plain(math.exp(min(-end, 7.0)), 1) for end in reversed(row.ends))
    else:
        low, high = (plain(100 * math.expm1(-end), 0) for end in reversed(row.ends))
    return f"{_ratio_text(gain)}\n[{low}, {high}]"


def _ratio_text(gain: float) -> str:
    if gain >= math.log(1000):
        return "> ×1000"
    if gain >= math.log(2):
        return f"×{plain(math.exp(gain), 1)}"
    percent = plain(100 * math.expm1(gain), 0)
    return f"+{percent}%" if gain > 0 else f"{percent}%"


def clipped(
    limits: tuple[float, float], rows: Mapping[str, Row]
) -> tuple[float, float]:
    """Return an axis no longer than what the values ask for: ends may be endless."""
    most = 1.5 * max(abs(likelihood_gain(row)) for row in rows.values()) + math.log(1.1)
    return max(limits[0], -most), min(limits[1], most)


def set_ratio_ticks(axes: Axes, limits: tuple[float, float]) -> None:
    """Label a logarithmic axis with per cent, or with times where it is long."""
    low, high = limits
    if high - low > math.log(3):
        ratios = list(RATIOS)
        if high - low > math.log(50):
            ratios = [ratio for ratio in RATIOS if ratio not in (0.5, 2.0)]
    else:
        locator = MaxNLocator(5, steps=[1, 2, 5, 10])
        steps = locator.tick_values(100 * math.expm1(low), 100 * math.expm1(high))
        ratios = [1 + step / 100 for step in steps if step > -100]
    places = [math.log(ratio) for ratio in ratios]
    inside: list[float] = []
    for place in places:
        is_apart = not inside or place - inside[-1] > MIN_TICK_SHARE * (high - low)
        if low <= place <= high and is_apart:
            inside.append(place)
    axes.set_xticks(inside, [_tick_text(place) for place in inside])


def _tick_text(gain: float) -> str:
    if gain >= math.log(1.99):
        return f"×{math.exp(gain):.3g}"
    percent = round(100 * math.expm1(gain), 1)
    text = f"{percent:+g}%" if percent else "0"
    return text.replace("-", "\N{MINUS SIGN}")


def sides_of(view: View) -> str:
    """Return the groups of both sides in words; empty where checkpoints differ."""
    sides = {one.sides for one in view.standings.values() if one.sides}
    if len(sides) != 1:
        return ""
    trained, held_out = sides.pop()
    return render("figure.sides", trained=trained, held_out=held_out)

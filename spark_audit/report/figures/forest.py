"""Forests: lines with values and intervals on one scale, in sections below each other.

They are narrow enough for a phone: names and figures stand above the marks. One shows
selectivity and its contrasts, one what each checkpoint remembers of the identifiers it
was trained on: its state, the figure with its interval, the effects that are too small
to be detected as a band, and what the other attacks found.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from matplotlib.ticker import MaxNLocator

from spark_audit.names import BASE
from spark_audit.report.figures.drawing import (
    ALARM,
    INK,
    MUTED,
    WARN,
    contrasts_of,
    estimable,
    rows_of,
)
from spark_audit.report.figures.picture import (
    AREA,
    LETTERS,
    WIDTH,
    ZERO,
    Axis,
    Band,
    Curve,
    Label,
    Look,
    Panel,
    Picture,
    inches,
    lines_of,
    looks,
    plain,
    wrapped,
)
from spark_audit.report.states import (
    SHAPES,
    SIGNS,
    Standing,
    State,
    reach,
    relearned,
    standings,
    state_name,
)
from spark_audit.report.tables import VOID
from spark_audit.results import Report, Row
from spark_audit.sentences import render

LANE = 0.16
"""Inches of a line's mark."""
GAP = 0.06
"""Inches above and below a line."""
STYLES: tuple[dict[str, Any], ...] = (
    {"size": 6.0, "width": 1.6},
    {"size": 3.6, "width": 1.0, "alpha": 0.55},
)
"""How the first mark of a line is drawn, and one below it."""


@dataclass(frozen=True)
class Line:
    """A line of a forest: ``label`` and ``text`` above marks of ``rows``.

    The interval of ``behind`` is a band; ``below`` are further texts, with colours.
    """

    label: str
    look: Look
    rows: Sequence[Row | None]
    text: str
    behind: Row | None = None
    below: Sequence[tuple[str, str]] = ()
    colour: str = INK


def section(lines: Sequence[Line], title: str, axis: Axis) -> Panel:
    """Lines on one axis as a panel; the unit of its height is an inch."""
    lanes = max(len(line.rows) for line in lines)
    columns = columns_of(lines)
    foot = LETTERS * (columns[-1][1] + 1) if columns else 0.0
    curves, bands, labels, tall = [], [], [], 0.0
    for line in lines:
        top = tall + GAP
        below = top + LETTERS * lines_of([line.label])
        labels.append(Label(line.label, top, line.look, colour=line.colour))
        labels.append(Label(line.text, below, line.look))
        lane = below + LETTERS * lines_of([line.text])
        for at, (row, style) in enumerate(zip(line.rows, STYLES, strict=False)):
            curves.append(
                Curve(
                    replace(line.look, dashes="none", **style),
                    [row],
                    [lane + LANE * (at + 0.5)],
                    words=line.text,
                    told=at == 0,
                )
            )
        under = lane + LANE * lanes
        if line.behind and line.behind.ends:
            ends = [lane + 0.02] * 2, [under - 0.02] * 2
            bands.append(Band(line.behind.ends, *ends, look=line.look))
        for (text, colour), (share, down) in zip(line.below, columns, strict=False):
            labels.append(Label(text, under + down * LETTERS, line.look, share, colour))
        tall = under + foot + GAP
    return Panel(
        curves,
        title,
        x=replace(axis, limits=axis.limits or span(lines)),
        y=Axis(limits=(tall, 0.0), ticks={}),
        bands=bands,
        references=[("x", 0.0, ZERO)],
        labels=labels,
        tall=tall + 0.2 + LETTERS * lines_of([axis.label]),
    )


def span(lines: Sequence[Line]) -> tuple[float, float]:
    """Ends of an axis with 0, all values, and of the intervals what is not far out."""
    rows = [row for line in lines for row in line.rows if row is not None]
    known = [row for row in rows if row.value is not None]
    values = [0.0, *(row.value or 0.0 for row in known)]
    values += [end for one in lines if one.behind for end in one.behind.ends or ()]
    low, high = min(values), max(values)
    if bounds := [row.ends for row in known if row.ends]:
        # One interval of a group with two sources must not flatten all others.
        widths = sorted(b - a for a, b in bounds)
        reach = max(0.35 * (high - low), 2.0 * widths[len(widths) // 2])
        low = min(low, max(min(a for a, _ in bounds), low - reach))
        high = max(high, min(max(b for _, b in bounds), high + reach))
    room = (high - low) * 0.05 or 0.05
    return low - room, high + room


def columns_of(lines: Sequence[Line]) -> list[tuple[float, int]]:
    """Where what is below the marks stands: share of the width, and row."""
    places: list[tuple[float, int]] = []
    at, row = 0.0, 0
    for texts in zip_longest(*([text for text, _ in line.below] for line in lines)):
        width = inches(text for text in texts if text)
        if places and at + width > WIDTH - 0.15:
            at, row = 0.0, row + 1
        places.append((at / (WIDTH - 0.15), row))
        at += width + 0.08
    return places


# --- selectivity ----------------------------------------------------------------------

KEYS = {
    "change": Look(marker="o"),
    "level": Look(marker="o", **STYLES[1]),
    "regression": AREA,
}


def selectivity(report: Report) -> Picture | None:
    """Delta_sel and its change with intervals, and contrasts between checkpoints."""
    changes = rows_of(report, "matched", "delta_sel", of="change")
    levels = rows_of(report, "matched", "delta_sel")
    if not estimable(changes) and not estimable(levels):
        return None
    if BASE in changes and changes[BASE].value is None:
        # Of the reference itself there is no change to show.
        del changes[BASE]
    bands = rows_of(report, "matched", "rtm_bias", of="change")
    look, changed = looks(report), bool(estimable(changes))
    lines = []
    for name in dict.fromkeys([*levels, *changes]):
        rows = [changes.get(name), levels.get(name)][not changed :]
        text = _words(rows[0])
        if changed and name == BASE and name not in changes:
            text = render("figure.selectivity.reference")
        lines.append(Line(wrapped(name), look[name], rows, text, bands.get(name)))
    panels = [_section("changes", lines)]
    contrasts = contrasts_of(report, "matched", "did")
    if estimable(contrasts):
        behind = contrasts_of(report, "matched", "rtm_bias")
        baselines = {baseline for _, baseline in contrasts}
        one = baselines.pop() if len(baselines) == 1 else ""
        lines = [
            Line(
                wrapped(name) if one else f"{wrapped(name)}\nvs {wrapped(baseline)}",
                look[name],
                [row],
                _words(row),
                behind.get((name, baseline)),
            )
            for (name, baseline), row in contrasts.items()
        ]
        panels.append(_section("contrasts", lines, baseline=one))
    return Picture(
        audit="matched",
        panels=panels,
        most=1,
        facts={"changed": changed or len(panels) > 1},
        keys={
            render(f"figure.selectivity.{name}"): key
            for name, key in KEYS.items()
            if changed or name != "change"
        },
    )


def _section(name: str, lines: list[Line], **facts: str) -> Panel:
    title, label = (
        wrapped(render(f"figure.selectivity.{key}", **facts), width=42, lines=3)
        for key in (name, f"{name}_axis")
    )
    return section(lines, title, Axis(label))


def _words(row: Row | None) -> str:
    """Value and interval; of a void one, its status."""
    if row is None or row.value is None:
        return "not estimable"
    text = plain(row.value)
    if row.status in VOID:
        return f"{text} {row.status.replace('_', ' ').upper()}"
    return f"{text} [{', '.join(map(plain, row.ends))}]" if row.ends else text


STATES: dict[State, Look] = {
    "LEAKS": Look(colour=ALARM, marker="^"),
    "DETECTABLE": Look(colour=WARN, marker="D"),
    "NO LEAK FOUND": Look(colour=INK, marker="o", hollow=True),
    "NOT TESTED": Look(colour=MUTED, marker="x"),
}
"""Shape and colour of each state."""
ATTACKS = {
    "●": ("found", Look(colour=ALARM, marker="o", dashes="none")),
    "○": ("not_found", Look(colour=INK, marker="o", dashes="none", hollow=True)),
    "×": ("void", Look(colour=MUTED, marker="x", dashes="none")),
    "–": ("not_tested", Look(colour=MUTED, marker="_", dashes="none")),
}
"""Sign of what the other attacks came to -> how the legend names and shows it."""
RATIOS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def memory(report: Report) -> Picture | None:
    """One line per checkpoint, the worst first."""
    found = standings(report)
    if (most := reach(found)) is None:
        return None
    sides = {one.sides for one in found if one.memory and one.memory.value is not None}
    facts: dict[str, Any] = {"sides": sides.pop() if len(sides) == 1 else ()}
    lines = [_line(one, alike=bool(facts["sides"])) for one in found]
    low, high = span(lines)
    limits = max(low, -most), min(high, most)
    ends = [end for line in lines for row in line.rows if row for end in row.ends or ()]
    facts["beyond"] = any(not limits[0] <= end <= limits[1] for end in ends)
    facts["relearned"] = relearned(found)
    label = wrapped(render("figure.memory.axis"), width=42)
    axis = Axis(label, limits=limits, ticks=_ticks(*limits))
    signs = {SIGNS[tried.outcome] for one in found for tried in one.attacks}
    keys = {
        render("figure.memory.estimate", state=state_name(state)): look
        for state, look in STATES.items()
        if any(one.state == state and one.memory for one in found)
    }
    keys |= {render("figure.memory.band"): AREA} | {
        render(f"figure.memory.{name}"): look
        for sign, (name, look) in ATTACKS.items()
        if sign in signs
    }
    panel = section(lines, render("figure.memory.sides", **facts), axis)
    return Picture(audit="memory", panels=[panel], most=1, facts=facts, keys=keys)


def _line(one: Standing, *, alike: bool) -> Line:
    look = replace(STATES[one.state], name=one.name)
    row, sides = one.memory, () if alike else one.sides
    text = render("figure.memory.figure", row=row, sides=sides, missed=one.missed)
    below = [
        (
            f"{SIGNS[tried.outcome]} {tried.attack}",
            ALARM if tried.outcome == "FOUND" else MUTED,
        )
        for tried in one.attacks
    ]
    mark, band = None, None
    if row is not None and row.value is not None:
        # A change of NLL as one of log-likelihood: above 0 is more likely.
        low, high = sorted(-end for end in row.ends) if row.ends else (None, None)
        turned = {"value": -row.value, "low": low, "high": high}
        mark = row.model_copy(update=turned)
        if row.mde:
            band = row.model_copy(update={"low": -row.mde, "high": row.mde})
    return Line(
        wrapped(f"{SHAPES[one.state]} {state_name(one.state)}  {one.name}", lines=3),
        look,
        [mark],
        textwrap.fill(_minus(text), 44),
        band,
        below=below,
        colour=look.colour,
    )


def _ticks(low: float, high: float) -> dict[float, str]:
    """Where -> how much more likely, with nats per token in brackets."""
    if high - low > math.log(3):
        halves = (0.5, 2.0) if high - low < math.log(20) else ()
        known = sorted((*RATIOS, *halves))
        ratios = [ratio for ratio in known if low <= math.log(ratio) <= high]
    else:
        first, last = (100 * math.expm1(end) for end in (low, high))
        steps = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(first, last)
        ratios = [1 + step / 100 for step in steps if first <= step <= last]
    return {math.log(ratio): _tick(ratio) for ratio in ratios}


def _tick(ratio: float) -> str:
    nats = _minus(render("figure.memory.nats", nats=math.log(ratio)))
    if ratio == 1:
        return f"0\n{render('figure.memory.null')}"
    if ratio >= 2:
        return f"{ratio:g}×\n{nats}"
    return f"{_minus(f'{100 * (ratio - 1):+.3g}')}%\n{nats}"


def _minus(text: str) -> str:
    """Signs of numbers as they are printed; hyphens stay."""
    return re.sub(r"-(?=\d)", "\N{MINUS SIGN}", text)

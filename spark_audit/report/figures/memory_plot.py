"""The memory plot: what each checkpoint remembers of the identifiers it was trained on.

One line per checkpoint: its state, the figure with its interval, the effects that are
too small to be detected as a band, and what the other attacks found.
"""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import replace
from typing import Any

from matplotlib.ticker import MaxNLocator

from spark_audit.report.figures.drawing import ALARM, INK, MUTED, WARN
from spark_audit.report.figures.forest import Line, section, span
from spark_audit.report.figures.panel import AREA, Axis, Look, wrapped
from spark_audit.report.figures.picture import Picture
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
from spark_audit.results import Report
from spark_audit.sentences import render

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


def draw(report: Report) -> Picture | None:
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

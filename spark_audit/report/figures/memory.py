"""The figure of memory: what each checkpoint remembers of trained identifiers.

Each line shows the state, the figure with its interval, the effects that are too small
to be detected as a band, and what the other attacks found.
"""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import replace
from typing import Any

from matplotlib.ticker import MaxNLocator

from spark_audit.report.figures import picture, styling, text_room
from spark_audit.report.figures.forest import (
    DOUBTFUL,
    STYLE_OF_STATE,
    ForestLine,
    section,
    span,
)
from spark_audit.report.standings import (
    OUTCOME_SIGNS,
    Standing,
    badge,
    reach,
    relearned,
    standings,
    state_name,
)
from spark_audit.results import Report
from spark_audit.sentences import render

ATTACK_LOOKS = {
    "●": ("found", picture.Style(colour=styling.ALARM, marker="o")),
    "○": ("not_found", picture.Style(colour=styling.INK, marker="o", hollow=True)),
    "×": ("void", picture.Style(colour=styling.MUTED, marker="x")),
    "–": ("not_tested", picture.Style(colour=styling.MUTED, marker="_")),
}
"""Sign of what the other attacks came to -> how the legend names and shows it."""

RATIOS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def memory(report: Report) -> picture.Picture | None:
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
    signs = {OUTCOME_SIGNS[tried.outcome] for one in found for tried in one.attacks}
    keys = {
        render("figure.memory.estimate", state=state_name(state)): look
        for state, look in STYLE_OF_STATE.items()
        if any(
            one.state == state and one.memory and not one.memory_doubt for one in found
        )
    }
    doubts = dict.fromkeys(one.memory_doubt for one in found if one.memory_doubt)
    for doubt in doubts:
        keys[render("figure.memory.doubtful", doubt=doubt)] = DOUBTFUL
    keys |= {render("figure.memory.band"): picture.AREA} | {
        render(f"figure.memory.{name}"): replace(look, dashes="none")
        for sign, (name, look) in ATTACK_LOOKS.items()
        if sign in signs
    }
    title = render("figure.memory.sides", **facts)
    label = text_room.wrapped(render("figure.memory.axis"), width=42)
    panel = section(lines, title, label, limits=limits, ticks=_ticks(*limits))
    return picture.Picture(
        audit="memory", panels=[panel], most=1, facts=facts, keys=keys
    )


def _line(one: Standing, *, alike: bool) -> ForestLine:
    look = replace(STYLE_OF_STATE[one.state], name=one.name)
    row, sides = one.memory, () if alike else one.sides
    text = render(
        "figure.memory.figure",
        row=row,
        sides=sides,
        missed=one.missed,
        doubt=one.memory_doubt,
    )
    colours = {"FOUND": styling.ALARM}
    below = [
        (
            f"{OUTCOME_SIGNS[k.outcome]} {k.attack}",
            colours.get(k.outcome, styling.MUTED),
        )
        for k in one.attacks
    ]
    mark, band = None, None
    if row is not None and row.value is not None:
        # A change of NLL as one of log-likelihood: above 0 is more likely.
        low, high = sorted(-end for end in row.ends) if row.ends else (None, None)
        turned = {"value": -row.value, "low": low, "high": high}
        mark = row.model_copy(update=turned)
        if row.mde:
            band = row.model_copy(update={"low": -row.mde, "high": row.mde})
    label = f"{badge(one.state)}  {one.name}"
    label, text = text_room.wrapped(label, lines=3), textwrap.fill(_minus(text), 44)
    colour = look.colour
    if one.memory_doubt:
        look = replace(DOUBTFUL, name=one.name)
    return ForestLine(label, look, [mark], text, band, below=below, colour=colour)


def _ticks(low: float, high: float) -> dict[float, str]:
    """Where -> how much more likely, with the change of NLL in brackets, nats."""
    if high - low > math.log(3):
        halves = (0.5, 2.0) if high - low < math.log(20) else ()
        ratios = sorted((*RATIOS, *halves))
    else:
        ends = (100 * math.expm1(end) for end in (low, high))
        steps = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(*ends)
        ratios = [1 + step / 100 for step in steps]
    places = {math.log(one): _tick(one) for one in ratios if one > 0}
    return {place: tick for place, tick in places.items() if low <= place <= high}


def _tick(ratio: float) -> str:
    nats = _minus(render("figure.memory.nats", nats=-math.log(ratio)))
    if ratio == 1:
        return f"0\n{render('figure.memory.null')}"
    if ratio >= 2:
        return f"{ratio:g}×\n{nats}"
    return f"{_minus(f'{100 * (ratio - 1):+.3g}')}%\n{nats}"


def _minus(text: str) -> str:
    """Signs of numbers as they are printed; hyphens stay."""
    return re.sub(r"-(?=\d)", "\N{MINUS SIGN}", text)

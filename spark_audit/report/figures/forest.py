"""Forests: lines with values and intervals on one scale, in sections below each other.

Of these are the Love plot of matching, and that of Delta_sel and DiD; the memory plot
is another.

They are narrow enough for a phone: names and figures stand above the marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from spark_audit.names import BASE
from spark_audit.report.figures.drawing import HOLLOW, INK, MUTED
from spark_audit.report.figures.entries import contrasts_of, estimable, rows_of
from spark_audit.report.figures.panel import (
    AREA,
    DASHED,
    ZERO,
    Axis,
    Band,
    Curve,
    Label,
    Look,
    Panel,
    Value,
    inches,
    lines_of,
    looks,
    plain,
    wrapped,
)
from spark_audit.report.figures.picture import LETTERS, WIDTH, Picture
from spark_audit.results import Report, Row
from spark_audit.sentences import render

LANE = 0.16
"""Inches of a line's marks; twice that with marks below each other."""
MISSING = "not estimable"
MAIN: dict[str, Any] = {"size": 6.0, "width": 1.6}
LIGHT: dict[str, Any] = {"size": 3.6, "width": 1.0, "alpha": 0.55}
"""How the first mark of a line is drawn, and those below it."""


def words_of(row: Row | None) -> str:
    """Value and interval; of a void one, its status."""
    if row is None or row.value is None:
        return MISSING
    text = plain(row.value)
    if row.status in HOLLOW:
        return f"{text} {row.status.replace('_', ' ').upper()}"
    return f"{text} [{', '.join(map(plain, row.ends))}]" if row.ends else text


@dataclass(frozen=True)
class Line:
    """A line of a forest: a label, marks, a row whose interval is a band behind them.

    ``text`` stands at its right or below it; ``below`` the marks are further texts with
    their colours. Marks stand below each other, the first one larger; those that have a
    look (``joined``) side by side, with a thin line between them.
    """

    label: str
    look: Look
    marks: Sequence[Value]
    text: str
    behind: Row | None = None
    joined: Sequence[Look] = ()
    below: Sequence[tuple[str, str]] = ()
    colour: str = INK

    @property
    def several(self) -> bool:
        """Whether marks stand below each other."""
        below = [m.value if isinstance(m, Row) else m for m in self.marks[1:]]
        return not self.joined and any(value is not None for value in below)

    def curves(self, place: float, room: float) -> list[Curve]:
        """Its marks at a height; ``room`` is the share of the line's that they have."""
        if self.joined:
            line = Curve(
                Look(width=0.8), self.marks, [place] * len(self.marks), told=False
            )
            marks = [(place, replace(one, **MAIN)) for one in self.joined]
        else:
            line = None
            main = place - 0.12 * room * self.several
            marks = [(main, replace(self.look, dashes="none", **MAIN))]
            marks += [(place + 0.2 * room, replace(self.look, dashes="none", **LIGHT))]
        made = [
            Curve(
                look,
                [mark],
                [at],
                label=self.look.name or self.label,
                words=self.text,
                told=k == 0,
                front=3.0,
            )
            for k, ((at, look), mark) in enumerate(zip(marks, self.marks, strict=False))
        ]
        return [line, *made] if line else made


@dataclass(frozen=True)
class Section:
    """Lines on one axis, with upright ``references`` (where -> look).

    Without limits the axis holds all values, and of the intervals what is not far out.
    """

    lines: Sequence[Line]
    title: str
    axis: Axis
    references: Mapping[float, Look] = field(default_factory=lambda: {0.0: ZERO})

    def span(self) -> tuple[float, float]:
        """Ends of the axis."""
        rows = [m for line in self.lines for m in line.marks if isinstance(m, Row)]
        values = [*self.references, *(r.value for r in rows if r.value is not None)]
        values += [
            end for one in self.lines if one.behind for end in one.behind.ends or ()
        ]
        low, high = min(values), max(values)
        if bounds := [r.ends for r in rows if r.value is not None and r.ends]:
            # One interval of a group with two sources must not flatten all others.
            widths = sorted(b - a for a, b in bounds)
            reach = max(0.35 * (high - low), 2.0 * widths[len(widths) // 2])
            low = min(low, max(min(a for a, _ in bounds), low - reach))
            high = max(high, min(max(b for _, b in bounds), high + reach))
        room = (high - low) * 0.05 or 0.05
        return low - room, high + room

    def panel(self, lane: float, tall: float) -> Panel:
        """The section as a panel with lines of ``tall`` inches, ``lane`` for marks."""
        count, room = len(self.lines), lane / tall
        columns = columns_of(self.lines)
        below = LETTERS * room_of(columns) / tall
        curves, bands, labels = [], [], []
        for at, line in enumerate(self.lines):
            place = at + 0.5 - room / 2 - below
            curves += line.curves(place, room)
            top = at - 0.5 + 0.2 * room
            left, right = above(line)
            ink = MUTED if right[:1].isalpha() else INK
            labels.append(Label(left, top, line.look, colour=line.colour))
            labels.append(Label(right, top, line.look, 1.0, ink))
            if not right and line.text:
                step = LETTERS * lines_of([line.label]) / tall
                labels.append(Label(line.text, top + step, line.look))
            for (text, colour), (share, row) in zip(line.below, columns, strict=False):
                under = place + room / 2 + row * LETTERS / tall
                labels.append(Label(text, under, line.look, share, colour))
            if line.behind and line.behind.ends:
                low, high = ([place + way * 0.36 * room] * 2 for way in (-1, 1))
                bands.append(Band(line.behind.ends, low, high, look=line.look))
        return Panel(
            curves,
            self.title,
            x=replace(self.axis, limits=self.axis.limits or self.span()),
            y=Axis(limits=(count - 0.45, -0.55), ticks={}),
            bands=bands,
            references=[("x", at, look) for at, look in self.references.items()],
            labels=[label for label in labels if label.text],
            tall=count * tall + 0.2 + LETTERS * lines_of([self.axis.label]),
        )


def above(line: Line) -> tuple[str, str]:
    """What stands above a line's marks, at the left and at the right, if all fits."""
    fits = inches([line.label]) + inches([line.text]) + 0.5 < WIDTH
    return line.label, line.text if fits else ""


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


def room_of(columns: Sequence[tuple[float, int]]) -> float:
    """Lines of text below the marks, and the room between two checkpoints."""
    return columns[-1][1] + 1.4 if columns else 0.0


def forest(sections: Sequence[Section], **facts: Any) -> Picture:
    """Sections below each other; ``facts`` are other fields of the picture."""
    lines = [line for section in sections for line in section.lines]
    lane = LANE * (1 + any(line.several for line in lines))
    texts = (f"{n.label}\n{n.text}" if not above(n)[1] else n.label for n in lines)
    tall = lane + LETTERS * (lines_of(texts) + room_of(columns_of(lines)))
    return Picture(
        panels=[section.panel(lane, tall) for section in sections],
        most=1,
        grid="x",
        **facts,
    )


# --- balance of the matching ----------------------------------------------------------

ENOUGH = 0.1
"""|SMD| up to which a covariate counts as balanced (Austin, Stat. Med. 28, 2009)."""
TICKS = (0.0, ENOUGH, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SIDES = {
    "before": Look(marker="o", dashes="none", hollow=True),
    "after": Look("", INK, "D", "none"),
}


def balance(report: Report) -> Picture | None:
    """|SMD| of every covariate, sorted by what it was before matching."""
    table = report.tables.get("balance", [])
    smds = {r["covariate"]: [r.get(f"smd_{side}") for side in SIDES] for r in table}
    known = {name: both for name, both in smds.items() if both != [None, None]}
    if not known:
        return None
    lines = []
    for name in sorted(known, key=lambda name: -abs(known[name][0] or 0.0)):
        words = [MISSING if smd is None else plain(smd, 2) for smd in known[name]]
        marks = [None if smd is None else abs(smd) for smd in known[name]]
        label = name.replace("_", " ")
        looks = [*SIDES.values()]
        lines.append(Line(label, Look(), marks, " → ".join(words), joined=looks))
    columns = zip(SIDES, zip(*known.values(), strict=True), strict=True)
    sizes = {k: [abs(smd) for smd in each if smd is not None] for k, each in columns}
    end = max(*sizes["before"], *sizes["after"], ENOUGH) * 1.25
    facts = {
        "enough": f"{ENOUGH:g}",
        "missing": [name for name in smds if name not in known],
        "counts": {
            side: (sum(v > ENOUGH for v in values), len(values))
            for side, values in sizes.items()
        },
    }
    axis = Axis(
        wrapped(render("figure.balance.axis", **facts), width=42),
        "symlog",
        limits=(-0.01, end),
        ticks={at: f"{at:g}" for at in TICKS if at <= end},
        options={"linthresh": ENOUGH},
    )
    title = wrapped(render("figure.balance.beyond", **facts), width=40)
    keys = {render(f"figure.balance.{side}"): look for side, look in SIDES.items()}
    return forest(
        [Section(lines, title, axis, {ENOUGH: DASHED})],
        audit="manifest",
        facts=facts,
        keys=keys | {f"|SMD| {ENOUGH:g}": DASHED},
    )


# --- selectivity ----------------------------------------------------------------------

CHANGED = {
    "change": Look(marker="o"),
    "level": Look(marker="o", size=3.6, width=1.0, alpha=0.55),
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
        marks = [changes.get(name), levels.get(name)][not changed :]
        text = words_of(marks[0])
        if changed and name == BASE and name not in changes:
            text = render("figure.selectivity.reference")
        lines.append(Line(wrapped(name), look[name], marks, text, bands.get(name)))
    sections = [_section("changes", lines)]
    contrasts = contrasts_of(report, "matched", "did")
    if estimable(contrasts):
        behind = contrasts_of(report, "matched", "rtm_bias")
        baselines = {baseline for _, baseline in contrasts}
        lines = []
        for (name, baseline), row in contrasts.items():
            label = wrapped(name)
            if len(baselines) > 1:
                label += f"\nvs {wrapped(baseline)}"
            band = behind.get((name, baseline))
            lines.append(Line(label, look[name], [row], words_of(row), band))
        one = baselines.pop() if len(baselines) == 1 else ""
        sections.append(_section("contrasts", lines, baseline=one))
    return forest(
        sections,
        audit="matched",
        facts={"changed": changed or len(sections) > 1},
        keys={
            render(f"figure.selectivity.{name}"): key
            for name, key in CHANGED.items()
            if changed or name != "change"
        },
    )


def _section(name: str, lines: list[Line], **facts: str) -> Section:
    title, label = (
        wrapped(render(f"figure.selectivity.{key}", **facts), width=42, lines=3)
        for key in (name, f"{name}_axis")
    )
    return Section(lines, title, Axis(label))

"""The figures of a report: forests, stages of training, exposure of canaries, ROC.

Forests are lines with values and intervals on one scale, in sections below each other,
narrow enough for a phone: names and figures stand above the marks. One shows what each
checkpoint remembers of the identifiers it was trained on (its state, the figure with
its interval, the effects that are too small to be detected as a band, and what the
other attacks found), one selectivity and its contrasts.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from spark_audit.audits.claims import carriers
from spark_audit.names import BASE
from spark_audit.report.figures import drawing, picture
from spark_audit.report.states import (
    OUTCOME_SIGNS,
    Standing,
    State,
    badge,
    reach,
    relearned,
    standings,
    state_name,
)
from spark_audit.report.tables import VOID
from spark_audit.results import Report, Row, grouped
from spark_audit.sentences import optional, render, translated

if TYPE_CHECKING:
    import pandas as pd

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
class ForestLine:
    """A line of a forest: ``label`` and ``text`` above marks of ``rows``.

    The interval of ``behind`` is a band; ``below`` are further texts, with colours.
    """

    label: str
    look: picture.Style
    rows: Sequence[Row | None]
    text: str
    behind: Row | None = None
    below: Sequence[tuple[str, str]] = ()
    colour: str = drawing.INK


def section(
    lines: Sequence[ForestLine], title: str, label: str, **axis: Any
) -> picture.Panel:
    """Lines on one axis as a panel; the unit of its height is an inch.

    ``axis`` are the panel's ``limits`` and ``ticks``.
    """
    lanes = max(len(line.rows) for line in lines)
    columns = columns_of(lines)
    foot = picture.LETTERS * (columns[-1][1] + 1) if columns else 0.0
    parts, curves, at = [picture.rule(0.0, picture.ZERO_LINE, upright=True)], [], 0.0
    for line in lines:
        at += GAP
        for text, colour in ((line.label, line.colour), (line.text, drawing.INK)):
            parts.append(picture.label(text, at, line.look, colour=colour))
            at += picture.LETTERS * picture.lines_of([text])
        under = at + LANE * lanes
        if line.behind and line.behind.ends:
            ends = [at + 0.02] * 2, [under - 0.02] * 2
            parts.append(picture.band(line.behind.ends, *ends, look=line.look))
        for row, style in zip(line.rows, STYLES, strict=False):
            mark, first = replace(line.look, dashes="none", **style), style is STYLES[0]
            height = [at + LANE * (0.5 if first else 1.5)]
            curves.append(picture.Curve(mark, [row], height, line.text, told=first))
        for (text, colour), (share, down) in zip(line.below, columns, strict=False):
            y = under + down * picture.LETTERS
            parts.append(picture.label(text, y, line.look, share=share, colour=colour))
        at = under + foot + GAP
    return picture.Panel(
        curves,
        title,
        **axis,
        settings={"xlabel": label, "ylim": (at, 0.0), "yticks": []},
        parts=parts,
        forest=True,
        tall=at + 0.2 + picture.LETTERS * picture.lines_of([label]),
    )


def span(lines: Sequence[ForestLine]) -> tuple[float, float]:
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


def columns_of(lines: Sequence[ForestLine]) -> list[tuple[float, int]]:
    """Where what is below the marks stands: share of the width, and row."""
    places: list[tuple[float, int]] = []
    at, row = 0.0, 0
    for texts in zip_longest(*([text for text, _ in line.below] for line in lines)):
        width = picture.inches(text for text in texts if text)
        if places and at + width > picture.FIGURE_WIDTH - 0.15:
            at, row = 0.0, row + 1
        places.append((at / (picture.FIGURE_WIDTH - 0.15), row))
        at += width + 0.08
    return places


# --- selectivity ----------------------------------------------------------------------

KEYS = {
    "change": picture.Style(marker="o"),
    "level": picture.Style(marker="o", **STYLES[1]),
    "regression": picture.AREA,
}


def selectivity(report: Report) -> picture.Picture | None:
    """Delta_sel and its change with intervals, and contrasts between checkpoints."""
    changes = drawing.rows_of(report, "matched", "delta_sel", of="change")
    levels = drawing.rows_of(report, "matched", "delta_sel")
    changed = any(row.value is not None for row in changes.values())
    if not changed and all(row.value is None for row in levels.values()):
        return None
    if BASE in changes and changes[BASE].value is None:
        # Of the reference itself there is no change to show.
        del changes[BASE]
    bands = drawing.rows_of(report, "matched", "rtm_bias", of="change")
    memories = drawing.rows_of(report, "matched", "memory")
    stand = {one.name: one for one in standings(report)}
    look, lines = picture.looks(report), []
    for name in dict.fromkeys([*levels, *changes]):
        rows = [changes.get(name), levels.get(name)][not changed :]
        text = _words(rows[0])
        if changed and name == BASE and name not in changes:
            text = render("figure.selectivity.reference")
        memory_row = memories.get(name)
        if memory_row is not None and memory_row.value is not None:
            text += "\n" + render(
                "figure.selectivity.memory", memory=_words(memory_row)
            )
        label, colour = _named(name, stand.get(name))
        style = _greyed(look[name], rows[0])
        lines.append(
            ForestLine(label, style, rows, text, bands.get(name), colour=colour)
        )
    panels = [_section("changes", lines)]
    contrasts, behind = (
        drawing.chosen_of(report, report.contrasts, "matched", metric, "", "pooled")
        for metric in ("did", "rtm_bias")
    )
    if any(row.value is not None for row in contrasts.values()):
        baselines = {baseline for _, baseline in contrasts}
        one = baselines.pop() if len(baselines) == 1 else ""
        lines = []
        for (name, baseline), row in contrasts.items():
            label, colour = _named(name, stand.get(name))
            label += "" if one else f"\nvs {picture.wrapped(baseline)}"
            band = behind.get((name, baseline))
            style = _greyed(look[name], row)
            lines.append(
                ForestLine(label, style, [row], _words(row), band, colour=colour)
            )
        panels.append(_section("contrasts", lines, baseline=one))
    return picture.Picture(
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


def _section(name: str, lines: list[ForestLine], **facts: str) -> picture.Panel:
    title, label = (
        picture.wrapped(render(f"figure.selectivity.{key}", **facts), width=42, lines=3)
        for key in (name, f"{name}_axis")
    )
    return section(lines, title, label, limits=span(lines))


def _named(name: str, standing: Standing | None) -> tuple[str, str]:
    """A checkpoint's name behind its state, and the colour of both."""
    if standing is None:
        return picture.wrapped(name), drawing.INK
    label = picture.wrapped(f"{badge(standing.state)}  {name}", lines=3)
    return label, STYLE_OF_STATE[standing.state].colour


def _greyed(look: picture.Style, row: Row | None) -> picture.Style:
    """The look, or the same in grey where the row is void."""
    if row is None or row.status not in VOID:
        return look
    return replace(look, colour=drawing.MUTED, alpha=0.6)


def _words(row: Row | None) -> str:
    """Value and interval; of a void one, its status."""
    if row is None or row.value is None:
        return "not estimable"
    text = picture.plain(row.value)
    if row.status in VOID:
        return f"{text} {row.status.replace('_', ' ').upper()}"
    return f"{text} [{', '.join(map(picture.plain, row.ends))}]" if row.ends else text


STYLE_OF_STATE: dict[State, picture.Style] = {
    "LEAKS": picture.Style(colour=drawing.ALARM, marker="^"),
    "DETECTABLE": picture.Style(colour=drawing.WARN, marker="D"),
    "NO LEAK FOUND": picture.Style(colour=drawing.INK, marker="o", hollow=True),
    "NOT TESTED": picture.Style(colour=drawing.MUTED, marker="x"),
}
"""Shape and colour of each state."""
ATTACK_LOOKS = {
    "●": ("found", picture.Style(colour=drawing.ALARM, marker="o")),
    "○": ("not_found", picture.Style(colour=drawing.INK, marker="o", hollow=True)),
    "×": ("void", picture.Style(colour=drawing.MUTED, marker="x")),
    "–": ("not_tested", picture.Style(colour=drawing.MUTED, marker="_")),
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
        if any(one.state == state and one.memory for one in found)
    }
    keys |= {render("figure.memory.band"): picture.AREA} | {
        render(f"figure.memory.{name}"): replace(look, dashes="none")
        for sign, (name, look) in ATTACK_LOOKS.items()
        if sign in signs
    }
    title = render("figure.memory.sides", **facts)
    label = picture.wrapped(render("figure.memory.axis"), width=42)
    panel = section(lines, title, label, limits=limits, ticks=_ticks(*limits))
    return picture.Picture(
        audit="memory", panels=[panel], most=1, facts=facts, keys=keys
    )


def _line(one: Standing, *, alike: bool) -> ForestLine:
    look = replace(STYLE_OF_STATE[one.state], name=one.name)
    row, sides = one.memory, () if alike else one.sides
    text = render("figure.memory.figure", row=row, sides=sides, missed=one.missed)
    colours = {"FOUND": drawing.ALARM}
    below = [
        (
            f"{OUTCOME_SIGNS[k.outcome]} {k.attack}",
            colours.get(k.outcome, drawing.MUTED),
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
    label, text = picture.wrapped(label, lines=3), textwrap.fill(_minus(text), 44)
    return ForestLine(label, look, [mark], text, band, below=below, colour=look.colour)


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


SHOWN = picture.Style(marker="o", dashes="none", size=6.0)
SERIES_DASHES = {"series": "-", "last": "--"}
"""What is shared, all stages so far or the checkpoint of one, and how it is drawn."""
VALUE_COLUMNS = ("value", "low", "high")


def stages(report: Report) -> picture.Picture | None:
    """Memory: a panel a task, a line a series."""
    records = report.tables.get("stages_states", [])
    stages = sorted({record["stage"] for record in records})
    look = picture.looks(report, width=1.0)
    panels = []
    # In the order of training, where it is known.
    ordered = sorted(records, key=lambda one: (one["trained_at"] or 0, one["task"]))
    for task, mine in grouped(ordered, lambda one: one["task"]).items():
        figures = _by_stage(report, "stages", "memory", task, stages)
        states = {(one["checkpoint"], one["stage"]): one["state"] for one in mine}
        curves = []
        for name, rows in figures.items():
            hidden = [at for at in rows if states.get((name, at)) != "remembered"]
            shown = look[name], [*rows], [*rows.values()]
            curves.append(picture.Curve(*shown, hollow=hidden))
        own = {one["trained_at"] for one in mine if one["trained_at"]}
        panels.append((picture.wrapped(task, width=18), curves, own))
    keys = {
        "stages.remembered": SHOWN,
        "stages.hidden": replace(SHOWN, hollow=True),
        "stages.trained": picture.DASHED,
    }
    return _stage_figure("stages", panels, keys, level=0.0)


def accuracy(report: Report) -> picture.Picture | None:
    """Accuracy: a panel a task, a line a series; the base at stage 0."""
    rows = [r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy")]
    tasks = dict.fromkeys(r.grouping[1] for r in rows if r.grouping[0] == "task")
    stages = sorted({int(row.of) for row in rows if row.of.isdigit()})
    look = picture.looks(report, width=1.0)
    panels = []
    for task in tasks:
        figures = _by_stage(report, "utility", "accuracy", task, stages)
        curves = []
        for name, at in figures.items():
            if len(at) == 1:  # no series
                at = {0 if name == BASE else stages[-1]: row for row in at.values()}
            curves.append(picture.Curve(look[name], [*at], [*at.values()]))
        sizes = [row.n for own in figures.values() for row in own.values()]
        title = f"{task}, n {picture.spanned(sizes)}" if sizes else task
        matrix = report.tables.get("accuracy_matrix", [])
        trained = {r["stage"] for r in matrix if r.get("after") == task}
        panels.append((picture.wrapped(title, width=18), curves, trained))
    return _stage_figure("utility", panels, {"stages.trained": picture.DASHED})


def series(report: Report) -> picture.Picture | None:
    """AUC of what is shared: a panel a series, with a line for each way to share it."""
    look = picture.looks(report, width=1.4)
    rows = [row for row in report.results if row.group == "pooled"]
    n = {r.checkpoint: r.n for r in rows if (r.audit, r.metric) == ("series", "auc")}
    records = (r for r in report.tables["series_stages"] if r["series_value"])
    panels = []
    for name, mine in grouped(records, lambda record: record["checkpoint"]).items():
        stages, curves = [record["stage"] for record in mine], []
        for of, dashes in SERIES_DASHES.items():
            style = replace(look[name], dashes=dashes)
            ends = [[one[f"{of}_{end}"] for end in VALUE_COLUMNS] for one in mine]
            shown = [_row("series", "auc", style, *figures) for figures in ends]
            curves.append(picture.Curve(style, stages, shown))
        title = f"{picture.wrapped(name, width=15)}\nn {n.get(name, 0)}"
        panels.append((title, curves, set[int]()))
    keys = {
        f"series.{of}": picture.Style(marker="o", dashes=d)
        for of, d in SERIES_DASHES.items()
    }
    return _stage_figure("series", panels, keys, level=0.5)


def _by_stage(
    report: Report, audit: str, metric: str, task: str, stages: Iterable[int]
) -> dict[str, dict[int, Row]]:
    """Checkpoint -> stage -> its figure of a task, where that is estimable."""
    figures: dict[str, dict[int, Row]] = {name: {} for name in drawing.palette(report)}
    place: dict[str, Any] = {"audit": audit, "metric": metric, "group": f"task:{task}"}
    for stage in stages:
        rows = drawing.rows_of(report, of=str(stage), **place)
        for name, row in rows.items():
            if row.value is not None:
                figures[name][stage] = row
    return {name: rows for name, rows in figures.items() if rows}


def _stage_figure(
    audit: str,
    panels: Iterable[tuple[str, list[picture.Curve], set[int]]],
    keys: Mapping[str, picture.Style],
    *,
    level: float | None = None,
) -> picture.Picture | None:
    """Panels of title, curves and own stages, with a line at the level of nothing."""
    panels = [panel for panel in panels if panel[1]]
    curves = [curve for _, own, _ in panels for curve in own]
    if not curves:
        return None
    ticks = {x: f"{x:g}" for curve in curves for x, *_ in curve.points}
    flat = [] if level is None else [picture.rule(level, picture.ZERO_LINE)]
    # Above each panel of a series stands whose it is.
    named = {one.look.name: one.look for one in curves if audit != "series"}
    return picture.Picture(
        audit=audit,
        panels=[
            picture.Panel(
                own,
                title,
                ticks=dict(sorted(ticks.items())),
                parts=[
                    *flat,
                    *(picture.rule(at, picture.DASHED, upright=True) for at in trained),
                ],
                tall=1.6,
            )
            for title, own, trained in panels
        ],
        dodge=0.3,
        keys=named | {render(f"figure.{key}"): look for key, look in keys.items()},
        digits=2,
    )


def _row(
    audit: str, metric: str, look: picture.Style, *ends: float | None
) -> Row | None:
    """A row of a curve whose figures (value, low, high) stand in a table."""
    figures: dict[str, Any] = dict(zip(VALUE_COLUMNS, ends, strict=True))
    if figures["value"] is None:
        return None
    return Row(audit=audit, checkpoint=look.name, metric=metric, **figures)


CHANCE_LIMITS = ["chance_exposure_low", "chance_exposure_high"]
EXPOSURE_LIMITS = ["exposure_low", "exposure_high"]
ALSO = ("held_out", "canaries", "exposure_most", *CHANCE_LIMITS, *EXPOSURE_LIMITS)


def exposure(report: Report) -> picture.Picture | None:
    """Mean exposure by dose, a panel a part, held-out canaries apart."""
    columns = ("part", "dose", "exposure_mean")
    frame = drawing.frame_of(report, "canary_by_dose", *columns, also=ALSO)
    if frame.empty:
        return None
    # Doses stand at their logarithm; a step to the left what was held out.
    trained = frame["held_out"].ne(True)
    at = frame["dose"].astype(float).clip(lower=0.5).map(math.log2)
    left = (at[trained].min() if trained.any() else 0.0) - 1.0
    frame = frame.assign(trained=trained, at=at.where(trained, left))
    gap = np.diff(np.unique(frame["at"])).min(initial=1.0)
    look = picture.looks(report, width=1.0)
    marked = []
    if not trained.all() and trained.any():
        marked.append(picture.rule(left + 0.5, picture.DOTTED, upright=True))
    keys = {name: look[name] for name in dict.fromkeys(frame["entry"])}
    keys[render("figure.exposure.chance")] = picture.AREA
    if (tops := frame["exposure_most"].dropna()).size:
        marked.append(picture.rule(tops.max(), picture.DASHED))
        keys[render("figure.exposure.ceiling")] = picture.DASHED
    panels = []
    for part, own in frame.groupby("part", sort=False):
        title = optional(f"figure.exposure.{part}") or str(part)
        panel = _dose_panel(own, look, marked, gap / 2)
        panels.append(replace(panel, title=picture.wrapped(title, width=34)))
    return picture.Picture(
        audit="canary",
        panels=panels,
        dodge=0.72 * gap,
        most=1,
        keys=keys,
        digits=1,
    )


def _dose_panel(
    own: pd.DataFrame,
    look: dict[str, picture.Style],
    marked: Sequence[picture.Part],
    reach: float,
) -> picture.Panel:
    parts, ticks, curves = [*marked], {}, []
    for place, here in own.groupby("at"):
        at = float(str(place))
        low, high = here[CHANCE_LIMITS[0]].min(), here[CHANCE_LIMITS[1]].max()
        parts.append(picture.band([at - reach, at + reach], [low] * 2, [high] * 2))
        doses = [f"{dose:g}" for dose in here["dose"][here["trained"]]]
        ticks[at] = doses[0] if doses else render("figure.exposure.held_out")
        if len(sizes := here["canaries"].dropna()):
            ticks[at] += f"\nn {picture.spanned(map(int, sizes))}"
    for (name, trained), mine in own.groupby(["entry", "trained"], sort=False):
        # Means over seeds.
        means = mine.groupby("at")[["exposure_mean", *EXPOSURE_LIMITS]].mean()
        # The interval of a mean over seeds is not that of one of them.
        if mine["checkpoint"].nunique() > 1:
            means[EXPOSURE_LIMITS] = np.nan
        style = look[str(name)]
        figures = means.astype(object).where(means.notna(), None).to_numpy()
        rows = [_row("canary", "exposure_mean", style, *one) for one in figures]
        style = style if trained else replace(style, dashes="none")
        told = bool(trained or not own["trained"].any())
        curves.append(picture.Curve(style, [*means.index], rows, told=told))
    limits = min(ticks) - 0.5, max(ticks) + 0.5
    return picture.Panel(curves, limits=limits, ticks=ticks, parts=parts, tall=1.5)


MIN_DRAWN_RATE = 1e-4
TICKS = {10.0**k: f"{10.0**k:g}" for k in (-4, -3, -2, -1, 0)}
FEW_DECADES = 150.0
"""Ratio of an axis' ends below which it is labelled at 2 and 5 too."""
FEW_POSITIVES = 0.05
"""False positive rate of the tables' true positive rates."""
DIAGONAL = picture.Style(width=0.9)
OTHER_SCORE = picture.Style(width=0.7, alpha=0.6)
BEFORE = picture.Style(colour=drawing.INK, dashes=(0, (3, 1.2)), width=1.0)
ROC_KEYS = {
    "score": picture.Style(marker="o", size=3.5),
    "base": BEFORE,
    "others": OTHER_SCORE,
    "diagonal": DIAGONAL,
    "few": picture.DOTTED,
    "chance": picture.AREA,
}
BAND = ("chance_low", "chance_high")


def roc(report: Report) -> picture.Picture | None:
    """True against false positive rate, both on log axes, a panel a checkpoint."""
    points = drawing.frame_of(report, "mia_roc", "of", "fpr", "tpr", *BAND)
    points = points[points["fpr"] > 0]
    # Curves that have a true positive before everything is called one.
    tops = points.groupby(["of", "checkpoint"])["tpr"].transform("max")
    points = points[tops > 0]
    if points.empty:
        return None
    resting = carriers(report.findings, "mia")
    look = picture.looks(report, size=3.5)
    names = list(dict.fromkeys(points["entry"]))
    floor = max(MIN_DRAWN_RATE, points["fpr"].min() * 0.8)
    panels, based = [], False
    for name in names:
        own = points[points["entry"] == name]
        # What its finding rests on, else what others' do.
        wanted = [resting.get(name), *resting.values(), *own["of"]]
        score = next(one for one in wanted if one in own["of"].values)
        before = points[(points["entry"] == BASE) & (points["of"] == score)]
        before = before[:0] if name == BASE else before
        based |= not before.empty
        row = drawing.rows_of(report, "mia", "auc", of=score).get(name)
        n = f", n {row.n}" if row is not None and row.n else ""
        told = picture.wrapped(f"{translated('score', score)}{n}", width=14, lines=4)
        title = f"{picture.wrapped(name, width=11, lines=5)}: \n{told}"
        panel = _roc_panel(own, score, look[name], before, floor=floor)
        panels.append(replace(panel, title=title, tall=2.3 / min(len(names), 2)))
    by_score = grouped(resting, lambda name: translated("score", resting[name]))
    facts = {"resting": by_score, "few": f"{100 * FEW_POSITIVES:g}"}
    seeds = points["entry"].nunique() < points["checkpoint"].nunique()
    return picture.Picture(
        audit="mia",
        facts=facts | {"apart": seeds},
        panels=panels,
        keys={
            render(f"figure.roc.{key}", **facts): look
            for key, look in ROC_KEYS.items()
            if based or key != "base"
        },
    )


def _roc_panel(
    own: pd.DataFrame,
    score: str,
    look: picture.Style,
    before: pd.DataFrame,
    *,
    floor: float,
) -> picture.Panel:
    shown, grey = own["of"] == score, replace(OTHER_SCORE, name=look.name)
    several = own["checkpoint"].nunique() > 1
    style = replace(look, dashes="-", width=1.0 if several else 1.8)
    curves = []
    for part, how in ((own[~shown], grey), (before, BEFORE), (own[shown], style)):
        told = how is style
        for _, run in part.groupby(["of", "checkpoint"], sort=False):
            x, y = run.loc[run["tpr"] > 0, ["fpr", "tpr"]].to_numpy().T.tolist()
            words = picture.plain(y[0])
            curves.append(picture.Curve(how, x, y, words=words, told=told, step=True))
    runs = own.groupby(["of", "checkpoint"], sort=False)
    chance = max((run for _, run in runs), key=len)
    low, high = ([*chance[side].clip(lower=floor)] for side in BAND)
    whole = [floor, 1.0]
    diagonal = picture.Curve(DIAGONAL, whole, whole, told=False)
    steps = (1, 2, 5) if 1.15 / floor < FEW_DECADES else (1,)
    heights = [step * decade for decade in TICKS for step in steps]
    settings = {
        "xscale": "log",
        "yscale": "log",
        "yticks": heights,
        "yticklabels": [f"{y:g}" for y in heights],
        # After the ticks, which widen the axis.
        "ylim": (floor, 1.15),
    }
    return picture.Panel(
        [diagonal, *curves],
        limits=(floor, 1.0),
        ticks=TICKS,
        settings=settings,
        parts=[
            picture.band([*chance["fpr"]], low, high, step="post"),
            picture.rule(FEW_POSITIVES, picture.DOTTED, upright=True),
        ],
    )

"""The figure of membership: ROC on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.audits.claims import carriers
from spark_audit.names import BASE
from spark_audit.report.figures.canvas import (
    PANEL_WIDTH,
    SMALL_WIDTH,
    TEXT_LINE,
    canvas,
    set_title,
    with_equal_lines,
)
from spark_audit.report.figures.marks import (
    band_sample,
    draw_legend,
    draw_mark,
    legend_lines,
    sample_of,
)
from spark_audit.report.figures.styling import ALARM, CHECKPOINT, INK, MUTED
from spark_audit.report.figures.text_room import plain, wrapped
from spark_audit.report.figures.view import DOUBT_LOOK, Look, Sketch, View
from spark_audit.sentences import render, translated

if TYPE_CHECKING:
    import pandas as pd

MIN_DRAWN_RATE = 1e-4
"""Rate at which the axes begin at the lowest."""

DECADES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Rates that an axis is labelled at, as far as they are on it."""

FEW_DECADES = 150.0
"""Ratio of the ends of an axis below which it is labelled at 3 times a decade, too."""

MAX_LARGE_PANELS = 3
"""Most checkpoints that have large panels; more have small ones."""

LARGE_ROC_HEIGHT = 2.9
"""Inches of a large panel without further lines of its title."""

SMALL_ROC_HEIGHT = 1.75
"""Inches of a small panel."""

FPR_METRICS = {"tpr_at_fpr_5": 0.05, "tpr_at_fpr_1": 0.01, "tpr_at_fpr_0.1": 0.001}
"""Metrics of the texts alone -> the false positive rate at which each is measured."""

BASE_DASHES = (0, (3, 1.2))
"""Dashes of the curve of the base."""

TEXTS_LOOK = Look("s", INK, filled=False)
"""A classifier that sees the texts alone, and no model."""


@dataclass(frozen=True)
class RocCurve:
    """The curve of one checkpoint, for a panel of its own.

    Attributes
    ----------
    name
        Name of the checkpoint.
    score
        The score that its finding rests on.
    points, base
        Records of ``fpr`` and ``tpr``, of the checkpoint and of the base; in ``points``
        each seed has a curve of its own.
    doubt
        Why nothing can be concluded; empty if something can.
    is_found
        Whether the attack found a leak.
    """

    name: str
    score: str
    points: pd.DataFrame
    base: pd.DataFrame
    doubt: str
    is_found: bool


def draw_mia(view: View) -> Sketch | None:
    """Draw a panel for each checkpoint: the curve that its finding rests on."""
    points = roc_points(view)
    if points.empty:
        return None

    # Both axes begin at ``floor``.
    curves = roc_curves(view, points)
    floor = max(MIN_DRAWN_RATE, float(points["fpr"].min()) * 0.8)
    texts = text_points(view, floor)
    samples = roc_samples(curves, has_texts=bool(texts))
    titles = with_equal_lines([roc_title(view, curve) for curve in curves])

    is_large = len(curves) <= MAX_LARGE_PANELS
    height = LARGE_ROC_HEIGHT if is_large else SMALL_ROC_HEIGHT
    height += TEXT_LINE * titles[0].count("\n")
    figure, panels = canvas(
        [height] * len(curves),
        width=PANEL_WIDTH if is_large else SMALL_WIDTH,
        legend_lines=legend_lines(samples),
    )
    for axes, curve, title in zip(panels, curves, titles, strict=True):
        set_title(axes, title, weight="normal")
        axes.set_gid(CHECKPOINT + curve.name)
        draw_roc(axes, curve, floor=floor)
        for fpr, tpr in texts.get(curve.name, ()):
            draw_mark(axes, fpr, tpr, TEXTS_LOOK, gid=None, size=4)
    draw_legend(figure, samples)

    sizes = [row.n for row in view.rows("mia", "auc", variant=curves[0].score).values()]
    return Sketch(
        figure=figure,
        counted=render("figure.mia.counted", rows=max(sizes, default=0)),
        values=[f"{curve.name} {plain(first_rate(curve), 3)}" for curve in curves],
        remarks=["figure.seeds_apart"] if has_seeds(points) else [],
    )


def roc_points(view: View) -> pd.DataFrame:
    """Return the points of all curves that can stand on logarithmic axes.

    A curve whose rate is 0 until all rows are called members has no points.
    """
    chance = ("chance_low", "chance_high")
    points = view.frame("mia_roc", "variant", "fpr", "tpr", also=chance)
    points = points[points["fpr"] > 0]
    highest_rates = points.groupby(["variant", "checkpoint"])["tpr"].transform("max")
    return points[highest_rates > 0]


def roc_curves(view: View, points: pd.DataFrame) -> list[RocCurve]:
    """Return each checkpoint's curve, of the score that its finding rests on.

    Parameters
    ----------
    points
        From :func:`roc_points`.
    """
    score_by_name = carriers(view.report.findings, "mia")
    curves = []
    for name in view.ordered(points["entry"]):
        points_of_checkpoint = points[points["entry"] == name]
        # Take the score of its finding, else that of other findings.
        preferred = [
            score_by_name.get(name),
            *score_by_name.values(),
            *points_of_checkpoint["variant"],
        ]
        available = set(points_of_checkpoint["variant"])
        score = next(score for score in preferred if score in available)

        # The base is drawn into every panel but its own.
        base = points[(points["entry"] == BASE) & (points["variant"] == score)]
        if name == BASE:
            base = base[:0]

        row = view.rows("mia", "auc", variant=score).get(name)
        curves.append(
            RocCurve(
                name=name,
                score=score,
                points=points_of_checkpoint[points_of_checkpoint["variant"] == score],
                base=base,
                doubt=view.doubt(name, "mia", row),
                is_found=view.outcome(name, "mia") == "FOUND",
            )
        )
    return curves


def draw_roc(axes: Axes, curve: RocCurve, *, floor: float) -> None:
    """Draw chance, the base and the checkpoint's own curve on two log axes."""
    # A method with several seeds has a run, and so a curve, for each.
    runs = [run for _, run in curve.points.groupby("checkpoint", sort=False)]
    draw_chance(axes, max(runs, key=len), floor=floor)
    # Draw the base first, so that the checkpoint's curve lies on top of it.
    for _, run in curve.base.groupby("checkpoint"):
        _draw_steps(axes, run, colour=INK, width=1.0, dashes=BASE_DASHES)

    colour = ALARM if curve.is_found else INK
    if curve.doubt:
        colour = MUTED
    width = 1.8 if len(runs) == 1 else 1.0
    for run in runs:
        _draw_steps(axes, run, colour=colour, width=width, dashes="-")
        # A cross marks a void curve, since grey alone is no mark.
        if curve.doubt:
            middle = run.iloc[len(run) // 2]
            draw_mark(axes, middle["fpr"], middle["tpr"], DOUBT_LOOK, gid=None)

    set_rate_axes(axes, floor=floor)


def draw_chance(axes: Axes, run: pd.DataFrame, *, floor: float) -> None:
    """Draw the diagonal, and the band of random scores.

    Parameters
    ----------
    run
        Columns ``fpr``, ``chance_low`` and ``chance_high``.
    floor
        Rate at which both axes begin.
    """
    # A log axis has no 0, so the band ends at its floor.
    axes.fill_between(
        run["fpr"].to_numpy(float),
        run["chance_low"].to_numpy(float).clip(min=floor),
        run["chance_high"].to_numpy(float).clip(min=floor),
        step="post",
        color=MUTED,
        alpha=0.22,
        linewidth=0,
    )

    axes.plot([floor, 1.0], [floor, 1.0], color=MUTED, linewidth=0.9)


def _draw_steps(
    axes: Axes, run: pd.DataFrame, *, colour: str, width: float, dashes: Any
) -> None:
    """Draw a curve as steps; a rate of 0 has no place on a log axis."""
    positive = run[run["tpr"] > 0]
    axes.plot(
        positive["fpr"],
        positive["tpr"],
        drawstyle="steps-post",
        color=colour,
        linewidth=width,
        linestyle=dashes,
    )


def set_rate_axes(axes: Axes, *, floor: float) -> None:
    """Make both axes logarithmic from ``floor`` to 1, with a tick at each decade."""
    ticks = [decade for decade in DECADES if decade >= floor]
    if 1.0 / floor < FEW_DECADES:
        between = [3 * decade for decade in ticks]
        ticks = sorted(tick for tick in [*ticks, *between] if tick <= 1.0)

    labels = [f"{tick:g}" for tick in ticks]
    # Set scales first, since a new scale loses its ticks.
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.minorticks_off()

    axes.set(xlim=(floor, 1.0), ylim=(0.8 * floor, 1.15))
    axes.set(xlabel=render("figure.mia.axis"), ylabel=render("figure.mia.side"))


def text_points(view: View, floor: float) -> dict[str, list[tuple[float, float]]]:
    """Return the (FPR, TPR) of a classifier of the texts alone, by checkpoint."""
    points: dict[str, list[tuple[float, float]]] = {}
    for metric, fpr in FPR_METRICS.items():
        for name, row in view.rows("mia", metric, variant="blind").items():
            if fpr >= floor and row.value is not None and row.value >= floor:
                points.setdefault(name, []).append((fpr, row.value))
    return points


def roc_title(view: View, curve: RocCurve) -> str:
    """Return the name, the score, its AUC and why it may say nothing, in lines."""
    score = translated("score", curve.score)
    lines = [wrapped(curve.name, width=18, lines=3), wrapped(score, width=18, lines=2)]

    row = view.rows("mia", "auc", variant=curve.score).get(curve.name)
    if row is not None:
        lines.append(f"AUC {plain(row.value or 0.0, 2)}, n {row.n}")
    if curve.doubt:
        lines.append(curve.doubt)
    return "\n".join(lines)


def roc_samples(curves: Sequence[RocCurve], *, has_texts: bool) -> dict[str, Artist]:
    """Return the legend of the curves, points and bands that the panels have."""
    samples: dict[str, Artist] = {}
    # Void curves are grey, whatever their finding.
    valid = [curve for curve in curves if not curve.doubt]
    if any(curve.is_found for curve in valid):
        label = render("figure.mia.found")
        samples[label] = Line2D([], [], color=ALARM, linewidth=1.8)
    if any(not curve.is_found for curve in valid):
        label = render("figure.mia.nothing")
        samples[label] = Line2D([], [], color=INK, linewidth=1.8)
    if len(valid) < len(curves):
        samples[render("figure.key.doubt")] = sample_of(DOUBT_LOOK, dashes="-")

    if any(len(curve.base) for curve in curves):
        line = Line2D([], [], color=INK, linewidth=1.0, linestyle=BASE_DASHES)
        samples[render("figure.mia.base")] = line
    if has_texts:
        samples[render("figure.mia.texts")] = sample_of(TEXTS_LOOK)
    samples[render("figure.mia.chance")] = band_sample()
    return samples


def first_rate(curve: RocCurve) -> float:
    """Return the first true positive rate above 0."""
    rates = curve.points.loc[curve.points["tpr"] > 0, "tpr"]
    return float(rates.iloc[0]) if len(rates) else 0.0


def has_seeds(points: pd.DataFrame) -> bool:
    """Return whether a method has several seeds, each with a curve of its own.

    Columns ``entry`` and ``checkpoint`` name the method and the seed of each point.
    """
    return bool(points["entry"].nunique() < points["checkpoint"].nunique())

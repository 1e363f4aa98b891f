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
from spark_audit.report.figures import parts
from spark_audit.report.figures.styling import ALARM, CHECKPOINT, INK, MUTED
from spark_audit.report.figures.text_room import plain, wrapped
from spark_audit.report.figures.view import Look, Sketch, View
from spark_audit.sentences import render, translated

if TYPE_CHECKING:
    import pandas as pd

MIN_DRAWN_RATE = 1e-4

DECADES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

FEW_DECADES = 150.0
"""Ratio of an axis' ends below which it is labelled at 3 too."""

FEW_SMALL_PANELS = 3
"""Checkpoints up to which panels are large."""

FPR_METRICS = {"tpr_at_fpr_5": 0.05, "tpr_at_fpr_1": 0.01, "tpr_at_fpr_0.1": 0.001}
"""Metrics of the texts alone, and where on the axis they stand."""

BASE_DASHES = (0, (3, 1.2))

TEXTS_LOOK = Look("s", INK, filled=False)


@dataclass(frozen=True)
class RocCurve:
    """What one panel shows of a checkpoint."""

    name: str
    score: str
    points: pd.DataFrame
    base: pd.DataFrame
    doubt: str
    is_found: bool


def draw_mia(view: View) -> Sketch | None:
    """Draw a panel for each checkpoint: the curve that its finding rests on."""
    points = view.frame(
        "mia_roc", "of", "fpr", "tpr", also=("chance_low", "chance_high")
    )
    points = points[points["fpr"] > 0]
    # Curves that have a true positive before everything is called one.
    tops = points.groupby(["of", "checkpoint"])["tpr"].transform("max")
    points = points[tops > 0]
    if points.empty:
        return None
    curves = roc_curves(view, points)
    floor = max(MIN_DRAWN_RATE, float(points["fpr"].min()) * 0.8)
    is_large = len(curves) <= FEW_SMALL_PANELS
    width = parts.PANEL_WIDTH if is_large else parts.SMALL_WIDTH
    texts = text_points(view, floor)
    samples = roc_samples(curves, has_texts=bool(texts))
    titles = parts.with_equal_lines([roc_title(view, curve) for curve in curves])
    height = (2.9 if is_large else 1.75) + 0.14 * titles[0].count("\n")
    figure, panels = parts.canvas(
        [height] * len(curves),
        width=width,
        legend_lines=parts.legend_lines(samples),
    )
    for axes, curve, title in zip(panels, curves, titles, strict=True):
        parts.set_title(axes, title, weight="normal")
        axes.set_gid(CHECKPOINT + curve.name)
        draw_roc(axes, curve, floor=floor)
        for fpr, tpr in texts.get(curve.name, ()):
            parts.draw_mark(axes, fpr, tpr, TEXTS_LOOK, gid=None, size=4)
    parts.draw_legend(figure, samples)
    sizes = [row.n for row in view.rows("mia", "auc", of=curves[0].score).values()]
    return Sketch(
        figure=figure,
        counted=render("figure.mia.counted", rows=max(sizes, default=0)),
        values=[f"{one.name} {plain(first_rate(one), 3)}" for one in curves],
        remarks=["figure.seeds_apart"] if has_seeds(points) else [],
    )


def roc_curves(view: View, points: pd.DataFrame) -> list[RocCurve]:
    """Return each checkpoint's curve, of the score that its finding rests on."""
    resting = carriers(view.report.findings, "mia")
    curves = []
    for name in view.ordered(points["entry"]):
        own = points[points["entry"] == name]
        # What its finding rests on, else what others' do.
        wanted = [resting.get(name), *resting.values(), *own["of"]]
        score = next(one for one in wanted if one in set(own["of"]))
        base = points[(points["entry"] == BASE) & (points["of"] == score)]
        if name == BASE:
            base = base[:0]
        row = view.rows("mia", "auc", of=score).get(name)
        doubt = view.doubt(name, "mia", row)
        curves.append(
            RocCurve(
                name=name,
                score=score,
                points=own[own["of"] == score],
                base=base,
                doubt=doubt,
                is_found=view.outcome(name, "mia") == "FOUND",
            )
        )
    return curves


def draw_roc(axes: Axes, curve: RocCurve, *, floor: float) -> None:
    """Draw chance, the base and the checkpoint's own curve on two log axes."""
    runs = [run for _, run in curve.points.groupby("checkpoint", sort=False)]
    chance = max(runs, key=len)
    axes.fill_between(
        chance["fpr"].to_numpy(float),
        chance["chance_low"].to_numpy(float).clip(min=floor),
        chance["chance_high"].to_numpy(float).clip(min=floor),
        step="post",
        color=MUTED,
        alpha=0.22,
        linewidth=0,
    )
    axes.plot([floor, 1.0], [floor, 1.0], color=MUTED, linewidth=0.9)
    colour = ALARM if curve.is_found else INK
    if curve.doubt:
        colour = MUTED
    for _, run in curve.base.groupby("checkpoint"):
        _draw_steps(axes, run, colour=INK, width=1.0, dashes=BASE_DASHES)
    for run in runs:
        width = 1.8 if len(runs) == 1 else 1.0
        _draw_steps(axes, run, colour=colour, width=width, dashes="-")
        if curve.doubt:
            middle = run.iloc[len(run) // 2]
            mark = Look("x", MUTED)
            parts.draw_mark(axes, middle["fpr"], middle["tpr"], mark, gid=None)
    ticks = [decade for decade in DECADES if decade >= floor]
    if 1.0 / floor < FEW_DECADES:
        ticks = [factor * decade for decade in ticks for factor in (1, 3)]
    ticks = [tick for tick in ticks if tick <= 1.0]
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlim=(floor, 1.0), ylim=(0.8 * floor, 1.15))
    axes.set(xlabel=render("figure.mia.axis"), ylabel=render("figure.mia.side"))


def _draw_steps(
    axes: Axes, run: pd.DataFrame, *, colour: str, width: float, dashes: Any
) -> None:
    seen = run[run["tpr"] > 0]
    axes.plot(
        seen["fpr"],
        seen["tpr"],
        drawstyle="steps-post",
        color=colour,
        linewidth=width,
        linestyle=dashes,
    )


def text_points(view: View, floor: float) -> dict[str, list[tuple[float, float]]]:
    """Return what a classifier of the texts alone reaches: (FPR, TPR) by checkpoint."""
    points: dict[str, list[tuple[float, float]]] = {}
    for metric, fpr in FPR_METRICS.items():
        for name, row in view.rows("mia", metric, of="blind").items():
            if fpr >= floor and row.value is not None and row.value >= floor:
                points.setdefault(name, []).append((fpr, row.value))
    return points


def roc_title(view: View, curve: RocCurve) -> str:
    """Return the name, the score, its AUC and why it may say nothing, in lines."""
    row = view.rows("mia", "auc", of=curve.score).get(curve.name)
    score = translated("score", curve.score)
    lines = [wrapped(curve.name, width=18, lines=3), wrapped(score, width=18, lines=2)]
    if row is not None:
        lines.append(f"AUC {plain(row.value or 0.0, 2)}, n {row.n}")
    if curve.doubt:
        lines.append(curve.doubt)
    return "\n".join(lines)


def roc_samples(curves: Sequence[RocCurve], *, has_texts: bool) -> dict[str, Artist]:
    """Return the legend."""
    samples: dict[str, Artist] = {}
    valid = [curve for curve in curves if not curve.doubt]
    if any(curve.is_found for curve in valid):
        key = render("figure.mia.found")
        samples[key] = Line2D([], [], color=ALARM, linewidth=1.8)
    if any(not curve.is_found for curve in valid):
        key = render("figure.mia.nothing")
        samples[key] = Line2D([], [], color=INK, linewidth=1.8)
    if any(curve.doubt for curve in curves):
        key = render("figure.key.doubt")
        samples[key] = parts.sample_of(Look("x", MUTED), dashes="-")
    if any(len(curve.base) for curve in curves):
        line = Line2D([], [], color=INK, linewidth=1.0, linestyle=BASE_DASHES)
        samples[render("figure.mia.base")] = line
    if has_texts:
        samples[render("figure.mia.texts")] = parts.sample_of(TEXTS_LOOK)
    samples[render("figure.mia.chance")] = parts.band_sample()
    return samples


def first_rate(curve: RocCurve) -> float:
    """Return the first true positive rate above 0."""
    rates = curve.points.loc[curve.points["tpr"] > 0, "tpr"]
    return float(rates.iloc[0]) if len(rates) else 0.0


def has_seeds(points: pd.DataFrame) -> bool:
    """Return whether a method has several seeds, each with a curve of its own."""
    return bool(points["entry"].nunique() < points["checkpoint"].nunique())

"""Log-log ROC curves of the membership scores, with what chance gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_audit.audits.base import carriers
from spark_audit.names import BASE
from spark_audit.report.figures.drawing import INK
from spark_audit.report.figures.entries import frame_of, rows_of
from spark_audit.report.figures.panel import (
    AREA,
    DOTTED,
    Axis,
    Band,
    Curve,
    Look,
    Panel,
    looks,
    plain,
    wrapped,
)
from spark_audit.report.figures.picture import Picture
from spark_audit.results import Report
from spark_audit.sentences import render, translated

if TYPE_CHECKING:
    import pandas as pd

LEAST = 1e-4
TICKS = {10.0**k: f"{10.0**k:g}" for k in (-4, -3, -2, -1, 0)}
FEW = 0.05
"""False positive rate of the tables' true positive rates."""
DIAGONAL = Look(width=0.9)
OTHER = Look(width=0.7, alpha=0.6)
BEFORE = Look(colour=INK, dashes=(0, (3, 1.2)), width=1.0)
KEYS = {
    "score": Look(marker="o", size=3.5),
    "base": BEFORE,
    "others": OTHER,
    "diagonal": DIAGONAL,
    "few": DOTTED,
    "chance": AREA,
}
CHANCE = ("chance_low", "chance_high")


def draw(report: Report) -> Picture | None:
    """True against false positive rate, both on log axes, a panel a checkpoint."""
    points = frame_of(report, "mia_roc", "of", "fpr", "tpr", also=CHANCE)
    points = points[points["fpr"] > 0]
    # Curves that have a true positive before everything is called one.
    tops = points.groupby(["of", "checkpoint"])["tpr"].transform("max")
    points = points[tops > 0]
    if points.empty:
        return None
    resting = carriers(report.findings, "mia")
    look = looks(report, size=3.5)
    names = list(dict.fromkeys(points["entry"]))
    floor = max(LEAST, points["fpr"].min() * 0.8)
    panels, based = [], False
    for name in names:
        own = points[points["entry"] == name]
        # What its finding rests on, else what others' do.
        wanted = [resting.get(name), *resting.values(), *own["of"]]
        score = next(one for one in wanted if one in own["of"].values)
        before = points[(points["entry"] == BASE) & (points["of"] == score)]
        before = before[:0] if name == BASE else before
        based |= not before.empty
        row = rows_of(report, "mia", "auc", of=score).get(name)
        n = f", n {row.n}" if row is not None and row.n else ""
        told = wrapped(f"{translated('score', score)}{n}", width=14, lines=4)
        title = f"{wrapped(name, width=11, lines=5)}: \n{told}"
        panel = _panel(own, score, look[name], before, floor=floor)
        panels.append(replace(panel, title=title, tall=2.3 / min(len(names), 2)))
    by_score: dict[str, list[str]] = {}
    for name, score in resting.items():
        by_score.setdefault(translated("score", score), []).append(name)
    facts = {"resting": by_score, "few": f"{100 * FEW:g}"}
    seeds = points["entry"].nunique() < points["checkpoint"].nunique()
    return Picture(
        audit="mia",
        facts=facts | {"apart": seeds},
        panels=panels,
        keys={
            render(f"figure.roc.{key}", **facts): look
            for key, look in KEYS.items()
            if based or key != "base"
        },
    )


def _panel(
    own: pd.DataFrame, score: str, look: Look, before: pd.DataFrame, *, floor: float
) -> Panel:
    shown, grey = own["of"] == score, replace(OTHER, name=look.name)
    several = own["checkpoint"].nunique() > 1
    style = replace(look, dashes="-", width=1.0 if several else 1.8)
    drawn = ((own[~shown], grey), (before, BEFORE), (own[shown], style))
    curves = []
    for part, how in drawn:
        for _, run in part.groupby(["of", "checkpoint"], sort=False):
            run = run[run["tpr"] > 0]
            x, y = [*run["fpr"]], [*run["tpr"]]
            told, words = how is style, plain(y[0])
            curves.append(Curve(how, x, y, words=words, told=told, step=True))
    runs = own.dropna().groupby(["of", "checkpoint"], sort=False)
    chance = max((run for _, run in runs), key=len, default=own[:0])
    low, high = ([*chance[side].clip(lower=floor)] for side in CHANCE)
    return Panel(
        curves,
        x=Axis(scale="log", limits=(floor, 1.0), ticks=TICKS),
        y=Axis(scale="log", limits=(floor, 1.15)),
        bands=[Band([*chance["fpr"]], low, high, "post")] if len(chance) else [],
        references=[("diagonal", floor, DIAGONAL), ("x", FEW, DOTTED)],
    )

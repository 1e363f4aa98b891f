"""The figure of membership: ROC on logarithmic axes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_audit.audits.claims import carriers
from spark_audit.names import BASE
from spark_audit.report.figures import chosen_rows, picture, styling, text_room
from spark_audit.report.figures.forest import greyed
from spark_audit.report.standings import standings
from spark_audit.results import Report, grouped
from spark_audit.sentences import render, translated

if TYPE_CHECKING:
    import pandas as pd


MIN_DRAWN_RATE = 1e-4

TICKS = {10.0**k: f"{10.0**k:g}" for k in (-4, -3, -2, -1, 0)}

FEW_DECADES = 150.0
"""Ratio of an axis' ends below which it is labelled at 2 and 5 too."""

FEW_POSITIVES = 0.05
"""False positive rate of the tables' true positive rates."""

DIAGONAL = picture.Style(width=0.9)

OTHER_SCORE = picture.Style(width=0.7, alpha=0.6)

BEFORE = picture.Style(colour=styling.INK, dashes=(0, (3, 1.2)), width=1.0)

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
    points = chosen_rows.frame_of(report, "mia_roc", "of", "fpr", "tpr", *BAND)
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
    stand = {one.name: one for one in standings(report)}
    for name in names:
        standing = stand.get(name)
        doubt = standing.doubt_of("mia") if standing else ""
        own = points[points["entry"] == name]
        # What its finding rests on, else what others' do.
        wanted = [resting.get(name), *resting.values(), *own["of"]]
        score = next(one for one in wanted if one in own["of"].values)
        before = points[(points["entry"] == BASE) & (points["of"] == score)]
        before = before[:0] if name == BASE else before
        based |= not before.empty
        row = chosen_rows.rows_of(report, "mia", "auc", of=score).get(name)
        n = f", n {row.n}" if row is not None and row.n else ""
        told = text_room.wrapped(f"{translated('score', score)}{n}", width=14, lines=4)
        title = f"{text_room.wrapped(name, width=11, lines=5)}: \n{told}"
        if doubt:
            title += f"\n{doubt.upper()}"
        style = greyed(look[name], row, is_doubtful=bool(doubt))
        panel = _roc_panel(own, score, style, before, floor=floor)
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
            words = text_room.plain(y[0])
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

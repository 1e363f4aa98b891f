"""The figure of canaries: mean exposure by dose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.report.figures import chosen_rows, picture, text_room
from spark_audit.report.figures.forest import greyed
from spark_audit.report.standings import standings
from spark_audit.results import Report
from spark_audit.sentences import optional, render

if TYPE_CHECKING:
    import pandas as pd
from spark_audit.report.figures.picture_rows import row_of_values

CHANCE_LIMITS = ["chance_exposure_low", "chance_exposure_high"]

EXPOSURE_LIMITS = ["exposure_low", "exposure_high"]

ALSO = ("held_out", "canaries", "exposure_most", *CHANCE_LIMITS, *EXPOSURE_LIMITS)


def exposure(report: Report) -> picture.Picture | None:
    """Mean exposure by dose, a panel a part, held-out canaries apart."""
    columns = ("part", "dose", "exposure_mean")
    frame = chosen_rows.frame_of(report, "canary_by_dose", *columns, also=ALSO)
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
    keys: dict[str, picture.Style] = {}
    stand = {one.name: one for one in standings(report)}
    for name in dict.fromkeys(frame["entry"]):
        standing = stand.get(name)
        doubt = standing.doubt_of("canary") if standing else ""
        look[name] = greyed(look[name], None, is_doubtful=bool(doubt))
        keys[f"{name} {doubt.upper()}".strip()] = look[name]
    keys[render("figure.exposure.chance")] = picture.AREA
    if (tops := frame["exposure_most"].dropna()).size:
        marked.append(picture.rule(tops.max(), picture.DASHED))
        keys[render("figure.exposure.ceiling")] = picture.DASHED
    panels = []
    for part, own in frame.groupby("part", sort=False):
        title = optional(f"figure.exposure.{part}") or str(part)
        panel = _dose_panel(own, look, marked, gap / 2)
        panels.append(replace(panel, title=text_room.wrapped(title, width=34)))
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
            ticks[at] += f"\nn {text_room.spanned(map(int, sizes))}"
    for (name, trained), mine in own.groupby(["entry", "trained"], sort=False):
        # Means over seeds.
        means = mine.groupby("at")[["exposure_mean", *EXPOSURE_LIMITS]].mean()
        # The interval of a mean over seeds is not that of one of them.
        if mine["checkpoint"].nunique() > 1:
            means[EXPOSURE_LIMITS] = np.nan
        style = look[str(name)]
        figures = means.astype(object).where(means.notna(), None).to_numpy()
        rows = [
            row_of_values("canary", "exposure_mean", style, *one) for one in figures
        ]
        style = style if trained else replace(style, dashes="none")
        told = bool(trained or not own["trained"].any())
        curves.append(picture.Curve(style, [*means.index], rows, told=told))
    limits = min(ticks) - 0.5, max(ticks) + 0.5
    return picture.Panel(curves, limits=limits, ticks=ticks, parts=parts, tall=1.5)

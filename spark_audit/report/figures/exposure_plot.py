"""Exposure of canaries against how often they were in the training rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.report.figures.entries import frame_of
from spark_audit.report.figures.panel import (
    AREA,
    DASHED,
    DOTTED,
    Axis,
    Band,
    Curve,
    Look,
    Panel,
    looks,
    spanned,
    wrapped,
)
from spark_audit.report.figures.picture import Picture
from spark_audit.results import Report, Row
from spark_audit.sentences import optional, render

if TYPE_CHECKING:
    import pandas as pd

CHANCE = ["chance_exposure_low", "chance_exposure_high"]
ENDS = ["exposure_low", "exposure_high"]
ALSO = ("held_out", "canaries", "exposure_most", *CHANCE, *ENDS)


def draw(report: Report) -> Picture | None:
    """Mean exposure by dose, a panel a part, held-out canaries apart."""
    columns = ("part", "dose", "exposure_mean")
    frame = frame_of(report, "canary_by_dose", *columns, also=ALSO)
    if frame.empty:
        return None
    # Doses stand at their logarithm; a step to the left what was held out.
    trained = frame["held_out"].ne(True)
    at = frame["dose"].astype(float).clip(lower=0.5).map(math.log2)
    left = (at[trained].min() if trained.any() else 0.0) - 1.0
    frame = frame.assign(trained=trained, at=at.where(trained, left))
    gap = np.diff(np.unique(frame["at"])).min(initial=1.0)
    look = looks(report, width=1.0)
    marked: list[tuple[str, float, Look]] = []
    if not trained.all() and trained.any():
        marked.append(("x", left + 0.5, DOTTED))
    keys = {render("figure.exposure.chance"): AREA}
    if (tops := frame["exposure_most"].dropna()).size:
        marked.append(("y", tops.max(), DASHED))
        keys[render("figure.exposure.ceiling")] = DASHED
    panels = []
    for part, own in frame.groupby("part", sort=False):
        title = optional(f"figure.exposure.{part}") or str(part)
        panel = _panel(own, look, marked, gap / 2)
        panels.append(replace(panel, title=wrapped(title, width=34)))
    return Picture(
        audit="canary",
        panels=panels,
        dodge=0.72 * gap,
        most=1,
        names=[look[name] for name in dict.fromkeys(frame["entry"])],
        keys=keys,
        digits=1,
    )


def _panel(
    own: pd.DataFrame,
    look: dict[str, Look],
    marked: Sequence[tuple[str, float, Look]],
    reach: float,
) -> Panel:
    bands, ticks = [], {}
    for place, here in own.groupby("at"):
        at = float(str(place))
        if len(bounds := here[CHANCE].dropna()):
            low, high = bounds[CHANCE[0]].min(), bounds[CHANCE[1]].max()
            bands.append(Band([at - reach, at + reach], [low] * 2, [high] * 2))
        doses = [f"{dose:g}" for dose in here["dose"][here["trained"]]]
        ticks[at] = doses[0] if doses else render("figure.exposure.held_out")
        if len(sizes := here["canaries"].dropna()):
            ticks[at] += f"\nn {spanned(map(int, sizes))}"
    told = own["trained"].any()
    curves = [
        replace(_curve(look[str(name)], mine, line=bool(on)), told=bool(on or not told))
        for (name, on), mine in own.groupby(["entry", "trained"], sort=False)
    ]
    axis = Axis(limits=(min(ticks) - 0.5, max(ticks) + 0.5), ticks=ticks)
    return Panel(curves, x=axis, bands=bands, references=marked, tall=1.5)


def _curve(look: Look, mine: pd.DataFrame, *, line: bool) -> Curve:
    """Means over seeds."""
    means = mine.groupby("at")[["exposure_mean", *ENDS]].mean()
    # The interval of a mean over seeds is not that of one of them.
    if mine["checkpoint"].nunique() > 1:
        means[ENDS] = np.nan
    rows = [
        Row(
            audit="canary",
            checkpoint=look.name,
            metric="exposure_mean",
            **dict(zip(("value", "low", "high"), one, strict=True)),
        )
        for one in means.astype(object).where(means.notna(), None).to_numpy()
    ]
    style = look if line else replace(look, dashes="none")
    return Curve(style, [*means.index], rows)

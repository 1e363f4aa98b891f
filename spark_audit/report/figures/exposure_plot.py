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
    Value,
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
    places = np.unique(frame["at"])
    gap = np.diff(places).min(initial=np.inf) if len(places) > 1 else 1.0
    tops = [*frame["exposure_most"].dropna()]
    look = looks(report, width=1.0)
    marked: list[tuple[str, float, Look]] = []
    if not trained.all() and trained.any():
        marked.append(("x", left + 0.5, DOTTED))
    keys = {render("figure.exposure.chance"): AREA}
    if tops:
        marked.append(("y", max(tops), DASHED))
        keys[render("figure.exposure.ceiling")] = DASHED
    return Picture(
        audit="canary",
        panels=[
            replace(
                _panel(own, look, [*places]),
                title=wrapped(
                    optional(f"figure.exposure.{part}") or str(part), width=34
                ),
                references=marked,
            )
            for part, own in frame.groupby("part", sort=False)
        ],
        dodge=0.72 * gap,
        most=1,
        grid="y",
        names=[look[name] for name in dict.fromkeys(frame["entry"])],
        keys=keys,
        digits=1,
    )


def _panel(own: pd.DataFrame, look: dict[str, Look], places: Sequence[float]) -> Panel:
    middles = [(a + b) / 2 for a, b in zip(places, places[1:], strict=False)]
    edges = [places[0] - 0.5, *middles, places[-1] + 0.5]
    bands, ticks = [], {}
    for k, place in enumerate(places):
        here = own[own["at"] == place]
        if len(bounds := here[CHANCE].dropna()):
            low, high = bounds[CHANCE[0]].min(), bounds[CHANCE[1]].max()
            bands.append(Band(edges[k : k + 2], [low] * 2, [high] * 2))
        doses = [f"{dose:g}" for dose in here["dose"][here["trained"]]]
        ticks[place] = doses[0] if doses else render("figure.exposure.held_out")
        if len(sizes := here["canaries"].dropna()):
            ticks[place] += f"\nn {spanned(map(int, sizes))}"
    return Panel(
        [
            curve
            for name, mine in own.groupby("entry", sort=False)
            for curve in _curves(look[str(name)], mine)
        ],
        x=Axis(limits=(edges[0], edges[-1]), ticks=ticks),
        bands=bands,
        tall=1.5,
    )


def _curves(look: Look, mine: pd.DataFrame) -> list[Curve]:
    """What was held out as marks, what was trained on as a line; means over seeds."""
    # The interval of a mean over seeds is not that of one of them.
    alone = mine["checkpoint"].nunique() == 1
    found = []
    for trained, own in mine.groupby("trained"):
        means = own.groupby("at", as_index=False)[["exposure_mean", *ENDS]].mean()
        values: list[Value] = [*means["exposure_mean"]]
        if alone and len(mine[ENDS].dropna()):
            values = [
                Row(
                    audit="canary",
                    checkpoint=look.name,
                    metric="exposure_mean",
                    value=mean,
                    low=None if np.isnan(low) else low,
                    high=None if np.isnan(high) else high,
                )
                for mean, low, high in means[["exposure_mean", *ENDS]].to_numpy()
            ]
        style = look if trained else replace(look, dashes="none")
        told = bool(trained) or not mine["trained"].any()
        found.append(Curve(style, [*means["at"]], values, told=told))
    return found

"""The figure of canaries: their ranks among candidates, by dose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from spark_audit.report.figures import parts
from spark_audit.report.figures.styling import CHECKPOINT, INK, MUTED
from spark_audit.report.figures.text_room import plain, spanned
from spark_audit.report.figures.view import Look, Sketch, View
from spark_audit.sentences import optional, render

if TYPE_CHECKING:
    import pandas as pd

MAX_OWN_LOOKS = 7
"""Checkpoints up to which each has its own colour; of more, those that leak."""

DOSE_PANEL_HEIGHT = 2.5
"""Inches of a panel of a part."""

EXPOSURES = ("exposure_mean", "exposure_low", "exposure_high")

CHANCES = ("chance_exposure_low", "chance_exposure_high")


def draw_canary(view: View) -> Sketch | None:
    """Draw ranks by dose, a panel for each part; the best rank stands on top."""
    frame = dose_frame(view)
    if frame.empty:
        return None
    names = view.ordered(frame["entry"])
    looks = dose_looks(view, names)
    samples: dict[str, Artist] = {}
    for name, look in looks.items():
        samples[name] = parts.sample_of(look)
    rest = [name for name in names if name not in looks]
    if rest:
        key = render("figure.canary.rest")
        samples[key] = parts.sample_of(Look("o", MUTED, filled=False))
    samples[render("figure.canary.chance")] = parts.band_sample()

    sections = list(frame.groupby("part", sort=False))
    figure, panels = parts.canvas(
        [DOSE_PANEL_HEIGHT] * len(sections), legend_lines=parts.legend_lines(samples)
    )
    for axes, (part, own) in zip(panels, sections, strict=True):
        title = optional(f"figure.canary.{part}") or str(part)
        parts.set_title(axes, title)
        draw_doses(axes, own, names=names, looks=looks)
    parts.draw_legend(figure, samples, names=names)
    highest = frame[frame["dose"] == frame["dose"].max()]
    values = []
    for name in names:
        ranks = highest.loc[highest["entry"] == name, "rank_mean"]
        if len(ranks):
            values.append(f"{name} {plain(float(ranks.mean()), 1)}")
    return Sketch(
        figure=figure,
        counted=render(
            "figure.canary.counted",
            canaries=spanned(frame["canaries"].dropna().astype(int)),
            candidates=spanned(frame["candidates"].astype(int)),
        ),
        values=values,
    )


def dose_frame(view: View) -> pd.DataFrame:
    """Return records of doses with ranks, 1 to ``candidates``, and their place ``at``.

    An exposure is the logarithm of all candidates less that of the rank: a mean of
    exposures is a geometric mean of ranks.
    """
    also = ("held_out", "canaries", *EXPOSURES[1:], *CHANCES)
    needed = ("part", "dose", "exposure_mean", "exposure_most")
    frame = view.frame("canary_by_dose", *needed, also=also)
    frame["held_out"] = frame["held_out"].eq(True)
    frame["candidates"] = 2.0 ** frame["exposure_most"].astype(float)
    for column in (*EXPOSURES, *CHANCES):
        rank = frame["candidates"] / 2.0 ** frame[column].astype(float)
        frame[column.replace("exposure", "rank")] = rank.round(6)
    places = sorted(set(zip(~frame["held_out"], frame["dose"], strict=True)))
    keys = zip(~frame["held_out"], frame["dose"], strict=True)
    frame["at"] = [places.index(key) for key in keys]
    return frame


def dose_looks(view: View, names: Sequence[str]) -> dict[str, Look]:
    """Return the looks of all checkpoints; of many, of those that leak."""
    own = names
    if len(names) > MAX_OWN_LOOKS:
        own = [name for name in names if view.outcome(name, "canary") == "FOUND"]
    return {name: view.own_look(name, "canary") for name in own[:MAX_OWN_LOOKS]}


def draw_doses(
    axes: Axes, own: pd.DataFrame, *, names: Sequence[str], looks: dict[str, Look]
) -> None:
    """Draw one part: chance by dose, then each checkpoint's ranks with intervals."""
    candidates = float(own["candidates"].max())
    by_place = own.groupby("at")
    for at, here in by_place:
        place = float(str(at))
        best, worst = here["chance_rank_high"].min(), here["chance_rank_low"].max()
        edges = [place - 0.42, place + 0.42]
        parts.draw_band(axes, edges, [best] * 2, [worst] * 2)
    width = 0.7 / max(len(looks), 1)
    for name, mine in own.groupby("entry", sort=False):
        look = looks.get(str(name), Look("o", MUTED, filled=False))
        shift = 0.0
        if name in looks:
            shift = width * (list(looks).index(str(name)) - (len(looks) - 1) / 2)
        means = mine.groupby(["held_out", "at"])["rank_mean"].mean().reset_index()
        for _, run in means.groupby("held_out"):
            x = run["at"].to_numpy(float) + shift
            is_named = name in looks
            parts.draw_curve(
                axes,
                x,
                run["rank_mean"],
                look,
                size=5 if is_named else 3,
                width=1.0 if is_named else 0.5,
                gid=CHECKPOINT + str(name),
            )
        if name in looks and mine["checkpoint"].nunique() == 1:
            x = mine["at"].to_numpy(float) + shift
            ends = (
                mine[["rank_low", "rank_high"]].astype(float).to_numpy()
            )  # (doses, 2)
            lines = axes.vlines(
                x, ends[:, 1], ends[:, 0], color=look.colour, linewidth=1
            )
            lines.set_gid(CHECKPOINT + str(name))

    labels = []
    for _, here in by_place:
        first = here.iloc[0]
        dose = render("figure.canary.held_out")
        sizes = spanned(here["canaries"].dropna().astype(int))
        labels.append(
            f"{dose if first['held_out'] else format(first['dose'], 'g')}\nn {sizes}"
        )
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yscale("log", base=2)
    ticks = 2.0 ** np.arange(
        0, math.ceil(math.log2(candidates)) + 1, 1 + (candidates > 64)
    )
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(ylim=(candidates * 1.15, 1 / 1.25), xlim=(-0.55, len(labels) - 0.45))
    axes.set(xlabel=render("figure.canary.axis"), ylabel=render("figure.canary.side"))
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))

"""The figure of canaries: their ranks among candidates, by dose."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from spark_audit.report.figures.canvas import canvas, set_title
from spark_audit.report.figures.marks import (
    band_sample,
    draw_band,
    draw_curve,
    draw_legend,
    legend_lines,
    sample_of,
)
from spark_audit.report.figures.styling import CHECKPOINT, INK, MUTED
from spark_audit.report.figures.text_room import plain, spanned
from spark_audit.report.figures.view import DOUBT_LOOK, Look, Sketch, View
from spark_audit.sentences import optional, render

if TYPE_CHECKING:
    import pandas as pd

MAX_OWN_LOOKS = 7
"""Up to so many checkpoints each has its own colour; of more, those that leak have."""

REST_LOOK = Look("o", MUTED, filled=False)
"""Checkpoints without a colour of their own."""

DOSE_PANEL_HEIGHT = 2.5
"""Inches of a panel. A panel is of one part of the canary, such as its whole text."""

DOSE_WIDTH = 0.7
"""Share of the room of a dose over which the marks of checkpoints are spread."""

CHANCE_WIDTH = 0.84
"""Share of the room of a dose that the band of chance fills."""

MAX_CANDIDATES_OF_ALL_TICKS = 64
"""Candidates up to which the axis of ranks has a tick at each power of 2."""

EXPOSURES = ("exposure_mean", "exposure_low", "exposure_high")
"""Columns of the table ``canary_by_dose``: mean exposure and interval, in bits."""

CHANCES = ("chance_exposure_low", "chance_exposure_high")
"""Columns of the same table: the range of a mean exposure by chance."""


def draw_canary(view: View) -> Sketch | None:
    """Draw ranks by dose, a panel for each part; the best rank stands on top."""
    frame = dose_frame(view)
    if frame.empty:
        return None

    names = view.ordered(frame["entry"])
    featured = featured_names(view, names)
    looks = dose_looks(view, names, featured)
    samples = dose_samples(view, featured, looks)

    sections = list(frame.groupby("part", sort=False))
    figure, panels = canvas(
        [DOSE_PANEL_HEIGHT] * len(sections), legend_lines=legend_lines(samples)
    )
    for axes, (part, records) in zip(panels, sections, strict=True):
        set_title(axes, optional(f"figure.canary.{part}") or str(part))
        draw_doses(axes, records, featured=featured, looks=looks)
    draw_legend(figure, samples, names=names)

    # The alt text has the highest dose: there a leak is strongest.
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
    """Return records of doses with ranks, 1 to ``candidates``.

    The column ``at`` is the position of a record's dose on the horizontal axis.

    An exposure is the logarithm of all candidates less that of the rank: a mean of
    exposures is a geometric mean of ranks. Held-out canaries stand before all doses.
    """
    optional_columns = ("held_out", "canaries", *EXPOSURES[1:], *CHANCES)
    needed = ("part", "dose", "exposure_mean", "exposure_most")
    frame = view.frame("canary_by_dose", *needed, also=optional_columns)
    frame["held_out"] = frame["held_out"].eq(True)
    frame["candidates"] = 2.0 ** frame["exposure_most"].astype(float)

    for column in (*EXPOSURES, *CHANCES):
        rank = frame["candidates"] / 2.0 ** frame[column].astype(float)
        frame[column.replace("exposure", "rank")] = rank.round(6)

    doses = list(zip(~frame["held_out"], frame["dose"], strict=True))
    order = sorted(set(doses))
    frame["at"] = [order.index(dose) for dose in doses]
    return frame


def featured_names(view: View, names: Sequence[str]) -> list[str]:
    """Return the checkpoints with a look of their own: of many, those that leak."""
    if len(names) <= MAX_OWN_LOOKS:
        return list(names)
    leaking = [name for name in names if view.outcome(name, "canary") == "FOUND"]
    return leaking[:MAX_OWN_LOOKS]


def dose_looks(
    view: View, names: Sequence[str], featured: Collection[str]
) -> dict[str, Look]:
    """Return the look of each checkpoint: void, its own, or that of all others."""
    looks = {}
    for name in names:
        # A void checkpoint is a cross, even where it has a colour of its own.
        if view.doubt(name, "canary"):
            looks[name] = DOUBT_LOOK
        elif name in featured:
            looks[name] = view.own_look(name)
        else:
            looks[name] = REST_LOOK
    return looks


def dose_samples(
    view: View, featured: Sequence[str], looks: Mapping[str, Look]
) -> dict[str, Artist]:
    """Return the legend; it says "nothing found" only where that holds for all."""
    samples: dict[str, Artist] = {}
    for name in featured:
        if looks[name] != DOUBT_LOOK:
            samples[name] = sample_of(looks[name])

    # Of many checkpoints, even some that leak may have no colour of their own.
    rest = [name for name, look in looks.items() if look == REST_LOOK]
    if rest:
        has_leak = any(view.outcome(name, "canary") == "FOUND" for name in rest)
        key = "figure.canary.further" if has_leak else "figure.canary.rest"
        samples[render(key)] = sample_of(REST_LOOK)

    if DOUBT_LOOK in looks.values():
        samples[render("figure.key.doubt")] = sample_of(DOUBT_LOOK)
    samples[render("figure.canary.chance")] = band_sample()
    return samples


def draw_doses(
    axes: Axes,
    records: pd.DataFrame,
    *,
    featured: Sequence[str],
    looks: Mapping[str, Look],
) -> None:
    """Draw one part: chance by dose, then each checkpoint's ranks with intervals.

    Parameters
    ----------
    records
        Lines of one part of :func:`dose_frame`.
    featured
        Checkpoints that stand side by side at each dose, in order.
    """
    half = CHANCE_WIDTH / 2
    for position, records_of_dose in records.groupby("at"):
        x = float(str(position))
        # A high exposure is a low rank.
        best = records_of_dose["chance_rank_high"].min()
        worst = records_of_dose["chance_rank_low"].max()
        draw_band(axes, [x - half, x + half], [best] * 2, [worst] * 2)

    # At a dose, checkpoints with a look of their own stand side by side, in a fixed
    # order.
    step = DOSE_WIDTH / max(len(featured), 1)
    for entry, records_of_entry in records.groupby("entry", sort=False):
        name = str(entry)
        is_featured = name in featured
        shift = 0.0
        if is_featured:
            shift = step * (featured.index(name) - (len(featured) - 1) / 2)

        draw_ranks(
            axes, name, records_of_entry, looks[name], shift=shift, is_large=is_featured
        )
        # Seeds are averaged: an interval of one of them would not be the mean's.
        has_one_seed = records_of_entry["checkpoint"].nunique() == 1
        if is_featured and has_one_seed:
            draw_rank_intervals(axes, name, records_of_entry, looks[name], shift=shift)

    set_rank_axes(axes, records)


def draw_ranks(
    axes: Axes,
    name: str,
    records: pd.DataFrame,
    look: Look,
    *,
    shift: float,
    is_large: bool,
) -> None:
    """Draw mean ranks, joined over doses; the seeds of a method are averaged.

    Parameters
    ----------
    records
        Columns ``held_out``, ``at`` and ``rank_mean``.
    shift
        By how much the marks are moved from their doses, in doses.
    """
    means = records.groupby(["held_out", "at"])["rank_mean"].mean().reset_index()
    # Held-out canaries have a mark of their own: no line leads from them to a dose.
    for _, means_of_side in means.groupby("held_out"):
        draw_curve(
            axes,
            means_of_side["at"].to_numpy(float) + shift,
            means_of_side["rank_mean"],
            look,
            size=5 if is_large else 3,
            width=1.0 if is_large else 0.5,
            gid=CHECKPOINT + name,
        )


def draw_rank_intervals(
    axes: Axes, name: str, records: pd.DataFrame, look: Look, *, shift: float
) -> None:
    """Draw the interval of each mean rank as an upright line.

    Parameters
    ----------
    records
        Columns ``at``, ``rank_low`` and ``rank_high``, a row per dose.
    """
    x = records["at"].to_numpy(float) + shift  # (doses,)
    low = records["rank_low"].to_numpy(float)  # (doses,), ranks
    high = records["rank_high"].to_numpy(float)
    lines = axes.vlines(x, high, low, color=look.colour, linewidth=1)
    lines.set_gid(CHECKPOINT + name)


def set_rank_axes(axes: Axes, records: pd.DataFrame) -> None:
    """Label doses with their canaries, and ranks on a log axis that begins at 1.

    Parameters
    ----------
    records
        Columns ``at``, ``dose``, ``held_out``, ``canaries`` and ``candidates``.
    """
    labels = []
    for _, records_of_dose in records.groupby("at"):
        first = records_of_dose.iloc[0]
        dose = f"{first['dose']:g}"
        if first["held_out"]:
            dose = render("figure.canary.held_out")

        sizes = spanned(records_of_dose["canaries"].dropna().astype(int))
        labels.append(f"{dose}\nn {sizes}")
    axes.set_xticks(range(len(labels)), labels)

    # Many candidates: a tick at every second power of 2.
    n_candidates = float(records["candidates"].max())
    step = 2 if n_candidates > MAX_CANDIDATES_OF_ALL_TICKS else 1
    highest_power = math.ceil(math.log2(n_candidates))
    ticks = 2.0 ** np.arange(0, highest_power + 1, step)
    axes.set_yscale("log", base=2)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()

    # Upside down: the best rank stands on top.
    axes.set(ylim=(n_candidates * 1.15, 1 / 1.25), xlim=(-0.55, len(labels) - 0.45))
    axes.set(xlabel=render("figure.canary.axis"), ylabel=render("figure.canary.side"))
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))

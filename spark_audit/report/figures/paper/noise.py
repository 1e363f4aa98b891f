"""What noise on the input changes, by its size (``fig:motivation``, b)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spark_audit.report.figures.paper.frames import (
    SYSTEM_COLUMNS,
    in_order,
    system_rows,
    systems_of,
)
from spark_audit.report.figures.paper.measures import NOISE_MEASURES
from spark_audit.report.figures.paper.panels import (
    MARK_SIZE,
    blocks,
    draw_intervals,
    draw_legend,
    draw_void,
    grid_of_panels,
    in_paper_style,
    is_narrow,
    legend_lines,
    sample,
    set_labelled_ticks,
    set_ticks,
    void_sample,
)
from spark_audit.report.figures.paper.widths import TEXT_WIDTH
from spark_audit.report.figures.styling import INK, MUTED
from spark_audit.report.figures.text_room import wrapped
from spark_audit.report.figures.view import Look
from spark_audit.sentences import render

LOOKS = {"dp_pii": Look("o", INK), "dp_nonpii": Look("s", MUTED)}
"""Metric -> look of its line: identifiers, and other text."""

DASHES: dict[str, Literal["-", "--"]] = {"dp_pii": "-", "dp_nonpii": "--"}
"""Metric -> dashes of its line."""

TITLE_LETTERS = 16
"""Letters of a line of a panel's title."""

LEAST_SIGMA = 1e-9
"""Smallest noise that is drawn, and the inverse of the largest."""

NOISE_PANEL_HEIGHT = 1.7
"""Inches of a panel with its labels."""

BESIDE_NOISE_PANEL = 0.4
"""Inches beside the axis of a panel, and beyond its first and last tick."""


def noise_rows(results: pd.DataFrame) -> pd.DataFrame:
    """Return the change of probability, in per cent, by system, text and noise.

    Returns
    -------
    Columns ``SYSTEM_COLUMNS``, ``metric`` (a key of ``LOOKS``) and ``sigma`` (a
    number), in the order of systems.
    """
    frames = [pd.DataFrame(columns=[*SYSTEM_COLUMNS, "metric", "sigma"])]
    is_noise = results["audit"] == "noise"
    for metric in NOISE_MEASURES:
        variants = results.loc[is_noise & (results["metric"] == metric), "variant"]
        for variant in dict.fromkeys(variants):
            sigma = _sigma_of(variant)
            rows = system_rows(results, audit="noise", metric=metric, variant=variant)
            if len(rows) and sigma > 0:
                frames.append(rows.assign(metric=metric, sigma=sigma))

    # Beginning with an empty frame would make its types those of the result.
    rows = pd.concat(frames[1:] or frames, ignore_index=True)
    rows = rows.sort_values("sigma", kind="stable")
    return in_order(rows, systems_of(results))


def _sigma_of(variant: str) -> float:
    """Return the size of the noise that a variant names; 0 if it names none."""
    try:
        sigma = float(variant)
    except ValueError:
        return 0.0
    # A scale of powers of ten has no place for other numbers.
    return sigma if LEAST_SIGMA <= sigma <= 1 / LEAST_SIGMA else 0.0


@in_paper_style
def draw_noise(results: pd.DataFrame, *, width: float = TEXT_WIDTH) -> Figure | None:
    """Draw a panel for each system, over the size of noise; None: not measured.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.
    width
        Inches.
    """
    rows = noise_rows(results)
    if rows.empty:
        return None

    samples: dict[str, Artist] = {}
    for metric, look in LOOKS.items():
        samples[render(f"figure.paper-noise.{metric}")] = sample(
            look, dashes=DASHES[metric]
        )
    if rows["is_void"].any():
        samples[render("figure.paper.void")] = void_sample("o")

    rows_by_system = list(blocks(rows, "system"))
    n_columns = min(len(rows_by_system), 2 if is_narrow(width) else 4)
    figure, panels = grid_of_panels(
        len(rows_by_system),
        width=width,
        panel_height=NOISE_PANEL_HEIGHT,
        n_columns=n_columns,
        legend_lines=legend_lines(samples, width=width),
        share_y=True,
    )
    sigmas = sorted({*rows["sigma"]})
    for (system, rows_of_system), axes in zip(rows_by_system, panels, strict=True):
        _draw_lines(axes, rows_of_system)
        axes.set_title(
            wrapped(system, width=TITLE_LETTERS, lines=2), weight="normal", fontsize=8
        )
        axes.set_xscale("log")
        set_labelled_ticks(
            axes,
            sigmas,
            places=np.log10(sigmas),
            inches=width / n_columns - BESIDE_NOISE_PANEL,
        )
        axes.minorticks_off()
        axes.set(xlabel="", ylabel="")
        set_ticks(axes, y=5)

    figure.supxlabel(render("figure.paper-noise.axis"), fontsize=8)
    figure.supylabel(render("figure.paper-noise.side"), fontsize=8)
    draw_legend(figure, samples)
    return figure


def _draw_lines(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the lines of identifiers and of other text of one system."""
    for metric, look in LOOKS.items():
        rows_of_metric = rows[rows["metric"] == metric]
        valid = rows_of_metric[~rows_of_metric["is_void"]]
        void = rows_of_metric[rows_of_metric["is_void"]]
        sns.lineplot(
            valid,
            x="sigma",
            y="value",
            color=look.colour,
            marker=look.marker,
            linestyle=DASHES[metric],
            markersize=MARK_SIZE,
            markeredgewidth=0.0,
            linewidth=1.2,
            estimator=None,
            errorbar=None,
            ax=axes,
        )
        draw_intervals(axes, valid, valid["sigma"], along="y", colour=look.colour)
        draw_intervals(axes, void, void["sigma"], along="y", colour=MUTED)
        if len(void):
            draw_void(axes, void["sigma"], void["value"], look.marker)

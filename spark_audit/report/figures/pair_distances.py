"""How alike the pairs are: distribution of their distance, with the caliper."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import known
from spark_audit.report.figures.style import canvas, legend, legend_height, plain, tidy
from spark_audit.report.figures.theme import INK, LIGHT, Drawing
from spark_audit.results import Report

NAMES = {"nll_pii": "identifiers", "nll_control": "controls"}
LOOKS: dict[str, tuple[str, Any]] = {
    "distance": (LIGHT[4], "-"),
    "nll_pii": (LIGHT[2], "-"),
    "nll_control": (LIGHT[1], (0, (5, 1.5))),
}


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """ECDF of the distances, and of the mean NLL of both sides of the pairs."""
    records = known(report.tables.get("pair_shares", []), "of", "nats", "share")
    curves = {of: [r for r in records if r["of"] == of] for of in LOOKS}
    apart = curves["distance"]
    if not apart:
        return None
    sides = [side for side in NAMES if curves[side]]
    caliper = next(
        (r["caliper_nats"] for r in apart if r.get("caliper_nats") is not None), None
    )
    width = 6.5 if sides else 3.6
    labels = [*(NAMES[side] for side in sides), *(["caliper"] if caliper else [])]
    extra = legend_height(labels) if labels else 0.0
    figure = canvas(2.5 + extra, width=width)
    grid = figure.subplots(1, 2 if sides else 1, squeeze=False, sharey=True)[0]
    _ecdf(grid[0], apart, "distance")
    if caliper is not None:
        grid[0].axvline(caliper, color=INK, linestyle="--", linewidth=1)
    grid[0].set_xlim(left=0.0)
    grid[0].set_xlabel("|difference of mean NLL| of a pair, nats per token")
    grid[0].set_ylabel("share of pairs")
    if sides:
        grid[0].set_title("(a) distance")
        grid[1].set_title("(b) difficulty of both sides")
        for side in sides:
            _ecdf(grid[1], curves[side], side)
        grid[1].set_xlabel("mean NLL on the reference, nats per token")
    handles = [Line2D([], [], color=LOOKS[s][0], linestyle=LOOKS[s][1]) for s in sides]
    if caliper is not None:
        handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=1))
    if labels:
        legend(figure, handles, labels)
    shares, nats = ([r[column] for r in apart] for column in ("share", "nats"))
    median, most = (float(np.interp(q, shares, nats)) for q in (0.5, 0.95))
    return Drawing(
        name="pair_distances",
        audit="manifest",
        title="Distances of the pairs",
        caption=(
            "Distances of matched pairs of train rows on the reference model: "
            "the absolute difference of the mean NLL of identifier and control, "
            "counted in steps."
            + (
                f" No pair may differ by more than the caliper, {plain(caliper)} nats."
                if caliper is not None
                else ""
            )
        ),
        alt=(
            f"Cumulative distribution of pair distances: half of the pairs differ by "
            f"about {plain(median)} nats or less, 95% by about {plain(most)} or less"
            + (f"; the caliper is {plain(caliper)}." if caliper is not None else ".")
        ),
        figure=figure,
    )


def _ecdf(axes: Axes, records: list[dict[str, float]], column: str) -> None:
    records = sorted(records, key=lambda r: r["nats"])
    colour, dashes = LOOKS[column]
    axes.plot(
        [r["nats"] for r in records],
        [r["share"] for r in records],
        color=colour,
        linestyle=dashes,
        linewidth=1.8,
    )
    axes.set_ylim(0.0, 1.02)
    tidy(axes, grid="both")

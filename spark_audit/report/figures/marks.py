"""Marks of figures: points, curves, bands, and the legend that explains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from spark_audit.report.figures.styling import CHECKPOINT, INK, MUTED, PAPER
from spark_audit.report.figures.text_room import wrapped
from spark_audit.report.figures.view import Look

LEGEND_WIDTH = 22
"""Letters of a line of the legend."""


def sample_of(
    look: Look,
    *,
    dashes: Literal["-", "none"] = "none",
    size: float = 6,
    width: float = 1.4,
) -> Line2D:
    """Return a line without points that has a look, as the legend shows it."""
    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        linestyle=dashes,
        linewidth=width,
        markersize=size,
        markeredgewidth=1.3,
        markerfacecolor=look.colour if look.filled else PAPER,
    )


def draw_mark(
    axes: Axes, x: float, y: float, look: Look, *, gid: str | None, size: float = 6
) -> None:
    """Draw one mark above the lines."""
    mark = sample_of(look, size=size)
    mark.set_data([x], [y])
    # Without clipping a mark on the edge of a panel stays whole.
    mark.set(zorder=3, clip_on=False, gid=gid)
    axes.add_line(mark)


def draw_curve(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    look: Look,
    *,
    size: float,
    width: float = 1.4,
    gid: str | None = None,
) -> None:
    """Draw marks that are joined by a line; ``x`` and ``y`` are (marks,)."""
    curve = sample_of(look, dashes="-", size=size, width=width)
    curve.set_data(np.asarray(x, float), np.asarray(y, float))
    curve.set_gid(gid)
    axes.add_line(curve)
    # Lines that are added so do not stretch the axes by themselves.
    axes.autoscale_view()


def draw_band(
    axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> None:
    """Draw the grey band of values by chance."""
    axes.fill_between(x, low, high, color=MUTED, alpha=0.22, linewidth=0, zorder=1)


def draw_edges(axes: Axes, edges: Sequence[float]) -> None:
    """Draw thresholds as thin broken lines."""
    for edge in edges:
        axes.axvline(edge, color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)))


def patch_sample(colour: str, *, alpha: float) -> Patch:
    """Return a filled patch for the legend."""
    return Patch(facecolor=colour, edgecolor=PAPER, alpha=alpha)


def frame_sample() -> Patch:
    """Return the sample of a framed cell for the legend."""
    return Patch(facecolor="none", edgecolor=INK)


def band_sample() -> Patch:
    """Return the sample of a grey band for the legend."""
    return patch_sample(MUTED, alpha=0.25)


def draw_legend(
    figure: Figure, samples: Mapping[str, Artist], *, names: Sequence[str] = ()
) -> None:
    """Draw a legend in two columns below all panels.

    Parameters
    ----------
    names
        Labels that are checkpoints, which a page can hide.
    """
    legend = figure.legend(
        list(samples.values()),
        _legend_labels(samples),
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=2 if len(samples) > 1 else 1,
    )
    legend.set_gid("legend")

    # A page hides the sample of a checkpoint and its name together.
    entries = zip(samples, legend.legend_handles, legend.get_texts(), strict=True)
    for label, handle, text in entries:
        if label in names and handle is not None:
            handle.set_gid(CHECKPOINT + label)
            text.set_gid(CHECKPOINT + label)


def legend_lines(samples: Mapping[str, Artist]) -> int:
    """Return the lines that a legend needs: those of its longer column."""
    counts = []
    for label in _legend_labels(samples):
        counts.append(label.count("\n") + 1)

    # Matplotlib fills the left column first.
    n_left = (len(counts) + 1) // 2
    return max(sum(counts[:n_left]), sum(counts[n_left:]))


def _legend_labels(samples: Mapping[str, Artist]) -> list[str]:
    """Return the labels of a legend as they are broken."""
    return [wrapped(label, width=LEGEND_WIDTH, lines=3) for label in samples]

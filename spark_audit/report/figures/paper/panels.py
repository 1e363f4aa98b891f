"""What the paper's figures share: their sizes, intervals, void marks and legends.

A figure is as wide as a column or as the text of a paper, and its letters have the size
of a caption's. Marks, dashes and hatches differ without colour.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, ParamSpec

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from spark_audit.report.figures.canvas import MIN_LABEL_GAP, thin_tick_labels
from spark_audit.report.figures.paper.widths import COLUMN_WIDTH, TEXT_WIDTH
from spark_audit.report.figures.styling import MUTED, PAPER, styled
from spark_audit.report.figures.text_room import wrapped
from spark_audit.report.figures.view import Look, look_of_number
from spark_audit.sentences import render

DrawParams = ParamSpec("DrawParams")
"""Parameters of a function that draws a figure."""

MARK_SIZE = 4.5
"""Points of a mark."""

NAME_LINE = 0.135
"""Inches of a line of a system's name, which stands beside its marks or its bar."""

NAME_GAP = 0.05
"""Inches between two names below each other."""

LEGEND_LINE = 0.18
"""Inches of a line of a legend."""

LEGEND_MARK = 0.45
"""Inches of a mark in a legend, with the gaps beside it."""

MAX_LEGEND_LETTERS = 40
"""Letters of a line of a legend at most."""

INCHES_OF_TICK = 0.7
"""Inches between two ticks of an axis, with their labels."""

MIN_TICKS = 3
"""Fewest ticks of an axis that has room for them."""

LETTER = 0.062
"""Inches of a letter of 8 points, on average."""

UPRIGHT = 90
"""Degrees of labels that have no room beside each other."""


def label(key: str, *, inches: float) -> str:
    """Return a sentence as the label of an axis, in lines of a given length."""
    return textwrap.fill(render(key), max(8, int(inches / LETTER)))


def set_ticks(axes: Axes, *, x: int = 0, y: int = 0) -> None:
    """Set how many ticks an axis has about at most; 0: it stays as it is.

    Two ticks say little of a scale: an axis with room for three has at least three.

    Matplotlib's own choice depends on settings, which differ where a figure is saved.
    """
    for axis, most in ((axes.xaxis, x), (axes.yaxis, y)):
        if most:
            locator = MaxNLocator(
                most,
                steps=[1, 2, 4, 5, 10],
                min_n_ticks=min(most, MIN_TICKS),
            )
            axis.set_major_locator(locator)


def set_labelled_ticks(
    axes: Axes, values: Sequence[float], *, places: ArrayLike, inches: float
) -> None:
    """Set ticks at some values, with labels that stand upright if they would meet.

    Parameters
    ----------
    values
        Rising, (ticks,).
    places
        Where they stand in the scale of the axis, in any unit, (ticks,).
    inches
        Length of the axis from the first tick to the last.
    """
    labels = [f"{value:g}" for value in values]
    letters = np.array([len(label) for label in labels], float)
    distances = np.diff(np.asarray(places, float))
    if len(values) > 1:
        distances *= inches / distances.sum()

    # Half of each of two labels stands between their ticks.
    needed = LETTER * (letters[:-1] + letters[1:]) / 2 + MIN_LABEL_GAP
    fits = bool(np.all(distances >= needed))
    axes.set_xticks(values, labels, rotation=0 if fits else UPRIGHT)


def n_ticks(width: float, *, n_panels: int = 1) -> int:
    """Return how many ticks a panel has room for, of those that share a width."""
    return max(2, int(width / n_panels / INCHES_OF_TICK))


def is_narrow(width: float) -> bool:
    """Return whether a figure is nearer to a column than to the whole text."""
    return width < (COLUMN_WIDTH + TEXT_WIDTH) / 2


def grid_of_panels(
    n_panels: int,
    *,
    width: float,
    panel_height: float,
    n_columns: int,
    legend_lines: int = 0,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in a grid, row by row; heights are inches.

    The place of labels and of the legend is left to matplotlib's constrained layout.
    """
    n_columns = min(n_panels, n_columns)
    n_rows = -(-n_panels // n_columns)
    legend_height = LEGEND_LINE * legend_lines + 0.1 if legend_lines else 0.0
    figure = Figure(
        figsize=(width, n_rows * panel_height + legend_height), layout="constrained"
    )
    axes = figure.subplots(n_rows, n_columns, squeeze=False, sharey=share_y)
    panels = list(axes.flat)

    # The last row may have more room than panels.
    for unused in panels[n_panels:]:
        unused.remove()
    return figure, panels[:n_panels]


def in_paper_style(
    draw: Callable[DrawParams, Figure | None],
) -> Callable[DrawParams, Figure | None]:
    """Return a function that draws in our style, and lays the figure out once.

    So all formats have the same layout, whoever calls the function. Labels of ticks
    that would meet are hidden.
    """

    @functools.wraps(draw)
    def drawn(*args: DrawParams.args, **options: DrawParams.kwargs) -> Figure | None:
        with styled():
            figure = draw(*args, **options)
            if figure is None:
                return None

            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            for axes in figure.axes:
                thin_tick_labels(axes)
        return figure

    return drawn


def looks_of(
    systems: Sequence[str], palette_numbers: Mapping[str, int]
) -> dict[str, Look]:
    """Return the colour and the marker of each system, by its number in the palette.

    Parameters
    ----------
    palette_numbers
        System -> number; one without a number takes the next that is free.
    """
    numbers = dict(palette_numbers)
    looks = {}
    for system in systems:
        if system not in numbers:
            numbers[system] = max(numbers.values(), default=-1) + 1
        looks[system] = look_of_number(numbers[system])
    return looks


def draw_intervals(
    axes: Axes,
    rows: pd.DataFrame,
    positions: ArrayLike,
    *,
    along: Literal["x", "y"],
    colour: str,
) -> None:
    """Draw the report's intervals of values along an axis, where it has any.

    Parameters
    ----------
    rows
        Columns ``value``, ``low`` and ``high``.
    positions
        Where they stand on the other axis, (rows,).
    """
    has_interval = rows["low"].notna() & rows["high"].notna()
    rows = rows[has_interval]
    if rows.empty:
        return

    kept_positions = np.asarray(positions, float)[has_interval.to_numpy()]
    # Rounding may leave a value a little outside of its interval.
    below = (rows["value"] - rows["low"]).clip(lower=0.0)
    above = (rows["high"] - rows["value"]).clip(lower=0.0)
    lengths = np.stack([below, above])  # (2, rows)

    values = rows["value"].to_numpy()
    is_upright = along == "y"
    axes.errorbar(
        x=kept_positions if is_upright else values,
        y=values if is_upright else kept_positions,
        xerr=None if is_upright else lengths,
        yerr=lengths if is_upright else None,
        fmt="none",
        ecolor=colour,
        elinewidth=1.0,
        capsize=1.8,
        zorder=1.8,
    )


def draw_void(axes: Axes, x: ArrayLike, y: ArrayLike, marker: str) -> None:
    """Draw figures that prove nothing: hollow and grey, with the mark of their system.

    ``x`` and ``y`` are (marks,).
    """
    axes.add_line(void_sample(marker, x=x, y=y))
    axes.update_datalim(np.column_stack([np.asarray(x, float), np.asarray(y, float)]))
    axes.autoscale_view()


def void_sample(marker: str, *, x: ArrayLike = (), y: ArrayLike = ()) -> Line2D:
    """Return hollow grey marks, without points as a legend shows them.

    ``x`` and ``y`` have the shape (marks,).
    """
    return Line2D(
        np.asarray(x, float),
        np.asarray(y, float),
        color=MUTED,
        marker=marker,
        markerfacecolor=PAPER,
        markersize=MARK_SIZE,
        markeredgewidth=0.9,
        linestyle="none",
        zorder=3,
    )


def sample(
    look: Look, *, dashes: Literal["-", "--", "none"] = "none", width: float = 1.2
) -> Line2D:
    """Return a mark with a look, as the legend shows it."""
    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        markersize=MARK_SIZE,
        markeredgewidth=0.0,
        linestyle=dashes,
        linewidth=width,
    )


def system_samples(looks: Mapping[str, Look], rows: pd.DataFrame) -> dict[str, Artist]:
    """Return the legend of the systems in some rows, in the order of their looks.

    A system with nothing but void figures is shown as these are.

    Parameters
    ----------
    rows
        Columns ``system`` and ``is_void``.
    """
    samples: dict[str, Artist] = {}
    for system, look in looks.items():
        rows_of_system = rows[rows["system"] == system]
        if rows_of_system.empty:
            continue
        if rows_of_system["is_void"].all():
            label = render("figure.paper.void_system", system=system)
            samples[label] = void_sample(look.marker)
        else:
            samples[system] = sample(look)
    return samples


def legend_labels(samples: Mapping[str, Artist], *, width: float) -> list[str]:
    """Return the labels of a legend, broken to fit into a width in inches."""
    letters = int((width - LEGEND_MARK) / LETTER) - 2
    letters = min(letters, MAX_LEGEND_LETTERS)
    return [wrapped(name, width=letters, lines=2) for name in samples]


def legend_columns(labels: Sequence[str], *, width: float) -> int:
    """Return how many columns of a legend fit into a width, in inches."""
    longest = 1
    for text in labels:
        longest = max(longest, *(len(line) for line in text.split("\n")))
    fitting = int(width / (LETTER * longest + LEGEND_MARK))
    return max(1, min(fitting, len(labels)))


def legend_lines(samples: Mapping[str, Artist], *, width: float) -> int:
    """Return how many lines the legend of a figure has: those of its longest column."""
    labels = legend_labels(samples, width=width)
    n_columns = legend_columns(labels, width=width)
    # Matplotlib fills the columns from the left, those with one more entry first.
    n_lines = 0
    for column in np.array_split(np.array(labels, object), n_columns):
        n_lines = max(n_lines, sum(text.count("\n") + 1 for text in column))
    return n_lines


def draw_legend(figure: Figure, samples: Mapping[str, Artist]) -> None:
    """Draw a legend above all panels."""
    if not samples:
        return
    width = figure.get_figwidth()
    labels = legend_labels(samples, width=width)
    figure.legend(
        list(samples.values()),
        labels,
        loc="outside upper center",
        ncols=legend_columns(labels, width=width),
    )


def dodged(n_levels: int, *, room: float) -> NDArray[np.float64]:
    """Return by how much seaborn moves each of several marks of one category.

    Parameters
    ----------
    room
        Distance from the first mark to the last, in categories.

    Returns
    -------
    (n_levels,)
    """
    if n_levels == 1:
        return np.zeros(1)
    return np.linspace(-room / 2, room / 2, n_levels)


def blocks(rows: pd.DataFrame, column: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each value of a column with its rows, in the order of appearance."""
    for value, rows_of_value in rows.groupby(column, sort=False):
        yield str(value), rows_of_value

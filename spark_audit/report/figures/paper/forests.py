"""Forests of the paper: a line for each system, a panel for each measure.

Selectivity (``fig:selectivity_ablation``, a), Top-1 (b), Last, Avg and BWT
(``tab:main_cl``, ``fig:selectivity_ablation``, d, ``fig:qwen``, a and b), and the
likelihood of canaries (``tab:canary_nll``).
"""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spark_audit.report.figures.paper.frames import (
    first_variant,
    rows_named,
    stacked,
)
from spark_audit.report.figures.paper.measures import (
    CANARY_MEASURES,
    SELECTIVITY_MEASURES,
    TOP1_MEASURES,
    UTILITY_MEASURES,
    Measures,
)
from spark_audit.report.figures.paper.panels import (
    MARK_SIZE,
    NAME_GAP,
    NAME_LINE,
    draw_intervals,
    draw_legend,
    draw_void,
    grid_of_panels,
    in_paper_style,
    is_narrow,
    label,
    legend_lines,
    n_ticks,
    set_ticks,
    void_sample,
)
from spark_audit.report.figures.paper.task_orders import is_of_first_order
from spark_audit.report.figures.paper.widths import TEXT_WIDTH
from spark_audit.report.figures.styling import INK, MUTED
from spark_audit.report.figures.text_room import lines_of, wrapped
from spark_audit.sentences import render

AROUND_LINES = 0.62
"""Inches of the title and of the axis of a forest."""

NARROW_NAME = 20
"""Letters of a line of a name beside a figure that is as wide as a column."""

WIDE_NAME = 32
"""Letters of a line of a name beside a wider figure."""

MARKER = "o"


def selectivity_rows(results: pd.DataFrame) -> pd.DataFrame:
    """Return Delta_sel of each system: columns ``panel`` and ``SYSTEM_COLUMNS``."""
    return stacked(_rows_by_panel(results, SELECTIVITY_MEASURES))


def _rows_by_panel(
    results: pd.DataFrame, measures: Measures
) -> dict[str, pd.DataFrame]:
    """Return the rows of each panel, with the columns ``SYSTEM_COLUMNS``."""
    rows_by_panel = {}
    for panel, measure in measures.items():
        rows_by_panel[panel] = first_variant(results, measure)
    return rows_by_panel


@in_paper_style
def draw_selectivity(
    results: pd.DataFrame, *, width: float = TEXT_WIDTH
) -> Figure | None:
    """Draw Delta_sel with its interval; None: the frame has none.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.
    width
        Inches.
    """
    return _forests(
        selectivity_rows(results), figure="selectivity", width=width, null=0.0
    )


def top1_rows(results: pd.DataFrame) -> pd.DataFrame:
    """Return Top-1 of identifiers in %: columns ``panel`` and ``SYSTEM_COLUMNS``."""
    rows = stacked(_rows_by_panel(results, TOP1_MEASURES))
    numbers = ["value", "low", "high"]
    return rows.assign(**(100.0 * rows[numbers].astype(float)))


@in_paper_style
def draw_top1(results: pd.DataFrame, *, width: float = TEXT_WIDTH) -> Figure | None:
    """Draw how often an identifier's token is the first guess; None: not measured.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.
    width
        Inches.
    """
    return _forests(top1_rows(results), figure="top1", width=width)


def utility_rows(results: pd.DataFrame) -> pd.DataFrame:
    """Return Last, Avg and BWT of each system.

    Systems of further task orders are left out: they have a figure of their own.

    Returns
    -------
    Columns ``panel`` and ``SYSTEM_COLUMNS``.
    """
    rows = stacked(_rows_by_panel(results, UTILITY_MEASURES))
    rows = rows_named(rows, is_of_first_order, "system")
    return rows.reset_index(drop=True)


@in_paper_style
def draw_utility(results: pd.DataFrame, *, width: float = TEXT_WIDTH) -> Figure | None:
    """Draw Last, Avg and BWT side by side; None: the frame has none of them.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.
    width
        Inches.
    """
    return _forests(utility_rows(results), figure="utility", width=width)


def canary_rows(results: pd.DataFrame) -> pd.DataFrame:
    """Return the NLL of canaries by part: columns ``panel`` and ``SYSTEM_COLUMNS``."""
    return stacked(_rows_by_panel(results, CANARY_MEASURES))


@in_paper_style
def draw_canary(results: pd.DataFrame, *, width: float = TEXT_WIDTH) -> Figure | None:
    """Draw the NLL of whole canaries, passwords and SSN; None: not measured.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.
    width
        Inches.
    """
    return _forests(canary_rows(results), figure="canary", width=width)


def _forests(
    rows: pd.DataFrame, *, figure: str, width: float, null: float | None = None
) -> Figure | None:
    """Draw a panel for each value of ``panel``, with one line for each system.

    Parameters
    ----------
    rows
        Columns ``panel`` and ``SYSTEM_COLUMNS``.
    figure
        Key of its sentences: ``figure.paper-FIGURE``.
    null
        Value at which an upright line stands in all panels; of BWT it is always 0.
    """
    if rows.empty:
        return None

    systems = list(dict.fromkeys(rows["system"]))
    name_width = NARROW_NAME if is_narrow(width) else WIDE_NAME
    names = [wrapped(name, width=name_width, lines=2) for name in systems]
    samples: dict[str, Artist] = {}
    if rows["is_void"].any():
        samples[render("figure.paper.void")] = void_sample(MARKER)

    panels = list(dict.fromkeys(rows["panel"]))
    line_height = NAME_LINE * lines_of(names) + NAME_GAP
    drawn, axes_of_panels = grid_of_panels(
        len(panels),
        width=width,
        panel_height=len(systems) * line_height + AROUND_LINES,
        n_columns=len(panels),
        legend_lines=legend_lines(samples, width=width),
        share_y=True,
    )
    for panel, axes in zip(panels, axes_of_panels, strict=True):
        _draw_lines(axes, rows[rows["panel"] == panel], systems)
        # A narrow panel has room for few ticks.
        set_ticks(axes, x=n_ticks(width, n_panels=len(panels)))
        axes.set_yticks(range(len(systems)), names)
        axes.set(xlabel="", ylabel="")
        if len(panels) > 1:
            axes.set_title(render(f"figure.paper-{figure}.{panel}"), weight="normal")
        line_at = 0.0 if panel == "bwt" else null
        if line_at is not None:
            axes.axvline(line_at, color=INK, linewidth=0.9, zorder=1.5)

    drawn.supxlabel(
        label(f"figure.paper-{figure}.axis", inches=0.95 * width), fontsize=8
    )
    draw_legend(drawn, samples)
    return drawn


def _draw_lines(axes: Axes, rows: pd.DataFrame, systems: list[str]) -> None:
    """Draw the mark and the interval of each system in its line of one panel."""
    heights = {system: height for height, system in enumerate(systems)}
    valid = rows[~rows["is_void"]]
    void = rows[rows["is_void"]]

    # Without a valid figure, seaborn still sets up the lines.
    sns.pointplot(
        valid if len(valid) else rows.assign(value=float("nan")),
        x="value",
        y="system",
        order=systems,
        errorbar=None,
        linestyle="none",
        marker=MARKER,
        markersize=MARK_SIZE,
        markeredgewidth=0.0,
        color=INK,
        ax=axes,
    )
    for rows_of_kind, colour in ((valid, INK), (void, MUTED)):
        draw_intervals(
            axes,
            rows_of_kind,
            rows_of_kind["system"].map(heights),
            along="x",
            colour=colour,
        )
    if len(void):
        draw_void(axes, void["value"], void["system"].map(heights), MARKER)

    # Seaborn takes the lines away along which a reader finds a name.
    axes.grid(visible=True, axis="y", linewidth=0.4)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(systems) - 0.5, -0.5)

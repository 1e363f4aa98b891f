"""Systems in several task orders (``fig:task_order``): accuracy and likelihoods.

A checkpoint in another order than the first has the name ``SYSTEM-order-K``, or the
frame has a column ``order``, as one of several reports that were put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spark_audit.names import CheckpointName, is_untrained
from spark_audit.report.figures.paper.frames import (
    first_variant,
    in_order,
    numbers_of,
    rows_named,
    stacked,
    systems_of,
)
from spark_audit.report.figures.paper.measures import ORDERS_MEASURES
from spark_audit.report.figures.paper.panels import (
    MARK_SIZE,
    dodged,
    draw_intervals,
    draw_legend,
    draw_void,
    grid_of_panels,
    in_paper_style,
    is_narrow,
    label,
    legend_lines,
    looks_of,
    set_ticks,
    system_samples,
)
from spark_audit.report.figures.paper.widths import TEXT_WIDTH
from spark_audit.report.figures.styling import INK, MUTED
from spark_audit.report.figures.view import Look
from spark_audit.sentences import render

ORDERS_PANEL_HEIGHT = 1.75
"""Inches of a panel with its labels."""

ROOM_OF_ORDER = 0.6
"""Share of an order's room over which the marks of its systems are spread."""

ORDER = "-order-"
"""Stands in a checkpoint's name before the number of its task order."""

FIRST_ORDER = "1"
"""Task order of a checkpoint whose name says none."""

MEAN_OF_ORDERS = "-orders"
"""End of the name of what is a mean over task orders, as in ``reports/paper``."""


def order_of(name: str) -> str:
    """Return the task order that a checkpoint's name says, else the first one.

    >>> order_of("spark-order-2"), order_of("spark")
    ('2', '1')
    """
    _, separator, order = CheckpointName.parse(name).method.rpartition(ORDER)
    return order if separator and order.isdecimal() else FIRST_ORDER


def is_of_first_order(name: str) -> bool:
    """Return whether a checkpoint is neither of another task order nor a mean of all.

    >>> is_of_first_order("spark"), is_of_first_order("spark-order-2")
    (True, False)
    """
    return order_of(name) == FIRST_ORDER and not name.endswith(MEAN_OF_ORDERS)


def without_order(name: str) -> str:
    """Return a checkpoint's name without its task order.

    >>> without_order("spark-order-2[1]"), without_order("spark")
    ('spark[1]', 'spark')
    """
    parts = CheckpointName.parse(name)
    system, separator, order = parts.method.rpartition(ORDER)
    if not separator or not order.isdecimal():
        return name
    return str(replace(parts, method=system))


def orders_rows(results: pd.DataFrame) -> pd.DataFrame:
    """Return the measures of each system that has several task orders.

    The base has learned no task in any order.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``. A column ``order`` says the order of each row;
        without it the checkpoint's name does.

    Returns
    -------
    Columns ``panel``, ``order`` (text) and ``SYSTEM_COLUMNS``.
    """
    if "order" not in results:
        orders = [order_of(name) for name in results["checkpoint"]]
        systems = [without_order(name) for name in results["checkpoint"]]
        results = results.assign(order=orders, checkpoint=systems)

    results = rows_named(results, lambda name: not is_untrained(name))
    blocks_of_orders = [stacked({}).assign(order="")]
    for order, results_of_order in results.groupby("order", sort=True):
        rows_by_panel = {}
        for panel, measure in ORDERS_MEASURES.items():
            rows_by_panel[panel] = first_variant(results_of_order, measure)
        blocks_of_orders.append(stacked(rows_by_panel).assign(order=str(order)))

    # Beginning with an empty frame would make its types those of the result.
    rows = pd.concat(blocks_of_orders[1:] or blocks_of_orders, ignore_index=True)
    n_orders = rows.groupby("system")["order"].nunique()
    rows = rows[rows["system"].map(n_orders) > 1]
    return in_order(rows, systems_of(results))


@in_paper_style
def draw_orders(
    results: pd.DataFrame,
    *,
    width: float = TEXT_WIDTH,
    palette_numbers: Mapping[str, int] | None = None,
) -> Figure | None:
    """Draw accuracy and likelihoods by task order; None: there is one order alone.

    Parameters
    ----------
    results
        As in :func:`orders_rows`.
    width
        Inches.
    palette_numbers
        System -> its number in the report's palette; default: its place in the results.
    """
    rows = orders_rows(results)
    if rows.empty:
        return None

    systems = list(dict.fromkeys(rows["system"]))
    looks = looks_of(systems, _numbers_of_first_orders(results, palette_numbers))
    samples = system_samples(looks, rows)
    panels = [panel for panel in ORDERS_MEASURES if panel in {*rows["panel"]}]
    n_columns = 2 if is_narrow(width) else 3
    figure, axes_of_panels = grid_of_panels(
        len(panels),
        width=width,
        panel_height=ORDERS_PANEL_HEIGHT,
        n_columns=n_columns,
        legend_lines=legend_lines(samples, width=width),
    )
    orders = sorted({*rows["order"]}, key=lambda order: (len(order), order))
    for panel, axes in zip(panels, axes_of_panels, strict=True):
        _draw_systems(axes, rows[rows["panel"] == panel], systems, orders, looks)
        title = label(f"figure.paper-orders.{panel}", inches=width / n_columns - 0.3)
        axes.set_title(title, weight="normal")
        axes.set(xlabel="", ylabel="")
        set_ticks(axes, y=5)
        if panel == "bwt":
            axes.axhline(0.0, color=INK, linewidth=0.9, zorder=1.5)

    figure.supxlabel(render("figure.paper-orders.axis"), fontsize=8)
    draw_legend(figure, samples)
    return figure


def _numbers_of_first_orders(
    results: pd.DataFrame, palette_numbers: Mapping[str, int] | None
) -> dict[str, int]:
    """Return system -> its number: its own, else that of one of its task orders."""
    if palette_numbers is None:
        palette_numbers = numbers_of(results)
    numbers: dict[str, int] = {}
    for name, number in palette_numbers.items():
        numbers.setdefault(without_order(name), number)
    return numbers | dict(palette_numbers)


def _draw_systems(
    axes: Axes,
    rows: pd.DataFrame,
    systems: list[str],
    orders: list[str],
    looks: Mapping[str, Look],
) -> None:
    """Draw the marks of all systems beside each other, in each task order."""
    valid = rows[~rows["is_void"]]
    offsets = dodged(len(systems), room=ROOM_OF_ORDER)
    sns.pointplot(
        valid if len(valid) else rows.assign(value=float("nan")),
        x="order",
        y="value",
        order=orders,
        hue="system",
        hue_order=systems,
        palette=[looks[name].colour for name in systems],
        markers=[looks[name].marker for name in systems],
        linestyles=["none"] * len(systems),
        dodge=ROOM_OF_ORDER if len(systems) > 1 else False,
        markersize=MARK_SIZE,
        markeredgewidth=0.0,
        errorbar=None,
        legend=False,
        ax=axes,
    )
    for system, offset in zip(systems, offsets, strict=True):
        rows_of_system = rows[rows["system"] == system]
        places = rows_of_system["order"].map(orders.index) + offset
        is_void = rows_of_system["is_void"]
        for wanted, colour in ((~is_void, looks[system].colour), (is_void, MUTED)):
            draw_intervals(
                axes, rows_of_system[wanted], places[wanted], along="y", colour=colour
            )
        if is_void.any():
            void = rows_of_system[is_void]
            draw_void(axes, places[is_void], void["value"], looks[system].marker)

    axes.set_xlim(-0.5, len(orders) - 0.5)
    axes.grid(visible=False, axis="x")

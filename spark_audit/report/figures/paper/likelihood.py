"""Identifiers' likelihood against that of other text (``fig:selectivity_ablation``, c).

Checkpoints of several base models have a panel each (``fig:qwen``, c).
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spark_audit.report.figures.paper.frames import (
    first_variant,
    numbers_of,
    rows_named,
)
from spark_audit.report.figures.paper.measures import LIKELIHOOD_MEASURES
from spark_audit.report.figures.paper.panels import (
    MARK_SIZE,
    blocks,
    draw_intervals,
    draw_legend,
    draw_void,
    grid_of_panels,
    in_paper_style,
    is_narrow,
    label,
    legend_lines,
    looks_of,
    n_ticks,
    set_ticks,
    system_samples,
)
from spark_audit.report.figures.paper.task_orders import is_of_first_order
from spark_audit.report.figures.paper.widths import TEXT_WIDTH
from spark_audit.report.figures.styling import MUTED, PAPER
from spark_audit.report.figures.text_room import wrapped
from spark_audit.report.figures.view import Look

LIKELIHOOD_PANEL_HEIGHT = 2.5
"""Inches of a panel with its labels."""

OF_OTHER_TEXT = "_low"
"""End of the columns that are of other text."""


def likelihood_rows(
    results: pd.DataFrame, checkpoints: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the NLL of identifiers and of other text of each system.

    Systems of further task orders are left out: they have a figure of their own.

    Parameters
    ----------
    results, checkpoints
        Frames of ``report.to_frame()``. Checkpoints tell which base a system has;
        without them all share one.

    Returns
    -------
    Columns ``SYSTEM_COLUMNS`` of identifiers, then ``value_low``, ``low_low`` and
    ``high_low`` of other text, and ``base``.
    """
    identifiers = first_variant(results, LIKELIHOOD_MEASURES["identifiers"])
    other_text = first_variant(results, LIKELIHOOD_MEASURES["other"])
    rows = identifiers.merge(
        other_text, on="system", suffixes=("", OF_OTHER_TEXT), how="inner"
    )
    rows["is_void"] |= rows[f"is_void{OF_OTHER_TEXT}"].astype(bool)
    rows = rows_named(rows, is_of_first_order, "system").reset_index(drop=True)
    return rows.assign(base=_bases_of(rows, checkpoints))


def _bases_of(rows: pd.DataFrame, checkpoints: pd.DataFrame | None) -> list[str]:
    """Return the base model of each row's system; empty where none is named."""
    base_by_name: dict[str, str] = {}
    if checkpoints is not None:
        named = checkpoints[["name", "base"]].fillna("")
        base_by_name = dict(named.itertuples(index=False, name=None))

    bases = [base_by_name.get(system, "") for system in rows["system"]]
    # The base model itself, and full weights, belong to the adapters' first base.
    first_base = next((base for base in bases if base), "")
    return [base or first_base for base in bases]


@in_paper_style
def draw_likelihood(
    results: pd.DataFrame,
    checkpoints: pd.DataFrame | None = None,
    *,
    width: float = TEXT_WIDTH,
    palette_numbers: Mapping[str, int] | None = None,
) -> Figure | None:
    """Draw the NLL of identifiers over that of other text; None: not measured.

    Parameters
    ----------
    results, checkpoints
        As in :func:`likelihood_rows`.
    width
        Inches.
    palette_numbers
        System -> its number in the report's palette; default: its place in the results.
    """
    rows = likelihood_rows(results, checkpoints)
    if rows.empty:
        return None

    if palette_numbers is None:
        palette_numbers = numbers_of(results)
    looks = looks_of(list(dict.fromkeys(rows["system"])), palette_numbers)
    samples = system_samples(looks, rows)
    rows_by_base = list(blocks(rows, "base"))
    figure, panels = grid_of_panels(
        len(rows_by_base),
        width=width,
        panel_height=LIKELIHOOD_PANEL_HEIGHT,
        n_columns=1 if is_narrow(width) else 2,
        legend_lines=legend_lines(samples, width=width),
    )
    for (base, rows_of_base), axes in zip(rows_by_base, panels, strict=True):
        _draw_points(axes, rows_of_base, looks)
        if len(rows_by_base) > 1:
            axes.set_title(wrapped(base, width=34, lines=2), weight="normal")
        panel_width = width if is_narrow(width) else width / 2
        set_ticks(axes, x=n_ticks(panel_width), y=5)
        axes.set_xlabel(
            label("figure.paper-likelihood.other", inches=panel_width - 0.6)
        )
        axes.set_ylabel(
            label(
                "figure.paper-likelihood.identifiers",
                inches=LIKELIHOOD_PANEL_HEIGHT - 0.4,
            )
        )

    draw_legend(figure, samples)
    return figure


def _draw_points(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    """Draw a mark for each system, with intervals in both directions."""
    of_other_text = rows.drop(columns=["value", "low", "high"]).rename(
        columns={"value_low": "value", "low_low": "low", "high_low": "high"}
    )
    draw_intervals(axes, rows, rows["value_low"], along="y", colour=MUTED)
    draw_intervals(axes, of_other_text, rows["value"], along="x", colour=MUTED)

    for system, void in blocks(rows[rows["is_void"]], "system"):
        draw_void(axes, void["value_low"], void["value"], looks[system].marker)

    valid = rows[~rows["is_void"]]
    # Seaborn warns of colours that nothing has.
    if valid.empty:
        return
    names = list(dict.fromkeys(valid["system"]))
    sns.scatterplot(
        valid,
        x="value_low",
        y="value",
        hue="system",
        hue_order=names,
        palette={name: looks[name].colour for name in names},
        style="system",
        style_order=names,
        markers={name: looks[name].marker for name in names},
        s=2.2 * MARK_SIZE**2,
        edgecolor=PAPER,
        linewidth=0.4,
        zorder=3,
        legend=False,
        ax=axes,
    )

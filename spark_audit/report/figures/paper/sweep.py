"""Settings that runs of one method differ in (``fig:hyperparam``): Last and NLL."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spark_audit.provenance import sha256_json
from spark_audit.report.cells import MAX_SHOWN_VALUE
from spark_audit.report.figures.paper.frames import first_variant
from spark_audit.report.figures.paper.measures import SWEEP_MEASURES
from spark_audit.report.figures.paper.panels import (
    MARK_SIZE,
    draw_intervals,
    draw_legend,
    draw_void,
    grid_of_panels,
    in_paper_style,
    is_narrow,
    label,
    legend_lines,
    set_labelled_ticks,
    set_ticks,
    void_sample,
)
from spark_audit.report.figures.paper.trainings import Training, trainings_of
from spark_audit.report.figures.paper.widths import TEXT_WIDTH
from spark_audit.report.figures.styling import INK, MUTED
from spark_audit.results.training import SETTINGS_WITHOUT_EFFECT
from spark_audit.sentences import render

UNSWEPT = ("seed", *SETTINGS_WITHOUT_EFFECT)
"""Settings that decide nothing about what is learned, or only its luck."""

MEASURE_MARKERS = {"last": "o", "pii": "s"}
"""Panel -> marker of its line."""

DEFAULT_MARKER = "^"
"""Marker of the default value of a setting, on the axis."""

DEFAULT_MARK_SIZE = 6.0
"""Points of that mark."""

SWEEP_PANEL_HEIGHT = 1.6
"""Inches of a panel with its labels."""

BESIDE_SWEEP_PANEL = 0.9
"""Inches beside the axis of a panel, and beyond its first and last tick."""

SETTINGS_BESIDE = 4
"""Most settings side by side."""


def sweep_rows(results: pd.DataFrame, checkpoints: pd.DataFrame) -> pd.DataFrame:
    """Return Last and the identifiers' NLL over each setting that runs differ in.

    Runs of a sweep share their method, tasks and all other settings. A setting with
    words or switches for values is none of a sweep. Where a setting was swept several
    times, beside different other settings, the sweep with the most values is taken.

    Returns
    -------
    Columns ``SYSTEM_COLUMNS``, ``setting``, ``at`` (its value), ``is_default`` and
    ``measure`` (a key of ``SWEEP_MEASURES``); rising in ``at``.
    """
    trainings = _trainings_of_systems(checkpoints)
    sweeps = sweeps_of(checkpoints)
    frames = []
    for measure, shown in SWEEP_MEASURES.items():
        rows = first_variant(results, shown)
        for setting, systems in sweeps.items():
            settings = {name: trainings[name]["settings"][setting] for name in systems}
            defaults = [
                name for name in systems if _is_default(setting, trainings[name])
            ]
            swept = rows[rows["system"].isin(systems)]
            swept = swept.assign(
                setting=setting,
                at=swept["system"].map(settings).astype(float),
                is_default=swept["system"].isin(defaults),
                measure=measure,
            )
            if len(swept) > 1:
                frames.append(swept.sort_values("at", kind="stable"))
    if not frames:
        return pd.DataFrame()
    return pd.concat(frames, ignore_index=True)


def _is_default(setting: str, training: Training) -> bool:
    """Return whether a record says that a setting has its default."""
    changed = training.get("changed")
    return changed is not None and setting not in changed


def _trainings_of_systems(checkpoints: pd.DataFrame) -> dict[str, Training]:
    """Return what each system was trained with: its first seed."""
    return {name: each[0] for name, each in trainings_of(checkpoints).items()}


def sweeps_of(checkpoints: pd.DataFrame) -> dict[str, list[str]]:
    """Return setting -> the systems of its longest sweep, of at least two values.

    Parameters
    ----------
    checkpoints
        The frame ``checkpoints`` of a report.
    """
    trainings = _trainings_of_systems(checkpoints)
    systems_by_sweep: dict[tuple[str, str], list[str]] = {}
    for name, training in trainings.items():
        for setting, value in training["settings"].items():
            # True is a number to Python.
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_drawn = is_number and abs(value) <= MAX_SHOWN_VALUE
            if is_drawn and setting not in UNSWEPT:
                key = (setting, _digest_without(setting, training))
                systems_by_sweep.setdefault(key, []).append(name)

    sweeps: dict[str, list[str]] = {}
    n_values: dict[str, int] = {}
    for (setting, _), systems in systems_by_sweep.items():
        values = {trainings[name]["settings"][setting] for name in systems}
        if len(values) > max(1, n_values.get(setting, 0)):
            sweeps[setting] = systems
            n_values[setting] = len(values)
    return sweeps


def _digest_without(setting: str, training: Training) -> str:
    """Return a digest of all that a run was trained with, but for one setting."""
    other_settings = {
        name: value
        for name, value in training["settings"].items()
        if name != setting and name not in UNSWEPT
    }
    return sha256_json(
        {
            "method": training["method"],
            "privacy": training.get("privacy", ""),
            "tasks": training.get("tasks", []),
            "settings": other_settings,
        }
    )


@in_paper_style
def draw_sweep(
    results: pd.DataFrame, checkpoints: pd.DataFrame, *, width: float = TEXT_WIDTH
) -> Figure | None:
    """Draw a panel for each setting and measure; None: no setting was swept.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.
    checkpoints
        The frame ``checkpoints`` of the same report.
    width
        Inches.
    """
    rows = sweep_rows(results, checkpoints)
    if rows.empty:
        return None

    settings = list(dict.fromkeys(rows["setting"]))
    measures = [measure for measure in SWEEP_MEASURES if measure in {*rows["measure"]}]
    samples: dict[str, Artist] = {}
    if rows["is_default"].any():
        samples[render("figure.paper-sweep.default")] = _default_sample()
    if rows["is_void"].any():
        samples[render("figure.paper.void")] = void_sample("o")

    # A column of a paper has the measures side by side, its text the settings.
    if is_narrow(width):
        cells = [(setting, measure) for setting in settings for measure in measures]
        n_columns = len(measures)
    else:
        n_columns = min(SETTINGS_BESIDE, len(settings))
        cells = []
        for first in range(0, len(settings), n_columns):
            for measure in measures:
                for setting in settings[first : first + n_columns]:
                    cells.append((setting, measure))

    figure, panels = grid_of_panels(
        len(cells),
        width=width,
        panel_height=SWEEP_PANEL_HEIGHT,
        n_columns=n_columns,
        legend_lines=legend_lines(samples, width=width),
    )
    for number, ((setting, measure), axes) in enumerate(
        zip(cells, panels, strict=True)
    ):
        is_shown = (rows["setting"] == setting) & (rows["measure"] == measure)
        _draw_line(axes, rows[is_shown], measure)
        values = sorted({*rows.loc[is_shown, "at"]})
        set_labelled_ticks(
            axes,
            values,
            places=values,
            inches=width / n_columns - BESIDE_SWEEP_PANEL,
        )
        axes.set_xlabel(setting)
        set_ticks(axes, y=4)
        is_first = number % n_columns == 0 or is_narrow(width)
        side = ""
        if is_first:
            side = label(
                f"figure.paper-sweep.{measure}", inches=SWEEP_PANEL_HEIGHT - 0.5
            )
        axes.set_ylabel(side)

    for measure in measures:
        panels_of_measure = []
        for (_, shown_measure), axes in zip(cells, panels, strict=True):
            if shown_measure == measure:
                panels_of_measure.append(axes)
        _share_scale(panels_of_measure)
    draw_legend(figure, samples)
    return figure


def _share_scale(panels: Sequence[Axes]) -> None:
    """Give panels of one measure the same scale, so that settings can be compared."""
    lowest = min(axes.get_ylim()[0] for axes in panels)
    highest = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(lowest, highest)


def _default_sample() -> Line2D:
    """Return the mark of a default value, as the legend shows it."""
    return Line2D(
        [],
        [],
        color=INK,
        marker=DEFAULT_MARKER,
        markersize=DEFAULT_MARK_SIZE,
        markeredgewidth=0.0,
        linestyle="none",
    )


def _default_mark(axes: Axes, default: float) -> Line2D:
    """Return the mark of a default value, which stands on the horizontal axis."""
    mark = _default_sample()
    mark.set_data([default], [0.0])
    # Its height is a share of the panel, so that it is on the axis in any scale.
    mark.set_transform(axes.get_xaxis_transform())
    mark.set_clip_on(False)
    mark.set_zorder(4)
    return mark


def _draw_line(axes: Axes, rows: pd.DataFrame, measure: str) -> None:
    """Draw one measure over one setting, with a mark on the axis at the default."""
    valid = rows[~rows["is_void"]]
    void = rows[rows["is_void"]]
    sns.lineplot(
        valid,
        x="at",
        y="value",
        color=INK,
        marker=MEASURE_MARKERS[measure],
        markersize=MARK_SIZE,
        markeredgewidth=0.0,
        linewidth=1.2,
        # Two runs may have the same value: seaborn must not average them.
        estimator=None,
        errorbar=None,
        ax=axes,
    )
    draw_intervals(axes, valid, valid["at"], along="y", colour=INK)
    draw_intervals(axes, void, void["at"], along="y", colour=MUTED)
    if len(void):
        draw_void(axes, void["at"], void["value"], MEASURE_MARKERS[measure])
    for default in {*rows.loc[rows["is_default"], "at"]}:
        axes.add_line(_default_mark(axes, default))

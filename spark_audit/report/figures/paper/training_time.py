"""How long training takes, by part (``fig:efficiency``): SPARK over ER."""

from __future__ import annotations

from collections.abc import Set

import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spark_audit.report.cells import MAX_SHOWN_VALUE
from spark_audit.report.figures.paper.panels import (
    NAME_GAP,
    NAME_LINE,
    draw_legend,
    grid_of_panels,
    in_paper_style,
    is_narrow,
    legend_lines,
    set_ticks,
)
from spark_audit.report.figures.paper.trainings import Training, trainings_of
from spark_audit.report.figures.paper.widths import TEXT_WIDTH
from spark_audit.report.figures.styling import INK, LIGHT
from spark_audit.report.figures.text_room import lines_of, wrapped
from spark_audit.sentences import render

PART_COLOURS = {"learning": LIGHT[5], "replay": LIGHT[1], "correction": INK}
"""Part of a training -> its colour; they differ in grey, too."""

PART_HATCHES = {"learning": "", "replay": "////", "correction": ""}

REPLAY = "replay"
"""Kind of work on replayed rows, within the part ``task``."""

BASELINE_METHOD = "er"
"""Method whose time the others' are divided by."""

UNIT_SECONDS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
"""Unit of the axis -> its seconds, the longest first."""

LEAST_OF_UNIT = {"hours": 10.0, "minutes": 2.0, "seconds": 0.0}
"""Unit of the axis -> how many of it the longest training takes at least."""

LINE_HEIGHT = 0.26
"""Inches of a bar with the gap to the next one."""

AROUND_BARS = 0.5
"""Inches of the axis below the bars."""


def time_rows(checkpoints: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each part of each system's training.

    Of several seeds it is the mean. Answers after a stage are no part of training.

    Parameters
    ----------
    checkpoints
        The frame ``checkpoints`` of a report.

    Returns
    -------
    Columns ``system``, ``part`` (a key of ``PART_COLOURS``), ``seconds``, ``clock`` and
    ``is_baseline``; each system has all parts.
    """
    records = []
    for system, trainings in trainings_of(checkpoints).items():
        seconds_by_part = dict.fromkeys(PART_COLOURS, 0.0)
        for training in trainings:
            for part, seconds in _seconds_of(training).items():
                seconds_by_part[part] += seconds / len(trainings)
        if not any(seconds_by_part.values()):
            continue

        first = trainings[0]
        is_baseline = first["method"] == BASELINE_METHOD and not first.get("privacy")
        for part, seconds in seconds_by_part.items():
            records.append(
                {
                    "system": system,
                    "part": part,
                    "seconds": seconds,
                    "clock": first.get("clock", "wall"),
                    "is_baseline": is_baseline,
                }
            )
    columns = ["system", "part", "seconds", "clock", "is_baseline"]
    return pd.DataFrame(records, columns=columns)


def _seconds_of(training: Training) -> dict[str, float]:
    """Return the seconds of a training by part: learning, replay, correction."""
    seconds_by_part = dict.fromkeys(PART_COLOURS, 0.0)
    for record in training.get("parts", []):
        for work, unchecked_seconds in record.get("seconds", {}).items():
            # Somebody else's report may hold any number.
            seconds = min(max(unchecked_seconds, 0.0), MAX_SHOWN_VALUE)
            if record["part"] == "priv":
                seconds_by_part["correction"] += seconds
            elif record["part"] == "task" and work == REPLAY:
                seconds_by_part["replay"] += seconds
            elif record["part"] == "task":
                seconds_by_part["learning"] += seconds
    return seconds_by_part


@in_paper_style
def draw_time(checkpoints: pd.DataFrame, *, width: float = TEXT_WIDTH) -> Figure | None:
    """Draw a bar for each system, in parts; None: no time is known.

    Parameters
    ----------
    checkpoints
        The frame ``checkpoints`` of a report.
    width
        Inches.
    """
    rows = time_rows(checkpoints)
    if rows.empty:
        return None

    totals = rows.groupby("system", sort=False)["seconds"].sum()
    unit = _unit_of(float(totals.max()))
    samples = _part_samples({*rows.loc[rows["seconds"] > 0, "part"]})
    systems = list(totals.index)
    names = [
        wrapped(name, width=16 if is_narrow(width) else 30, lines=2) for name in systems
    ]
    line_height = max(LINE_HEIGHT, NAME_LINE * lines_of(names) + NAME_GAP)
    figure, (axes,) = grid_of_panels(
        1,
        width=width,
        panel_height=len(systems) * line_height + AROUND_BARS,
        n_columns=1,
        legend_lines=legend_lines(samples, width=width),
    )
    _draw_bars(axes, rows.assign(time=rows["seconds"] / UNIT_SECONDS[unit]), systems)
    _write_totals(axes, rows, totals / UNIT_SECONDS[unit])
    axes.set_yticks(range(len(systems)), names)
    axes.set(xlabel=_axis_label(rows, unit), ylabel="")
    set_ticks(axes, x=5)
    axes.grid(visible=False, axis="y")
    draw_legend(figure, samples)
    return figure


def _unit_of(longest_seconds: float) -> str:
    """Return the unit in which the longest training reads best."""
    for unit, seconds in UNIT_SECONDS.items():
        if longest_seconds >= LEAST_OF_UNIT[unit] * seconds:
            return unit
    return "seconds"


def _part_samples(parts: Set[str]) -> dict[str, Artist]:
    """Return the legend of the parts that take time in any training."""
    samples: dict[str, Artist] = {}
    for part, colour in PART_COLOURS.items():
        if part not in parts:
            continue

        key = part
        if part == "learning" and "replay" not in parts:
            # Replay was not timed by itself: it is in learning, if there was any.
            key = "learning_whole"
        samples[render(f"figure.paper-time.{key}")] = Patch(
            facecolor=colour, hatch=PART_HATCHES[part], edgecolor=INK, linewidth=0.5
        )
    return samples


def _draw_bars(axes: Axes, rows: pd.DataFrame, systems: list[str]) -> None:
    """Draw stacked bars: the whole bar first, then over it all but the last part."""
    cumulated = rows.assign(end=rows.groupby("system", sort=False)["time"].cumsum())
    for part in reversed(PART_COLOURS):
        rows_of_part = cumulated[cumulated["part"] == part]
        # Where a part takes no time, the bar of the part before it covers its own.
        if not rows_of_part["seconds"].any():
            continue
        sns.barplot(
            rows_of_part,
            x="end",
            y="system",
            order=systems,
            color=PART_COLOURS[part],
            saturation=1.0,
            hatch=PART_HATCHES[part],
            edgecolor=INK,
            linewidth=0.5,
            width=0.7,
            errorbar=None,
            ax=axes,
        )


def _write_totals(axes: Axes, rows: pd.DataFrame, totals: pd.Series) -> None:
    """Write the total behind each bar, and how many times the baseline's it is."""
    baselines = list(dict.fromkeys(rows.loc[rows["is_baseline"], "system"]))
    for height, (system, total) in enumerate(totals.items()):
        text = f"{total:.3g}"
        if baselines and system != baselines[0]:
            ratio = total / totals[baselines[0]]
            text = render(
                "figure.paper-time.ratio",
                total=text,
                ratio=f"{ratio:.2f}",
                name=wrapped(baselines[0], width=12, lines=1),
            )
        axes.annotate(
            text,
            (total, height),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
        )


def _axis_label(rows: pd.DataFrame, unit: str) -> str:
    """Return the label of the axis, with the unit and the clock of the times."""
    clocks = {*rows["clock"]}
    clock = next(iter(clocks)) if len(clocks) == 1 else "mixed"
    return render(
        f"figure.paper-time.axis_{clock}", unit=render(f"figure.paper-time.{unit}")
    )

"""Last, Avg and BWT of every checkpoint as bars with intervals."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import (
    intervals_said,
    replicates_said,
    rows_of,
    statuses_said,
)
from spark_audit.report.figures.style import (
    MISSING,
    Look,
    belongs,
    canvas,
    inches,
    legend,
    legend_height,
    lines_of,
    looks,
    notes_of,
    plain,
    tidy,
    wrapped,
)
from spark_audit.report.figures.theme import HOLLOW, INK, MUTED, PAPER, Drawing
from spark_audit.results import Report, Row

PANELS = {
    "last": "Last (higher = better)",
    "avg": "Avg (higher = better)",
    "bwt": "BWT (higher = better)",
}
NAMES = {"last": "Last", "avg": "Avg", "bwt": "BWT"}
CHANCE = "the most frequent answer"


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """One panel a figure of continual learning, one bar a checkpoint."""
    panels = {metric: rows_of(report, "utility", metric) for metric in PANELS}
    gone = [NAMES[m] for m, rows in panels.items() if rows and not _known(rows)]
    panels = {metric: rows for metric, rows in panels.items() if _known(rows)}
    if not panels:
        return None
    names = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    look = looks(report)
    labels = [wrapped(name) for name in names]
    each = max(0.24, 0.15 * max(map(lines_of, labels)) + 0.05)
    rows = [row for found in panels.values() for row in found.values()]
    chance = _chance(panels.get("last", {}))
    notes = notes_of(rows, marker="s", colour=INK)
    if chance is not None:
        dotted = Line2D([], [], color=INK, linestyle=":", linewidth=1.2)
        notes = [(dotted, CHANCE), *notes]
    said = [label for _, label in notes]
    width = min(6.5, 1.9 * len(panels) + max(map(inches, labels)) + 0.4)
    width = max(width, 4.2)
    extra = legend_height(said, width=width) if notes else 0.0
    figure = canvas(each * len(names) + 0.62 + extra, width=width)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (metric, found) in zip(grid, panels.items(), strict=True):
        for place, name in enumerate(names):
            _bar(axes, look[name], found.get(name), place)
        if metric == "last" and chance is not None:
            axes.axvline(chance, color=INK, linestyle=":", linewidth=1.2, zorder=2.2)
        axes.axvline(0.0, color=INK, linewidth=0.9, zorder=2.5)
        axes.set_xlabel(PANELS[metric])
        if metric != "bwt":
            axes.set_xlim(0.0, 1.02)
            axes.set_xticks([0.0, 0.5, 1.0])
        tidy(axes, grid="x")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    grid[0].set_yticks(range(len(names)), labels)
    grid[0].set_ylim(len(names) - 0.45, -0.55)
    for tick, name in zip(grid[0].get_yticklabels(), names, strict=True):
        belongs(tick, look[name])
    if notes:
        legend(figure, [handle for handle, _ in notes], said)
    return Drawing(
        name="utility",
        audit="utility",
        title="Utility",
        caption=(
            "Accuracy over the tasks after the last one (Last), its mean over all "
            "stages (Avg), and what later tasks took from earlier ones (BWT, below 0: "
            "forgotten). "
            + intervals_said([r for r in rows if r.status != "not_estimable"])
            + (f" Not estimable for any checkpoint: {', '.join(gone)}." if gone else "")
            + statuses_said(rows)
            + replicates_said(report)
        ),
        alt=_alt(panels, names),
        figure=figure,
    )


def _known(rows: dict[str, Row]) -> bool:
    return any(row.value is not None for row in rows.values())


def _chance(rows: dict[str, Row]) -> float | None:
    """The accuracy of a constant answer, where it is the same for all."""
    found = {row.null for row in rows.values() if row.value is not None}
    return found.pop() if len(found) == 1 else None


def _bar(axes: Axes, look: Look, row: Row | None, place: int) -> None:
    if row is None or row.value is None:
        text = axes.text(
            0.04,
            place,
            MISSING,
            transform=axes.get_yaxis_transform(),
            va="center",
            color=MUTED,
            zorder=3,
        )
        belongs(text, look)
        return
    hollow = row.status in HOLLOW
    bar = axes.barh(
        place,
        row.value,
        height=0.62,
        facecolor=PAPER if hollow else look.colour,
        edgecolor=look.colour if hollow else PAPER,
        hatch="" if hollow else look.hatch,
        linewidth=1.2 if hollow else 0.0,
        zorder=2,
    )
    belongs(bar, look)
    if row.low is not None and row.high is not None:
        (line,) = axes.plot(
            [row.low, row.high], [place, place], color=INK, linewidth=1.2, zorder=3
        )
        belongs(line, look)


def _alt(panels: dict[str, dict[str, Row]], names: list[str]) -> str:
    found = []
    for name in names:
        values = [
            f"{NAMES[metric]} {plain(row.value)}"
            for metric, rows in panels.items()
            if (row := rows.get(name)) is not None and row.value is not None
        ]
        if values:
            found.append(f"{name} {', '.join(values)}")
    return f"Bars of continual-learning accuracy: {'; '.join(found)}."

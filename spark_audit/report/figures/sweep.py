"""Utility and suppression against a setting that runs differ in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import (
    intervals_said,
    records_of,
    replicates_said,
    rows_of,
)
from spark_audit.report.figures.style import (
    WIDTH,
    Look,
    Mark,
    canvas,
    cross,
    looks,
    names_height,
    names_legend,
    notes_of,
    ticked,
    tidy,
    wrapped,
)
from spark_audit.report.figures.theme import INK, MUTED, Drawing
from spark_audit.results import Report, Row, number

APART = ("seed",)
"""Settings in which replicates may differ."""
WIDE = 15.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
MOST = 4
"""Panels side by side."""
HELD = "value held in the other panels"
OUTCOMES = {
    "last": "Last accuracy\n(higher = better)",
    "pii": "NLL of identifiers,\nnats (higher = less likely)",
}

Settings = dict[str, Hashable]


@dataclass(frozen=True)
class _Sweep:
    """Runs that differ in one setting alone: values with checkpoints, by group."""

    setting: str
    groups: list[list[tuple[float, str]]]
    switch: bool
    held: float | None = None

    @property
    def values(self) -> list[float]:
        return sorted({value for group in self.groups for value, _ in group})


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """Last accuracy and NLL of identifiers against each setting that was varied."""
    outcomes = {
        "last": rows_of(report, "utility", "last"),
        "pii": rows_of(report, "nll", "nll", of="pii"),
    }
    outcomes = {
        k: {n: r for n, r in v.items() if r.value is not None}
        for k, v in outcomes.items()
    }
    shown_rows = {k: v for k, v in outcomes.items() if v}
    known = {name for rows in shown_rows.values() for name in rows}
    found = sweeps({n: s for n, s in settings_of(report).items() if n in known})
    if not found:
        return None
    names = {n for sweep in found for group in sweep.groups for _, n in group}
    shown_rows = {
        k: {n: r for n, r in v.items() if n in names} for k, v in shown_rows.items()
    }
    shown_rows = {k: v for k, v in shown_rows.items() if v}
    look = looks(report)
    shown = [look[name] for name in look if name in names]
    rows = [row for some in shown_rows.values() for row in some.values()]
    further = notes_of(rows)
    if any(sweep.held is not None for sweep in found):
        dashed = Line2D([], [], color=INK, linestyle="--", linewidth=1)
        further = [*further, (dashed, HELD)]
    across = min(MOST, len(found))
    across = -(-len(found) // -(-len(found) // across))
    bands = -(-len(found) // across)
    width = {1: 3.6, 2: 5.2}.get(across, WIDTH)
    tall = len(shown_rows) * 1.35 + 0.45
    figure = canvas(
        bands * tall
        + 0.1
        + names_height(shown, further=[label for _, label in further], width=width),
        width=width,
    )
    grid = figure.subplots(bands * len(shown_rows), across, squeeze=False, sharey="row")
    for place, sweep in enumerate(found):
        band, column = divmod(place, across)
        for level, (outcome, values) in enumerate(shown_rows.items()):
            axes = grid[band * len(shown_rows) + level, column]
            _panel(axes, sweep, values, look)
            if column == 0:
                axes.set_ylabel(OUTCOMES[outcome])
            axes.tick_params(labelbottom=level == len(shown_rows) - 1)
            if level == len(shown_rows) - 1:
                axes.set_xlabel(wrapped(sweep.setting, width=22))
    for place in range(len(found), bands * across):
        band, column = divmod(place, across)
        for level in range(len(shown_rows)):
            grid[band * len(shown_rows) + level, column].remove()
    names_legend(figure, shown, line=False, further=further)
    return Drawing(
        name="sweep",
        audit="training",
        title="Sensitivity to settings",
        caption=(
            "Runs that agree in every recorded setting but the one below each panel, "
            "training seed apart. "
            + intervals_said(rows)
            + " The NLL of identifiers is not matched in difficulty: it may rise by "
            "drift alone." + replicates_said(report)
        ),
        alt=_alt(found, shown_rows),
        figure=figure,
    )


def settings_of(report: Report) -> dict[str, Settings]:
    """Entry -> what its run was set to, without what its replicates differ in."""
    found: dict[str, Settings] = {}
    for entry, members in records_of(report, "run_settings").items():
        runs = [
            {r["setting"]: r.get("value") for r in records if r.get("setting")}
            for records in members.values()
        ]
        for run in runs:
            for name in APART:
                run.pop(name, None)
        # Replicates that differ in more than their seed are no point of a sweep.
        if all(run == runs[0] for run in runs):
            found[entry] = runs[0]
    return found


def sweeps(settings: dict[str, Settings]) -> list[_Sweep]:
    """Settings for which some runs differ in nothing else."""
    names = list(dict.fromkeys(name for run in settings.values() for name in run))
    found = []
    for name in names:
        groups: dict[Hashable, list[tuple[float, str]]] = {}
        kinds = set()
        for checkpoint, run in settings.items():
            value = run.get(name)
            if not isinstance(value, bool | int | float):
                continue
            kinds.add(isinstance(value, bool))
            rest = frozenset((k, repr(v)) for k, v in run.items() if k != name)
            groups.setdefault(rest, []).append((float(value), checkpoint))
        varied = [sorted(g) for g in groups.values() if len({v for v, _ in g}) > 1]
        if varied and len(kinds) == 1:
            found.append(_Sweep(name, varied, switch=kinds.pop()))
    return [_with_held(sweep, found, settings) for sweep in found]


def _with_held(
    sweep: _Sweep, every: list[_Sweep], settings: dict[str, Settings]
) -> _Sweep:
    """The value that all other sweeps were made at, if it is one."""
    values = {
        settings[name].get(sweep.setting)
        for other in every
        if other is not sweep
        for group in other.groups
        for _, name in group
    }
    value = values.pop() if len(values) == 1 else None
    known = isinstance(value, bool | int | float) and float(value) in sweep.values
    held = float(value) if known and isinstance(value, bool | int | float) else None
    return _Sweep(sweep.setting, sweep.groups, switch=sweep.switch, held=held)


def _panel(
    axes: Axes, sweep: _Sweep, rows: dict[str, Row], look: dict[str, Look]
) -> None:
    values = sweep.values
    positive = [value for value in values if value > 0]
    log = len(positive) == len(values) and values[-1] / values[0] > WIDE
    even = sweep.switch or (not log and _crowded(values))
    for group in sweep.groups:
        points = [
            (float(values.index(value)) if even else value, name)
            for value, name in group
            if name in rows
        ]
        means: dict[float, list[float]] = {}
        for at, name in points:
            means.setdefault(at, []).append(rows[name].value or 0.0)
        axes.plot(
            list(means),
            [sum(found) / len(found) for found in means.values()],
            color=MUTED,
            linewidth=1,
            zorder=1.5,
        )
        for at, name in points:
            cross(axes, look[name], Mark(at), Mark.of(rows[name]))
    if log:
        axes.set_xscale("log")
        ticked(axes.xaxis)
    elif even:
        labels = (
            ["off" if not v else "on" for v in values]
            if sweep.switch
            else [f"{v:g}" for v in values]
        )
        axes.set_xticks(range(len(values)), labels)
    if even:
        axes.set_xlim(-0.4, len(values) - 0.6)
    if sweep.held is not None:
        at = float(values.index(sweep.held)) if even else sweep.held
        axes.axvline(at, color=INK, linestyle="--", linewidth=1, zorder=1)
    tidy(axes, grid="y")


def _crowded(values: list[float]) -> bool:
    """Whether neighbours stand so near on a linear axis that their marks touch."""
    steps = [b - a for a, b in zip(values, values[1:], strict=False)]
    return min(steps) < 0.08 * (values[-1] - values[0])


def _alt(found: list[_Sweep], rows: dict[str, dict[str, Row]]) -> str:
    said = []
    for sweep in found:
        first = sweep.groups[0]
        for outcome, values in rows.items():
            known = [(v, values[n].value) for v, n in first if n in values]
            if len(known) > 1:
                word = "Last" if outcome == "last" else "NLL of identifiers"
                said.append(
                    f"{sweep.setting} from {known[0][0]:g} to {known[-1][0]:g}: {word} "
                    f"from {number(known[0][1])} to {number(known[-1][1])}"
                )
    return f"Line plots of outcomes against settings; {'; '.join(said)}."

"""Utility and suppression against a setting that runs differ in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Curve, Curves, Panel, ends, wide
from spark_audit.report.figures.entries import estimable, means, records_of, rows_of
from spark_audit.report.figures.picture import (
    DASHED,
    WIDTH,
    Look,
    grid_of,
    looks,
    wrapped,
)
from spark_audit.results import Report, Row

APART = ("seed",)
"""Settings in which replicates may differ."""
RATIO = 15.0
"""Of the largest to the smallest value from which an axis is logarithmic."""
OUTCOMES = {
    "Last": "Last accuracy\n(higher = better)",
    "NLL of identifiers": "NLL of identifiers,\nnats (higher = less likely)",
}
JOINT = Look(width=1.0)

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

    @property
    def names(self) -> set[str]:
        return {name for group in self.groups for _, name in group}


@FIGURES.register(order=130)
def draw(report: Report) -> Curves | None:
    """Last accuracy and NLL of identifiers against each setting that was varied."""
    outcomes = {
        "Last": estimable(rows_of(report, "utility", "last")),
        "NLL of identifiers": estimable(rows_of(report, "nll", "nll", of="pii")),
    }
    known = {name for rows in outcomes.values() for name in rows}
    found = _sweeps({n: s for n, s in _settings(report).items() if n in known})
    if not found:
        return None
    names = {name for sweep in found for name in sweep.names}
    outcomes = {k: rows for k, rows in outcomes.items() if names & set(rows)}
    look = looks(report, dashes="none", size=6.0)
    across = grid_of(len(found), most=4)[1]
    panels: list[Panel | None] = []
    for start in range(0, len(found), across):
        band = found[start : start + across]
        for level, (outcome, rows) in enumerate(outcomes.items(), start=1):
            lowest = level == len(outcomes)
            drawn = [_panel(s, outcome, rows, look, lowest=lowest) for s in band]
            label = Axis(OUTCOMES[outcome])
            panels += [replace(drawn[0], y=label), *drawn[1:]]
            panels += [None] * (across - len(band))
    held = any(sweep.held is not None for sweep in found)
    return Curves(
        audit="training",
        title="Sensitivity to settings",
        caption="Runs that agree in every recorded setting but the one below each "
        "panel, training seed apart.",
        remark="The NLL of identifiers is not matched in difficulty: it may rise by "
        "drift alone.",
        shows="Plots of outcomes against settings, at the lowest and at the "
        "highest value",
        tells=ends,
        panels=panels,
        most=across,
        tall=1.4,
        share="row",
        grid="y",
        names=[look[name] for name in look if name in names],
        keys={"value held in the other panels": DASHED} if held else {},
        width={1: 3.6, 2: 5.2}.get(across, WIDTH),
    )


def _settings(report: Report) -> dict[str, Settings]:
    """Entry -> what its run was set to, without what its replicates differ in."""
    found: dict[str, Settings] = {}
    for entry, members in records_of(report, "run_settings").items():
        runs = [
            {
                r["setting"]: r.get("value")
                for r in records
                if r.get("setting") and r["setting"] not in APART
            }
            for records in members.values()
        ]
        # Replicates that differ in more than their seed are no point of a sweep.
        if all(run == runs[0] for run in runs):
            found[entry] = runs[0]
    return found


def _sweeps(settings: dict[str, Settings]) -> list[_Sweep]:
    """Settings for which some runs differ in nothing else."""
    found = []
    for name in dict.fromkeys(name for run in settings.values() for name in run):
        groups: dict[Hashable, list[tuple[float, str]]] = {}
        kinds = set()
        for checkpoint, run in settings.items():
            value = run.get(name)
            if isinstance(value, bool | int | float):
                kinds.add(isinstance(value, bool))
                rest = frozenset((k, repr(v)) for k, v in run.items() if k != name)
                groups.setdefault(rest, []).append((float(value), checkpoint))
        varied = [sorted(g) for g in groups.values() if len({v for v, _ in g}) > 1]
        if varied and len(kinds) == 1:
            found.append(_Sweep(name, varied, switch=kinds.pop()))
    return [replace(sweep, held=_held(sweep, found, settings)) for sweep in found]


def _held(
    sweep: _Sweep, every: list[_Sweep], settings: dict[str, Settings]
) -> float | None:
    """The value that all other sweeps were made at, if it is one."""
    others = {name for other in every if other is not sweep for name in other.names}
    values = {settings[name].get(sweep.setting) for name in others}
    value = values.pop() if len(values) == 1 else None
    if isinstance(value, bool | int | float) and float(value) in sweep.values:
        return float(value)
    return None


def _panel(
    sweep: _Sweep,
    outcome: str,
    rows: dict[str, Row],
    look: dict[str, Look],
    *,
    lowest: bool,
) -> Panel:
    values = sweep.values
    log = wide(values, ratio=RATIO)
    # Neighbours whose marks would touch on a linear axis stand at even steps.
    least = min(b - a for a, b in zip(values, values[1:], strict=False))
    crowded = least < 0.08 * (values[-1] - values[0])
    even = sweep.switch or (not log and crowded)

    def at(value: float) -> float:
        return float(values.index(value)) if even else value

    curves = []
    for group in sweep.groups:
        points = [(at(value), name) for value, name in group if name in rows]
        joint = means((x, rows[name].value or 0.0) for x, name in points)
        label = f"{sweep.setting}, {outcome}"
        # Between off and on there is nothing, so nothing is drawn there.
        line = replace(JOINT, dashes="none") if sweep.switch else JOINT
        curves.append(Curve(line, list(joint), list(joint.values()), label))
        curves += [Curve(look[n], [x], [rows[n]], told=False) for x, n in points]
    words = ("off", "on") if sweep.switch else tuple(f"{v:g}" for v in values)
    axis = Axis(
        wrapped(sweep.setting, width=22) if lowest else "",
        "log" if log else "linear",
        (-0.4, len(values) - 0.6) if even else (None, None),
        dict(enumerate(words)) if even else None,
    )
    held = [] if sweep.held is None else [("x", at(sweep.held), DASHED)]
    return Panel(curves, x=axis, references=held)

"""Where the time of each training run went."""

from __future__ import annotations

from itertools import accumulate

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import known, records_of
from spark_audit.report.figures.forest import Forest
from spark_audit.report.figures.forest_marks import Line, Mark, Section
from spark_audit.report.figures.picture import Look, looks, plain, wrapped
from spark_audit.report.figures.theme import INK, MUTED
from spark_audit.results import Report

CORRECTION = "correction (all its work)"
OTHER = "other"
WORK = {
    "task": "learning the task",
    "start": "preparation",
    "end": "importance of weights",
    "gradients": "gradients of the memory",
    "penalty": "penalties on weights",
    "optimizer": "optimiser steps",
    "answers": "answers after each stage",
}
"""What readers see for a kind of work; any other goes by its own name."""
FEW = 0.02
"""Share of all time below which a kind of work is not told apart."""
MOST = 5
"""Kinds of work beside the correction that are told apart."""
UNITS = (("hours", 3600.0, 3.0), ("minutes", 60.0, 3.0), ("seconds", 1.0, 0.0))
# Colours are those of checkpoints.
FILLS = tuple(
    Look("", MUTED, hatch=hatch, area=True, hollow=hollow)
    for hatch, hollow in (
        *(("", False), ("///", False), ("///", True)),
        *(("xxx", True), ("|||", True), ("", True)),
    )
)
TOP = Look("", INK, area=True)


@FIGURES.register(order=150)
def draw(report: Report) -> Forest | None:
    """A stacked bar a run; the share of the correction beside it."""
    runs: dict[str, dict[str, float]] = {}
    totals: dict[str, float] = {}
    for name, members in records_of(report, "run_time").items():
        for record in known((r for rs in members.values() for r in rs), "seconds"):
            kind = str(record.get("work") or OTHER)
            kind = CORRECTION if record.get("part") == "priv" else WORK.get(kind, kind)
            seconds = record["seconds"] / len(members)
            work = runs.setdefault(name, {})
            work[kind] = work.get(kind, 0.0) + seconds
            totals[kind] = totals.get(kind, 0.0) + seconds
    runs = {name: work for name, work in runs.items() if sum(work.values()) > 0}
    if not runs:
        return None
    kinds = sorted((k for k in totals if k != CORRECTION), key=lambda k: -totals[k])
    told = [k for k in kinds if totals[k] >= FEW * sum(totals.values())][:MOST]
    for work in runs.values():
        small = [work.pop(kind, 0.0) for kind in kinds if kind not in told]
        work[OTHER] = sum(small) + work.get(OTHER, 0.0)
    fills = dict(zip([*told, OTHER], FILLS, strict=False)) | {CORRECTION: TOP}
    fills = {k: v for k, v in fills.items() if any(w.get(k) for w in runs.values())}
    longest = max(sum(work.values()) for work in runs.values())
    unit, size, _ = next(u for u in UNITS if longest / u[1] >= u[2])
    look = looks(report)
    lines = []
    for name, work in runs.items():
        lengths = {k: work[k] / size for k in fills if work.get(k)}
        starts = accumulate(lengths.values(), initial=0.0)
        bars = [
            Mark(start + length, start=start, look=fills[kind])
            for start, (kind, length) in zip(starts, lengths.items(), strict=False)
        ]
        share = plain(100 * work.get(CORRECTION, 0.0) / sum(work.values()), 1)
        text = f"{share}% correction" if work.get(CORRECTION) else "no correction"
        lines.append(Line(wrapped(name), look[name], bars, text=text))
    return Forest(
        audit="training",
        title="Time by kind of work",
        caption="Wall-clock time of each training run by kind of work, and at the "
        "right the share of the correction. Measured on one machine while other work "
        "may have run beside it.",
        shows=f"Stacked bars of training time in {unit}",
        sections=[Section(lines, label=f"wall-clock time of the run, {unit}")],
        keys=fills,
        digits=1,
    )

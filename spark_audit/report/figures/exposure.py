"""Exposure of canaries against how often they were in the training rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from spark_audit.report.figures.curves import Axis, Band, Curve, Curves, Panel, Value
from spark_audit.report.figures.entries import known, means, records_of
from spark_audit.report.figures.picture import (
    AREA,
    DASHED,
    DOTTED,
    Look,
    looks,
    spanned,
)
from spark_audit.results import Report, Row
from spark_audit.sentences import optional, render

Records = list[dict[str, Any]]
Dose = tuple[bool, float]
"""Whether it was trained on, and how often."""


def draw(report: Report) -> Curves | None:
    """Mean exposure by dose, a panel a part, held-out canaries apart."""
    runs: dict[str, list[Records]] = {}
    for name, members in records_of(report, "canary_by_dose").items():
        columns = ("part", "dose", "exposure_mean")
        several = [mine for some in members.values() if (mine := known(some, *columns))]
        if several:
            runs[name] = several
    if not runs:
        return None
    every = [r for several in runs.values() for some in several for r in some]
    places = _places({_dose(record) for record in every})
    gap = min((b - a for a, b in pairwise(places.values())), default=1.0)
    tops = {r["exposure_most"] for r in known(every, "exposure_most")}
    capped = known(report.tables.get("canary_extrapolated", []), "capped_exposure")
    top = max(tops | {r["capped_exposure"] for r in capped}, default=None)
    look = looks(report, width=1.0)
    panels = [
        _panel(part, runs, look, places=places, top=top)
        for part in dict.fromkeys(record["part"] for record in every)
    ]
    return Curves(
        audit="canary",
        panels=panels,
        dodge=0.72 * gap,
        most=1,
        tall=1.5,
        grid="y",
        names=[look[name] for name in runs],
        keys={render("figure.exposure.chance"): AREA}
        | ({} if top is None else {render("figure.exposure.ceiling"): DASHED}),
        digits=1,
    )


def _dose(record: dict[str, Any]) -> Dose:
    return not record.get("held_out", False), float(record["dose"])


def _places(doses: Iterable[Dose]) -> dict[Dose, float]:
    """Where doses stand: at their logarithm; a step to the left what was held out."""
    trained = {dose: math.log2(max(dose[1], 0.5)) for dose in doses if dose[0]}
    left = min(trained.values(), default=0.0) - 1.0
    held = {dose: left for dose in doses if not dose[0]}
    return dict(sorted((held | trained).items()))


def _panel(
    part: str,
    runs: dict[str, list[Records]],
    look: dict[str, Look],
    *,
    places: dict[Dose, float],
    top: float | None,
) -> Panel:
    mine = {
        name: [[r for r in some if r["part"] == part] for some in several]
        for name, several in runs.items()
    }
    every = [r for several in mine.values() for some in several for r in some]
    at = list(places.values())
    edges = [at[0] - 0.5, *((a + b) / 2 for a, b in pairwise(at)), at[-1] + 0.5]
    bands, ticks = [], {}
    for place, (dose, x) in enumerate(places.items()):
        records = [record for record in every if _dose(record) == dose]
        bounds = known(records, "chance_exposure_low", "chance_exposure_high")
        if bounds:
            low = min(record["chance_exposure_low"] for record in bounds)
            high = max(record["chance_exposure_high"] for record in bounds)
            bands.append(Band(edges[place : place + 2], [low] * 2, [high] * 2))
        sizes = {record["canaries"] for record in known(records, "canaries")}
        label = f"{dose[1]:g}" if dose[0] else render("figure.exposure.held_out")
        ticks[x] = f"{label}\nn {spanned(sizes)}" if sizes else label
    curves = [
        curve
        for name, several in mine.items()
        for curve in _curves(look[name], several, places)
    ]
    held_out = [x for dose, x in places.items() if not dose[0]]
    apart = [("x", held_out[-1] + 0.5, DOTTED)] if 0 < len(held_out) < len(at) else []
    ceiling = [] if top is None else [("y", top, DASHED)]
    return Panel(
        curves,
        optional(f"figure.exposure.{part}") or part,
        x=Axis(limits=(edges[0], edges[-1]), ticks=ticks),
        bands=bands,
        references=[*apart, *ceiling],
    )


def _curves(
    look: Look, several: list[Records], places: dict[Dose, float]
) -> list[Curve]:
    """What was held out as marks, what was trained on as a line; means over seeds."""
    every = [record for records in several for record in records]
    values: dict[Dose, Value] = dict(
        means(sorted((_dose(r), r["exposure_mean"]) for r in every))
    )
    seeds = [records for records in several if records]
    if len(seeds) == 1 and known(every, "exposure_low", "exposure_high"):
        # The interval of a mean over seeds is not that of one of them.
        values = {_dose(r): _row(look.name, r) for r in every}
    found = []
    for trained, dashes in ((False, "none"), (True, look.dashes)):
        own = {dose: at for dose, at in sorted(values.items()) if dose[0] is trained}
        x = [places[dose] for dose in own]
        told = bool(own) and max(values)[0] is trained
        found.append(
            Curve(replace(look, dashes=dashes), x, list(own.values()), told=told)
        )
    return found


def _row(name: str, record: dict[str, Any]) -> Row:
    return Row(
        audit="canary",
        checkpoint=name,
        metric="exposure_mean",
        value=record["exposure_mean"],
        low=record.get("exposure_low"),
        high=record.get("exposure_high"),
    )

"""Exposure of canaries against how often they were in the training rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Band, Curve, Curves, Panel
from spark_audit.report.figures.entries import known, means, records_of
from spark_audit.report.figures.picture import AREA, DOTTED, Look, looks
from spark_audit.results import Report

MANY = 5
"""Checkpoints from which a part takes the whole width."""

Records = list[dict[str, Any]]


@FIGURES.register(order=80)
def draw(report: Report) -> Curves | None:
    """Mean exposure by dose, a panel a part, held-out canaries apart."""
    runs: dict[str, Records] = {}
    for name, members in records_of(report, "canary_by_dose").items():
        records = [record for some in members.values() for record in some]
        if records := known(records, "part", "dose", "exposure_mean"):
            runs[name] = records
    if not runs:
        return None
    parts = dict.fromkeys(record["part"] for some in runs.values() for record in some)
    look = looks(report, width=1.0)
    panels = []
    for part in parts:
        mine = {n: [r for r in some if r["part"] == part] for n, some in runs.items()}
        panels.append(_panel(part, {n: some for n, some in mine.items() if some}, look))
    return Curves(
        audit="canary",
        title="Exposure against dose",
        caption="Mean exposure of the planted canaries, by part and by how many "
        "training rows they stood in; canaries that were held out (left of the dotted "
        "line) were never trained on. Within the grey band are 95% of the means that a "
        "model gives that remembers nothing: it is as wide as the canaries are few.",
        shows="Mean exposure by dose; at the highest dose, in bits",
        panels=panels,
        share="all",
        dodge=0.72,
        most=3 if len(runs) < MANY else 1,
        grid="y",
        names=[look[name] for name in runs],
        keys={"chance: 95% of what guessing gives": AREA},
        label="dose: training rows that a canary stood in",
        side="mean exposure, bits\n(higher = more remembered)",
        digits=1,
    )


def _dose(record: dict[str, Any]) -> tuple[bool, float]:
    """Whether it was trained on, and how often."""
    return not record.get("held_out", False), float(record["dose"])


def _panel(part: str, runs: dict[str, Records], look: dict[str, Look]) -> Panel:
    every = [record for records in runs.values() for record in records]
    doses = sorted({_dose(record) for record in every})
    bands = []
    for place, dose in enumerate(doses):
        mine = [record for record in every if _dose(record) == dose]
        bounds = known(mine, "chance_exposure_low", "chance_exposure_high")
        if bounds:
            low = min(record["chance_exposure_low"] for record in bounds)
            high = max(record["chance_exposure_high"] for record in bounds)
            bands.append(Band([place - 0.5, place + 0.5], [low] * 2, [high] * 2))
    held_out = sum(not trained for trained, _ in doses)
    curves = []
    for name, records in runs.items():
        exposures = means(sorted((_dose(r), r["exposure_mean"]) for r in records))
        top = max(exposures)[0]
        for trained, style in ((False, "none"), (True, look[name].dashes)):
            means_at = {d: at for d, at in exposures.items() if d[0] is trained}
            places = [doses.index(dose) for dose in means_at]
            own = replace(look[name], dashes=style)
            values = list(means_at.values())
            curves.append(Curve(own, places, values, told=trained is top))
    ticks: dict[float, str] = {
        place: f"{dose:g}" if trained else "held out"
        for place, (trained, dose) in enumerate(doses)
    }
    apart = [("x", held_out - 0.5, DOTTED)] if 0 < held_out < len(doses) else []
    return Panel(
        curves,
        part,
        x=Axis(limits=(-0.5, len(doses) - 0.5), ticks=ticks),
        bands=bands,
        references=apart,
    )

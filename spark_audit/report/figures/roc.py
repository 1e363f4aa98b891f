"""Log-log ROC curves of the membership scores, with what chance gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_audit.audits.contract import carriers
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Band, Curve, Curves, Panel, first
from spark_audit.report.figures.entries import known, records_of
from spark_audit.report.figures.picture import AREA, WIDTH, Look, grid_of, looks
from spark_audit.results import Report

LEAST = 1e-4
DIAGONAL = Look(width=0.9)

Points = list[dict[str, Any]]


@FIGURES.register(order=90)
def draw(report: Report) -> Curves | None:
    """True against false positive rate, both on log axes, a panel a score."""
    entries = records_of(report, "mia_roc")
    scores: dict[str, dict[str, list[Points]]] = {}
    for name, members in entries.items():
        for records in members.values():
            points = known(records, "of", "fpr", "tpr")
            for score in dict.fromkeys(record["of"] for record in points):
                mine = [r for r in points if r["of"] == score and r["fpr"] > 0]
                if any(record["tpr"] > 0 for record in mine):
                    scores.setdefault(score, {}).setdefault(name, []).append(mine)
    if not scores:
        return None
    resting = carriers(report.findings, "mia")
    # Those that the verdict rests on come first.
    order = sorted(scores, key=lambda score: score not in resting.values())
    look = looks(report, size=3.5)
    curves = [c for runs in scores.values() for some in runs.values() for c in some]
    floor = max(LEAST, min(r["fpr"] for curve in curves for r in curve) * 0.8)
    panels = [
        _panel(f"{s} (verdict)" * (s in resting.values()) or s, scores[s], look, floor)
        for s in order
    ]
    across = grid_of(len(scores), most=3)[1]
    width = {1: 3.9, 2: 5.4}.get(across, WIDTH)
    by_score: dict[str, list[str]] = {}
    for name, score in resting.items():
        by_score.setdefault(score, []).append(name)
    told = [f"{score} ({', '.join(names)})" for score, names in by_score.items()]
    shown = {name for runs in scores.values() for name in runs}
    several = any(len(some) > 1 for runs in scores.values() for some in runs.values())
    return Curves(
        audit="mia",
        title="ROC of membership scores",
        caption="Members are train rows, non-members test rows; rates are means over "
        "tasks. Curves begin where one non-member of the smallest task is a false "
        "positive. Within the band are 95% of the rates of a score that knows nothing.",
        remark=f"The verdict rests on {', '.join(told)}." if told else "",
        shows="ROC curves on log axes; the first true positive rate above 0",
        tells=first,
        panels=panels,
        share="all",
        tall=(width - 0.6) / across - 0.1,
        names=[look[name] for name in entries if name in shown],
        keys={"TPR = FPR": DIAGONAL, "chance: 95% of blind scores": AREA},
        label="false positive rate",
        side="true positive rate (higher = more leaks)",
        width=width,
        apart="a curve" if several else "",
    )


def _panel(
    title: str, runs: dict[str, list[Points]], look: dict[str, Look], floor: float
) -> Panel:
    bounds = [
        known(curve, "chance_low", "chance_high")
        for some in runs.values()
        for curve in some
    ]
    chance = max(bounds, key=len)
    low, high = (
        [max(r[side], floor) for r in chance] for side in ("chance_low", "chance_high")
    )
    curves = []
    for name, some in runs.items():
        style = replace(look[name], width=0.9 if len(some) > 1 else 1.4)
        for curve in some:
            points = [(r["fpr"], r["tpr"]) for r in curve if r["tpr"] > 0]
            every = slice(None, None, max(1, len(points) // 4))
            x, y = zip(*points, strict=True)
            curves.append(Curve(style, x, y, step=True, every=every))
    return Panel(
        curves,
        title,
        x=Axis(scale="log", limits=(floor, 1.0)),
        y=Axis(scale="log", limits=(floor, 1.15)),
        bands=[Band([r["fpr"] for r in chance], low, high, "post")] if chance else [],
        references=[("diagonal", floor, DIAGONAL)],
    )

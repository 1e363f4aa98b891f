"""Log-log ROC curves of the membership scores, with what chance gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_audit.audits.claims import carriers
from spark_audit.names import BASE
from spark_audit.report.figures.curves import Axis, Band, Curve, Curves, Panel, first
from spark_audit.report.figures.entries import known, records_of, rows_of
from spark_audit.report.figures.picture import (
    AREA,
    DOTTED,
    WIDTH,
    Look,
    grid_of,
    looks,
    wrapped,
)
from spark_audit.report.figures.theme import INK
from spark_audit.results import Report
from spark_audit.sentences import render, translated

LEAST = 1e-4
FEW = 0.05
"""False positive rate of the tables' true positive rates."""
DIAGONAL = Look(width=0.9)
OTHER = Look(width=0.7, alpha=0.6)
BEFORE = Look(colour=INK, dashes=(0, (3, 1.2)), width=1.0)
Points = list[dict[str, Any]]
Runs = dict[str, dict[str, list[Points]]]
"""Entry -> score -> the curve of each seed."""


def draw(report: Report) -> Curves | None:
    """True against false positive rate, both on log axes, a panel a checkpoint."""
    runs = _runs(report)
    if not runs:
        return None
    resting = carriers(report.findings, "mia")
    chosen = _chosen(runs, resting)
    look = looks(report, size=3.5)
    every = [c for own in runs.values() for some in own.values() for c in some]
    floor = max(LEAST, min(r["fpr"] for curve in every for r in curve) * 0.8)
    before = runs.get(BASE, {})
    panels = []
    for name, own in runs.items():
        score = chosen[name]
        row = rows_of(report, "mia", "auc", of=score).get(name)
        n = f", n {row.n}" if row is not None and row.n else ""
        told = wrapped(f"{translated('score', score)}{n}", width=28)
        title = f"{wrapped(name, width=24)}: \n{told}"
        behind = before.get(score, []) if name != BASE else []
        panels.append(_panel(title, own, score, look[name], behind, floor=floor))
    across = grid_of(len(runs), most=3)[1]
    width = {1: 3.9, 2: 5.4}.get(across, WIDTH)
    several = any(len(some) > 1 for own in runs.values() for some in own.values())
    keys = {
        "score": Look(marker="o", size=3.5),
        "base": BEFORE,
        "others": OTHER,
        "diagonal": DIAGONAL,
        "few": DOTTED,
        "chance": AREA,
    }
    if not any(before.get(chosen[name]) for name in runs if name != BASE):
        del keys["base"]
    by_score: dict[str, list[str]] = {}
    for name, score in resting.items():
        by_score.setdefault(translated("score", score), []).append(name)
    facts = {"resting": by_score, "few": f"{100 * FEW:g}"}
    return Curves(
        audit="mia",
        facts=facts,
        tells=first,
        panels=panels,
        tall=(width - 0.6) / across - 0.1,
        keys={render(f"figure.roc.{key}", **facts): keys[key] for key in keys},
        width=width,
        apart=several,
    )


def _runs(report: Report) -> Runs:
    """Curves that have a true positive before everything is called one."""
    found: Runs = {}
    for name, members in records_of(report, "mia_roc").items():
        for records in members.values():
            points = known(records, "of", "fpr", "tpr")
            for score in dict.fromkeys(record["of"] for record in points):
                mine = [r for r in points if r["of"] == score and r["fpr"] > 0]
                if any(record["tpr"] > 0 for record in mine):
                    found.setdefault(name, {}).setdefault(score, []).append(mine)
    return found


def _chosen(runs: Runs, resting: Mapping[str, str]) -> dict[str, str]:
    """The score of each panel: what its finding rests on, else what others' do."""
    found = {}
    for name, own in runs.items():
        wanted = [resting.get(name), *resting.values(), *own]
        found[name] = next(s for s in wanted if s is not None and s in own)
    return found


def _panel(
    title: str,
    own: dict[str, list[Points]],
    score: str,
    look: Look,
    before: list[Points],
    *,
    floor: float,
) -> Panel:
    every = [curve for some in own.values() for curve in some]
    chance = max((known(c, "chance_low", "chance_high") for c in every), key=len)
    low, high = (
        [max(r[side], floor) for r in chance] for side in ("chance_low", "chance_high")
    )
    grey = replace(OTHER, name=look.name)
    style = replace(look, dashes="-", width=1.0 if len(own[score]) > 1 else 1.8)
    curves = [_curve(c, grey) for s in own if s != score for c in own[s]]
    curves += [_curve(c, BEFORE) for c in before]
    curves += [_curve(c, style) for c in own[score]]
    return Panel(
        curves,
        title,
        look,
        x=Axis(scale="log", limits=(floor, 1.0)),
        y=Axis(scale="log", limits=(floor, 1.15)),
        bands=[Band([r["fpr"] for r in chance], low, high, "post")] if chance else [],
        references=[("diagonal", floor, DIAGONAL), ("x", FEW, DOTTED)],
    )


def _curve(curve: Points, look: Look) -> Curve:
    points = [(r["fpr"], r["tpr"]) for r in curve if r["tpr"] > 0]
    x, y = zip(*points, strict=True)
    every = slice(None, None, max(1, len(points) // 4))
    told = bool(look.name) and look.marker != "none"
    return Curve(look, x, y, told=told, step=True, every=every)

"""Last, Avg and BWT of every checkpoint as bars with intervals."""

from __future__ import annotations

from dataclasses import replace

from spark_audit.audits import Utility
from spark_audit.report.figures.entries import estimable, rows_of
from spark_audit.report.figures.forest import Forest
from spark_audit.report.figures.forest_marks import Line, Mark, Section
from spark_audit.report.figures.picture import DOTTED, ZERO, Look, looks, wrapped
from spark_audit.report.figures.theme import INK
from spark_audit.results import Report

SHOWN = ("last", "avg", "bwt")
UNIT = "share of answers right"
CHANCE = replace(DOTTED, colour=INK, width=1.2)


def draw(report: Report) -> Forest | None:
    """One panel a figure of continual learning, one bar a checkpoint."""
    metrics = {metric: rows_of(report, "utility", metric) for metric in SHOWN}
    missing = [_label(m) for m, rows in metrics.items() if rows and not estimable(rows)]
    metrics = {metric: rows for metric, rows in metrics.items() if estimable(rows)}
    if not metrics:
        return None
    look = looks(report)
    # The accuracy of a constant answer, where it is the same for all.
    nulls = {row.null for row in estimable(metrics.get("last", {})).values()}
    chance: dict[float, Look] = {}
    if len(nulls) == 1 and None not in nulls:
        chance = {at: CHANCE for at in nulls if at is not None}
    sections = []
    for metric, rows in metrics.items():
        signed = metric == "bwt"
        lines = [
            Line(wrapped(name), look[name], [Mark.of(rows.get(name), start=0.0)])
            for name in dict.fromkeys(n for some in metrics.values() for n in some)
        ]
        section = Section(
            lines,
            _label(metric),
            label="change of that share\n(higher = better)"
            if signed
            else f"{UNIT}\n(higher = better)",
            limits=None if signed else (0.0, 1.02),
            ticks=None if signed else (0.0, 0.5, 1.0),
            references={0.0: ZERO} | (chance if metric == "last" else {}),
        )
        sections.append(section)
    gone = f"Not estimable for any checkpoint: {', '.join(missing)}."
    return Forest(
        audit="utility",
        title="Utility",
        caption="Accuracy over the tasks after the last one (Last), its mean over all "
        "stages (Avg), and the change of earlier tasks by later ones (BWT, below 0: "
        "forgotten).",
        remark=gone if missing else "",
        shows="Bars of continual-learning accuracy",
        sections=sections,
        most=3,
        keys={"the most frequent answer": CHANCE} if chance else {},
    )


def _label(metric: str) -> str:
    return Utility.metric(metric).label

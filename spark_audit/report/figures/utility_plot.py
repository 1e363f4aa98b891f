"""Last, Avg and BWT of every checkpoint with intervals."""

from __future__ import annotations

from dataclasses import replace

from spark_audit.audits import label
from spark_audit.report.figures.entries import estimable, rows_of
from spark_audit.report.figures.forest import Line, Section, forest, words_of
from spark_audit.report.figures.panel import DOTTED, ZERO, Axis, looks, wrapped
from spark_audit.report.figures.picture import Picture
from spark_audit.report.figures.theme import INK
from spark_audit.results import Report
from spark_audit.sentences import render

SHOWN = ("last", "avg", "bwt")
CHANCE = replace(DOTTED, colour=INK, width=1.2)


def draw(report: Report) -> Picture | None:
    """One section a figure of continual learning, one line a checkpoint."""
    metrics = {metric: rows_of(report, "utility", metric) for metric in SHOWN}
    look, sections, missing = looks(report), [], []
    # The accuracy of a constant answer, where it is the same for all.
    nulls = {row.null for row in estimable(metrics["last"]).values()}
    chance = {at: CHANCE for at in nulls if at is not None and len(nulls) == 1}
    for metric, rows in metrics.items():
        title, signed = label("utility", metric), metric == "bwt"
        if rows and not estimable(rows):
            missing.append(title)
        elif rows:
            unit = render(f"figure.utility.{'change' if signed else 'share'}")
            axis = Axis(wrapped(unit, width=42))
            if not signed:
                ticks = {at: f"{at:g}" for at in (0.0, 0.5, 1.0)}
                axis = replace(axis, limits=(0.0, 1.02), ticks=ticks)
            lines = [
                Line(wrapped(k), look[k], [row], words_of(row))
                for k, row in rows.items()
            ]
            marked = {0.0: ZERO} | (chance if metric == "last" else {})
            sections.append(Section(lines, title, axis, marked))
    if not sections:
        return None
    return forest(
        sections,
        audit="utility",
        facts={"missing": missing},
        keys={render("figure.utility.chance"): CHANCE} if chance else {},
    )

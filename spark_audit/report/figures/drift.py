"""Suppression of identifiers against drift of other text."""

from __future__ import annotations

from dataclasses import replace

from spark_audit.audits.contract import BASE
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Curve, Curves, Panel, position
from spark_audit.report.figures.entries import contrasts_of, estimable, rows_of
from spark_audit.report.figures.picture import Look, looks
from spark_audit.results import Report, Row

DIAGONAL = Look(dashes="--", width=1.0)
THIN = Look(width=0.6)
CROSS = Look(marker="+", size=9, dashes="none")


@FIGURES.register(order=50)
def draw(report: Report) -> Curves | None:
    """Change of the NLL of identifiers against that of low-sensitivity text."""
    pii, paired = _changes(report, "pii")
    low, _ = _changes(report, "low")
    shown = [name for name in estimable(pii) if name in estimable(low)]
    if not shown:
        return None
    look = looks(report, dashes="none", size=6.0)
    points = [Curve(look[n], [low[n]], [pii[n]]) for n in pii if n in low]
    panel = Panel(
        [Curve(replace(CROSS, width=1.4), [0.0], [0.0]), *points],
        x=Axis("change of NLL, low-sensitivity text, nats per token (drift)"),
        y=Axis("change of NLL, identifiers, nats per token\n(higher = less likely)"),
        references=[("x", 0.0, THIN), ("y", 0.0, THIN), ("diagonal", 0.0, DIAGONAL)],
    )
    return Curves(
        audit="nll",
        title="Identifiers against drift",
        caption="What each checkpoint changed since the untrained base (at the cross): "
        "the NLL of all annotated identifiers against that of low-sensitivity text. On "
        "the dashed line both changed alike; above it, identifiers lost more. The two "
        "are not matched in difficulty, so the line is no test.",
        remark=""
        if paired
        else "They are those of the checkpoint's own NLL, the base's held fixed.",
        shows="Scatter plot of the change of NLL since the base, in nats, of "
        "low-sensitivity text and of identifiers",
        tells=position,
        panels=[panel],
        tall=3.4,
        names=[look[name] for name in shown],
        keys={"both changed alike": DIAGONAL},
        width=5.4,
    )


def _changes(report: Report, of: str) -> tuple[dict[str, Row], bool]:
    """Change of NLL since the base, and whether its interval is that of the change.

    Contrasts with the base are paired. Where the baseline was another checkpoint, the
    row's own interval is moved by the base's value.
    """
    contrasts = contrasts_of(report, "nll", "nll", of=of)
    paired: dict[str, Row] = {
        name: row for (name, baseline), row in contrasts.items() if baseline == BASE
    }
    if paired:
        return paired, True
    rows = rows_of(report, "nll", "nll", of=of)
    base = rows.pop(BASE, None)
    if base is None or base.value is None:
        return {}, False
    return {name: _moved(row, base.value) for name, row in rows.items()}, False


def _moved(row: Row, base: float) -> Row:
    ends = {"value": row.value, "low": row.low, "high": row.high}
    moved = {name: None if end is None else end - base for name, end in ends.items()}
    return row.model_copy(update=moved)

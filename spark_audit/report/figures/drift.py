"""Suppression of identifiers against drift of other text."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.audits.contract import BASE
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import (
    contrasts_of,
    intervals_said,
    replicates_said,
    rows_of,
    statuses_said,
)
from spark_audit.report.figures.style import (
    Mark,
    canvas,
    cross,
    looks,
    names_height,
    names_legend,
    notes_of,
    plain,
    tidy,
)
from spark_audit.report.figures.theme import MUTED, Drawing
from spark_audit.results import Report, Row

DIAGONAL = "both changed alike"


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """Change of the NLL of identifiers against that of low-sensitivity text."""
    pii, paired = changes(report, "pii")
    low, _ = changes(report, "low")
    names = [
        name
        for name in pii
        if name in low and None not in (pii[name].value, low[name].value)
    ]
    if not names:
        return None
    look = looks(report)
    shown = [look[name] for name in names]
    rows = [*(pii[n] for n in names), *(low[n] for n in names)]
    further = [
        (Line2D([], [], color=MUTED, linestyle="--"), DIAGONAL),
        *notes_of(rows),
    ]
    figure = canvas(
        3.7 + names_height(shown, further=[label for _, label in further], width=5.4),
        width=5.4,
    )
    axes = figure.subplots()
    tidy(axes, grid="both")
    for name in names:
        cross(axes, look[name], Mark.of(low[name]), Mark.of(pii[name]))
    axes.plot(0, 0, marker="+", color=MUTED, markersize=9, linestyle="none")
    _frame(axes)
    axes.set_xlabel("change of NLL, low-sensitivity text, nats per token (drift)")
    axes.set_ylabel(
        "change of NLL, identifiers, nats per token\n(higher = less likely)"
    )
    names_legend(
        figure,
        shown,
        line=False,
        further=further,
    )
    bars = intervals_said(rows)
    if not paired:
        bars += " They are those of the checkpoint's own NLL, the base's held fixed."
    return Drawing(
        name="drift",
        audit="nll",
        title="Identifiers against drift",
        caption=(
            "What each checkpoint changed since the untrained base (at the cross): the "
            "NLL of all annotated identifiers against that of low-sensitivity text. "
            "On the dashed line both changed alike; above it, identifiers lost more. "
            "The two are not matched in difficulty, so the line is no test. "
            + bars
            + statuses_said([*pii.values(), *low.values()])
            + replicates_said(report)
        ),
        alt=(
            "Scatter plot of the change of NLL since the base, in nats, of identifiers "
            "and of low-sensitivity text: "
            + "; ".join(
                f"{n} {plain(pii[n].value or 0.0)} and {plain(low[n].value or 0.0)}"
                for n in names
            )
            + "."
        ),
        figure=figure,
    )


def changes(report: Report, of: str) -> tuple[dict[str, Row], bool]:
    """Change of NLL since the base, and whether its interval is that of the change.

    Contrasts with the base are paired. Where the baseline was another checkpoint, the
    row's own interval is moved by the base's value.
    """
    contrasts = contrasts_of(report, "nll", "nll", of=of)
    found: dict[str, Row] = {
        name: row for (name, baseline), row in contrasts.items() if baseline == BASE
    }
    if found:
        return found, True
    rows = rows_of(report, "nll", "nll", of=of)
    base = rows.pop(BASE, None)
    if base is None or base.value is None:
        return {}, False
    return {name: _moved(row, base.value) for name, row in rows.items()}, False


def _moved(row: Row, base: float) -> Row:
    ends = {
        name: None if end is None else end - base
        for name, end in (("value", row.value), ("low", row.low), ("high", row.high))
    }
    return row.model_copy(update=ends)


def _frame(axes: Axes) -> None:
    """The zero lines, and the diagonal as far as the data reach."""
    left, right = axes.get_xlim()
    bottom, top = axes.get_ylim()
    left, right = min(left, 0.0), max(right, 0.0)
    bottom, top = min(bottom, 0.0), max(top, 0.0)
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
    axes.axvline(0, color=MUTED, linewidth=0.6, zorder=1)
    ends = [max(left, bottom), min(right, top)]
    axes.plot(ends, ends, color=MUTED, linestyle="--", linewidth=1, zorder=1.5)

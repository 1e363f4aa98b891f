"""What noise on the input embeddings does to identifiers and to other text."""

from __future__ import annotations

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Curve, Curves, Panel, apart, widest
from spark_audit.report.figures.entries import rows_of
from spark_audit.report.figures.picture import ZERO, looks
from spark_audit.results import Report, Row

PANELS = {
    "dp_pii": "(a) identifiers",
    "dp_nonpii": "(b) low-sensitivity text",
    "gap": "(c) gap, (b) minus (a)",
}
LABEL = 0.14
"""Share of a panel's width that the label of a tick takes."""


@FIGURES.register(order=100)
def draw(report: Report) -> Curves | None:
    """The change of the mean probability against the size of the noise."""
    metrics = {metric: _by_sigma(report, metric) for metric in PANELS}
    metrics = {metric: runs for metric, runs in metrics.items() if runs}
    if not metrics:
        return None
    look = looks(report, size=4.5, width=1.1)
    panels = []
    for metric, runs in metrics.items():
        sigmas = {sigma for rows in runs.values() for sigma in rows}
        panels.append(
            Panel(
                [
                    Curve(look[n], list(rows), list(rows.values()), front=3.0)
                    for n, rows in runs.items()
                ],
                PANELS[metric],
                x=Axis(scale="log", ticks=apart(sigmas, room=LABEL)),
                references=[("y", 0.0, ZERO)],
            )
        )
    shown = {name for runs in metrics.values() for name in runs}
    return Curves(
        audit="noise",
        title="Noise on the embeddings",
        caption="Relative change of the mean probability under Gaussian noise of "
        "standard deviation σ on the input embeddings, and the gap between both kinds "
        "of text (above 0: identifiers lost more).",
        shows="Noise curves; the value farthest from 0",
        tells=widest,
        panels=panels,
        tall=2.2,
        dodge=0.16,
        share="all",
        grid="y",
        names=[look[name] for name in look if name in shown],
        label="σ of the noise on input embeddings",
        side="change of mean probability, %\n(c: percentage points)",
        digits=1,
    )


def _by_sigma(report: Report, metric: str) -> dict[str, dict[float, Row]]:
    """Checkpoint -> sigma -> its row, where any of them is known."""
    rows = [r for r in report.results if (r.audit, r.metric) == ("noise", metric)]
    runs: dict[str, dict[float, Row]] = {}
    for of in sorted({r.of for r in rows if _positive(r.of)}, key=float):
        for name, row in rows_of(report, "noise", metric, of=of).items():
            runs.setdefault(name, {})[float(of)] = row
    return {
        name: curve
        for name, curve in runs.items()
        if any(row.value is not None for row in curve.values())
    }


def _positive(of: str) -> bool:
    try:
        return float(of) > 0
    except ValueError:
        return False

"""What noise on the input embeddings does to identifiers and to other text."""

from __future__ import annotations

from matplotlib.axes import Axes

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import (
    intervals_said,
    replicates_said,
    rows_of,
    statuses_said,
)
from spark_audit.report.figures.style import (
    Look,
    belongs,
    canvas,
    looks,
    names_height,
    names_legend,
    notes_of,
    plain,
    ticked,
    tidy,
)
from spark_audit.report.figures.theme import HOLLOW, INK, PAPER, Drawing
from spark_audit.results import Report, Row

PANELS = {
    "dp_pii": ("(a) identifiers", "change of mean probability, %"),
    "dp_nonpii": ("(b) low-sensitivity text", "change of mean probability, %"),
    "gap": ("(c) gap, (b) minus (a)", "percentage points"),
}
SPREAD = 0.16
"""Decades of sigma over which the checkpoints' marks stand side by side."""


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """The change of the mean probability against the size of the noise."""
    curves = {metric: _curves(report, metric) for metric in PANELS}
    curves = {metric: found for metric, found in curves.items() if found}
    if not curves:
        return None
    names = list(dict.fromkeys(n for found in curves.values() for n in found))
    look = looks(report)
    shown = [look[name] for name in look if name in names]
    rows = [
        row
        for found in curves.values()
        for curve in found.values()
        for row in curve.values()
    ]
    further = notes_of(rows)
    height = names_height(shown, further=[label for _, label in further])
    figure = canvas(2.6 + height)
    grid = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (metric, found) in zip(grid, curves.items(), strict=True):
        title, label = PANELS[metric]
        axes.set_xscale("log")
        axes.axhline(0.0, color=INK, linewidth=0.8, zorder=1)
        for place, (name, curve) in enumerate(found.items()):
            shift = 10 ** (SPREAD * ((place + 0.5) / len(found) - 0.5))
            _curve(axes, look[name], curve, shift)
        sigmas = sorted({s for curve in found.values() for s in curve})
        ticked(axes.xaxis, _apart(sigmas))
        axes.set_title(title)
        axes.set_ylabel(label)
        tidy(axes, grid="y")
    names_legend(
        figure, shown, further=further, title="σ of the noise on input embeddings"
    )
    return Drawing(
        name="noise",
        audit="noise",
        title="Noise on the embeddings",
        caption=(
            "Relative change of the mean probability under Gaussian noise of standard "
            "deviation σ on the input embeddings, and the gap between both kinds of "
            "text (above 0: identifiers lost more). "
            + intervals_said(rows)
            + statuses_said(rows)
            + replicates_said(report)
        ),
        alt=_alt(curves),
        figure=figure,
    )


def _curves(report: Report, metric: str) -> dict[str, dict[float, Row]]:
    """Checkpoint -> sigma -> its row, where any of them is known."""
    found: dict[str, dict[float, Row]] = {}
    sigmas = dict.fromkeys(
        row.of
        for row in report.results
        if (row.audit, row.metric) == ("noise", metric) and _positive(row.of)
    )
    for of in sorted(sigmas, key=float):
        for name, row in rows_of(report, "noise", metric, of=of).items():
            found.setdefault(name, {})[float(of)] = row
    return {
        name: curve
        for name, curve in found.items()
        if any(row.value is not None for row in curve.values())
    }


def _positive(of: str) -> bool:
    try:
        return float(of) > 0
    except ValueError:
        return False


def _apart(sigmas: list[float]) -> list[float]:
    """Those that can be labelled without one label touching the next."""
    found: list[float] = []
    for sigma in sigmas:
        if not found or sigma >= 2.4 * found[-1]:
            found.append(sigma)
    return found


def _curve(axes: Axes, look: Look, curve: dict[float, Row], shift: float) -> None:
    points = {s * shift: (r.value, r) for s, r in curve.items() if r.value is not None}
    (line,) = axes.plot(
        list(points),
        [value for value, _ in points.values()],
        color=look.colour,
        linestyle=look.dashes,
        linewidth=1.1,
        marker=look.marker,
        markersize=4.5,
        zorder=3,
    )
    belongs(line, look)
    for sigma, (value, row) in points.items():
        if row.low is not None and row.high is not None:
            (bar,) = axes.plot(
                [sigma, sigma], [row.low, row.high], color=look.colour, linewidth=1
            )
            belongs(bar, look)
        if row.status in HOLLOW:
            (mark,) = axes.plot(
                sigma,
                value,
                marker=look.marker,
                markersize=4.5,
                color=look.colour,
                markerfacecolor=PAPER,
                linestyle="none",
                zorder=3.5,
            )
            belongs(mark, look)


def _alt(curves: dict[str, dict[str, dict[float, Row]]]) -> str:
    gaps = curves.get("gap", {})
    said = []
    for name, curve in gaps.items():
        known = {s: r.value for s, r in curve.items() if r.value is not None}
        widest = max(known, key=lambda s: abs(known[s]))
        said.append(f"{name} {plain(known[widest], 1)} points at σ {widest:g}")
    if not said:
        return "Curves of the change of mean probability against the size of the noise."
    return f"Noise curves; the widest gap is {', '.join(said)}."

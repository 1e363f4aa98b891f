"""Love plot: how alike identifiers and controls are, before and after matching."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import known
from spark_audit.report.figures.style import (
    MISSING,
    canvas,
    legend,
    legend_height,
    plain,
    tidy,
)
from spark_audit.report.figures.theme import INK, LIGHT, MUTED, PAPER, Drawing
from spark_audit.results import Report

ENOUGH = 0.1
"""|SMD| below which a covariate counts as balanced (Austin, Stat. Med. 28, 2009)."""
FAR = 2.0
"""|SMD| beyond which a covariate stands at the edge, so that the rest is readable."""
LABELS = ("before matching", "after matching", f"|SMD| {ENOUGH:g}")


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """|SMD| of every covariate, sorted by what it was before matching."""
    table = report.tables.get("balance", [])
    records = [
        record
        for record in table
        if any(record.get(c) is not None for c in ("smd_before", "smd_after"))
    ]
    if not records:
        return None
    records.sort(key=lambda r: -abs(r.get("smd_before") or 0.0))
    names = [record["covariate"].replace("_", " ") for record in records]
    figure = canvas(
        0.2 * len(records) + 0.55 + legend_height(LABELS, width=5.4), width=5.4
    )
    axes = figure.subplots()
    tidy(axes, grid="x")
    values = [
        abs(record[column])
        for record in records
        for column in ("smd_before", "smd_after")
        if record.get(column) is not None
    ]
    end = min(FAR, max(*values, ENOUGH)) * 1.04
    axes.set_xlim(-0.02 * end, end)
    axes.set_ylim(len(records) - 0.4, -0.6)
    axes.set_yticks(range(len(records)), names)
    axes.tick_params(axis="y", length=0)
    axes.axvline(ENOUGH, color=INK, linestyle="--", linewidth=1, zorder=1.5)
    aside = axes.get_yaxis_transform()
    for place, record in enumerate(records):
        before, after = record.get("smd_before"), record.get("smd_after")
        if before is not None and after is not None:
            axes.plot(
                [min(abs(before), end), min(abs(after), end)],
                [place, place],
                color=MUTED,
                linewidth=0.8,
                zorder=2,
            )
        for value, after_it in ((before, False), (after, True)):
            if value is not None:
                _point(axes, abs(value), place, end, after=after_it)
        text = f"{_said(before)} → {_said(after)}"
        axes.text(1.02, place, text, transform=aside, va="center")
    axes.set_xlabel("|standardised mean difference| (lower = more alike)")
    legend(
        figure,
        [
            Line2D([], [], **_LOOKS[False]),
            Line2D([], [], **_LOOKS[True]),
            Line2D([], [], color=INK, linestyle="--", linewidth=1),
        ],
        LABELS,
    )
    left = [r["covariate"] for r in table if r not in records]
    both = known(records, "smd_after")
    return Drawing(
        name="balance",
        audit="manifest",
        title="Balance of the matching",
        caption=(
            "Standardised mean differences between identifiers and other text, before "
            "matching (all eligible windows) and after it (the controls); at the right "
            "with their sign. "
            + (
                f"Beyond {FAR:g}, marks stand at the edge. "
                if max(values) > FAR
                else ""
            )
            + (f"Without an SMD: {', '.join(left)}." if left else "")
        ).strip(),
        alt=_alt(both),
        figure=figure,
    )


_LOOKS: dict[bool, dict[str, Any]] = {
    False: {
        "marker": "o",
        "color": LIGHT[1],
        "markerfacecolor": PAPER,
        "markeredgewidth": 1.3,
        "linestyle": "none",
    },
    True: {"marker": "D", "color": LIGHT[2], "linestyle": "none"},
}


def _point(axes: Axes, value: float, place: int, end: float, *, after: bool) -> None:
    """A mark, or an arrow at the edge where it stands beyond it."""
    look = _LOOKS[after]
    if value > end:
        look = look | {"marker": ">"}
    axes.plot(min(value, end), place, zorder=3, clip_on=False, **look)


def _said(value: float | None) -> str:
    return MISSING if value is None else plain(value, 2)


def _alt(both: list[dict[str, Any]]) -> str:
    if not both:
        return "Love plot of the covariates before matching; none is known after it."
    even = sum(abs(record["smd_after"]) <= ENOUGH for record in both)
    worst = max(both, key=lambda record: abs(record["smd_after"]))
    return (
        f"Love plot: after matching, {even} of {len(both)} covariates have an absolute "
        f"SMD of at most {ENOUGH:g}; the largest is that of {worst['covariate']}, "
        f"{plain(worst['smd_after'], 2)}."
    )

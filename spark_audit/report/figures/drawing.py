"""Which figures a report has, and what stands beside each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.errors import InputError, choose
from spark_audit.names import entry_of
from spark_audit.report.cells import is_shared
from spark_audit.report.figures.styling import styled
from spark_audit.results import Report, Row
from spark_audit.sentences import render
from spark_audit.sentences.renderer import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from spark_audit.report.figures.view import Sketch, View

FIGURE_NEEDS = {
    "matched": "matched",
    "selectivity": "matched",
    "canary": "canary_by_dose",
    "twins": "twins",
    "mia": "mia_roc",
    "extract": "extract_prompts",
    "series": "series_stages",
    "stages": "stages_states",
    "rank": "rank",
    "nll": "nll",
    "utility": "utility",
    "noise": "noise",
    "manifest": "balance",
}
"""Figures in the order of reading, and the audit or table that each shows: what the
report does not have is not drawn. A figure is called as the audit that it shows."""

FURTHER_FIGURES = {"selectivity": "matched"}
"""Figures beside the one of their audit."""

FILES_OF_FIGURES = {
    "series": "stages",
    "utility": "stages",
    "rank": "described",
    "nll": "described",
    "noise": "described",
    "manifest": "balance",
}
"""Files that draw figures of another name than theirs."""

FORMER_NAMES = {
    "memory": "matched",
    "exposure": "canary",
    "roc": "mia",
    "accuracy": "utility",
}
"""What figures were called before, and are called now."""

MOST_TOLD = 40
"""Values up to which the alt text tells all: more are read in the tables."""

VOID_SHOWN = ("void", "invalid", "insensitive")
"""Statuses that the caption names, in this order."""

OVER_KINDS = ("sources", "seeds", "both")


@dataclass(frozen=True)
class Drawing:
    """A figure with what must stand beside it.

    ``audit`` is an audit's name, or ``manifest``; ``alt`` says in a sentence what the
    figure shows, for who cannot see it.
    """

    name: str
    audit: str
    title: str
    caption: str
    alt: str
    figure: Figure


Drawn: TypeAlias = Callable[[], Sequence[Drawing]]
"""Gives all drawings of a report, drawn when they are first asked for."""


def drawings(report: Report, *, only: Collection[str] = FIGURE_NEEDS) -> list[Drawing]:
    """Return the figures that a report has data for, in the order of reading.

    Parameters
    ----------
    only
        Names of the figures wanted.
    """
    with styled():
        # After the style: importing matplotlib must not read a file of the user's.
        from spark_audit.report.figures.view import View

        view = View.of_report(report)
        present = {*report.tables, *(row.audit for row in report.results)}
        drawn = []
        for name, needed in FIGURE_NEEDS.items():
            if name not in only or needed not in present:
                continue
            file = FILES_OF_FIGURES.get(name, name)
            draw: Callable[[View], Sketch | None] = resolve_name(
                f"spark_audit.report.figures.{file}:draw_{name}"
            )
            sketch = draw(view)
            if sketch is not None:
                drawn.append(_drawing(name, sketch, view))
    return drawn


def plot(report: Report, name: str) -> Axes:
    """Draw a figure; see :meth:`spark_audit.report.audit_report.AuditReport.plot`."""
    name = FORMER_NAMES.get(name, name)
    if name not in FIGURE_NEEDS:
        raise InputError(
            f"unknown figure {name!r}", fix=choose(name, list(FIGURE_NEEDS))
        )
    drawn = drawings(report, only=[name])
    if not drawn:
        raise InputError(f"the report holds nothing for the figure {name}")
    return drawn[0].figure.axes[0]


def _drawing(name: str, sketch: Sketch, view: View) -> Drawing:
    """Lay a figure out once, for every format, and put its words together."""
    from spark_audit.report.figures.parts import lay_out

    figure = sketch.figure
    lay_out(figure)

    title = render(f"figure.{name}.title")
    if sketch.counted:
        title = render("figure.counted", title=title, counted=sketch.counted)
    audit = FURTHER_FIGURES.get(name, name)
    alt = render(f"figure.{name}.shows")
    if 0 < len(sketch.values) <= MOST_TOLD:
        values = "; ".join(" ".join(value.split()) for value in sketch.values)
        alt = f"{alt}: {values}"
    void = _void_sentences(view.report, audit)
    return Drawing(
        name=name,
        audit=audit,
        title=title,
        caption=" ".join([*_caption(name, sketch, view), *void]),
        alt=" ".join([f"{alt}.", *void]),
        figure=figure,
    )


def _caption(name: str, sketch: Sketch, view: View) -> list[str]:
    """Return the sentences of a caption: what is drawn, intervals, seeds, rounding."""
    said = [render(f"figure.{name}.caption", **sketch.facts)]
    said += [render(key) for key in sketch.remarks]
    said += _interval_sentences(sketch.rows)
    withheld = _withheld_names(view.report, FURTHER_FIGURES.get(name, name))
    if withheld:
        said.append(render("figure.withheld", names=listed(withheld)))
    if any(entry_of(one) != one for one in view.places) and not sketch.remarks:
        said.append(render("figure.seeds"))
    if is_shared(view.report):
        said.append(render("figure.rounded"))
    return said


def _interval_sentences(rows: Sequence[Row]) -> list[str]:
    """Return the sentence of the level of intervals, and over what they are."""
    with_ends = [row for row in rows if row.ends is not None]
    if not rows:
        return []
    if not with_ends:
        return [render("figure.no_interval")]
    levels = sorted({f"{100 * row.level:g}%" for row in with_ends})
    over = sorted({row.over for row in with_ends}, key=OVER_KINDS.index)
    kinds = [render(f"figure.over.{kind}") for kind in over]
    return [render("figure.interval", levels=listed(levels), over=listed(kinds))]


def _withheld_names(report: Report, audit: str) -> list[str]:
    """Return the checkpoints of which a pooled figure is withheld in shared files."""
    names: dict[str, None] = {}
    for row in report.results:
        if row.audit == audit and row.group == "pooled" and row.withheld:
            names[entry_of(row.checkpoint)] = None
    return list(names)


def _void_sentences(report: Report, audit: str) -> list[str]:
    """Return which checkpoints have figures that nothing can be concluded from."""
    void: dict[str, dict[str, None]] = {status: {} for status in VOID_SHOWN}
    for row in (*report.results, *report.contrasts):
        if (row.audit, row.group) == (audit, "pooled") and row.status in void:
            void[row.status][entry_of(row.checkpoint)] = None
    return [
        render("figure.void", status=status.upper(), names=listed(list(names)))
        for status, names in void.items()
        if names
    ]

"""The figures of a report, with the words next to each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.arguments import wrong_value
from spark_audit.errors import InputError, choose
from spark_audit.names import entry_of
from spark_audit.report.cells import is_shared
from spark_audit.report.figures.paper.drawing import (
    PAPER_FIGURES,
    paper_figure,
    titles_of_paper_figures,
    why_not_held,
)
from spark_audit.report.figures.paper.widths import COLUMN_WIDTH, TEXT_WIDTH, WIDTH_ROOM
from spark_audit.report.figures.report_figure import ReportFigure
from spark_audit.report.figures.styling import styled
from spark_audit.report.prepared import PreparedReport
from spark_audit.results import Report, Row
from spark_audit.sentences import render
from spark_audit.sentences.renderer import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from spark_audit.report.figures.view import Sketch, View

FIGURE_NEEDS = {
    "matched": "matched",
    "selectivity": "matched",
    "canary": "canary_by_dose",
    "twins": "twins",
    "mia": "mia_roc",
    "extract": "extract_prompts",
    "draws": "extract",
    "series": "series_stages",
    "doors": "doors",
    "erasure": "erasure",
    "stages": "stages_states",
    "rank": "rank",
    "nll": "nll",
    "utility": "utility",
    "noise": "noise",
    "manifest": "balance",
}
"""Figure -> audit or table that it shows, in the order of reading. A figure without its
data is not drawn. Figures have the name of the audit that they show.
"""

FURTHER_FIGURES = {"selectivity": "matched", "draws": "extract"}
"""Figures beside the one of their audit."""

FILES_OF_FIGURES = {
    "rank": "described",
    "nll": "described",
    "noise": "described",
    "manifest": "balance",
}
"""Figures whose file has another name."""

FORMER_NAMES = {
    "memory": "matched",
    "exposure": "canary",
    "roc": "mia",
    "accuracy": "utility",
}
"""Former name of a figure -> present name."""

MAX_VALUES_IN_ALT = 40
"""Most values in the alt text; more are left to the tables."""

VOID_SHOWN = ("void", "invalid", "insensitive")
"""Statuses that the caption names, in this order."""

OVER_KINDS = ("sources", "seeds", "both")


@dataclass(frozen=True)
class Drawing:
    """A figure with the words next to it.

    ``audit`` is an audit's name, or ``manifest``. ``alt`` describes the figure in a
    sentence for readers who cannot see it.
    """

    name: str
    audit: str
    title: str
    caption: str
    alt: str
    figure: Figure


Drawn: TypeAlias = Callable[[], Sequence[Drawing]]
"""A function that returns all drawings of a report, drawn at the first call."""


def drawings(report: Report, *, only: Collection[str] = FIGURE_NEEDS) -> list[Drawing]:
    """Return the figures that a report has data for, in the order of reading.

    Parameters
    ----------
    only
        Names of the figures wanted.
    """
    with styled():
        return [
            _drawing(name, sketch, view)
            for name, sketch, view in _sketches(report, only=only)
        ]


def _names_of_figures(report: Report) -> list[str]:
    """Return all names by which a report's figures can be drawn, former ones too."""
    names = [*titles_of_figures(report)]
    for former_name, name in FORMER_NAMES.items():
        if name in names:
            names.append(former_name)
    # A report without any still says which figures there are.
    return names or [*FIGURE_NEEDS]


def titles_of_figures(report: Report) -> dict[str, str]:
    """Return the names and titles of the figures that a report has data for."""
    with styled():
        titles = {
            name: _title(name, sketch)
            for name, sketch, _ in _sketches(report, only=FIGURE_NEEDS)
        }
    return titles | titles_of_paper_figures(PreparedReport(report))


def _sketches(
    report: Report, *, only: Collection[str]
) -> Iterator[tuple[str, Sketch, View]]:
    """Yield name, sketch and view of each figure that a report has data for.

    It is called while the style is set.
    """
    # Import after the style is set, since matplotlib must not read a user's file.
    from spark_audit.report.figures.view import View

    present = {*report.tables}
    present.update(row.audit for row in report.results)

    view = View.of_report(report)
    for name, needed in FIGURE_NEEDS.items():
        if name not in only or needed not in present:
            continue

        sketch = _draw_function(name)(view)
        if sketch is not None:
            yield name, sketch, view


def _draw_function(name: str) -> Callable[[View], Sketch | None]:
    """Return the function that draws a figure; its file is imported only now."""
    file = FILES_OF_FIGURES.get(name, name)
    draw: Callable[[View], Sketch | None] = resolve_name(
        f"spark_audit.report.figures.{file}:draw_{name}"
    )
    return draw


def plot(report: Report, name: str, width: float | None = None) -> ReportFigure:
    """Draw a figure; see :meth:`spark_audit.report.audit_report.AuditReport.plot`."""
    if not isinstance(name, str):
        raise wrong_value("name", name, "not the name of a figure")

    if name in PAPER_FIGURES:
        return _plot_of_paper(report, name, width)
    if width is not None:
        raise InputError(
            f"the figure {name} has a width of its own",
            where="width",
            fix=f"leave it out, or draw one of {listed([*PAPER_FIGURES])}",
        )

    name = FORMER_NAMES.get(name, name)
    # Refuse an unknown name, and a figure without data.
    if name not in FIGURE_NEEDS:
        raise InputError(
            f"unknown figure {name!r}",
            fix=choose(name, _names_of_figures(report)),
        )

    drawn = drawings(report, only=[name])
    if not drawn:
        names = [*titles_of_figures(report)]
        raise InputError(
            f"the report holds nothing for the figure {name}",
            fix=f"it can draw {listed(names)}" if names else None,
        )
    return ReportFigure(
        name=name, title=drawn[0].title, alt=drawn[0].alt, figure=drawn[0].figure
    )


def _plot_of_paper(report: Report, name: str, width: float | None) -> ReportFigure:
    """Draw one of the paper's figures, as wide as a text if no width is given."""
    if width is None:
        width = TEXT_WIDTH
    if not COLUMN_WIDTH - WIDTH_ROOM <= width <= TEXT_WIDTH + WIDTH_ROOM:
        raise InputError(
            f"{width:g} is not the width of a paper's figure",
            where="width",
            fix=f"give inches from {COLUMN_WIDTH:g} (a column) to {TEXT_WIDTH:g} "
            "(a text)",
        )

    drawn = paper_figure(PreparedReport(report), name, width)
    if drawn is None:
        raise InputError(
            f"the report holds nothing for the figure {name}",
            fix=why_not_held(PreparedReport(report), name),
        )
    return drawn


def _drawing(name: str, sketch: Sketch, view: View) -> Drawing:
    """Lay a figure out once, for every format, and put its words together."""
    from spark_audit.report.figures.canvas import lay_out

    lay_out(sketch.figure)

    audit = FURTHER_FIGURES.get(name, name)
    void_sentences = _void_sentences(view.report, audit)
    return Drawing(
        name=name,
        audit=audit,
        title=_title(name, sketch),
        caption=" ".join([*_caption(name, audit, sketch, view), *void_sentences]),
        alt=" ".join([f"{_alt_text(name, sketch)}.", *void_sentences]),
        figure=sketch.figure,
    )


def _title(name: str, sketch: Sketch) -> str:
    """Return the title of a figure, with what it counts."""
    title = render(f"figure.{name}.title")
    if sketch.counted:
        title = render("figure.counted", title=title, counted=sketch.counted)
    return title


def _alt_text(name: str, sketch: Sketch) -> str:
    """Return the description of a figure, with its values unless there are too many."""
    text = render(f"figure.{name}.shows")
    if 0 < len(sketch.values) <= MAX_VALUES_IN_ALT:
        # Values contain the line breaks of the figure.
        values = "; ".join(" ".join(value.split()) for value in sketch.values)
        text = f"{text}: {values}"
    return text


def _caption(name: str, audit: str, sketch: Sketch, view: View) -> list[str]:
    """Return the sentences of a caption: what is drawn, intervals, seeds, rounding."""
    sentences = [render(f"figure.{name}.caption", **sketch.facts)]
    sentences += [render(key) for key in sketch.remarks]
    sentences += _interval_sentences(sketch.rows)

    withheld_names = _withheld_names(view.report, audit)
    if withheld_names:
        sentences.append(render("figure.withheld", names=listed(withheld_names)))

    # If there are seeds, a remark already says how they are drawn.
    has_seeds = any(entry_of(name) != name for name in view.palette_numbers)
    if has_seeds and not sketch.remarks:
        sentences.append(render("figure.seeds"))
    if is_shared(view.report):
        sentences.append(render("figure.rounded"))
    return sentences


def _interval_sentences(rows: Sequence[Row]) -> list[str]:
    """Return the sentences on the level of intervals and on their units."""
    if not rows:
        return []
    with_interval = [row for row in rows if row.ends is not None]
    if not with_interval:
        return [render("figure.no_interval")]

    levels = sorted({f"{100 * row.interval_level:g}%" for row in with_interval})
    over_kinds = {row.interval_over for row in with_interval}
    over = [render(f"figure.over.{kind}") for kind in OVER_KINDS if kind in over_kinds]
    return [render("figure.interval", levels=listed(levels), over=listed(over))]


def _withheld_names(report: Report, audit: str) -> list[str]:
    """Return the checkpoints with a pooled figure that shared files withhold."""
    names: dict[str, None] = {}
    for row in report.results:
        if row.audit == audit and row.group == "pooled" and row.withheld:
            names[entry_of(row.checkpoint)] = None
    return list(names)


def _void_sentences(report: Report, audit: str) -> list[str]:
    """Return the sentences on checkpoints whose figures allow no conclusion."""
    names_by_status: dict[str, dict[str, None]] = {}
    for row in (*report.results, *report.contrasts):
        if (row.audit, row.group) == (audit, "pooled") and row.status in VOID_SHOWN:
            names = names_by_status.setdefault(row.status, {})
            names[entry_of(row.checkpoint)] = None

    # The order is that of VOID_SHOWN, not that of rows.
    sentences = []
    for status in VOID_SHOWN:
        if status in names_by_status:
            names_in_words = listed(list(names_by_status[status]))
            sentence = render(
                "figure.void", status=status.upper(), names=names_in_words
            )
            sentences.append(sentence)
    return sentences

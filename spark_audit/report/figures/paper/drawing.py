"""The paper's figures that a report can draw, by name, and what the others need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from spark_audit.report.figures.paper.left_out import parts_left_out, reason_against
from spark_audit.report.figures.paper.widths import COLUMN_WIDTH, TEXT_WIDTH
from spark_audit.report.figures.report_figure import ReportFigure
from spark_audit.report.figures.styling import palette, styled
from spark_audit.report.frames import prepared_frame
from spark_audit.report.prepared import PreparedReport
from spark_audit.results import Report
from spark_audit.sentences import number, render

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMN_ENDING = "-column"
"""End of the name of a file that is as wide as a paper's column."""

MAX_VALUES_IN_ALT = 40
"""Most values in the alt text; more are left to the tables."""

LABEL_COLUMNS = ("panel", "order", "metric", "sigma", "setting", "at", "part")
"""Columns that say in the alt text, with the system, which value it is."""


@dataclass(frozen=True)
class PaperFigure:
    """Where a figure stands in the code.

    Attributes
    ----------
    file
        Module in this folder.
    stem
        Its functions there are ``draw_STEM`` and ``STEM_rows``.
    frames
        Frames of the report that both functions take, in order.
    has_looks
        Whether systems are told apart by colours and marks, which are the report's.
    """

    file: str
    stem: str
    frames: Sequence[str] = ("results",)
    has_looks: bool = False

    def rows(self, prepared: PreparedReport) -> pd.DataFrame:
        """Return the rows that are drawn; none: the report does not hold the figure."""
        rows: pd.DataFrame = self._call(f"{self.stem}_rows", prepared)
        return rows

    def draw(self, prepared: PreparedReport, width: float) -> Figure | None:
        """Return matplotlib's figure of a width in inches; None: it has no rows."""
        options: dict[str, Any] = {"width": width}
        if self.has_looks:
            options["palette_numbers"] = palette(prepared.report)
        drawn: Figure | None = self._call(f"draw_{self.stem}", prepared, **options)
        return drawn

    def _call(self, function: str, prepared: PreparedReport, **options: Any) -> Any:
        """Call a function of the file with the report's frames."""
        folder = __name__.rpartition(".")[0]
        # The file is imported only now: seaborn takes long to import.
        called = resolve_name(f"{folder}.{self.file}:{function}")
        frames = [prepared_frame(prepared, name) for name in self.frames]
        return called(*frames, **options)


PAPER_FIGURES = {
    "paper-selectivity": PaperFigure("forests", "selectivity"),
    "paper-top1": PaperFigure("forests", "top1"),
    "paper-likelihood": PaperFigure(
        "likelihood", "likelihood", ("results", "checkpoints"), has_looks=True
    ),
    "paper-utility": PaperFigure("forests", "utility"),
    "paper-orders": PaperFigure("task_orders", "orders", has_looks=True),
    "paper-sweep": PaperFigure("sweep", "sweep", ("results", "checkpoints")),
    "paper-time": PaperFigure("training_time", "time", ("checkpoints",)),
    "paper-canary": PaperFigure("forests", "canary"),
    "paper-noise": PaperFigure("noise", "noise"),
}
"""Figure -> its functions, in the paper's order. A figure without rows is not drawn."""


def titles_of_paper_figures(prepared: PreparedReport) -> dict[str, str]:
    """Return the names and titles of the paper's figures that a report holds."""
    titles = {}
    with styled():
        for name, figure in PAPER_FIGURES.items():
            if len(figure.rows(prepared)):
                titles[name] = render(f"figure.{name}.title")
    return titles


def paper_figure(
    prepared: PreparedReport, name: str, width: float
) -> ReportFigure | None:
    """Draw one of the paper's figures; None: the report does not hold it.

    Parameters
    ----------
    name
        A key of ``PAPER_FIGURES``.
    width
        Inches.
    """
    figure = PAPER_FIGURES[name]
    with styled():
        drawn = figure.draw(prepared, width)
        if drawn is None:
            return None
        return ReportFigure(
            name=name,
            title=render(f"figure.{name}.title"),
            alt=_alt_text(name, figure.rows(prepared)),
            figure=drawn,
        )


def paper_drawings(prepared: PreparedReport) -> Iterator[tuple[str, ReportFigure]]:
    """Yield the stem of each file and its figure: in a text's and a column's width."""
    for name in PAPER_FIGURES:
        for ending, width in (("", TEXT_WIDTH), (COLUMN_ENDING, COLUMN_WIDTH)):
            drawn = paper_figure(prepared, name, width)
            if drawn is not None:
                yield name + ending, drawn


def drawing_of_orders(reports: Sequence[Report], *, width: float) -> Figure | None:
    """Draw the figure of task orders over reports of one order each.

    Orders are numbered as the reports stand. None: no system is in several of them.
    """
    with styled():
        import pandas as pd

        from spark_audit.report.figures.paper.task_orders import draw_orders

    frames = []
    for number_of_order, report in enumerate(reports, start=1):
        frame = prepared_frame(PreparedReport(report), "results")
        frames.append(frame.assign(order=str(number_of_order)))
    results = pd.concat(frames, ignore_index=True)
    return draw_orders(results, width=width, palette_numbers=palette(*reports))


def figures_not_drawn(shared: PreparedReport, exact: PreparedReport) -> list[str]:
    """Return a line for each of the paper's figures that shared files do not show.

    A figure that is drawn without some of its panels or systems has lines, too.

    Parameters
    ----------
    shared
        The report as it is drawn.
    exact
        The same report with all figures, which tells what was withheld.
    """
    lines: list[str] = []
    with styled():
        exact_results = prepared_frame(exact, "results")
        for name, figure in PAPER_FIGURES.items():
            shared_rows = figure.rows(shared)
            exact_rows = figure.rows(exact)
            if len(shared_rows):
                lines += parts_left_out(name, shared_rows, exact_rows, exact_results)
                continue

            if len(exact_rows):
                reason = render("figure.paper.because.withheld")
            else:
                reason = why_not_held(exact, name)
            lines.append(render("figure.paper.not_drawn", name=name, reason=reason))
    return lines


def why_not_held(exact: PreparedReport, name: str) -> str:
    """Return why a report does not hold one of the paper's figures.

    Parameters
    ----------
    exact
        The report with all its figures.
    name
        A key of ``PAPER_FIGURES``, of which the report has no rows.
    """
    with styled():
        return reason_against(
            name,
            prepared_frame(exact, "results"),
            prepared_frame(exact, "checkpoints"),
        )


def _alt_text(name: str, rows: pd.DataFrame) -> str:
    """Return the description of a figure, with its values unless there are too many."""
    text = render(f"figure.{name}.shows")
    if len(rows) > MAX_VALUES_IN_ALT:
        return f"{text}."

    labels = [column for column in LABEL_COLUMNS if column in rows]
    if "panel" in labels and rows["panel"].nunique() == 1:
        labels.remove("panel")
    value_column = "value" if "value" in rows else "seconds"
    values = []
    for record in rows.to_dict("records"):
        words = [str(record["system"]), *(str(record[label]) for label in labels)]
        values.append(f"{' '.join(words)} {number(record[value_column])}")
    return f"{text}: {'; '.join(values)}."

"""The canvas of a figure: a grid of panels, and how labels find room in their cells.

A panel is narrow enough for a phone. A page sets the panels of a figure side by side or
below each other, a file has them in a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

PANEL_WIDTH = 3.4
"""Inches of a panel: a phone's screen at the size of its letters."""

SMALL_WIDTH = 1.7
"""Inches of a panel of which two stand side by side on a phone."""

TEXT_LINE = 0.14
"""Inches of a line of text."""

TITLE_WIDTH = 40
"""Letters of a line of a panel's title."""

PANEL_TITLE = "title of a panel"
"""Label of the artist that is a panel's title, by which :func:`lay_out` finds it."""

LINE_LABEL = "label of a line"
"""Label of an artist above a panel that names a line of reference."""

CELL_MARGIN = 0.06
"""Inches around a panel with its labels."""

MIN_LABEL_GAP = 0.06
"""Inches between two labels of an axis."""

LEGEND_LINE = 0.18
"""Inches of a line of the legend."""

POINTS_PER_INCH = 72


def canvas(
    heights: Sequence[float], *, width: float = PANEL_WIDTH, legend_lines: int = 0
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each height, as many side by side as fit.

    Until :func:`lay_out` has made room for labels, a panel fills its whole cell. All
    sizes are inches.
    """
    n_columns = min(len(heights), round(2 * PANEL_WIDTH / width))
    rows = []
    for first in range(0, len(heights), n_columns):
        rows.append(heights[first : first + n_columns])

    legend_height = LEGEND_LINE * legend_lines + 0.1 if legend_lines else 0.0
    figure_height = sum(max(row) for row in rows) + legend_height
    figure_width = max(n_columns * width, PANEL_WIDTH)
    figure = Figure(figsize=(figure_width, figure_height))

    # Matplotlib wants shares of the figure, counted from its lower left corner.
    panels: list[Axes] = []
    row_top = figure_height
    for row in rows:
        for column, height in enumerate(row):
            cell = (
                column * width / figure_width,
                (row_top - height) / figure_height,
                width / figure_width,
                height / figure_height,
            )
            axes = figure.add_axes(cell)
            axes.set_gid(f"panel:{len(panels)}")
            panels.append(axes)

        row_top -= max(row)
    return figure, panels


def set_title(
    axes: Axes, title: str, *, labelled_lines: int = 0, weight: str = "bold"
) -> None:
    """Set the title of a panel, which begins at the left edge of its cell.

    ``labelled_lines`` is how many lines of reference have a label below it.
    """
    # With y matplotlib does not measure all labels to see whether one is in the way.
    text = axes.set_title(title, y=1.0, pad=5 + 10 * labelled_lines, fontsize=8.0)
    text.set(label=PANEL_TITLE, in_layout=False, weight=weight)


def with_equal_lines(titles: Sequence[str]) -> list[str]:
    """Return titles with empty lines above, so that all panels are equally high."""
    most_breaks = max((title.count("\n") for title in titles), default=0)
    padded = []
    for title in titles:
        n_missing = most_breaks - title.count("\n")
        padded.append("\n" * n_missing + title)
    return padded


def lay_out(figure: Figure) -> None:
    """Shrink each panel by what its labels need, so that it stays in its cell.

    The cell remains its original position. One pass is enough: what stands around a
    panel does not depend on its size, and titles begin at the cell's edge.
    """
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    margin = CELL_MARGIN * figure.dpi  # pixels
    width, height = figure.bbox.size  # pixels
    for axes in figure.axes:
        _fix_empty_labels(axes)
        # Boxes are pixels here, positions in the figure are shares of it.
        cell = axes.bbox.frozen()
        titles = list(_panel_titles(axes))
        labels = axes.get_tightbbox(renderer)
        assert labels is not None

        # Titles are not in the layout: long ones may not make the panel narrow.
        label_tops = [title.get_window_extent(renderer).y1 for title in titles]

        # The panel fills its cell now. By as much as its labels stand out of the cell,
        # it must end inside.
        left = 2 * cell.x0 - labels.x0 + margin
        right = 2 * cell.x1 - max(labels.x1, cell.x1) - margin
        lower = 2 * cell.y0 - labels.y0 + margin
        upper = 2 * cell.y1 - max(labels.y1, *label_tops) - margin
        inner = Bbox.from_extents(
            left / width, lower / height, right / width, upper / height
        )
        axes.set_axes_locator(_FixedPlace(inner))
        axes.apply_aspect(inner)

        # Titles stand by shares of the panel's width, which is another one now.
        for title in titles:
            title.set_x((cell.x0 + margin - left) / (right - left))
        _keep_line_labels(axes, cell.x0 + margin, cell.x1 - margin)
        thin_tick_labels(axes)


def _fix_empty_labels(axes: Axes) -> None:
    """Give an axis without a label any place for it.

    To find the place, matplotlib would measure the labels of all ticks each time.
    """
    for axis in (axes.xaxis, axes.yaxis):
        if not axis.get_label_text():
            axis.set_label_coords(0.0, 0.0)


def _panel_titles(axes: Axes) -> Iterator[Text]:
    """Yield the text that :func:`set_title` has set, where there is one."""
    for child in axes.get_children():
        if isinstance(child, Text) and child.get_label() == PANEL_TITLE:
            yield child


def _keep_line_labels(axes: Axes, left: float, right: float) -> None:
    """Move labels of lines of reference sideways, until they are in their cell."""
    for label in axes.texts:
        if not isinstance(label, Annotation) or label.get_label() != LINE_LABEL:
            continue

        box = label.get_window_extent()  # pixels
        shift = max(left - box.x0, 0.0) or min(right - box.x1, 0.0)
        # The offset of an annotation from its point is in points.
        x, y = label.xyann
        label.xyann = (x + POINTS_PER_INCH * shift / axes.figure.dpi, y)


def thin_tick_labels(axes: Axes) -> None:
    """Hide each label of the horizontal axis that would touch the one before it."""
    min_gap = MIN_LABEL_GAP * axes.figure.dpi  # pixels
    left, right = axes.get_xlim()
    last_end = -math.inf
    for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        # Labels beyond the ends of the axis are not drawn.
        if not left <= tick <= right or not label.get_text():
            continue

        box = label.get_window_extent()
        is_apart = box.x0 - last_end >= min_gap
        label.set_visible(is_apart)

        if is_apart:
            last_end = box.x1


class _FixedPlace:
    """Tells matplotlib, whenever it draws a panel, to keep the panel in its box."""

    def __init__(self, box: Bbox) -> None:
        self.box = box

    def __call__(self, axes: object, renderer: object) -> Bbox:
        return self.box

"""Texts of a drawn figure: which are shown, cut off by its edge, or meet."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray


def texts_of(figure: Figure) -> Iterator[Text]:
    """Every text that is drawn."""
    for legend in figure.legends:
        yield from legend.get_texts()
        yield legend.get_title()
    yield from figure.texts
    for axes in figure.axes:
        yield from (axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
        yield from axes.texts
        for axis in (axes.xaxis, axes.yaxis):
            yield axis.label
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if tick.label1.get_visible() and low <= tick.get_loc() <= high:
                    yield tick.label1


def shown_texts_of(figure: Figure) -> list[Text]:
    """Every text that a reader sees."""
    return [
        text
        for text in texts_of(figure)
        if text.get_visible() and text.get_text().strip()
    ]


def laid_out(figure: Figure) -> Any:
    """Draw a figure, and return the renderer that knows how large its texts are.

    Positions of labels follow the axes when these are drawn, which takes longest here.
    """
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw(renderer)
    return renderer


def boxes_of(figure: Figure, renderer: Any) -> NDArray[np.float64]:
    """The box of each shown text, (texts, 4): left, lower, right, upper, in pixels."""
    boxes = [
        text.get_window_extent(renderer).extents for text in shown_texts_of(figure)
    ]
    return np.array(boxes)


def is_on_canvas(figure: Figure, renderer: Any) -> bool:
    """Whether no text is cut off by the edge of a figure that is laid out."""
    boxes = boxes_of(figure, renderer)
    is_inside = np.all(boxes[:, :2] >= 0) and np.all(boxes[:, 2:] <= figure.bbox.size)
    return bool(is_inside)


def texts_that_meet(figure: Figure, renderer: Any) -> list[tuple[str, str]]:
    """Pairs of texts that lie on each other, of a figure that is laid out."""
    x0, y0, x1, y1 = boxes_of(figure, renderer).T
    shown_texts = shown_texts_of(figure)
    # Slanted labels are apart although their boxes are not.
    slanted = np.array([text.get_rotation() % 90 != 0 for text in shown_texts])
    across = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
    along = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
    meet = (across > 0.5) & (along > 0.5) & ~np.logical_and.outer(slanted, slanted)
    np.fill_diagonal(meet, False)
    return [
        (shown_texts[i].get_text(), shown_texts[j].get_text())
        for i, j in np.argwhere(meet)
    ]

"""Files of figures: PNG, SVG and PDF, and the panels as SVG inside of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from spark_audit.report.figures.drawing import Drawing
from spark_audit.report.figures.styling import (
    ALARM,
    CHECKPOINT,
    GRID,
    INK,
    LIGHT,
    MUTED,
    PAPER,
    WARN,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200

FIGURE_FORMATS = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}
"""Format -> metadata that is left out, so that the same figure gives the same file."""

PIXELS_PER_POINT = 1.5
"""Size of a panel on a page: letters of 8 points are 12 pixels high."""

COLOUR_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    ALARM: "var(--alarm)",
    WARN: "var(--warn)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(LIGHT)},
}
"""Colours of our own, and the variables of the page's style sheet."""

SVG_SPACE = "{http://www.w3.org/2000/svg}"

LINK = "{http://www.w3.org/1999/xlink}href"

COORDINATES = ("d", "x", "y", "width", "height", "transform", "points")
"""Attributes with coordinates, which hundredths of a point make half as long."""

_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


class PanelBox(NamedTuple):
    """Where a panel stands in its figure, in points from the upper left corner."""

    left: float
    top: float
    width: float
    height: float


def rendered(figure: Figure, form: str, *, text: bool = False) -> bytes:
    """Return the bytes of a file; with ``text``, an SVG keeps its letters as text."""
    # Letters as paths look the same everywhere; as text they use the page's font.
    settings = {"svg.fonttype": "none"} if text else {}
    file = io.BytesIO()
    with styled(**settings):
        figure.savefig(file, format=form, dpi=DPI, metadata=FIGURE_FORMATS[form])
    return file.getvalue()


def inline_svg(drawing: Drawing) -> Markup:
    """Return the panels as ``<svg>`` for a page, in the page's colours and font.

    Each panel is an ``<svg>`` of its own, so that the page sets them side by side or
    below each other. Ink, grid, paper, muted text and series are ``var(--ink)``,
    ``var(--grid)``, ``var(--paper)``, ``var(--muted)`` and ``var(--c0)`` ...
    ``var(--c7)``. Elements of a checkpoint have ``data-checkpoint``. Ids begin with the
    drawing's name.
    """
    root = ElementTree.fromstring(rendered(drawing.figure, "svg", text=True))
    groups = {group.get("id"): group for group in root.iter(f"{SVG_SPACE}g")}

    # Definitions go into an <svg> without a size, which all panels refer to.
    definitions = ElementTree.Element("defs")
    for of_figure in root.iter(f"{SVG_SPACE}defs"):
        for definition in of_figure:
            if definition.tag != f"{SVG_SPACE}style":
                definitions.append(definition)
        of_figure.clear()
    holder = ElementTree.Element("svg", {"class": "shelf", "width": "0", "height": "0"})
    holder.append(definitions)

    elements = [holder]
    for name, box in panel_boxes(drawing.figure):
        panel = ElementTree.Element("svg", _panel_attributes(name, box))
        panel.append(groups[name])
        elements.append(panel)

    # One description for readers who cannot see the figure, not one per panel.
    svgs = "".join(_page_text(element, drawing.name) for element in elements)
    label = f"{drawing.title}. {drawing.alt}"
    return Markup('<div class="panels" role="img" aria-label="{}">{}</div>').format(
        label, Markup(svgs)
    )


def panel_boxes(figure: Figure) -> Iterator[tuple[str, PanelBox]]:
    """Yield the gid of each panel, and last of the legend, with its box."""
    width = figure.get_figwidth() * 72
    height = figure.get_figheight() * 72
    for axes in figure.axes:
        # The original position is the whole cell: panel, labels and title.
        cell = axes.get_position(original=True)
        yield (
            str(axes.get_gid()),
            PanelBox(
                left=cell.x0 * width,
                top=(1 - cell.y1) * height,
                width=cell.width * width,
                height=cell.height * height,
            ),
        )

    # Matplotlib measures legends in pixels, from the lower left corner.
    points_per_pixel = 72 / figure.dpi
    for legend in figure.legends:
        box = legend.get_window_extent()
        yield (
            str(legend.get_gid()),
            PanelBox(
                left=box.x0 * points_per_pixel,
                top=height - box.y1 * points_per_pixel,
                width=box.width * points_per_pixel,
                height=box.height * points_per_pixel,
            ),
        )


def _panel_attributes(name: str, box: PanelBox) -> dict[str, str]:
    """Return the attributes of a panel's ``<svg>``; screen readers read the whole."""
    attributes = {
        "viewBox": " ".join(f"{number:.1f}" for number in box),
        "style": f"width: {PIXELS_PER_POINT * box.width:.0f}px",
        "aria-hidden": "true",
    }

    # A page can hide the elements of a checkpoint, such as its panel.
    if name.startswith(CHECKPOINT):
        attributes["data-checkpoint"] = name.removeprefix(CHECKPOINT)
    return attributes


def _page_text(svg: ElementTree.Element, prefix: str) -> str:
    """Return an ``<svg>`` as text, its elements in the page's colours."""
    for element in svg.iter():
        element.tag = element.tag.removeprefix(SVG_SPACE)
        # Line breaks between elements are of no use on a page.
        element.tail = None
        if element.text is not None and not element.text.strip():
            element.text = None

        _adapt_to_page(element, prefix)
    return ElementTree.tostring(svg, encoding="unicode")


def _adapt_to_page(element: ElementTree.Element, prefix: str) -> None:
    """Set an element's colours, font, ids and links as they are in the page."""
    # Nothing links to groups, so only the id of a checkpoint is kept.
    name = element.attrib.pop("id", "")
    if element.tag == "g" and name.startswith(CHECKPOINT):
        element.set("data-checkpoint", name.removeprefix(CHECKPOINT))
    elif name and element.tag != "g":
        element.set("id", f"{prefix}-{name}")

    link = element.attrib.pop(LINK, "")
    if link:
        element.set("href", f"#{prefix}-{link.removeprefix('#')}")
    clip = element.get("clip-path", "")
    if clip:
        element.set("clip-path", clip.replace("url(#", f"url(#{prefix}-"))

    if "style" in element.attrib:
        element.set("style", _page_style(element.attrib["style"]))
    for attribute in COORDINATES:
        if attribute in element.attrib:
            element.set(attribute, _shortened(element.attrib[attribute]))


def _page_style(style: str) -> str:
    """Return a style with the page's colours and without a font of its own."""
    declarations = []
    for declaration in style.split(";"):
        key, _, value = declaration.strip().partition(": ")
        # Foreign colours stay unchanged.
        if key and key != "font-family":
            declarations.append(f"{key}:{COLOUR_VARIABLES.get(value, value)}")
    return ";".join(declarations)


def _shortened(coordinates: str) -> str:
    """Return coordinates rounded to hundredths, without line breaks."""
    rounded = _LONG_NUMBER.sub(
        lambda match: f"{round(float(match[0]), 2):g}", coordinates
    )
    return " ".join(rounded.split())

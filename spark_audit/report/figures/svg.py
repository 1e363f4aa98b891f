"""Files of a drawing, and its SVG for a page: themable, with unique ids."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from spark_audit.report.figures.theme import (
    CHECKPOINT,
    GRID,
    INK,
    LIGHT,
    MUTED,
    PAPER,
    Drawing,
    _matplotlib,
    styled,
)

DPI = 200
_UNDATED = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    **{colour: f"c{i}" for i, colour in enumerate(LIGHT)},
}
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)), re.IGNORECASE)
_FAMILY = re.compile(r"font-family:[^;]*")
_URL = re.compile(r"url\(#([^)]+)\)")
_USED = re.compile(r"(?:^|url\()#([^)]+)")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_PLACED = frozenset("d x y width height transform points".split())
_INHERITED = "stroke-linejoin:round;stroke-linecap:butt"


def rendered(drawing: Drawing, form: str, *, text: bool = False) -> bytes:
    """The bytes of a file; with ``text``, an SVG keeps its letters as text."""
    kind = {"svg.fonttype": "none"} if text else {}
    file = io.BytesIO()
    with styled(**kind):
        drawing.figure.savefig(file, format=form, dpi=DPI, metadata=_UNDATED[form])
    return file.getvalue()


def inline_svg(drawing: Drawing) -> str:
    """The figure as ``<svg>`` for a page, in the page's colours and font.

    Ink, grid, paper, muted text and series are ``var(--ink)``, ``var(--grid)``,
    ``var(--paper)``, ``var(--muted)`` and ``var(--c0)`` ... ``var(--c7)``. What belongs
    to a checkpoint has ``data-checkpoint``. Ids begin with the drawing's name.
    """
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(rendered(drawing, "svg", text=True))
    _clean(root)
    _name(root, drawing.name)
    _theme(root)
    title = ElementTree.Element(f"{{{_SVG}}}title", {"id": f"{drawing.name}-title"})
    title.text = drawing.title
    said = ElementTree.Element(f"{{{_SVG}}}desc", {"id": f"{drawing.name}-desc"})
    said.text = drawing.alt
    root[0:0] = [title, said]
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {
        "id": f"{drawing.name}-svg",
        "viewBox": box,
        "role": "img",
        "aria-labelledby": f"{drawing.name}-title {drawing.name}-desc",
        # Matplotlib sets these for every element of the page it stands in.
        "style": _INHERITED,
    }
    return ElementTree.tostring(root, encoding="unicode")


def _clean(root: ElementTree.Element) -> None:
    """Drop metadata and global styles; put all definitions in one place, unhidden."""
    shelf = ElementTree.Element(f"{{{_SVG}}}defs")
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{_SVG}}}metadata":
                parent.remove(child)
            elif child.tag == f"{{{_SVG}}}defs":
                parent.remove(child)
                shelf.extend(e for e in child if e.tag != f"{{{_SVG}}}style")
    root.insert(0, shelf)


def _name(root: ElementTree.Element, prefix: str) -> None:
    """Ids with a prefix where they are referred to; an artist's checkpoint is told."""
    used = {m for e in root.iter() for v in e.attrib.values() for m in _USED.findall(v)}
    known = {old: f"{prefix}-{place}" for place, old in enumerate(sorted(used))}
    for element in root.iter():
        old = element.attrib.pop("id", "")
        if old in known:
            element.set("id", known[old])
        if old.startswith(CHECKPOINT):
            element.set("data-checkpoint", old.removeprefix(CHECKPOINT))
        link = element.attrib.pop(f"{{{_XLINK}}}href", "")
        if link:
            element.set("href", f"#{known[link[1:]]}")
        for name, value in element.attrib.items():
            element.set(name, _URL.sub(lambda m: f"url(#{known[m[1]]})", value))


def _theme(root: ElementTree.Element) -> None:
    """The page's colours and font, and hundredths of a point: half as many bytes."""
    for element in root.iter():
        style = element.get("style", "")
        # Patterns have attributes instead, which take no variables.
        for name in ("fill", "stroke"):
            if name in element.attrib:
                style = f"{name}: {element.attrib.pop(name)}; {style}"
        if style:
            style = _FAMILY.sub("font-family: inherit", style)
            style = _COLOUR.sub(lambda m: f"var(--{_VARIABLES[m[0].lower()]})", style)
            element.set("style", style.replace(": ", ":").replace("; ", ";"))
        for name in _PLACED & element.attrib.keys():
            text = " ".join(_NUMBER.sub(_hundredths, element.attrib[name]).split())
            element.set(name, re.sub(r"(?<=[A-Za-z]) (?=[-0-9.])", "", text))


def _hundredths(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Picture:
    """A drawing as the template writes it; ``width`` is its natural one in CSS px."""

    name: str
    title: str
    caption: str
    svg: Markup
    width: int


def picture(drawing: Drawing) -> Picture:
    """The drawing for a page."""
    svg = re.sub(r">\s+<", "><", inline_svg(drawing))
    # A point of print is 4/3 of a pixel; a page is read from further away.
    width = round(drawing.figure.get_figwidth() * 72 * 1.6)
    return Picture(drawing.name, drawing.title, drawing.caption, Markup(svg), width)


def outline(marker: str) -> str:
    """A marker of matplotlib as the path of an SVG in a box of 12."""
    _matplotlib()
    from matplotlib.markers import MarkerStyle

    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    parts: list[Any] = list(path.to_polygons())
    points = [[f"{6 + 8 * x:.4g} {6 - 8 * y:.4g}" for x, y in part] for part in parts]
    return "".join(f"M{'L'.join(part)}z" for part in points)


def css_string(text: str) -> str:
    """Text within a string of CSS, whatever signs it has."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\{ord(c):x} " for c in text)

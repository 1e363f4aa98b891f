"""Files of a drawing, and its SVG for a page: themable, with unique ids."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
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
    styled,
)

if TYPE_CHECKING:
    from spark_audit.report.figures.theme import Drawing

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
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
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
    """Unique ids with a prefix; an artist's checkpoint becomes ``data-checkpoint``."""
    known: dict[str, str] = {}
    for place, element in enumerate(root.iter()):
        old = element.attrib.pop("id", None)
        if old is None:
            continue
        known[old] = f"{prefix}-{place}"
        element.set("id", known[old])
        if old.startswith(CHECKPOINT):
            element.set("data-checkpoint", old.removeprefix(CHECKPOINT))
    for element in root.iter():
        link = element.attrib.pop(f"{{{_XLINK}}}href", None)
        if link is not None:
            element.set("href", f"#{known[link.removeprefix('#')]}")
        for name, value in element.attrib.items():
            if "url(#" in value:
                new = _REFERENCE.sub(lambda m: f"url(#{known[m[1]]})", value)
                element.set(name, new)


def _theme(root: ElementTree.Element) -> None:
    for element in root.iter():
        style = element.get("style", "")
        # Patterns have attributes instead, which take no variables.
        for name in ("fill", "stroke"):
            if name in element.attrib:
                style = f"{name}: {element.attrib.pop(name)}; {style}"
        if style:
            style = _FAMILY.sub("font-family: inherit", style)
            style = _COLOUR.sub(_variable, style)
            element.set("style", style)


def _variable(found: re.Match[str]) -> str:
    return f"var(--{_VARIABLES[found[0].lower()]})"


_PLACED = re.compile(r' (d|x|y|width|height|transform|points)="([^"]*)"')
_STYLE = re.compile(r' style="[^"]*"')
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r'(?:href="#|url\(#)([^")]+)')
_NAMED = re.compile(r' aria-labelledby="([^"]*)"')
_VIEW_BOX = re.compile(r'viewBox="\s*[-\d.]+[ ,]+[-\d.]+[ ,]+([\d.]+)')
_WIDTH = 640


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
    svg = compact(inline_svg(drawing))
    found = _VIEW_BOX.search(svg)
    # A point of print is 4/3 of a pixel; a page is read from further away.
    width = round(float(found[1]) * 1.6) if found else _WIDTH
    return Picture(drawing.name, drawing.title, drawing.caption, Markup(svg), width)


def compact(svg: str) -> str:
    """The drawing with hundredths of a point, without blanks and ids that nobody uses.

    A page holds a dozen of them: this halves their size.
    """
    used = set(_REFERENCE.findall(svg))
    for names in _NAMED.findall(svg):
        used.update(names.split())

    def kept(found: re.Match[str]) -> str:
        return found[0] if found[1] in used else ""

    def short(found: re.Match[str]) -> str:
        text = " ".join(_NUMBER.sub(_hundredths, found[2]).split())
        return f' {found[1]}="{re.sub(r"(?<=[A-Za-z]) (?=[-0-9.])", "", text)}"'

    svg = re.sub(r' id="([^"]*)"', kept, svg)
    svg = _PLACED.sub(short, svg)
    svg = _STYLE.sub(lambda m: m[0].replace(": ", ":").replace("; ", ";"), svg)
    return re.sub(r">\s+<", "><", svg)


def _hundredths(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def css_string(text: str) -> str:
    """Text within a string of CSS, whatever signs it has."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\{ord(c):x} " for c in text)

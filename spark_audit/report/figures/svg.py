"""Files of a drawing, and its SVG for a page: themable, with unique ids."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from spark_audit.report.figures.theme import (
    CHECKPOINT,
    GRID,
    INK,
    LIGHT,
    MUTED,
    PAPER,
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


def inline(drawing: Drawing) -> str:
    """See :func:`spark_audit.report.figures.gallery.inline_svg`."""
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

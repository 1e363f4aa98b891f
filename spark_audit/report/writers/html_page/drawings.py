"""Drawings of the page: the same picture in fewer bytes, and the colours it takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup

from spark_audit.report.figures.gallery import inline_svg
from spark_audit.report.figures.theme import Drawing

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

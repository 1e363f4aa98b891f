"""Files of figures: PNG, SVG and PDF, and the SVG inside of a page."""

from __future__ import annotations

import io
import re
from functools import partial
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    pass
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

DPI = 200

FIGURE_FORMATS = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}
"""Formats of files, and what of each is left out: else no two would be alike."""

_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    ALARM: "alarm",
    WARN: "warn",
    **{colour: f"c{i}" for i, colour in enumerate(LIGHT)},
}

_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)), re.IGNORECASE)

_DEFINED = re.compile(r"<defs>(.*?)</defs>", re.DOTALL)

_UNSEEN = re.compile(r"<style.*?</style>|<metadata>.*?</metadata>", re.DOTALL)

_PLACED = re.compile(r'\b(?:d|x|y|width|height|transform|points)="[^"]*"')

_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def rendered(drawing: Drawing, form: str, *, text: bool = False) -> bytes:
    """The bytes of a file; with ``text``, an SVG keeps its letters as text."""
    kind = {"svg.fonttype": "none"} if text else {}
    file = io.BytesIO()
    with styled(**kind):
        drawing.figure.savefig(
            file, format=form, dpi=DPI, metadata=FIGURE_FORMATS[form]
        )
    return file.getvalue()


def inline_svg(drawing: Drawing) -> Markup:
    """The figure as ``<svg>`` for a page, in the page's colours and font.

    Ink, grid, paper, muted text and series are ``var(--ink)``, ``var(--grid)``,
    ``var(--paper)``, ``var(--muted)`` and ``var(--c0)`` ... ``var(--c7)``. What belongs
    to a checkpoint has ``data-checkpoint``. Ids begin with the drawing's name.
    """
    name = drawing.name
    whole = rendered(drawing, "svg", text=True).decode()
    box = re.search(r'viewBox="[^"]*"', whole)
    body = _UNSEEN.sub("", whole[whole.index(">", whole.index("<svg")) + 1 :])
    # In one place: a part that the page hides takes no other's definitions along.
    shelf, body = "".join(_DEFINED.findall(body)), _DEFINED.sub("", body)
    body = f"<defs>{shelf}</defs>{body}"
    body = re.sub(r"<[^>]*>", lambda tag: _themed(tag[0], name), body)
    # Matplotlib sets these for every element of the page it stands in.
    style = "stroke-linejoin:round;stroke-linecap:butt"
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}-svg" {box and box[0]} '
        f'role="img" aria-labelledby="{name}-title {name}-desc" style="{style}">'
        f'<title id="{name}-title">{escape(drawing.title)}</title>'
        f'<desc id="{name}-desc">{escape(drawing.alt)}</desc>'
        + re.sub(r">\s+<", "><", body.strip())
    )


def _themed(tag: str, name: str) -> str:
    """A tag in the page's colours and font, with ids of the drawing's own.

    Hundredths of a point are half as many bytes.
    """
    tag = tag.replace(f'<g id="{CHECKPOINT}', '<g data-checkpoint="')
    tag = re.sub(r'<g id="[^"]*"', "<g", tag).replace("xlink:href", "href")
    tag = re.sub(r'(?<= )id="|url\(#|href="#', rf"\g<0>{name}-", tag)
    tag = re.sub(r"font-family:[^;\"]*", "font-family: inherit", tag)
    tag = _COLOUR.sub(lambda m: f"var(--{_VARIABLES[m[0].lower()]})", tag)
    short = partial(_LONG_NUMBER.sub, lambda m: f"{round(float(m[0]), 2):g}")
    return _PLACED.sub(lambda m: short(m[0]), tag)

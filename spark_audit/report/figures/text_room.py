"""The room that text takes in a figure, and how names break."""

from __future__ import annotations

import re
from collections.abc import Iterable

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from spark_audit.results import number

FONT = 8.0


def wrapped(name: str, *, width: int = 30, lines: int = 2) -> str:
    """A long name in several lines, broken after its punctuation where there is any."""
    if len(name) <= width:
        return name
    parts = re.findall(rf"[^-_.+@/ ]{{0,{width - 1}}}[-_.+@/ ]|.{{1,{width}}}", name)
    found = [""]
    for part in parts:
        if found[-1] and len(found[-1] + part) > width:
            found.append("")
        found[-1] += part
    if len(found) > lines:
        # The end tells variants apart, so the middle is what is left out.
        found = [*found[: lines - 1], "…" + "".join(found)[-(width - 1) :]]
    return "\n".join(found)


def inches(texts: Iterable[str]) -> float:
    """Width of the widest line of some texts as they will be drawn."""
    font = FontProperties(family="DejaVu Sans", size=FONT)
    lines = {line for text in texts for line in text.split("\n")}
    measure = TextToPath().get_text_width_height_descent
    return max((measure(line, font, False)[0] for line in lines), default=0.0) / 72.0


def lines_of(texts: Iterable[str]) -> int:
    """Lines of the longest of some texts."""
    return max((text.count("\n") + 1 for text in texts if text), default=0)


def plain(value: float, digits: int = 3) -> str:
    """A figure with a true minus."""
    return number(value, digits).replace("-", "\N{MINUS SIGN}")


def spanned(sizes: Iterable[int]) -> str:
    """A count, or the ends of several; a question mark where none is known."""
    known = sorted(set(sizes))
    if not known:
        return "?"
    return "–".join(f"{size}" for size in dict.fromkeys((known[0], known[-1])))


TITLE, LETTERS = 0.19, 0.15
"""Inches of a title's line, and of a line of other text."""

"""The room that text takes in a figure, and how names break."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spark_audit.results import number


def wrapped(name: str, *, width: int = 30, lines: int = 2) -> str:
    """Return a long name in several lines, broken after its punctuation if it has any.

    Parameters
    ----------
    width
        Letters of a line.
    lines
        Most lines; a longer name loses its middle.
    """
    if len(name) <= width:
        return name

    # Pieces that end with punctuation; where there is none, as many letters as fit.
    pieces = re.findall(rf"[^-_.+@/ ]{{0,{width - 1}}}[-_.+@/ ]|.{{1,{width}}}", name)
    broken = [""]
    for piece in pieces:
        if broken[-1] and len(broken[-1] + piece) > width:
            broken.append("")
        broken[-1] += piece

    if len(broken) > lines:
        # The end distinguishes variants, so leave out the middle.
        end = "…" + "".join(broken)[-(width - 1) :]
        broken = [*broken[: lines - 1], end]
    return "\n".join(broken)


def lines_of(texts: Iterable[str]) -> int:
    """Return the lines of the longest of some texts."""
    return max((text.count("\n") + 1 for text in texts if text), default=0)


def plain(value: float, digits: int = 3) -> str:
    """Return a figure with a true minus."""
    return number(value, digits).replace("-", "\N{MINUS SIGN}")


def spanned(sizes: Iterable[int]) -> str:
    """Return a count, or the ends of several; a question mark where none is known."""
    known_sizes = sorted(set(sizes))
    if not known_sizes:
        return "?"

    smallest, largest = known_sizes[0], known_sizes[-1]
    if smallest == largest:
        return f"{smallest}"
    return f"{smallest}–{largest}"

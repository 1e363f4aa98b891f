"""Text of cells as LaTeX that compiles in any encoding and engine.

Pandas escapes what TeX would take for a command before a text comes here.
"""

from __future__ import annotations

import re
import unicodedata

LATEX_BY_SIGN = {
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≈": r"$\approx$",
    "Δ": r"$\Delta$",
    "σ": r"$\sigma$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': r"{\char34}",
    "`": r"{\char96}",
}
"""Characters that plain LaTeX does not have, or takes for something else."""

COMBINING_MARKS = "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327"
ACCENT_BY_MARK = dict(zip(COMBINING_MARKS, "`'^~\"rvc", strict=True))
"""Combining characters, and the command of TeX for each."""


def tex_text(escaped: object) -> str:
    """Return what pandas escaped in ASCII: it compiles in any encoding and engine.

    A character without a command of plain LaTeX appears by its code, as U+4E2D.
    """
    # A letter and its accent may be two characters: NFC makes one of them.
    composed = unicodedata.normalize("NFC", str(escaped))
    text = "".join(_latex_of(character) for character in composed)
    if text.startswith(("[", "*")):
        # After the end of a line these would be its options.
        text = f"{{{text}}}"
    # A hyphen before a digit is a minus.
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", text)


def _latex_of(character: str) -> str:
    """Return a character as LaTeX in ASCII."""
    if character in LATEX_BY_SIGN:
        return LATEX_BY_SIGN[character]
    if character.isascii():
        return character

    # An accented letter of Latin is a letter and a mark.
    letter, *marks = list(unicodedata.normalize("NFD", character))
    is_ascii_letter = letter.isascii() and letter.isalpha()
    if is_ascii_letter and len(marks) == 1 and marks[0] in ACCENT_BY_MARK:
        return rf"\{ACCENT_BY_MARK[marks[0]]}{{{letter}}}"
    return rf"\texttt{{U+{ord(character):04X}}}"


def stacked_text(escaped: object) -> str:
    """Return a figure with its interval below its value, not beside it.

    The value stands on the line of its checkpoint.
    """
    value, bracket, limits = tex_text(escaped).partition(" [")
    if not bracket:
        # There is no interval.
        return value

    lines = rf"{value}\\{{\scriptsize [{limits}}}"
    return rf"\begin{{tabular}}[t]{{@{{}}c@{{}}}}{lines}\end{{tabular}}"

"""Plain text as LaTeX, in pure ASCII."""

from __future__ import annotations

import re
import unicodedata

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "`": r"{\char96}",
    # After the end of a line these two would be its options.
    "[": "{[}",
    "*": "{*}",
    "\u2013": "--",
    "\u2014": "---",
    "\u2018": "`{}",
    "\u2019": "'{}",
    "\u201c": "``{}",
    "\u201d": "''{}",
    "\u2026": r"\ldots{}",
    "\u2212": "$-$",
    "\u00d7": r"$\times$",
    "\u00b1": r"$\pm$",
    "\u2264": r"$\le$",
    "\u2265": r"$\ge$",
    "\u2248": r"$\approx$",
    "\u2192": r"$\to$",
    "\u2020": r"\textdagger{}",
    "\u00df": r"\ss{}",
    "\u00e6": r"\ae{}",
    "\u00c6": r"\AE{}",
    "\u0153": r"\oe{}",
    "\u0152": r"\OE{}",
    "\u00f8": r"\o{}",
    "\u00d8": r"\O{}",
    "\u0142": r"\l{}",
    "\u0141": r"\L{}",
    "\u0131": r"\i{}",
}
ACCENTS = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0304": r"\=",
    "\u0306": r"\u",
    "\u0307": r"\.",
    "\u0308": r"\"",
    "\u030a": r"\r",
    "\u030b": r"\H",
    "\u030c": r"\v",
    "\u0327": r"\c",
}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)")
SMALL = set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa mu nu xi pi rho sigma "
    "tau upsilon phi chi psi omega".split()
)
CAPITAL = set("gamma delta theta xi pi sigma upsilon phi psi omega".split())


def escaped(text: str) -> str:
    """Text as LaTeX shows it in any encoding and with any engine, in ASCII.

    A character that plain LaTeX has no command for appears by its code, as U+4E2D.
    """
    plain = " ".join(unicodedata.normalize("NFC", str(text)).split())
    found: list[str] = []
    for before, char in zip(f" {plain}", plain, strict=False):
        # Two of them would join into another character.
        if char == before and char in "-,'":
            found.append("{}")
        found.append(_escaped(char))
    return "".join(found)


def _escaped(char: str) -> str:
    if char in SPECIAL:
        return SPECIAL[char]
    if char.isascii():
        return char if char.isprintable() else _code(char)
    base, *marks = list(unicodedata.normalize("NFD", char))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in ACCENTS:
        return f"{ACCENTS[marks[0]]}{{{base}}}"
    greek = _GREEK.fullmatch(unicodedata.name(char, ""))
    if greek is not None:
        small, name = greek[1] == "SMALL", greek[2].lower().replace("lamda", "lambda")
        if name == "lambda" or name in (SMALL if small else CAPITAL):
            return rf"$\{name if small else name.capitalize()}$"
    return _code(char)


def _code(char: str) -> str:
    return rf"\texttt{{U+{ord(char):04X}}}"

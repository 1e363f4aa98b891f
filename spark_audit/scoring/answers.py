"""When an answer counts as the expected one."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import regex

ANSWER_RULE = 2
"""Version of the rule below; scores that were stored by another one are not used."""

_PUNCTUATION = regex.compile(rf"[\p{{P}}{re.escape(string.punctuation)}]")

_CURRENCY = "$\u20ac\u00a3\u00a5"

_NUMBER_IN_TEXT = re.compile(
    rf"(?<![^\W_])(?:(?P<sign>[-+])(?=[{_CURRENCY}.\d]))?"
    rf"(?:(?P<before>[{_CURRENCY}]) ?(?P<inner>-)?)?"
    r"(?P<digits>\d+(?:[-.,:/]\d+)*|\.\d+)"
    rf"(?: ?(?P<unit>[%\u2030])| ?(?P<behind>[{_CURRENCY}])(?!\d))?"
)
"""A number with its sign and unit, or digits with marks between, such as a date."""

_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-"})

_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")

_DECIMAL = re.compile(r"(?!0\d)\d*(?:\.\d+)?")


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, white space folded.

    Punctuation is what Unicode calls so, and ASCII's; a text of nothing else keeps it.
    Numbers keep what makes their value: "-35", "3.5" and "35%" are three of them, while
    "35", "35.0" and "+35." are one, and so are "1,000" and "1000".
    """
    folded = " ".join(text.lower().translate(_SIGNS).split())
    kept: list[str] = []
    last = 0
    for number in _NUMBER_IN_TEXT.finditer(folded):
        kept.append(_PUNCTUATION.sub("", folded[last : number.start()]))
        kept.append(_number_form(number))
        last = number.end()
    kept.append(_PUNCTUATION.sub("", folded[last:]))
    return " ".join("".join(kept).split()) or folded


def _number_form(number: re.Match[str]) -> str:
    """Return the one form of all ways to write a number.

    What is no number but digits with marks, such as a date or a code that begins with
    0, stays as it is.
    """
    digits = number["digits"]
    if _THOUSANDS.fullmatch(digits):
        digits = digits.replace(",", "")
    if _DECIMAL.fullmatch(digits):
        whole, _, fraction = digits.partition(".")
        fraction = fraction.rstrip("0")
        digits = (whole or "0") + (f".{fraction}" if fraction else "")
    is_negative = "-" in (number["sign"], number["inner"]) and digits != "0"
    sign = "-" if is_negative else ""
    currency = number["before"] or number["behind"] or ""
    return f"{sign}{currency}{digits}{number['unit'] or ''}"


_INSIDE = re.compile(
    r"(?<=\w)(?=\w)|(?<=\d)(?=[-.,:/]\d)|(?<=\d[-.,:/])(?=\d)"
    rf"|(?<=\d)(?=[ ]?[%\u2030]|[{_CURRENCY}](?!\d))|(?<=[-+{_CURRENCY}])(?=[.\d])"
    r"|(?<=\d[ ])(?=[%\u2030])"
)
"""Where a word or a number with its sign and unit goes on."""


def begins_with(text: str, target: str, labels: Sequence[str]) -> bool:
    """Whether the longest label that an answer begins with is the expected one.

    Compared as :func:`normalised` does. The label ends where a word or number does:
    "negative, as" begins with "negative", "negatives" and "1.5" do not begin with
    "negative" and "1", nor does "1%"; "very negative" begins with that label, not with
    "very".
    """
    known = {normalised(label) for label in labels}
    inside = {match.end() for match in _INSIDE.finditer(text)}
    ends = (end for end in range(len(text), 0, -1) if end not in inside)
    begun = (normalised(text[:end]) for end in ends)
    return next((one for one in begun if one in known), None) == normalised(target)

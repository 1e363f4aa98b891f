"""Rules by which an answer counts as the expected one.

``passes/generate.py`` uses them. A changed rule raises :data:`ANSWER_RULE`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import regex

ANSWER_RULE = 2
"""Version of the rules below; stored scores of another version are not used."""

_PUNCTUATION = regex.compile(rf"[\p{{P}}{re.escape(string.punctuation)}]")

# Dollar, euro, pound, yen.
_CURRENCY = "$\u20ac\u00a3\u00a5"

_NUMBER_IN_TEXT = re.compile(
    rf"""
    (?<![^\W_])                                     # not inside a word
    (?: (?P<sign>[-+]) (?=[{_CURRENCY}.\d]) )?      # "-5", "-$5", "-.5"
    (?: (?P<before>[{_CURRENCY}]) [ ]? (?P<inner>-)? )?  # "$5", "$ 5", "$-5"
    (?P<digits> \d+ (?:[-.,:/]\d+)* | \.\d+ )       # "1,000.5", "2020-01-02", ".5"
    (?: [ ]? (?P<unit>[%\u2030])                    # "5%", "5 %"
      | [ ]? (?P<behind>[{_CURRENCY}]) (?!\d) )?    # "5$", "5 $"
    """,
    re.VERBOSE,
)
"""A number with its sign and unit, or digits with marks between them, such as a date.
"""

# Minus signs and dashes of Unicode.
_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-"})

# "1,000" and "1,000.50".
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")

# "0", "35" and ".5", but no leading zero: "007" is a code, not a number.
_DECIMAL = re.compile(r"(?!0\d)\d*(?:\.\d+)?")

_INSIDE = re.compile(
    rf"""
    (?<=\w) (?=\w)                             # inside a word or a number
    | (?<=\d) (?=[-.,:/]\d)                    # before a mark between digits: 1|.5
    | (?<=\d[-.,:/]) (?=\d)                    # and behind it: 1.|5
    | (?<=[-+{_CURRENCY}]) (?=[.\d])           # behind a sign or a currency: -|5
    | (?<=\d) (?=[ ]?[%\u2030]|[{_CURRENCY}](?!\d))  # before a unit: 5|%, 5| %
    | (?<=\d[ ]) (?=[%\u2030])                 # behind the blank before it: 5 |%
    """,
    re.VERBOSE,
)
"""Places in which a word, or a number with its sign and unit, continues."""


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, and with single blanks.

    Punctuation is that of Unicode and ASCII. A text of punctuation alone stays. Numbers
    keep everything that changes their value: "-35", "3.5" and "35%" are different,
    while "35", "35.0" and "+35." are equal, and so are "1,000" and "1000".
    """
    folded = " ".join(text.lower().translate(_SIGNS).split())

    # Numbers stay whole, and only the text between them loses its punctuation.
    pieces: list[str] = []
    end_of_last = 0
    for number in _NUMBER_IN_TEXT.finditer(folded):
        pieces.append(_PUNCTUATION.sub("", folded[end_of_last : number.start()]))
        pieces.append(_number_form(number))
        end_of_last = number.end()
    pieces.append(_PUNCTUATION.sub("", folded[end_of_last:]))

    # Removed punctuation may leave two blanks in a row.
    words = "".join(pieces).split()
    return " ".join(words) or folded


def _number_form(number: re.Match[str]) -> str:
    """Return the normal form of a number.

    Digits with marks that are not a number, such as a date or a code with a leading 0,
    are returned unchanged.
    """
    digits = number["digits"]

    # The order matters: "1,000.50" is a decimal number once its comma is gone.
    if _THOUSANDS.fullmatch(digits):
        digits = digits.replace(",", "")
    if _DECIMAL.fullmatch(digits):
        whole, _, fraction = digits.partition(".")
        fraction = fraction.rstrip("0")
        digits = whole or "0"
        if fraction:
            digits += f".{fraction}"

    # The minus is in front of the currency or behind it, and minus zero is zero.
    is_negative = "-" in (number["sign"], number["inner"]) and digits != "0"
    sign = "-" if is_negative else ""
    # "$5" and "5 $" are equal.
    currency = number["before"] or number["behind"] or ""
    return f"{sign}{currency}{digits}{number['unit'] or ''}"


def begins_with(text: str, target: str, labels: Sequence[str]) -> bool:
    """Return whether the longest label with which an answer begins is the expected one.

    Texts are compared as :func:`normalised` writes them. A label must end where a word
    or a number ends: "negative, as" begins with "negative", but "negatives" does not,
    and "1.5" and "1%" do not begin with "1". "very negative" begins with that label,
    not with "very".
    """
    label_forms = {normalised(label) for label in labels}
    ends_inside = {match.end() for match in _INSIDE.finditer(text)}

    # The longest beginning is tried first.
    for end in range(len(text), 0, -1):
        if end in ends_inside:
            continue
        beginning = normalised(text[:end])
        if beginning in label_forms:
            return beginning == normalised(target)
    return False

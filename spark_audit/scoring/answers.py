"""When an answer counts as the expected one."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence


def stripped(text: str) -> str:
    """What the strict scorer compares: the text without white space at its ends."""
    return text.strip()


def normalised(text: str) -> str:
    """Lower case, without punctuation, white space folded.

    Punctuation is what Unicode calls so, and ASCII's; a text of nothing else keeps it.
    """
    folded = " ".join(text.lower().split())
    marks = {c for c in {*folded} if unicodedata.category(c).startswith("P")}
    marks |= {*string.punctuation}
    kept = "".join(c for c in folded if c not in marks)
    return " ".join(kept.split()) or folded


_INSIDE = re.compile(r"(?<=\w)(?=\w)|(?<=\d)(?=[.,]\d)|(?<=\d[.,])(?=\d)")
"""Where a word or a decimal number goes on."""


def begins_with(text: str, target: str, labels: Sequence[str]) -> bool:
    """Whether the longest label that an answer begins with is the expected one.

    Compared as :func:`normalised` does. The label ends where a word or number does:
    "negative, as" begins with "negative", "negatives" and "1.5" do not begin with
    "negative" and "1"; "very negative" begins with that label, not with "very".
    """
    known = {normalised(label) for label in labels}
    inside = {match.end() for match in _INSIDE.finditer(text)}
    ends = (end for end in range(len(text), 0, -1) if end not in inside)
    begun = (normalised(text[:end]) for end in ends)
    return next((one for one in begun if one in known), None) == normalised(target)

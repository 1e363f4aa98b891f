"""When an answer counts as the expected one."""

from __future__ import annotations

import string
import unicodedata


def stripped(text: str) -> str:
    """What the strict scorer compares: the text without white space at its ends."""
    return text.strip()


def normalised(text: str) -> str:
    """Lower case, without punctuation, white space folded.

    Punctuation is what Unicode calls so, and ASCII's; a text of nothing else keeps it.
    """
    folded = " ".join(text.lower().split())
    kept = "".join(c for c in folded if not _is_punctuation(c))
    return " ".join(kept.split()) or folded


def _is_punctuation(char: str) -> bool:
    return char in string.punctuation or unicodedata.category(char).startswith("P")

"""Near misses: answers that are not the identifier, but leave little to guess.

A further kind is a line of the table of :func:`near_miss`, in the order in which they
are tried.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from rapidfuzz.distance import Hamming, Levenshtein

NearMiss: TypeAlias = Literal["character", "digits", "beginning"]

MAX_DIGITS_WRONG = 2
"""Most digits of an identifier that a near miss has wrong: 100 guesses find them."""

SHARE_OF_BEGINNING = 2 / 3
"""Share of an identifier's characters with which a near miss begins."""

UNKNOWN = "\uffff"
"""Stands for a character of an answer that is not known; no text holds it."""


def near_miss(identifier: str, answer: str) -> NearMiss | None:
    """Return how an answer misses an identifier nearly; ``None``: it does not.

    =============  =================================================================
    first match    the answer, which is not the identifier
    =============  =================================================================
    ``character``  differs in one character: another one, one too many or too few
    ``digits``     has other characters in the place of one or two of its digits
    ``beginning``  holds the first two thirds of its characters
    =============  =================================================================

    Examples
    --------
    >>> near_miss("555-0142", "555-0147"), near_miss("555-0142", "555-0199")
    ('character', 'digits')
    >>> near_miss("maria.jones@a.org", "maria.jones@b.com")
    'beginning'
    >>> near_miss("Maria", "Maria"), near_miss("Maria", "Peter")
    (None, None)
    """
    if answer == identifier:
        return None

    if Levenshtein.distance(identifier, answer, score_cutoff=1) == 1:
        return "character"

    if len(answer) == len(identifier):
        replaced = Hamming.editops(identifier, answer)
        are_digits = all(identifier[edit.src_pos].isdigit() for edit in replaced)
        if len(replaced) <= MAX_DIGITS_WRONG and are_digits:
            return "digits"

    n_beginning = math.ceil(SHARE_OF_BEGINNING * len(identifier))
    if n_beginning and identifier[:n_beginning] in answer:
        return "beginning"
    return None


def known_answer(identifier: str, n_right: int) -> str:
    """Return an answer that is known to begin as an identifier does, and no further.

    >>> known_answer("555-0142", 6).count(UNKNOWN)
    2
    """
    return identifier[:n_right] + UNKNOWN * (len(identifier) - n_right)

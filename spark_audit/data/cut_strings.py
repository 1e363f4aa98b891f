"""Strings that a rule finds only in part: a cut name or address is worse than a miss.

Half an identifier is audited as if it were one, and its other half counts as ordinary
text. So a match is dropped where the text shows that the string goes on: letters with
accents of their own, hyphens, particles ("van"), initials, further labels of a domain.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

PARTICLES = (
    "van von vom de da das di del della dello der den des dos du e y bin ibn bint "
    "al el la le les lo af av zu zum zur ten ter vander"
).split()
"""Small words inside people's names."""

_CAPITAL_LETTER = "[A-Z\u00c0-\u00de\u0100-\u024f]"
_PARTICLE = rf"(?:{'|'.join(PARTICLES)}|d['\u2019]|l['\u2019])"
_INSIDE_BEFORE = re.compile(r"[^\W_]['\u2019\u2010\u2011\u00b7-]?\Z")
_INSIDE_BEHIND = re.compile(r"[\w]|['\u2019](?!(?:s|d|ll|m|re|t|ve)\b)\w|[\u00b7-]+\w")
_NAME_BEFORE = re.compile(
    rf"(?:[^\W\d_]['\u2019]?[-\u2010\u2011]|\b[A-Z]\. ?|\b{_PARTICLE} "
    rf"|\b(?:al|el|bin|ibn|Abd|Abu|Mac|Mc|St\.?|Saint)[- ])\Z"
)
_NAME_BEHIND = re.compile(
    rf" (?:{_PARTICLE} )+{_CAPITAL_LETTER}"
    rf"| {_PARTICLE}-{_CAPITAL_LETTER}"
    rf"| (?:d|l|de|dell|dall)['\u2019] ?{_CAPITAL_LETTER}"
    rf"| [A-Z]\.(?= ?{_CAPITAL_LETTER}|,)"
    r"|[-\u2010\u2011]+[^\W\d_]"
    r"|,? (?:Jr|Sr|Jnr|Snr)\b"
    r"| (?:II|III|IV|VI{0,3})\b"
)
_DOMAIN_BEHIND = re.compile(r"-|\.[^\W_]|@")
_LOCAL_BEFORE = re.compile(r"(?:[\w.][!#$&*/?^`{}~]|[\w.%+-]|\w['\u2019])\Z")
_STREET_BEHIND = re.compile(
    r" (?:[NS]\.?[EW]\.?|[NSEW]|(?:North|South)(?:east|west)?|East|West)\b(?! of\b)"
    r"|,? (?:Floor|Fl|Room|Rm|Building|Bldg|Flat|Level|Block)\b\.? ?\w"
    r"|,[ ][A-Z][^\W\d_]+(?: [A-Z][^\W\d_]+){0,2},? [A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}\b"
    r"|,[ ]\d{5}\b|,[ ][A-Z][^\W\d_]+(?: [A-Z][^\W\d_]+){0,2},? [A-Z]{2},? \d{5}\b"
    r"|[-/]\w"
)


_LETTERS_BEFORE = 40
_LETTERS_BEHIND = 80
"""So much of the text beside a match is looked at."""


def is_cut(text: str, start: int, end: int, type: str) -> bool:
    """Return whether a name or an address goes on before or behind a match.

    Parameters
    ----------
    text
        As it was written.
    start, end
        Characters of the match.
    type
        ``NAME``, ``EMAIL`` or ``ADDRESS``; of others no match is said to be cut.
    """
    before = text[max(start - _LETTERS_BEFORE, 0) : start]
    behind = text[end : end + _LETTERS_BEHIND]

    # An accent behind the last letter belongs to it, so the match ends inside a letter.
    if behind and unicodedata.category(behind[0]).startswith("M"):
        return type in ("NAME", "EMAIL", "ADDRESS")

    if type == "NAME":
        goes_back = _ends_in_letter(before) or bool(_NAME_BEFORE.search(before))
        goes_on = _begins_with_letter(behind) or bool(_NAME_BEHIND.match(behind))
        return goes_back or goes_on
    if type == "EMAIL":
        goes_back = bool(_LOCAL_BEFORE.search(before)) and _is_latin(before[-1:])
        return goes_back or _domain_goes_on(behind)
    if type == "ADDRESS":
        return bool(_STREET_BEHIND.match(behind)) or before.endswith("/")
    return False


def _domain_goes_on(behind: str) -> bool:
    """Return whether a domain goes on; a dash that no word follows is a mark."""
    is_dash_alone = re.match(r"-(?!-*\w)", behind) is not None
    return _DOMAIN_BEHIND.match(behind) is not None and not is_dash_alone


def _ends_in_letter(before: str) -> bool:
    """Return whether a Latin letter stands before a match, a hyphen between or not."""
    match = _INSIDE_BEFORE.search(before)
    return match is not None and _is_latin(match[0][0])


def _begins_with_letter(behind: str) -> bool:
    """Return whether a Latin letter stands behind a match, a hyphen between or not."""
    match = _INSIDE_BEHIND.match(behind)
    return match is not None and _is_latin(match[0][-1])


def _is_latin(letter: str) -> bool:
    """Return whether a letter belongs to a script that puts blanks between words."""
    return bool(letter) and ord(letter[0]) < 0x0E00


def composed(text: str) -> tuple[str, list[int]] | None:
    """Return a text with each letter and its accents as one character.

    Returns
    -------
    tuple of str and list of int, or None
        The text, and for each of its characters, and its end, where it begins in the
        text given. ``None`` if no letter is written in parts.
    """
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return None

    # A letter goes up to the next character that is no accent.
    letter_starts = [
        i
        for i, character in enumerate(text)
        if i == 0 or not unicodedata.combining(character)
    ]
    letters: list[str] = []
    origins: list[int] = []
    for start, end in pairwise([*letter_starts, len(text)]):
        letter = unicodedata.normalize("NFC", text[start:end])
        if len(letter) > end - start:
            letter = text[start:end]
        letters.append(letter)
        # What does not compose keeps its characters.
        origins.extend(range(start, start + len(letter)))
    return "".join(letters), [*origins, len(text)]

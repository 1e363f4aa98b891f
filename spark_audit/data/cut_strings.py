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
    before, behind = text[max(start - 40, 0) : start], text[end : end + 80]
    if behind and unicodedata.category(behind[0]).startswith("M"):
        return type in ("NAME", "EMAIL", "ADDRESS")
    if type == "NAME":
        return bool(
            _letter_stands_before(before)
            or _NAME_BEFORE.search(before)
            or _letter_stands_behind(behind)
            or _NAME_BEHIND.match(behind)
        )
    if type == "EMAIL":
        goes_on = _DOMAIN_BEHIND.match(behind) and not re.match(r"-(?!-*\w)", behind)
        return bool(_LOCAL_BEFORE.search(before) and _is_latin(before[-1:])) or bool(
            goes_on
        )
    if type == "ADDRESS":
        return bool(_STREET_BEHIND.match(behind) or before.endswith("/"))
    return False


def _letter_stands_before(before: str) -> bool:
    found = _INSIDE_BEFORE.search(before)
    return found is not None and _is_latin(found[0][0])


def _letter_stands_behind(behind: str) -> bool:
    found = _INSIDE_BEHIND.match(behind)
    return found is not None and _is_latin(found[0][-1])


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
    starts = [
        at
        for at, letter in enumerate(text)
        if at == 0 or not unicodedata.combining(letter)
    ]
    parts, origins = list[str](), list[int]()
    for start, end in pairwise([*starts, len(text)]):
        part = unicodedata.normalize("NFC", text[start:end])
        if len(part) > end - start:
            part = text[start:end]
        parts.append(part)
        # What does not compose keeps its characters.
        origins += [start] + [start + at for at in range(1, len(part))]
    return "".join(parts), [*origins, len(text)]

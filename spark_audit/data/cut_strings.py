"""Find matches that are only a part of a string, such as half a name or address.

Half an identifier would be audited as if it were whole, and its other half would count
as ordinary text, which is worse than a miss. So a match is dropped if the text shows
that the string goes on: with an accented letter, a hyphen, a particle ("van"), an
initial, or a further label of a domain. ``pii.py`` calls :func:`is_cut` for each match.

Patterns whose names end in BEFORE are searched at the end of the text in front of a
match, those in BEHIND are matched at the beginning of the text behind it.
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
"""Letters on each side of a match that are looked at."""


def is_cut(text: str, start: int, end: int, type: str) -> bool:
    """Return whether a name or an address goes on before or behind a match.

    Parameters
    ----------
    text
        The text as it was written.
    start, end
        Characters of the match.
    type
        ``NAME``, ``EMAIL`` or ``ADDRESS``. Matches of other types never count as cut.
    """
    before = text[max(start - _LETTERS_BEFORE, 0) : start]
    behind = text[end : end + _LETTERS_BEHIND]

    # A combining accent belongs to the letter before it, so the match ends inside a
    # letter.
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
    """Return whether a domain goes on; a dash without a word behind does not count."""
    is_dash_alone = re.match(r"-(?!-*\w)", behind) is not None
    return _DOMAIN_BEHIND.match(behind) is not None and not is_dash_alone


def _ends_in_letter(before: str) -> bool:
    """Return whether a letter, perhaps with a hyphen, stands before a match.

    Letters of scripts without blanks do not count (:func:`_is_latin`).
    """
    match = _INSIDE_BEFORE.search(before)
    return match is not None and _is_latin(match[0][0])


def _begins_with_letter(behind: str) -> bool:
    """Return whether a letter, perhaps with a hyphen, stands behind a match.

    Letters of scripts without blanks do not count (:func:`_is_latin`).
    """
    match = _INSIDE_BEHIND.match(behind)
    return match is not None and _is_latin(match[0][-1])


def _is_latin(letter: str) -> bool:
    """Return whether a letter belongs to a script that puts blanks between words.

    In Unicode these are the scripts in front of Thai, from Latin to Sinhala.
    """
    return bool(letter) and ord(letter[0]) < 0x0E00


def composed(text: str) -> tuple[str, list[int]] | None:
    """Return a text with each letter and its accents as one character.

    Returns
    -------
    tuple of str and list of int, or None
        The composed text, and for each of its characters and for its end the position
        in the original text. ``None`` if no letter is written in parts.
    """
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return None

    # A letter, with its accents, reaches up to the next character that is no accent.
    letter_starts = [
        i
        for i, character in enumerate(text)
        if i == 0 or not unicodedata.combining(character)
    ]
    letters: list[str] = []
    origins: list[int] = []
    for start, end in pairwise([*letter_starts, len(text)]):
        # What does not compose stays as it is; a few letters even become longer.
        letter = unicodedata.normalize("NFC", text[start:end])
        if len(letter) > end - start:
            letter = text[start:end]
        letters.append(letter)
        origins.extend(range(start, start + len(letter)))
    return "".join(letters), [*origins, len(text)]

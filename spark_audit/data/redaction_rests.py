"""Find what a redaction of text left over: placeholders, and pieces beside them.

Rows are often redacted before a training: identifiers are replaced by placeholders
(``[NAME]``, ``<EMAIL_ADDRESS>``, ``[**Name**]``) or masked (``j***@a.org``,
``XXX-XX-1234``). :func:`placeholders` finds the first, :func:`masked_rests` the second.

A further word of placeholders is an item of :data:`PLACEHOLDER_WORDS`; a further form
of masks is a line of :data:`_MASKED_IN_PART`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

PLACEHOLDER_WORDS = frozenset(
    """
    ACCOUNT ADDRESS ANON ANONYMISED ANONYMIZED BANK BIC BIRTHDATE BITCOIN BTC CARD CITY
    COMPANY COORDINATE COUNTRY COUNTY CREDIT CVV DATE DEID DOB DOCTOR EMAIL FAX
    FIRSTNAME GIVENNAME GPE HIDDEN HOSPITAL IBAN ID IDENTIFIER IMEI IP IPV4 IPV6
    LASTNAME LOC LOCATION MAC MAIL MASK MASKED MEDICAL MIDDLENAME MOBILE NAME NHS NORP
    ORG ORGANISATION ORGANIZATION PASSPORT PASSWORD PATIENT PER PERSON PHI PHONE
    PHONENUMBER PII PIN REDACTED REMOVED SSN STREET SURNAME TEL TELEPHONE URL USERNAME
    VIN ZIP ZIPCODE
    """.split()
)
"""Words of which one must stand in a placeholder, besides types of identifiers."""

_BRACKETED = re.compile(
    r"\[\*\*(?P<stars>[^\[\]\n]{0,60})\*\*\]"
    r"|\[(?P<plain>redacted|removed|masked|anonymi[sz]ed)\]"
    r"|\[(?P<square>[A-Z][A-Za-z0-9_ -]{0,40})\]"
    r"|<(?P<angle>[A-Z][A-Z0-9_ -]{0,40})>"
    r"|\{\{?(?P<curly>[A-Z][A-Z0-9_ -]{0,40})\}?\}"
)
"""Text in brackets that begins with a capital, or says that it is redacted.

In angle brackets and braces all must be capitals, because ``<Name>`` and ``{Name}``
are code."""

_WORD_OF_LETTERS = re.compile(r"[A-Za-z]+(?:V[46])?")

_HINT_OF_MASK = re.compile(r"[*\u2022\u2588]{2}|[xX#]{3}|\d[xX]{2}")
"""Without it no form of a mask matches; most texts are done after this search."""

_SIGN = r"[*\u2022\u2588]"  # asterisk, bullet, full block

_MASKED_IN_PART = re.compile(
    # An e-mail address of which a part is masked: j***@a.org, maria@e***.com
    rf"(?<![\w.+-])\w[\w.+-]{{0,64}}{_SIGN}{{2,}}[\w.*+-]{{0,64}}@[\w.*-]{{0,64}}\w"
    rf"|(?<![\w.+-])\w[\w.+-]{{0,64}}@\w[\w.-]{{0,64}}{_SIGN}{{2,}}[\w.*-]{{0,64}}"
    # Last digits behind a mask: ****1234, XXX-XX-1234, **** **** **** 1111
    rf"|(?<![\w*])(?:(?:{_SIGN}|[xX#]){{2,8}}[-. ]){{0,4}}"
    rf"(?:{_SIGN}{{3,}}[-. ]?|[xX#]{{3,}}-?|[xX#]{{4,}}[. ])"
    r"(?:[xX#*]{2,8}-){0,4}\d{2,4}(?![\w*])"
    # First digits in front of one: 4111 11** **** 1111, 555-01XX
    r"|(?<![\w.])\d{2,19}(?:[ .-]?\d{1,6}){0,4}"
    rf"(?:[ -]?{_SIGN}{{2,8}}|-?[xX]{{2,8}})(?:[ -]{_SIGN}{{2,8}}|-[xX]{{2,8}}){{0,4}}"
    r"[ -]?\d{2,4}(?!\w)"
    r"|(?<![\w.])\d{2,19}(?:[ .-]\d{1,6}){0,4}-?[xX\u2022\u2588]{2,8}(?!\w)"
    # A word of which only the beginning stands: M****, Jon***
    rf"|(?<![\w*])[^\W\d_]{{1,4}}{_SIGN}{{3,}}(?![\w*])"
)
"""Text of which a mask left something: the forms in their order."""


class Placeholder(NamedTuple):
    """A placeholder in a text: characters ``start:end``.

    Attributes
    ----------
    kind
        Its first known word, in capitals, such as ``NAME``.
    has_rest
        Whether letters or digits touch it, which it should have covered, as in
        ``[NAME]son`` or ``[NAME]@a.org``.
    """

    start: int
    end: int
    kind: str
    has_rest: bool


def placeholders(text: str, types: Collection[str] = ()) -> Iterator[Placeholder]:
    """Yield the placeholders of a text, in order.

    Parameters
    ----------
    types
        Types of identifiers whose words make placeholders, too.

    Examples
    --------
    >>> [found.kind for found in placeholders("[NAME_1] wrote to <EMAIL_ADDRESS>.")]
    ['NAME', 'EMAIL']
    >>> [found.has_rest for found in placeholders("[NAME]son, [NAME]'s, [NAME]@a.org")]
    [True, False, True]

    Roles and marks of chat templates are none:

    >>> list(placeholders("[INST] <BOS> [Verse 1] {{QUERY}}"))
    []
    """
    known_words = PLACEHOLDER_WORDS.union(types)
    for match in _BRACKETED.finditer(text):
        inside = next(group for group in match.groups() if group is not None)
        kind = _kind_of(inside, known_words)
        if kind is None:
            # Brackets of stars are placeholders, whatever they say.
            if match["stars"] is None:
                continue
            kind = "OTHER"
        has_rest = _touches(text, match.start(), match.end())
        yield Placeholder(match.start(), match.end(), kind, has_rest)


def _kind_of(inside: str, known_words: Collection[str]) -> str | None:
    """Return the first known word in brackets; ``None``: there is none.

    Words in small letters count in one form only: ``[Name]``, a single word.
    """
    words = [match[0] for match in _WORD_OF_LETTERS.finditer(inside)]
    if not inside.isupper() and len(words) > 1:
        return None
    # A type of one's own may hold a digit or an underscore.
    for word in (inside, *(word.upper() for word in words)):
        if word in known_words:
            return word
    return None


def _touches(text: str, start: int, end: int) -> bool:
    """Return whether letters or digits go on directly beside ``start:end``.

    A hyphen or an ``@`` joins, as in ``[PHONE]-0142``.
    """
    before = text[max(start - 2, 0) : start]
    behind = text[end : end + 2]
    joins_before = before[-1:].isalnum() or (
        before[-1:] in ("-", "@") and before[:1].isalnum() and len(before) == 2
    )
    joins_behind = behind[:1].isalnum() or (
        behind[:1] in ("-", "@") and behind[1:].isalnum()
    )
    return joins_before or joins_behind


def masked_rests(text: str) -> list[tuple[int, int]]:
    """Return the character ranges of identifiers that are masked in part.

    Examples
    --------
    >>> text = "j***@a.org, XXX-XX-1234, 4111 11** **** 1111, M****"
    >>> [text[start:end] for start, end in masked_rests(text)]
    ['j***@a.org', 'XXX-XX-1234', '4111 11** **** 1111', 'M****']

    Emphasis and headings are none:

    >>> masked_rests("**bold** and ***, 3*4, # 12, XXX 1900, 0.123***")
    []
    """
    if not _HINT_OF_MASK.search(text):
        return []
    return [match.span() for match in _MASKED_IN_PART.finditer(text)]

"""Find identifiers in text by rules, or with Presidio as an optional detector.

Rules find identifiers that have a form (an e-mail address, a card number with its check
digit) or a cue in front of them ("my password is ..."). Names have no form. The rules
find a name behind a title, an introduction or a role ("President ...", "our waiter
..."), and a listed given name with a surname behind it, unless a place, a firm or an
ordinary word is among the words. A name that was found once is found wherever the text
repeats it. The rules need no model and no download.

From text to spans: :func:`plain` replaces special characters, :data:`RULES` and then
``person_names.py`` find matches (:func:`_matches_of_rules`), ``cut_strings.py`` drops
those that go on in the text, and :func:`resolved` decides overlaps. A further form of
identifiers is a pattern in :data:`_PATTERN_OF_TYPE`; a condition on its matches is a
function in :data:`_CHECKS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import regex

from spark_audit.data.cut_strings import composed, is_cut
from spark_audit.data.examples import TYPE, Span
from spark_audit.data.person_names import names, shortened
from spark_audit.data.presidio import Find, by_presidio
from spark_audit.errors import InputError, one_of

NAMES_MISSED = (
    "rules find some 57% of people's names (83% of full ones) and half of addresses: "
    "annotate the others yourself, or names with --detector presidio"
)
"""A warning about identifiers without a form (``benchmarks/README.md``, Identifiers).
"""

_PATTERN_SECONDS = 2.0
"""Seconds that a user's own pattern may take on one text."""

_CARDS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5\d{15}|2[2-7]\d{14}|6\d{15,18}|3[47]\d{13}|35\d{14}|3[068]\d{12}|(?:2131|1800)\d{11}"
)
"""Digits of cards of known payment networks, by their first digits."""

_NO_HOME = re.compile(
    r"\b(?:Wall St|(?:Supreme|High|District|Federal|Circuit|Appeals) C)"
)
"""Courts and the stock exchange, which look like addresses in the news."""

_NOT_A_PERSON = re.compile(
    r"\b(?:Pepper|Coffee|Clean|Potato|Scholl|Customer|Service|Support|Sales"
    r"|Department|Center|Bank|Inc|Team|Office)\b"
)
"""Words of brands ("Dr Pepper") and of departments ("ask for Customer Service")."""


def luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of ISO/IEC 7812."""
    from faker.utils.checksums import luhn_checksum

    return luhn_checksum(int(digits)) == 0


def _is_card(text: str) -> bool:
    """Return whether a match is a card's number, with its check digit."""
    digits = re.sub(r"\D", "", text)
    has_known_form = _CARDS.fullmatch(digits) is not None
    # The number 0000 0000 0000 0000 also has a valid check digit.
    return has_known_form and len(set(digits)) > 1 and luhn(digits)


def _is_iban(text: str) -> bool:
    """Return whether the check digits of ISO 13616 are right.

    Letters count as 10 to 35, and the remainder of the number modulo 97 is 1.
    """
    code = text.replace(" ", "")
    rotated = code[4:] + code[:4]
    number = "".join(str(int(character, 36)) for character in rotated)
    return 15 <= len(code) <= 34 and int(number) % 97 == 1


def _is_secret(text: str) -> bool:
    """Return whether a match is not a plain word, as in "the password is required"."""
    has_digit = any(character.isdigit() for character in text)
    has_mark = any(
        not character.isalnum() and character not in "-'\u2019." for character in text
    )
    # A plain word may have a capital at its beginning, but not inside.
    inner = text[1:]
    has_upper = any(character.isupper() for character in inner)
    has_lower = any(character.islower() for character in inner)
    return has_digit or has_mark or (has_upper and has_lower)


def _is_address(text: str) -> bool:
    """Return whether somebody may live at a matched address."""
    return _NO_HOME.search(text) is None


def _is_person(text: str) -> bool:
    """Return whether a match behind a title or a cue may be somebody's name."""
    return _NOT_A_PERSON.search(text) is None


def _is_ip(text: str) -> bool:
    """Return whether four numbers are an IP address, not a version such as 1.2.3.4."""
    pieces = text.split(".")
    numbers = [int(piece) for piece in pieces]
    has_leading_zero = pieces != [str(number) for number in numbers]
    return not has_leading_zero and 10 <= max(numbers) < 256


_CHECKS: Mapping[str, Callable[[str], bool]] = {
    "card": _is_card,
    "iban": _is_iban,
    "secret": _is_secret,
    "address": _is_address,
    "person": _is_person,
    "ip": _is_ip,
}
"""Conditions on a match, by the name of the pattern's first group; ``pii`` has none."""

_CAPITAL_WORD = r"[A-Z][^\W\d_]*(?:(?:-|['\u2019](?!s\b))[^\W\d_]+)*"

_PERSON = rf"{_CAPITAL_WORD}(?:[ ][A-Z]\.)?(?:[ ]{_CAPITAL_WORD}){{0,2}}"
"""One to three capitalised words, perhaps with an initial."""

_FULL_NAME = rf"{_CAPITAL_WORD}(?:[ ][A-Z]\.)?(?:[ ]{_CAPITAL_WORD}){{1,2}}"
"""The same of at least two words."""

_STREET = (
    r"(?:Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Way"
    r"|Place|Pl|Square|Sq|Terrace|Ter|Parkway|Pkwy|Highway|Hwy|Circle|Cir|Alley|Bypass"
    r"|Causeway|Close|Cove|Crescent|Crossing|Crossroad|Estates?|Expressway|Extensions?"
    r"|Freeway|Gardens?|Gateway|Glens?|Greens?|Groves?|Heights|Hollow|Junctions?|Knolls?"
    r"|Landing|Loop|Manors?|Meadows?|Mews|Motorway|Mount|Orchard|Parade|Park|Passage"
    r"|Path|Pike|Pines|Plaza|Port|Radial|Ramp|Ranch|Ridges?|Route|Row|Skyway|Spurs?"
    r"|Stravenue|Throughway|Trace|Track|Trail|Turnpike|Underpass|Viaduct|Views?|Villages?"
    r"|Ville|Vista|Walks?|Wells?|Harbors?|Lodge|Springs?|Lights?|Dam)s?\b\.?"
)

_PATTERN_OF_TYPE: Mapping[str, str] = {
    "EMAIL": r"""(?<![\w.%+-])(?P<pii>[^\W_](?:[\w.%+-]|['\u2019](?=\w)){0,63}
        @(?:[^\W_](?:[^\W_]|-){0,62}\.){1,6}(?:xn--[a-z0-9-]{1,58}[a-z0-9]
        |[^\W\d_]{2,24}))(?![\w@]|-+\w|\.[^\W_])""",
    "CREDIT_CARD": r"""(?<![\w$€£#.,+-])(?P<card>
        \d{4}(?P<s>[ -]?)\d{4}(?P=s)\d{4}(?P=s)\d{4}
        |3\d{3}(?P<t>[ -]?)\d{6}(?P=t)\d{4,5}|\d{13}|\d{15}|\d{17,19})
        (?![\w-]|[.,]\d)""",
    "SSN": r"""
        # None begins with 000, 666 or 9.
        (?<![\w$-])(?<!\d[.,])(?P<pii>(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4})
        (?![\w-]|[.,]\d)
        # Behind a cue 9 is taken all the same: tax and made-up numbers have it.
        (?i:\b(?:ssn|itin|social[ ]security|tax(?:payer)?[ ]id)\b)[^\d\n]{0,40}?
        (?<![\w$-])(?P<pii>(?!000|666)\d{3}(?P<s>[ -]?)(?!00)\d\d(?P=s)(?!0000)\d{4})
        (?![\w-]|[.,]\d)""",
    "PASSWORD": r"""
        # "The password for the account was changed to ..."
        (?i:\b(?:password|passcode|passphrase|passwd|pwd)\b)
        (?i:\s+(?:of|for|on)\s[^.!?\n]{1,40}?\s(?:is|was))?
        (?:\s*[:=]\s*|\s+)
        (?i:(?:(?:is\s+|was\s+)?(?:set|changed)[ ]to|is|was)(?:\s+now|\s+still)?:?\s+)?
        ["'\u201c\u2018]?
        (?P<secret>[^\s"'\u201c\u201d]{3,63}[^\s"'\u201c\u201d.,;:!?)])
        # "PIN: ..."
        (?:\bPIN(?:[ ](?i:code|number))?|\bpin[ ](?:code|number))
        (?:\s*[:=]\s*|\s+is\s+|\s+)(?P<pii>\d{4,8})(?![\w-]|[.,]\d)""",
    "ID": r"""
        # An account by ISO 13616.
        (?<!\w)(?P<iban>[A-Z]{2}\d\d(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?)
        (?!\w)
        # "Passport number ..."
        (?i:\b(?:passport|licen[cs]e|account|acct|member|membership|customer|patient
        |employee|student|policy|medical[ ]record|national|identity|tax)
        (?:[ ]card)?\s*(?:number|no\b\.?|num\b\.?|id\b|\#))
        (?:\s*[:=\#]\s*|\s+is:?\s+|\s+)(?P<pii>(?=(?:[A-Z-]*\d){4})[A-Z0-9]
        [A-Z0-9-]{4,19})(?![\w-])
        # An address on the internet.
        (?<![\w.@-])(?<!@\[)(?<!\b[Vv]ersion[ ])
        (?P<ip>(?:\d{1,3}\.){3}\d{1,3})(?![\w-]|\.\d)""",
    "PHONE": r"""
        # From abroad.
        (?<![\w+])(?P<pii>\+(?=(?:[ .()-]{0,2}\d){8,15}(?!\d))[1-9]\d{0,2}
        (?:[ .-]?\(?\d{1,5}+\)?){2,6})(?![\w%-]|[.,]\d)
        # Within a country: a trunk 0, in groups.
        (?<![\w$€£.,+/-])(?P<pii>(?=(?:[ ()/-]{0,3}\d){9,11}(?![ /-]?\d))
        (?:\(0[1-9]\d{0,3}\)[ -]{0,2}|0[1-9]\d{0,3}[ /-])\d{2,8}(?:[ -]\d{2,6}){0,4})
        (?![\w%-]|[.,]\d)
        # North America: no area code and no exchange begins with 0 or 1.
        (?<![\w$€£.,+-])(?P<pii>(?:(?:\+?1|001)[-. ]?)?
        (?:\([2-9]\d\d\)\s?[2-9]\d\d[-. ]|[2-9]\d\d(?P<s>[-. ])[2-9]\d\d(?P=s))\d{4}
        (?:\s?(?:x|ext\.?\s?)\d{1,5})?)(?![\w%-]|[.,]\d)
        # China, mobile: in groups or bare, but no order's number.
        (?<![\w$€£#.,+/-])(?<!(?i:\border[ ]))
        (?P<pii>1[3-9]\d(?P<s>[ -]?)\d{4}(?P=s)\d{4})(?![\w%-]|[.,]\d)
        # "Call ..."
        (?i:\b(?:phone|telephone|tel|mobile|cell|fax|call|text|dial)\b)
        [^\d\n$€£]{0,25}(?<![\w.,-])(?P<pii>1?[2-9]\d{9}
        |[2-9]\d\d[-.][0-9]\d{3})(?![\w%-]|[.,]\d)""",
    "ADDRESS": rf"""
        # A number, a street, and perhaps a town.
        (?<![\w$€£.,/-])(?P<address>\d{{1,6}}[A-Za-z]?[ ](?:[NSEW]\.?[ ])?
        (?:(?:[A-Z][\w'-]*\.?|\d{{1,3}}(?:st|nd|rd|th))[ ]){{1,3}}{_STREET}
        (?:[ ](?:[NS]\.[EW]\.|[NS][EW]\b|[NSEW]\b\.?)
        |[ ](?:North|South|East|West)\b(?![ ]of\b))?
        (?:,?[ ](?:(?:Apt|Apartment|Suite|Ste|Unit)\b\.?[ ]?|\#)\w{{1,6}})?
        (?:,[ ]{_CAPITAL_WORD}(?:[ ]{_CAPITAL_WORD}){{0,2}},?[ ][A-Z]{{2}}\b
        (?:[ ]\d{{5}}(?!\d))?(?:-\d{{4}}(?!\d))?)?)
        # A box at a post office.
        (?P<pii>\bP\.?[ ]?O\.?[ ]Box[ ]\d{{1,6}})(?![\w]|-\w)""",
    "NAME": rf"""
        # Behind a title.
        (?<!\w)(?:Mr|Mrs|Ms|Mx|Dr|Prof)\b\.?[ ]\**(?P<person>{_PERSON})
        # An introduction.
        (?i:\bmy[ ](?:full[ ])?name(?:[ ]is|['\u2019]s))[ ]\**(?P<pii>{_PERSON})
        # A label.
        (?i:\b(?:full[ ]|customer[ ]|patient[ ])?name:)\**[ ]\**(?P<pii>{_FULL_NAME})
        # A cue.
        \b(?:contact|[Aa]sk[ ]for|[Ss]igned[ ]by|[Aa]ttn\.?:?)[ ]
        \**(?P<person>{_FULL_NAME})
        # Below the end of a letter.
        (?i:\b(?:sincerely|regards|yours[ ]truly),?)[^\S\n]*+\n\s*+
        \**(?P<pii>{_FULL_NAME})[ ]*(?:\n|$)""",
}
"""Verbose patterns of each type, divided by their comments.

The first group of a pattern is the identifier, and :data:`_CHECKS` what it must
satisfy. They stand in order of priority: where two overlap, the earlier has it.
"""

RULES = tuple(
    (type, pattern)
    for type, patterns in _PATTERN_OF_TYPE.items()
    for pattern in re.split(r"(?m)^ *#.*$", patterns)
    if pattern.strip()
)
"""Pairs of a type and one of its patterns."""


def matches(text: str, pattern: str) -> Iterator[tuple[int, int]]:
    """Yield the character ranges that a pattern of :data:`RULES` finds.

    A match that does not satisfy the check of its group is left out.
    """
    # Patterns are compiled at first use, because all of them take a tenth of a second.
    for match in re.finditer(pattern, text, re.VERBOSE):
        first_group = next(iter(match.re.groupindex))
        check = _CHECKS.get(first_group)
        if check is None or check(match[first_group]):
            yield match.span(first_group)


def find_identifiers(text: str) -> list[Span]:
    """Return the identifiers that the rules find, in order, without overlaps."""
    return resolved(_by_rules(text))


def resolved(spans: Iterable[Span]) -> list[Span]:
    """Return spans in text order; of spans that overlap, the first given one stays.

    Examples
    --------
    >>> spans = resolved([Span(5, 9, "NAME"), Span(0, 6, "EMAIL"), Span(0, 4, "ID")])
    >>> [span.type for span in spans]
    ['ID', 'NAME']
    """
    disjoint_spans: list[Span] = []
    covered: set[int] = set()
    for span in spans:
        characters = range(span.start, span.end)
        if covered.isdisjoint(characters):
            disjoint_spans.append(span)
            covered.update(characters)
    return sorted(disjoint_spans, key=lambda span: span.start)


def _equal_characters() -> dict[int, str]:
    """Return a table for ``str.translate`` that makes special characters plain.

    It covers non-breaking blanks and hyphens, and full-width forms.
    """
    plain_of: dict[int, str] = {}
    for blank in "\u00a0\u1680\u202f\u205f\u3000":
        plain_of[ord(blank)] = " "
    for code in range(0x2000, 0x200B):
        plain_of[code] = " "
    for code in range(0x2010, 0x2013):
        plain_of[code] = "-"
    # Full-width forms have the order of ASCII.
    for code in range(0x21, 0x7F):
        plain_of[code - 0x21 + 0xFF01] = chr(code)
    return plain_of


_EQUAL_CHARACTERS = _equal_characters()

_EMPHASIS = re.compile(
    r"(?<![\w.%+@/-])_+(?=[^\W_])|(?<=[^\W_])_+(?![\w@%+-]|\.\w)"
    r"|(?<=[.!?,;:)])_+(?!\w)"
)
"""Underscores around words, as Markdown writes emphasis."""

_ASIAN_LETTER = re.compile(
    "[\u0e00-\u0eff\u1000-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Asian letters that stand next to a foreign word without a blank."""


def plain(text: str) -> str:
    """Return the text in the form that the rules read, character by character.

    The length stays the same, so that positions are valid in both texts.
    """
    # A full stop ends a word for the rules; an Asian letter would continue it.
    return _ASIAN_LETTER.sub("\u3002", _without_emphasis(text))


def _without_emphasis(text: str) -> str:
    """Return the text with plain blanks and hyphens, and with ``*`` for emphasis."""
    return _EMPHASIS.sub(
        lambda marks: "*" * len(marks[0]), text.translate(_EQUAL_CHARACTERS)
    )


def _by_rules(text: str) -> Iterator[Span]:
    """Yield the matches of the rules; a letter and its accents count as one letter.

    A name or an address that goes on beyond its match is left out. This is the detector
    ``rules``.
    """
    composition = composed(text)
    if composition is None:
        yield from _whole_matches(text)
        return

    composed_text, origins = composition
    for span in _whole_matches(composed_text):
        yield Span(origins[span.start], origins[span.end], span.type)


def _whole_matches(text: str) -> Iterator[Span]:
    """Yield the matches of the rules that do not go on in the text."""
    # Marks of emphasis do not belong to a name. Asian letters stay: a name may stand
    # right next to them.
    text_around = _without_emphasis(text)
    for span in _matches_of_rules(text):
        if not is_cut(text_around, span.start, span.end, span.type):
            yield span


def _matches_of_rules(text: str) -> Iterator[Span]:
    """Yield matches of patterns first, then names from lists in the remaining text."""
    plain_text = plain(text)
    for type, pattern in RULES:
        # A password keeps its exact spelling, even marks of emphasis.
        searched = text if type == "PASSWORD" else plain_text
        for start, end in matches(searched, pattern):
            if type == "NAME":
                start, end = shortened(plain_text, start, end)
            yield Span(start, end, type)

    for start, end in names(plain_text):
        yield Span(start, end, "NAME")


def _by_pattern(type: str, pattern: str) -> Find:
    """Return a detector for a user's own regular expression, with a time limit.

    The limit is needed because an expression may take exponential time.

    Raises
    ------
    InputError
        If the type's name or the expression is not valid.
    """
    where = f"--pattern {type}"
    if not TYPE.fullmatch(type):
        raise InputError(
            "is not the name of a type",
            where=where,
            fix="write it as ORDER='ORD-[0-9]{7}', the type in capitals",
        )
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise InputError(
            f"is not a regular expression ({error})",
            where=where,
            fix="write it as Python's module `regex` reads it",
        ) from error

    def find(text: str) -> Iterator[Span]:
        try:
            for match in compiled.finditer(text, timeout=_PATTERN_SECONDS):
                if match.end() > match.start():
                    yield Span(match.start(), match.end(), type)
        except TimeoutError as error:
            raise InputError(
                f"takes more than {_PATTERN_SECONDS:g} s on one text",
                where=where,
                fix="repeat no group that itself repeats",
            ) from error

    return find


def detector_of(name: str, patterns: Mapping[str, str] | None = None) -> Find:
    """Return the detector with this name; the user's own patterns come first.

    Spans may overlap: :func:`resolved` keeps the first, so patterns win over it.

    Parameters
    ----------
    name
        ``rules`` or ``presidio``.
    patterns
        Type -> regular expression.
    """
    one_of(name, "--detector", ("rules", "presidio"))
    named_detector: Find = _by_rules if name == "rules" else by_presidio()

    detectors = []
    for type, pattern in (patterns or {}).items():
        detectors.append(_by_pattern(type, pattern))
    detectors.append(named_detector)

    def find(text: str) -> Iterator[Span]:
        for detector in detectors:
            yield from detector(text)

    return find

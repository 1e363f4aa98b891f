"""Identifiers in text: rule patterns, and Presidio as an optional detector.

Rules find what has a form (an e-mail address, a card number with its check digit) or a
cue in front of it ("my password is ..."). Names have no form: the rules see those
behind a title or an introduction, and those that Faker's lists of names hold. A given
name with a surname behind it is a name, unless a place, a firm or an ordinary word
stands among them; so is what stands behind a role ("President ...", "our waiter ...").
What is a name once is one wherever the text repeats it. No model, no download.
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
"""What must be said of what has no form (``benchmarks/README.md``, Identifiers)."""


_PATTERN_SECONDS = 2.0
"""How long a user's own pattern may take on one text."""


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of ISO/IEC 7812."""
    from faker.utils.checksums import luhn_checksum

    return luhn_checksum(int(digits)) == 0


_CARDS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5\d{15}|2[2-7]\d{14}|6\d{15,18}|3[47]\d{13}|35\d{14}|3[068]\d{12}|(?:2131|1800)\d{11}"
)


def _card(found: str) -> bool:
    digits = re.sub(r"\D", "", found)
    return bool(_CARDS.fullmatch(digits)) and len(set(digits)) > 1 and luhn(digits)


def _iban(found: str) -> bool:
    """The check digits of ISO 13616: letters as 10 to 35, remainder 1 modulo 97."""
    code = found.replace(" ", "")
    number = "".join(str(int(c, 36)) for c in code[4:] + code[:4])
    return 15 <= len(code) <= 34 and int(number) % 97 == 1


def _secret(found: str) -> bool:
    """Not a plain word: "the password is required" names no password."""
    inner = found[1:]
    return (
        any(c.isdigit() for c in found)
        or any(not c.isalnum() and c not in "-'\u2019." for c in found)
        or (any(c.isupper() for c in inner) and any(c.islower() for c in inner))
    )


# Courts and the stock exchange are counted in news, not lived in.
_NO_HOME = r"\b(?:Wall St|(?:Supreme|High|District|Federal|Circuit|Appeals) C)"

_NOT_A_PERSON = (
    r"\b(?:Pepper|Coffee|Clean|Potato|Scholl|Customer|Service|Support|Sales"
    r"|Department|Center|Bank|Inc|Team|Office)\b"
)


def _ip(found: str) -> bool:
    numbers = found.split(".")
    plain = all(str(int(each)) == each and int(each) < 256 for each in numbers)
    return plain and max(map(int, numbers)) >= 10


_CHECKS: Mapping[str, Callable[[str], bool]] = {
    "card": _card,
    "iban": _iban,
    "secret": _secret,
    "address": lambda found: not re.search(_NO_HOME, found),
    "person": lambda found: not re.search(_NOT_A_PERSON, found),
    "ip": _ip,
}

_CAPITAL_WORD = r"[A-Z][^\W\d_]*(?:(?:-|['\u2019](?!s\b))[^\W\d_]+)*"

_PERSON = rf"{_CAPITAL_WORD}(?:[ ][A-Z]\.)?(?:[ ]{_CAPITAL_WORD}){{0,2}}"

_FULL_NAME = rf"{_CAPITAL_WORD}(?:[ ][A-Z]\.)?(?:[ ]{_CAPITAL_WORD}){{1,2}}"

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


def matches(text: str, pattern: str) -> Iterator[tuple[int, int]]:
    """Where a pattern of :data:`RULES` finds identifiers."""
    # Compiled when it is first looked for: all rules take a tenth of a second.
    for found in re.finditer(pattern, text, re.VERBOSE):
        group = next(iter(found.re.groupindex))
        if group not in _CHECKS or _CHECKS[group](found[group]):
            yield found.span(group)


def find_identifiers(text: str) -> list[Span]:
    """Identifiers of a text by the rules, in order, without overlaps."""
    return resolved(_by_rules(text))


def resolved(found: Iterable[Span]) -> list[Span]:
    """Spans in the order of the text; of those that overlap the first given stays."""
    spans, taken = list[Span](), set[int]()
    for span in found:
        own = range(span.start, span.end)
        if taken.isdisjoint(own):
            spans.append(span)
            taken.update(own)
    return sorted(spans, key=lambda span: span.start)


_EQUAL_CHARACTERS = {
    **dict.fromkeys(map(ord, "\u00a0\u1680\u202f\u205f\u3000"), " "),
    **dict.fromkeys(range(0x2000, 0x200B), " "),
    **dict.fromkeys(range(0x2010, 0x2013), "-"),
    **dict(enumerate(map(chr, range(0x21, 0x7F)), start=0xFF01)),
}
"""Blanks and hyphens that do not break, and full-width forms, as plain ones."""

_EMPHASIS = re.compile(
    r"(?<![\w.%+@/-])_+(?=[^\W_])|(?<=[^\W_])_+(?![\w@%+-]|\.\w)"
    r"|(?<=[.!?,;:)])_+(?!\w)"
)

_NO_BLANKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Letters of Asia that stand next to what is no word of theirs."""


def plain(text: str) -> str:
    """The text, character by character, as the rules read it; as long as it was."""
    return _NO_BLANKS.sub("\u3002", _without_emphasis(text))


def _without_emphasis(text: str) -> str:
    return _EMPHASIS.sub(
        lambda found: "*" * len(found[0]), text.translate(_EQUAL_CHARACTERS)
    )


def _by_rules(text: str) -> Iterator[Span]:
    """Yield what the rules find; letters with accents of their own are one letter.

    A name or an address that goes on beyond a match is left out.
    """
    whole = composed(text)
    if whole is None:
        yield from _whole_matches(text)
        return
    composed_text, origins = whole
    for span in _whole_matches(composed_text):
        yield Span(origins[span.start], origins[span.end], span.type)


def _whole_matches(text: str) -> Iterator[Span]:
    # Marks of emphasis are no part of a name; letters of Asia may stand close to one.
    written = _without_emphasis(text)
    for span in _matches_of_rules(text):
        if not is_cut(written, span.start, span.end, span.type):
            yield span


def _matches_of_rules(text: str) -> Iterator[Span]:
    """By forms and cues first; names from lists take what is left."""
    read = plain(text)
    for type, pattern in RULES:
        # A password is as it is written, marks of emphasis and all.
        for start, end in matches(text if type == "PASSWORD" else read, pattern):
            if type == "NAME":
                start, end = shortened(read, start, end)
            yield Span(start, end, type)
    for start, end in names(read):
        yield Span(start, end, "NAME")


def _by_pattern(type: str, pattern: str) -> Find:
    """Matches of a user's own regular expression, which may take exponential time."""
    where = f"--pattern {type}"
    if not TYPE.fullmatch(type):
        fix = "write it as ORDER='ORD-[0-9]{7}', the type in capitals"
        raise InputError("is no name of a type", where=where, fix=fix)
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise InputError(f"is no regular expression ({error})", where=where) from error

    def find(text: str) -> Iterator[Span]:
        try:
            for match in compiled.finditer(text, timeout=_PATTERN_SECONDS):
                if match.end() > match.start():
                    yield Span(match.start(), match.end(), type)
        except TimeoutError as error:
            what = f"takes more than {_PATTERN_SECONDS:g} s on one text"
            fix = "repeat no group that itself repeats"
            raise InputError(what, where=where, fix=fix) from error

    return find


def detector_of(name: str, patterns: Mapping[str, str] | None = None) -> Find:
    """The detector of a name, as a function of a text; own patterns come first."""
    one_of(name, "--detector", ("rules", "presidio"))
    find: Find = _by_rules if name == "rules" else by_presidio()
    finders = [*(_by_pattern(*pair) for pair in (patterns or {}).items()), find]
    return lambda text: (span for each in finders for span in each(text))

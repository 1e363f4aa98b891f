"""Draw synthetic identifiers and canaries, and write canaries in their frames.

No drawn string belongs to anybody: e-mail domains are reserved for examples, area codes
with a middle 9 and social security numbers from 900 on are never assigned, and cards
begin like payment processors' test cards. Every part is drawn *uniformly*, so that a
true canary and its candidates are exchangeable before training.

A further type needs its choices in :func:`choices_by_type` and its form in
:data:`_FORMS`. The order and the ranges of existing choices must stay: each seed stands
for the strings that it gives.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np

from spark_audit.data.examples import Example, Part, Span
from spark_audit.errors import InputError, one_of

T = TypeVar("T")

Ranked = Literal["full", "password", "ssn"]
"""What is ranked among candidates: the whole sentence of a canary, or a part of it."""

RANKED: tuple[Ranked, ...] = ("full", "password", "ssn")

CANARY_PARTS: Mapping[Part, str] = {
    "name": "NAME",
    "password": "PASSWORD",
    "ssn": "SSN",
}
"""A canary's parts and the types of their spans."""

CANARY_FORMATS: Mapping[str, str] = {
    "login": "{name} signs in with the password {password} and gave the social"
    " security number {ssn}.",
    "record": "On file: name {name}, password {password}, SSN {ssn}.",
    "reset": "The password of {name} is {password}, the social security number {ssn}.",
}
"""Frames of canaries, used in turn, by the name that ``Canary.format`` holds."""

PASSWORD_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits

PASSWORD_LENGTH = 10

EXAMPLE_HOSTS = ("example.com", "example.net", "example.org")
"""Domains that are reserved for examples (RFC 2606)."""

_FORMS: Mapping[str, str] = {
    "NAME": "{} {}",
    "EMAIL": "{1}.{2}{3:02}@{0}",
    "PHONE": "{3[0]}{0}9{1}{3[1]}{2}-{4:04}",
    "SSN": "{}-{:02}-{:04}",
    "CREDIT_CARD": "400000{:09}",
    "ADDRESS": "{0} {4} {2}, {5}ville, {3} {1:05}",
}
"""Form of each type but passwords, for ``str.format``: number ``i`` in it stands for
the choice that was drawn from part ``i`` of :func:`choices_by_type`; ``{}`` count up.
"""


def pick(rng: np.random.Generator, choices: Sequence[T], n: int) -> list[T]:
    """Return ``n`` of the choices, drawn uniformly with replacement.

    A single choice takes nothing from ``rng``.
    """
    if len(choices) == 1:
        return [choices[0]] * n
    return [choices[i] for i in rng.integers(len(choices), size=n)]


@lru_cache(maxsize=1)
def choices_by_type() -> dict[str, tuple[Sequence[object], ...]]:
    """Return for each type the choices of each of its parts, in the order of drawing.

    Each of Faker's English names occurs once, so that all are equally likely.
    """
    from faker.providers.person.en_US import Provider

    first_names = _plain_names(Provider.first_names)
    last_names = _plain_names(Provider.last_names)
    return {
        "NAME": (first_names, last_names),
        "EMAIL": (
            EXAMPLE_HOSTS,
            [name.lower() for name in first_names],
            [name.lower() for name in last_names],
            range(100),
        ),
        "PHONE": (
            range(2, 9),  # an area code's first digit, and its last
            range(10),
            range(200, 1000),  # exchange
            (("", "-"), ("(", ") ")),  # marks around the area code
            range(10_000),  # the last four digits
        ),
        # Social security numbers never begin with 900 or more. Tax numbers do, but
        # their second group is 50 or more.
        "SSN": (range(900, 1000), range(1, 50), range(1, 10_000)),
        "CREDIT_CARD": (range(10**9),),
        "ADDRESS": (
            range(1, 10_000),  # house
            range(1, 99_999),  # postal code
            ("Street", "Avenue", "Road", "Lane", "Drive"),
            ("CA", "FL", "IL", "NY", "OH", "PA", "TX", "WA"),
            last_names,  # of the street
            last_names,  # of the town
        ),
    }


def _plain_names(names: Iterable[str]) -> list[str]:
    """Return the names in ASCII letters, each once, in order."""
    return sorted({name for name in names if name.isascii() and name.isalpha()})


def draw(type: str, rng: np.random.Generator, n: int) -> list[str]:
    """Return ``n`` synthetic identifiers of a type.

    Parameters
    ----------
    type
        ``PASSWORD``, or a key of :func:`choices_by_type`; there is none for ``ID`` and
        ``OTHER``.
    """
    if type == "PASSWORD":
        letters = pick(rng, PASSWORD_LETTERS, n * PASSWORD_LENGTH)
        rows = np.reshape(letters, (n, -1))  # (n, letters of a password)
        return ["".join(row) for row in rows]

    # Parts are drawn in a fixed order, so that a seed always gives the same strings.
    columns = [pick(rng, choices, n) for choices in choices_by_type()[type]]  # by part
    drawn = [_FORMS[type].format(*row) for row in zip(*columns, strict=True)]
    if type != "CREDIT_CARD":
        return drawn

    # A card is written in groups of four digits.
    cards = []
    for digits in drawn:
        groups = re.findall("....", checked(digits))
        cards.append(" ".join(groups))
    return cards


def checked(body: str) -> str:
    """Return a card number: the given text and the check digit of its digits."""
    from faker.utils.checksums import calculate_luhn

    digits = re.sub(r"\D", "", body)
    return body + str(calculate_luhn(int(digits)))


def draw_parts(seed: int) -> dict[Part, str]:
    """Return a canary's name, password and SSN from ``Canary.seed``."""
    rng = np.random.default_rng(seed)
    return {part: draw(type, rng, 1)[0] for part, type in CANARY_PARTS.items()}


def render(format: str, parts: Mapping[Part, str]) -> tuple[str, dict[Part, Span]]:
    """Return a canary's sentence, and the spans of its parts in it, in order.

    Raises
    ------
    InputError
        If there is no such format.
    """
    one_of(format, "field 'canary.format'", CANARY_FORMATS)
    text = ""
    spans = dict[Part, Span]()
    for wording, field, _, _ in string.Formatter().parse(CANARY_FORMATS[format]):
        text += wording
        for part, type in CANARY_PARTS.items():
            if part == field:
                end = len(text) + len(parts[part])
                spans[part] = Span(len(text), end, type, "injected", part)
                text += parts[part]
    return text, spans


def canary_ranges(example: Example) -> dict[str, tuple[int, int]]:
    """Return the characters of a row's canary, whole (``full``) and of each part.

    Raises
    ------
    InputError
        If the row holds no canary, or another one than its annotation describes.
    """
    part_ranges: dict[Part, tuple[int, int]] = {}
    part_texts: dict[Part, str] = {}
    for span in example.spans:
        if span.part is not None:
            part_ranges[span.part] = (span.start, span.end)
            part_texts[span.part] = example.text[span.start : span.end]
    if example.canary is None or set(part_ranges) != set(CANARY_PARTS):
        raise InputError(
            "holds no whole canary",
            where=f"example {example.id!r}",
            fix="inject again",
        )

    # The sentence is rendered again: the positions of its parts give its beginning.
    text, spans = render(example.canary.format, part_texts)
    first_part_in_row = min(start for start, _ in part_ranges.values())
    first_part_in_text = min(span.start for span in spans.values())
    start = first_part_in_row - first_part_in_text
    if start < 0 or example.text[start : start + len(text)] != text:
        raise InputError(
            f"its canary is not in the frame {example.canary.format!r}",
            where=f"example {example.id!r}",
            fix="inject again",
        )

    ranges: dict[str, tuple[int, int]] = {"full": (start, start + len(text))}
    for part in CANARY_PARTS:
        ranges[part] = part_ranges[part]
    return ranges


def redrawn(
    format: str, part: Ranked, rng: np.random.Generator, size: int
) -> list[str]:
    """Return ``size`` alternatives for a part of a canary, drawn as the true one was.

    For ``full`` they are whole sentences in the canary's frame (``format``).
    """
    if part != "full":
        return draw(CANARY_PARTS[part], rng, size)

    # The draws follow the order of the parts, as for the true canary.
    names = draw(CANARY_PARTS["name"], rng, size)
    passwords = draw(CANARY_PARTS["password"], rng, size)
    numbers = draw(CANARY_PARTS["ssn"], rng, size)
    frame = CANARY_FORMATS[format]
    sentences = []
    for name, password, number in zip(names, passwords, numbers, strict=True):
        sentences.append(frame.format(name=name, password=password, ssn=number))
    return sentences

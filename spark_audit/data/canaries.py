"""Synthetic identifiers and canaries: seeded drawing, frames, candidate sets.

Nothing that is drawn belongs to anybody: e-mail domains are reserved for examples, area
codes with a middle 9 and social security numbers from 900 on are never assigned, cards
begin like payment processors' test cards. Every part is drawn *uniformly*, so that a
true canary and its candidates are exchangeable before training.

Of canaries that bite, the password is instead of two pieces that no other canary has:
tokens that the rows do not hold, or samples of a model. Pieces are shared out at
random, so that any two of a canary's pool are as likely its own.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from spark_audit.data.examples import Example, Part, Span
from spark_audit.errors import InputError

Encode = Callable[[list[str]], list[list[int]]]
Ranked = Literal["full", "password", "ssn"]

RANKED: tuple[Ranked, ...] = ("full", "password", "ssn")
PARTS: Mapping[Part, str] = {"name": "NAME", "password": "PASSWORD", "ssn": "SSN"}
"""A canary's parts and the types of their spans."""

FORMATS: Mapping[str, str] = {
    "login": "{name} signs in with the password {password} and gave the social"
    " security number {ssn}.",
    "record": "On file: name {name}, password {password}, SSN {ssn}.",
    "reset": "The password of {name} is {password}, the social security number {ssn}.",
}
"""A canary's frames, used in turn; the name is what ``Canary.format`` holds."""

PIECES, SPARE, FEWEST_SPARE = 2, 62, 30
"""Pieces of a password; those that no canary has, of which candidates are made with the
canary's own: at most and at least, so that 512 candidates are found with some to spare.
"""

MAX_DRAWS = 200_000
"""Where so many strings hold too few candidates, a canary's part has none."""

# --- drawing --------------------------------------------------------------------------

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
PASSWORD_LENGTH = 10


@lru_cache(maxsize=1)
def _names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Faker's English first and last names, each once: drawn uniformly, unweighted."""
    from faker.providers.person.en_US import Provider

    def plain(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({n for n in names if n.isascii() and n.isalpha()}))

    return plain(Provider.first_names), plain(Provider.last_names)


def name_parts() -> list[str]:
    """Every first and last name that may be drawn."""
    return sorted({name for names in _names() for name in names})


def _pick(rng: np.random.Generator, choices: Sequence[str], n: int) -> list[str]:
    return [choices[i] for i in rng.integers(len(choices), size=n)]


def _digits(rng: np.random.Generator, width: int, n: int) -> list[str]:
    return [f"{i:0{width}d}" for i in rng.integers(10**width, size=n)]


def _name(rng: np.random.Generator, n: int) -> list[str]:
    first, last = _names()
    pairs = zip(_pick(rng, first, n), _pick(rng, last, n), strict=True)
    return [" ".join(pair) for pair in pairs]


def _password(rng: np.random.Generator, n: int) -> list[str]:
    letters = _pick(rng, _ALPHABET, n * PASSWORD_LENGTH)
    rows = np.asarray(letters).reshape(n, PASSWORD_LENGTH)
    return ["".join(row) for row in rows]


def _ssn(rng: np.random.Generator, n: int) -> list[str]:
    # Areas from 900 on are never social security numbers; tax numbers, which do begin
    # so, have a group from 50 on.
    area, group = rng.integers(900, 1000, size=n), rng.integers(1, 50, size=n)
    serial = rng.integers(1, 10_000, size=n)
    rows = zip(area, group, serial, strict=True)
    return [f"{a}-{g:02d}-{s:04d}" for a, g, s in rows]


def _email(rng: np.random.Generator, n: int) -> list[str]:
    hosts = _pick(rng, ("example.com", "example.net", "example.org"), n)
    rows = zip(_name(rng, n), _digits(rng, 2, n), hosts, strict=True)
    return [f"{a.replace(' ', '.').lower()}{d}@{host}" for a, d, host in rows]


def _phone(rng: np.random.Generator, n: int) -> list[str]:
    area = rng.integers(2, 9, size=n) * 100 + 90 + rng.integers(10, size=n)
    exchange = rng.integers(200, 1000, size=n)
    forms = _pick(rng, ("{}-{}-{}", "({}) {}-{}"), n)
    rows = zip(forms, area, exchange, _digits(rng, 4, n), strict=True)
    return [form.format(*numbers) for form, *numbers in rows]


def _card(rng: np.random.Generator, n: int) -> list[str]:
    out = []
    for tail in _digits(rng, 9, n):
        body = "400000" + tail
        # Luhn: from the right, digits left of the check digit are doubled in turn.
        total = sum(
            d if i % 2 else 2 * d - 9 * (d > 4)
            for i, d in enumerate(map(int, reversed(body)))
        )
        number = f"{body}{-total % 10}"
        out.append(" ".join(number[i : i + 4] for i in range(0, 16, 4)))
    return out


def _address(rng: np.random.Generator, n: int) -> list[str]:
    _, last = _names()
    number, code = rng.integers(1, 10_000, size=n), rng.integers(1, 99_999, size=n)
    kinds = _pick(rng, ("Street", "Avenue", "Road", "Lane", "Drive"), n)
    states = _pick(rng, ("CA", "FL", "IL", "NY", "OH", "PA", "TX", "WA"), n)
    street, town = _pick(rng, last, n), _pick(rng, last, n)
    rows = zip(number, street, kinds, town, states, code, strict=True)
    return [f"{a} {b} {c}, {d}ville, {e} {f:05d}" for a, b, c, d, e, f in rows]


_DRAW: Mapping[str, Callable[[np.random.Generator, int], list[str]]] = {
    "NAME": _name,
    "EMAIL": _email,
    "PHONE": _phone,
    "SSN": _ssn,
    "PASSWORD": _password,
    "CREDIT_CARD": _card,
    "ADDRESS": _address,
}


def draw(type: str, rng: np.random.Generator) -> str:
    """One synthetic identifier of a type (not ID and OTHER)."""
    return _DRAW[type](rng, 1)[0]


def draw_parts(seed: int, own: Sequence[str] = ()) -> dict[Part, str]:
    """A canary's name, password and social security number from ``Canary.seed``.

    Its ``own`` pieces, if it has any, are the password, in an order drawn too.
    """
    rng = np.random.default_rng(seed)
    parts = {part: draw(type, rng) for part, type in PARTS.items()}
    if own:
        parts["password"] = " ".join(own[i] for i in rng.permutation(len(own)))
    return parts


def _of_pieces(pool: Sequence[str], rng: np.random.Generator, n: int) -> list[str]:
    order = rng.permuted(np.tile(np.arange(len(pool)), (n, 1)), axis=1)
    return [" ".join(pool[i] for i in row) for row in order[:, :PIECES]]


def share_pieces(
    pieces: Sequence[str], names: Sequence[str], *, seed: int
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Each canary's own pieces, and the pool that candidates are drawn from.

    Raises
    ------
    InputError
        If there are too few: so many of its own for each, and some that no row holds.
    """
    enough = (len(pieces) - FEWEST_SPARE) // PIECES
    if enough < len(names):
        fits = max(0, enough // 2)
        raise InputError(
            f"{len(pieces)} pieces are enough for {fits} canaries and as many held"
            f" out, of {len(names)} in all",
            where="option --canaries",
            fix=f"give --canaries {fits}" if fits else "use `--kind random`",
        )
    order = np.random.default_rng(seed).permutation(len(pieces))
    shared = [pieces[i] for i in order]
    at = PIECES * len(names)
    spare = shared[at : at + SPARE]
    own = [tuple(shared[i : i + PIECES]) for i in range(0, at, PIECES)]
    return {
        name: (some, tuple(sorted([*some, *spare])))
        for name, some in zip(names, own, strict=True)
    }


def render(format: str, parts: Mapping[Part, str]) -> tuple[str, dict[Part, Span]]:
    """A canary's sentence, and the spans of its parts in it, in order.

    Raises
    ------
    InputError
        If there is no such format.
    """
    if format not in FORMATS:
        raise InputError(
            f"unknown canary format {format!r}",
            where="field 'canary.format'",
            fix=f"use one of: {', '.join(FORMATS)}",
        )
    text, spans = "", dict[Part, Span]()
    for fixed, name, _, _ in string.Formatter().parse(FORMATS[format]):
        text += fixed
        part = next((part for part in PARTS if part == name), None)
        if part is not None:
            end = len(text) + len(parts[part])
            spans[part] = Span(len(text), end, PARTS[part], "injected", part)
            text += parts[part]
    return text, spans


def canary_ranges(example: Example) -> dict[str, tuple[int, int]]:
    """Characters of a row's canary: ``full``, ``name``, ``password`` and ``ssn``.

    Raises
    ------
    InputError
        If the row holds no canary, or not the one that its annotation tells of.
    """
    found = {s.part: (s.start, s.end) for s in example.spans if s.part is not None}
    if example.canary is None or set(found) != set(PARTS):
        raise InputError("holds no whole canary", where=f"example {example.id!r}")
    parts = {part: example.text[slice(*place)] for part, place in found.items()}
    text, spans = render(example.canary.format, parts)
    start = min(found.values())[0] - min(span.start for span in spans.values())
    if start < 0 or example.text[start : start + len(text)] != text:
        raise InputError(
            f"its canary does not stand in the frame {example.canary.format!r}",
            where=f"example {example.id!r}",
            fix="inject again",
        )
    ranges: dict[str, tuple[int, int]] = {"full": (start, start + len(text))}
    return ranges | {part: found[part] for part in PARTS}


# --- candidate sets -------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """A text, and the characters of it that candidates replace."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Candidates:
    """The true string among candidates, or none and the reason.

    ``draws`` counts the strings that were drawn for it.
    """

    strings: tuple[str, ...]
    true_index: int | None
    draws: int
    reason: str = ""


def candidates(
    format: str,
    parts: Mapping[Part, str],
    part: Ranked,
    *,
    encode: Encode,
    contexts: Sequence[Context],
    seed: int,
    n: int = 512,
    max_draws: int = MAX_DRAWS,
    pool: Sequence[str] = (),
) -> Candidates:
    """Strings that a canary's part could as well have been, the true one among them.

    They are drawn uniformly from the true one's generator and kept when they are new,
    have its number of tokens alone, and in every context give as many tokens and leave
    those before and behind the string unchanged. These are properties that the true
    string shares, so that given the set each of its members is as likely the true one,
    and the true one's index is drawn uniformly.

    Parameters
    ----------
    format, parts
        The canary's frame and its true parts.
    part
        ``password`` or ``ssn``: that part is replaced. ``full``: the whole sentence,
        with all parts drawn anew.
    encode
        Token ids of each text, as the model reads it, special tokens included. A
        tokenizer's ``backend_tokenizer.encode_batch_fast`` is the fastest.
    contexts
        Where the true string stands.
    seed
        One of its own for each canary and part, so that pools are independent, such as
        ``facts.seed_for(seed, canary.id, part)``.
    n
        Size of the set, the true one included.
    max_draws
        Where so many draws do not give ``n``, the set is empty and says why.
    pool
        Of what pieces passwords are (``Canary.pool``); none: of random letters.

    Raises
    ------
    ValueError
        If a context does not hold the true string where it says.
    """
    true = render(format, parts)[0] if part == "full" else parts[part]
    if any(c.text[c.start : c.end] != true for c in contexts):
        raise ValueError("a context does not hold the true string at its place")
    rng = np.random.default_rng(seed)
    length = len(encode([true])[0])
    fits = [_fit(context, encode) for context in contexts]
    found, seen, draws = list[str](), {true}, 0
    while len(found) < n - 1 and draws < max_draws:
        size = min(4 * n, max_draws - draws)
        draws += size
        drawn = dict.fromkeys(_redrawn(format, part, rng, size, pool))
        new = [text for text in drawn if text not in seen]
        seen.update(new)
        tokens = encode(new) if new else []
        fresh = [t for t, ids in zip(new, tokens, strict=True) if len(ids) == length]
        # In small lots: in place a text is long, and most of them are not needed.
        while fresh and len(found) < n - 1:
            lot, fresh = fresh[: n // 2], fresh[n // 2 :]
            for fit in fits:
                lot = fit(lot)
            found += lot
    if len(found) < n - 1:
        reason = f"{draws} draws gave {len(found) + 1} of {n} candidates"
        return Candidates((), None, draws, f"{reason} of {length} tokens")
    index = int(rng.integers(n))
    strings = (*found[:index], true, *found[index : n - 1])
    return Candidates(strings, index, draws)


def _redrawn(
    format: str,
    part: Ranked,
    rng: np.random.Generator,
    size: int,
    pool: Sequence[str],
) -> list[str]:
    def column(of: str) -> list[str]:
        if of == "password" and pool:
            return _of_pieces(pool, rng, size)
        return _DRAW[PARTS[of]](rng, size)  # type: ignore[index]

    if part != "full":
        return column(part)
    columns = [column(of) for of in PARTS]
    rows = zip(*columns, strict=True)
    return [render(format, dict(zip(PARTS, row, strict=True)))[0] for row in rows]


def _fit(context: Context, encode: Encode) -> Callable[[list[str]], list[str]]:
    """A filter: strings that change nothing in the context but their own tokens.

    Where a string's tokens begin and end is told by what the text shares with the
    tokenisation of what stands before and behind it: a blank before the string that one
    string takes into its first token and another does not is a change.
    """
    before, after = context.text[: context.start], context.text[context.end :]
    head, tail = (encode([text])[0] for text in (before, after))

    def shape(ids: list[int]) -> tuple[int, int, int]:
        return len(ids), _shared(ids, head), _shared(ids[::-1], tail[::-1])

    true = shape(encode([context.text])[0])

    def keep(strings: list[str]) -> list[str]:
        rows = encode([before + text + after for text in strings]) if strings else []
        pairs = zip(strings, rows, strict=True)
        return [text for text, ids in pairs if shape(ids) == true]

    return keep


def _shared(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))

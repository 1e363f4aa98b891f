"""Candidate sets: strings that a canary's part could as well have been."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spark_audit.data.canaries import Encode, Ranked, redrawn, render
from spark_audit.data.examples import Part

MAX_DRAWS = 200_000
"""Where so many strings hold too few candidates, a canary's part has none."""

SETTLED = 6.0
"""Standard deviations of a count that settle whether the rest of the draws suffices."""


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
        Where so many draws do not give ``n``, the set is empty and says why. A search
        ends before where those made leave no hope of it.
    pool
        Of what pieces passwords are (``Canary.pool``); none: of random letters.

    Raises
    ------
    ValueError
        If a context does not hold the true string where it says.
    """
    rng = np.random.default_rng(seed)
    search = _Search(format, parts, part, encode, contexts, n, pool)
    *_, (draws, found) = search.lots(rng, max_draws)
    if len(found) < n - 1:
        return Candidates((), None, draws, search.short(draws, found))
    index = int(rng.integers(n))
    strings = (*found[:index], search.true, *found[index : n - 1])
    return Candidates(strings, index, draws)


def unranked(
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
) -> str:
    """Why :func:`candidates` would find no full set; empty where it would.

    Told from as few draws as settle it, some hundreds instead of thousands: whether a
    canary can be ranked, not by what.
    """
    rng = np.random.default_rng(seed)
    search = _Search(format, parts, part, encode, contexts, n, pool)
    found, draws = list[str](), 0
    for draws, found in search.lots(rng, max_draws):
        # Of a pool's few pairs of pieces the first are soon found, the last never.
        wanted = draws * (n - 1) / max_draws
        if not pool and len(found) > wanted + SETTLED * (1 + math.sqrt(wanted)):
            return ""
    return "" if len(found) >= n - 1 else search.short(draws, found)


@dataclass(frozen=True)
class _Search:
    """A search for strings that share the true one's tokenisation."""

    format: str
    parts: Mapping[Part, str]
    part: Ranked
    encode: Encode
    contexts: Sequence[Context]
    n: int
    pool: Sequence[str]

    def __post_init__(self) -> None:
        if any(c.text[c.start : c.end] != self.true for c in self.contexts):
            raise ValueError("a context does not hold the true string at its place")

    @cached_property
    def true(self) -> str:
        if self.part == "full":
            return render(self.format, self.parts)[0]
        return self.parts[self.part]

    @cached_property
    def length(self) -> int:
        return len(self.encode([self.true])[0])

    def short(self, draws: int, found: list[str]) -> str:
        reason = f"{draws} draws gave {len(found) + 1} of {self.n} candidates"
        return f"{reason} of {self.length} tokens"

    def lots(
        self, rng: np.random.Generator, max_draws: int
    ) -> Iterator[tuple[int, list[str]]]:
        """Draws made so far and what fits, until there are enough or hope is gone."""
        fits = [_fit(context, self.encode) for context in self.contexts]
        found, seen, draws = list[str](), {self.true}, 0
        while len(found) < self.n - 1 and draws < max_draws:
            size = min(4 * self.n, max_draws - draws)
            drawn = dict.fromkeys(redrawn(self.format, self.part, rng, size, self.pool))
            new = [text for text in drawn if text not in seen]
            seen.update(new)
            # In small lots: in place a text is long, and most of them are not needed.
            for at in range(0, len(new), self.n // 2):
                lot = new[at : at + self.n // 2]
                tokens = zip(lot, self.encode(lot), strict=True)
                lot = [text for text, ids in tokens if len(ids) == self.length]
                for fit in fits:
                    lot = fit(lot)
                found += lot
                yield draws + min(at + self.n // 2, size), found
                if len(found) >= self.n - 1:
                    return
            draws += size
            yield draws, found
            wanted = draws * (self.n - 1) / max_draws
            if len(found) < wanted - SETTLED * (1 + math.sqrt(wanted)):
                return


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

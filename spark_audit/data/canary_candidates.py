"""Strings that a part of a canary could as well have been."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

import numpy as np

from spark_audit.data.canaries import Ranked, redrawn, render
from spark_audit.data.examples import Part

Encode = Callable[[list[str]], list[list[int]]]

MAX_DRAWS = 200_000
"""Where so many strings hold too few candidates, a canary's part has none."""

NO_CANDIDATES: dict[str, Any] = {"candidates": [], "true_index": None}

GIVE_UP_DEVIATIONS = 6.0
"""Standard deviations by which a count must lack to give a search up."""

Context = tuple[str, int, int]
"""A text, and the characters of it that candidates replace, from and to."""

Filter = Callable[[list[str]], list[str]]
"""Returns those of some strings that fit."""


def candidates(
    format: str,
    parts: Mapping[Part, str],
    part: Ranked,
    *,
    encode: Encode,
    contexts: Sequence[Context],
    seed: int,
    n: int = 512,
) -> dict[str, Any]:
    """Return strings that a canary's part could as well have been, and itself.

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
        Size of the set, the true one included. Where :data:`MAX_DRAWS` draws do not
        give it, the set is empty and says why; a search ends before where those made
        leave no hope of it.

    Returns
    -------
    dict
        ``candidates``, the ``true_index`` among them, and the ``reason`` if there are
        none.
    """
    true_text = render(format, parts)[0] if part == "full" else parts[part]
    rng = np.random.default_rng(seed)
    n_tokens = len(encode([true_text])[0])
    filters = [_length_filter(n_tokens, encode)]
    for context in contexts:
        filters.append(_context_filter(context, encode))

    strings: list[str] = []
    seen = {true_text}
    n_drawn = 0
    while len(strings) < n - 1 and n_drawn < MAX_DRAWS:
        size = min(4 * n, MAX_DRAWS - n_drawn)
        drawn = dict.fromkeys(redrawn(format, part, rng, size))
        new = [text for text in drawn if text not in seen]
        seen.update(new)

        # In small lots: in place a text is long, and most of them are not needed.
        for first in range(0, len(new), n // 2):
            lot = new[first : first + n // 2]
            for keep_fitting in filters:
                lot = keep_fitting(lot)
            strings.extend(lot)
            if len(strings) >= n - 1:
                break

        n_drawn += size
        if _is_hopeless(n_drawn, len(strings), n - 1):
            break

    if len(strings) < n - 1:
        reason = f"{n_drawn} draws gave {len(strings) + 1} of {n} candidates"
        return NO_CANDIDATES | {"reason": f"{reason} of {n_tokens} tokens"}

    # Each place in the set is as likely the true string's.
    true_index = int(rng.integers(n))
    strings[true_index:] = [true_text, *strings[true_index : n - 1]]
    return {"candidates": strings, "true_index": true_index, "reason": None}


def _is_hopeless(n_drawn: int, n_strings: int, n_needed: int) -> bool:
    """Return whether all draws together would hardly give as many strings.

    If they would just be enough, so many should be there by now as is their share of
    the draws; far fewer are no accident.
    """
    expected = n_drawn * n_needed / MAX_DRAWS
    deviation = 1 + math.sqrt(expected)
    return expected - n_strings > GIVE_UP_DEVIATIONS * deviation


def _length_filter(n_tokens: int, encode: Encode) -> Filter:
    """Return a filter: strings of as many tokens, each alone."""

    def keep_fitting(strings: list[str]) -> list[str]:
        rows = encode(strings)
        return [
            string
            for string, ids in zip(strings, rows, strict=True)
            if len(ids) == n_tokens
        ]

    return keep_fitting


def _context_filter(context: Context, encode: Encode) -> Filter:
    """Return a filter: strings that change only their own tokens in the context.

    Where a string's tokens begin and end is told by what the text shares with the
    tokenisation of what stands before and behind it: a blank before the string that one
    string takes into its first token and another does not is a change.
    """
    text, start, end = context
    before = text[:start]
    after = text[end:]
    (before_ids,) = encode([before])
    (after_ids,) = encode([after])

    def shape(ids: list[int]) -> tuple[int, int, int]:
        """Return the number of tokens, and of those shared with either side."""
        n_shared_before = len(commonprefix([ids, before_ids]))
        n_shared_after = len(commonprefix([ids[::-1], after_ids[::-1]]))
        return len(ids), n_shared_before, n_shared_after

    true_shape = shape(encode([text])[0])

    def keep_fitting(strings: list[str]) -> list[str]:
        if not strings:
            return []

        rows = encode([before + string + after for string in strings])
        return [
            string
            for string, ids in zip(strings, rows, strict=True)
            if shape(ids) == true_shape
        ]

    return keep_fitting

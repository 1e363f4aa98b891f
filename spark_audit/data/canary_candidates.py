"""Draw candidates for a part of a canary: strings that could have been the true one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

import numpy as np

from spark_audit.data.canaries import Ranked, redrawn, render
from spark_audit.data.examples import Part

Encode = Callable[[list[str]], list[list[int]]]
"""Returns the token ids of each text."""

MAX_DRAWS = 200_000
"""Draws after which a canary's part gets no candidates if they are still too few."""

NO_CANDIDATES: dict[str, Any] = {"candidates": [], "true_index": None}
"""The result without candidates; a ``reason`` is added to it."""

GIVE_UP_DEVIATIONS = 6.0
"""Standard deviations below the needed number at which a search is given up."""

Context = tuple[str, int, int]
"""``(text, start, end)``: candidates replace characters ``start:end`` of the text."""

Filter = Callable[[list[str]], list[str]]
"""A filter: it returns the strings that fit."""


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
    """Return candidates for a part of a canary, with the true string among them.

    Candidates are drawn uniformly from the generator of the true string. A candidate is
    kept if it is new, has as many tokens as the true string when tokenised alone, gives
    as many tokens in every context and leaves the tokens before and behind it
    unchanged. The true string has these properties, too. Given the set, each member is
    therefore equally likely to be the true one, and the index of the true one is drawn
    uniformly.

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
        The texts in which the true string stands.
    seed
        A separate seed for each canary and part, such as ``facts.seed_for(seed,
        canary.id, part)``, so that pools are independent.
    n
        Size of the set, the true string included. The set is empty, with a reason, if
        :data:`MAX_DRAWS` draws do not fill it. The search stops early if it has no hope
        of success.

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

    n_needed = n - 1  # besides the true string
    strings: list[str] = []  # candidates that passed all filters
    seen = {true_text}
    n_drawn = 0
    while len(strings) < n_needed and n_drawn < MAX_DRAWS:
        size = min(4 * n, MAX_DRAWS - n_drawn)
        drawn = dict.fromkeys(redrawn(format, part, rng, size))
        new = [text for text in drawn if text not in seen]
        seen.update(new)

        # Small batches: a whole context is long to tokenise, and most strings are not
        # needed.
        for first in range(0, len(new), n // 2):
            batch = new[first : first + n // 2]
            for keep_fitting in filters:
                batch = keep_fitting(batch)
            strings.extend(batch)
            if len(strings) >= n_needed:
                break

        n_drawn += size
        if _is_hopeless(n_drawn, len(strings), n_needed):
            break

    if len(strings) < n_needed:
        reason = f"{n_drawn} draws gave {len(strings) + 1} of {n} candidates"
        return NO_CANDIDATES | {"reason": f"{reason} of {n_tokens} tokens"}

    # Every index in the set is equally likely for the true string. Candidates beyond
    # the needed number are left out.
    true_index = int(rng.integers(n))
    strings[true_index:] = [true_text, *strings[true_index:n_needed]]
    return {"candidates": strings, "true_index": true_index, "reason": None}


def _is_hopeless(n_drawn: int, n_strings: int, n_needed: int) -> bool:
    """Return whether all allowed draws together would hardly give enough strings.

    The count so far is compared with the share that is due at this number of draws. A
    count of more than :data:`GIVE_UP_DEVIATIONS` deviations below it is not chance; a
    deviation is taken as 1 plus the square root of the share.
    """
    expected = n_drawn * n_needed / MAX_DRAWS
    deviation = 1 + math.sqrt(expected)
    return expected - n_strings > GIVE_UP_DEVIATIONS * deviation


def _length_filter(n_tokens: int, encode: Encode) -> Filter:
    """Return a filter that keeps strings with so many tokens when tokenised alone."""

    def keep_fitting(strings: list[str]) -> list[str]:
        ids_of_strings = encode(strings)
        return [
            string
            for string, ids in zip(strings, ids_of_strings, strict=True)
            if len(ids) == n_tokens
        ]

    return keep_fitting


def _context_filter(context: Context, encode: Encode) -> Filter:
    """Return a filter for strings that change only their own tokens in a context.

    The text before and behind the string is compared with its tokenisation. A blank
    that one string takes into its first token and another does not is a change.
    """
    text, start, end = context
    before = text[:start]
    after = text[end:]
    (before_ids,) = encode([before])
    (after_ids,) = encode([after])

    def token_counts(ids: list[int]) -> tuple[int, int, int]:
        """Return the number of tokens, and how many are shared before and behind."""
        n_shared_before = len(commonprefix([ids, before_ids]))
        n_shared_after = len(commonprefix([ids[::-1], after_ids[::-1]]))
        return len(ids), n_shared_before, n_shared_after

    true_counts = token_counts(encode([text])[0])

    def keep_fitting(strings: list[str]) -> list[str]:
        if not strings:
            return []

        texts = [before + string + after for string in strings]
        ids_of_texts = encode(texts)
        return [
            string
            for string, ids in zip(strings, ids_of_texts, strict=True)
            if token_counts(ids) == true_counts
        ]

    return keep_fitting

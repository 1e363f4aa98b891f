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
        Size of the set, the true one included. Where :data:`MAX_DRAWS` draws do not
        give it, the set is empty and says why; a search ends before where those made
        leave no hope of it.

    Returns
    -------
    dict
        ``candidates``, the ``true_index`` among them, and the ``reason`` if there are
        none.
    """
    true = render(format, parts)[0] if part == "full" else parts[part]
    rng, length = np.random.default_rng(seed), len(encode([true])[0])
    fits = [_fit(context, encode) for context in contexts]
    strings, seen = list[str](), {true}

    draws = 0
    while len(strings) < n - 1 and draws < MAX_DRAWS:
        size = min(4 * n, MAX_DRAWS - draws)
        drawn = dict.fromkeys(redrawn(format, part, rng, size))
        new = [text for text in drawn if text not in seen]
        seen.update(new)
        # In small lots: in place a text is long, and most of them are not needed.
        for at in range(0, len(new), n // 2):
            lot = new[at : at + n // 2]
            tokens = zip(lot, encode(lot), strict=True)
            lot = [text for text, ids in tokens if len(ids) == length]
            for fit in fits:
                lot = fit(lot)
            strings.extend(lot)
            if len(strings) >= n - 1:
                break
        draws += size
        wanted = draws * (n - 1) / MAX_DRAWS
        if wanted - len(strings) > GIVE_UP_DEVIATIONS * (1 + math.sqrt(wanted)):
            break
    if len(strings) < n - 1:
        reason = f"{draws} draws gave {len(strings) + 1} of {n} candidates"
        return NO_CANDIDATES | {"reason": f"{reason} of {length} tokens"}
    index = int(rng.integers(n))
    strings[index:] = [true, *strings[index : n - 1]]
    return {"candidates": strings, "true_index": index, "reason": None}


def _fit(context: Context, encode: Encode) -> Callable[[list[str]], list[str]]:
    """A filter: strings that change nothing in the context but their own tokens.

    Where a string's tokens begin and end is told by what the text shares with the
    tokenisation of what stands before and behind it: a blank before the string that one
    string takes into its first token and another does not is a change.
    """
    whole, start, end = context
    before, after = whole[:start], whole[end:]
    head, tail = (encode([text])[0] for text in (before, after))

    def shape(ids: list[int]) -> tuple[int, int, int]:
        ends = commonprefix([ids[::-1], tail[::-1]])
        return len(ids), len(commonprefix([ids, head])), len(ends)

    true = shape(encode([whole])[0])

    def keep(strings: list[str]) -> list[str]:
        rows = encode([before + text + after for text in strings]) if strings else []
        pairs = zip(strings, rows, strict=True)
        return [text for text, ids in pairs if shape(ids) == true]

    return keep

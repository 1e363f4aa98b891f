"""Compute SPARK's sensitivity score of tokens (Eq. "sensitivity") in float64.

``Score = 1 - exp(-(alpha * Score_1 + (1 - alpha) * Score_2))``, where ``Score_1`` is
the token's negative log-likelihood, and ``Score_2`` measures how well the token
separates the tasks. Identifiers, annotated or found by rules, have score 1; template
tokens and stop words have score 0.

**[ours]** marks a choice that the paper does not make.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.errors import InputError

PRESENT_FROM_SHARE = 0.2
"""Share of a task's most frequent token from which a token counts as present."""

_LETTERS_OF_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


def score2(counts: ArrayLike) -> np.ndarray:
    """Return how well every token of the vocabulary separates the tasks.

    ``Score_2(t) = 1/N sum_n p_n(t) log(N / (1 + d(t)))`` with ``p_n = f_n / f_n^max``
    and ``d(t)`` the number of tasks with ``p_n(t) >= 0.2`` (SPARK, appendix,
    "Sensitivity score"). It is negative for tokens that are frequent in all tasks, and,
    if there is only one task, for all frequent tokens.

    Parameters
    ----------
    counts
        Shape ``(N, V)``: how often each of ``V`` tokens of the vocabulary occurs in
        each of ``N`` tasks.

    Returns
    -------
    np.ndarray
        Shape ``(V,)``, float64, natural logarithms.

    Raises
    ------
    InputError
        If a task has no token.

    Examples
    --------
    The first token is frequent in both tasks, and the others in one task only:

    >>> score2([[8, 2, 0], [6, 0, 3]]).round(3).tolist()
    [-0.405, 0.0, 0.0]
    """
    counts_by_task = np.asarray(counts, dtype=np.float64)  # (N, V)
    most_frequent = counts_by_task.max(axis=1, keepdims=True)  # (N, 1)
    if not most_frequent.all():
        raise InputError(
            "a task has no token", where="sensitivity", fix="leave the task out"
        )

    share = counts_by_task / most_frequent  # (N, V), p_n(t)

    n_present = (share >= PRESENT_FROM_SHARE).sum(axis=0)  # (V,), d(t)
    rarity = np.log(len(counts_by_task)) - np.log1p(n_present)  # log(N / (1 + d(t)))
    return np.asarray(share.mean(axis=0) * rarity)


def sensitivity(
    nll: ArrayLike,
    token_score2: ArrayLike,
    *,
    alpha: float = 0.5,
    pii_mask: ArrayLike = False,
    zero_mask: ArrayLike = False,
) -> np.ndarray:
    """Return the sensitivity score of each token, with the overrides by rules.

    Identifiers are where ``pii_mask`` is true, never where ``score == 1``: the formula
    itself rounds to 1 for unlikely tokens. With alpha 0.5 and a Score_2 of 0 it does
    so from an NLL of 75 nats, and of 12.5 nats if scores are cast to bfloat16.

    Parameters
    ----------
    nll
        Shape ``(T,)``, nats: Score_1 of tokens that have a prediction. Infinite for an
        impossible token.
    token_score2
        Shape ``(T,)``: Score_2 of the same tokens, ``score2(counts)[ids]``.
    alpha
        Weight of Score_1, 0 to 1.
    pii_mask
        Shape ``(T,)``, bool: identifiers, set to 1. They win over ``zero_mask``.
    zero_mask
        Shape ``(T,)``, bool: template tokens and stop words, set to 0.

    Returns
    -------
    np.ndarray
        Shape ``(T,)``, float64 in ``[0, 1]`` (a negative Score_2 can push the formula
        below 0, where it is clamped **[ours]**).

    Raises
    ------
    InputError
        If an NLL or a Score_2 is NaN.
    """
    score1 = np.asarray(nll, dtype=np.float64)  # (T,)
    if np.isnan(score1).any():
        raise InputError("a token has no NLL", where="sensitivity")

    separation = np.asarray(token_score2, dtype=np.float64)  # (T,), Score_2
    if np.isnan(separation).any():
        raise InputError("a token has no Score_2", where="sensitivity")

    # The exponent of the formula, without its sign.
    weighted = (1 - alpha) * separation  # (T,)
    # With alpha = 0, the infinite NLL of an impossible token would give NaN (0 * inf).
    if alpha:
        weighted = alpha * score1 + weighted

    score = np.clip(-np.expm1(-weighted), 0.0, 1.0)
    score = np.where(zero_mask, 0.0, score)
    return np.where(pii_mask, 1.0, score)


def stop_word_ranges(text: str) -> list[tuple[int, int]]:
    """Return the character ranges of a text's stop words (scikit-learn's English list).

    Only whole words count: not the ``the`` in ``theory`` **[ours]**. Case and
    apostrophes are ignored (``it's`` is in the list as ``its``). The offsets of a
    tokenizer map the ranges to tokens.

    >>> stop_word_ranges("The theory")
    [(0, 3)]
    """
    ranges = []
    for match in _LETTERS_OF_WORD.finditer(text):
        word = match[0].lower().replace("'", "").replace("\u2019", "")
        if word in _stop_words():
            ranges.append(match.span())
    return ranges


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    """Return scikit-learn's English stop words."""
    # Only the file of the list is run: importing its package takes a second and 30 MB.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("feature_extraction") / "_stop_words.py"
    if file.is_file():
        return frozenset(run_path(str(file))["ENGLISH_STOP_WORDS"])
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return frozenset(ENGLISH_STOP_WORDS)

"""The chance with which any decoder that keeps the order of tokens writes a string.

A decoder keeps the order of tokens if a likelier token is never given a smaller
probability than a less likely one: temperature, top-k, top-p, min-p and greedy decoding
do. The r - 1 tokens ahead of the token of rank r then have at least its probability
each, so that its own is at most 1 / r. A string whose tokens have the ranks r_1 ... r_T
after the same prompt comes out of one draw with a probability of at most the product of
1 / r_i, whatever the decoder's settings are, and even if they change from token to
token. Of tokens that tie, each has the best rank of them (``rank_lo`` of the scores),
since a decoder may cut off the others.

The bound is that of Liu, Evans and Xiong, "Beyond Indistinguishability: Measuring
Extraction Risk in LLM APIs" (IEEE S&P 2026, arXiv 2604.18697), with all ranks counted.
Their code takes the model's own probability for ranks beyond a threshold, by default
20: what it then gives holds for temperature 1 alone, and bounds no other decoder.

It says nothing of other prompts, of other tokenisations of the same string, nor of
decoding that changes the order of tokens: beam search, logit bias, penalties of
repetition, and constrained decoding.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def bound_bits(ranks: ArrayLike) -> float:
    """Return the bound of a string in bits: one draw gives it at most with 2^-bits.

    Parameters
    ----------
    ranks
        Shape ``(tokens,)``: ranks of its tokens, from 1; of ties the best one.

    Examples
    --------
    A string whose tokens have the ranks 1, 2 and 4 comes in at most 1 of 8 draws:

    >>> bound_bits([1, 2, 4])
    3.0
    """
    values = np.asarray(ranks, dtype=np.float64)
    if not (values >= 1).all():
        raise ValueError("a rank is NaN or below 1")
    return float(np.log2(values).sum())


def chance_within(bits: ArrayLike, draws: float) -> np.ndarray:
    """Return the chance that a string comes out at least once in so many draws.

    ``1 - (1 - 2^-bits)^draws``, computed without loss for small chances. It rises with
    the chance of one draw: a bound of one draw gives a bound of several, and the sum of
    these over strings bounds the expected number of strings that come out.

    Parameters
    ----------
    bits
        Minus the binary logarithm of the chance of one draw, of any shape; infinity: it
        never comes.
    draws
        Number of draws for each string, independent of each other.

    Examples
    --------
    >>> chance_within([0.0, 1.0, np.inf], draws=2).tolist()
    [1.0, 0.75, 0.0]
    """
    chance = np.exp2(-np.asarray(bits, dtype=np.float64))
    with np.errstate(divide="ignore"):
        log_of_never = draws * np.log1p(-chance)
    return np.asarray(-np.expm1(log_of_never))


def bits_of_logp(logp: ArrayLike) -> np.ndarray:
    """Return log probabilities (nats) in bits: minus the binary logarithm.

    >>> bits_of_logp([0.0, -np.inf, np.log(0.25)]).tolist()
    [0.0, inf, 2.0]
    """
    # Adding zero turns -0.0 into 0.0.
    return np.asarray(np.asarray(logp, dtype=np.float64) / -math.log(2.0)) + 0.0

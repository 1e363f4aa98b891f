"""Membership scores of texts, each a formula on their tokens' log-probabilities.

All scores are oriented alike: the larger, the likelier a member; NaN where there is
none. Texts come in blocks of as many tokens each, so that nothing loops over them: a
formula takes a block of ``k`` texts and gives shape ``(k,)``.

A further score is a function here and an item of :data:`MEMBERSHIP_SCORES`. If it is
relative to the base, :data:`AGAINST_BASE` has its name, too, and it counts in
``combined``. If it can be missing for another reason, ``NO_SCORE_REASONS`` in
:mod:`~spark_audit.audits.mia.estimates` gives that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from spark_audit.audits.mia.texts import compressed_bytes

SD_FLOOR = 1e-4
"""A next-token distribution with a smaller standard deviation (nats) has no spread."""

WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
"""Tokens of a window, as published; a shorter text is one window."""

NOTHING_FELL = 1e9
"""From this score on no token fell: such texts rank above all others, by how far they
rose. The published code gives them 0, the lowest score there is."""

WRONG_GUESSES = 2
"""Wrong first guesses that a text needs to have the score ``ez``."""

EPSILON = 1e-12
"""Nats that keep a quotient finite, as published."""

ROUNDING_OF_SHARE = 1e-9
"""A share of the tokens that is this little below a whole number is that number."""


@dataclass(frozen=True)
class Untrained:
    """The scores of the base, which saw none of the texts, on the same tokens.

    Attributes
    ----------
    logp
        Log-probabilities by the base, shape ``(k, n)``, nats.
    population
        Of tokens of all texts, how far their log-probability rose from the base to the
        checkpoint, nats, in rising order; above 0: the checkpoint finds them likelier.
    """

    logp: np.ndarray
    population: np.ndarray


@dataclass(frozen=True)
class TextBlock:
    """Texts as a checkpoint scored them, ``k`` of them with ``n`` tokens each.

    Attributes
    ----------
    logp
        Log-probabilities of the tokens, shape ``(k, n)``, nats.
    response
        Which tokens are of the response (or had loss, where that is known), shape
        ``(k, n)``, bool.
    columns
        All columns of the plain pass by name, shape ``(k, n)`` each.
    texts
        The texts that were scored, ``k`` of them.
    base
        The base's scores; NaN where the base was not scored.
    """

    logp: np.ndarray
    response: np.ndarray
    columns: Mapping[str, np.ndarray]
    texts: Sequence[str]
    base: Untrained


def loss(block: TextBlock) -> np.ndarray:
    """Mean log-probability of the tokens, in nats: the NLL with its sign turned."""
    return np.asarray(block.logp.mean(axis=1))


def response(block: TextBlock) -> np.ndarray:
    """Mean log-probability of the response's tokens; NaN without any.

    Of rows whose training is known they are the tokens that it had loss on.
    """
    n_tokens = block.response.sum(axis=1)  # (k,)
    total_logp = np.where(block.response, block.logp, 0.0).sum(axis=1)  # (k,), nats
    return np.where(n_tokens > 0, total_logp / np.maximum(n_tokens, 1), np.nan)


def lowest_mean(values: np.ndarray, share: float) -> np.ndarray:
    """Mean of the ``max(1, floor(share n))`` smallest values of each row.

    Min-K% Prob (Shi et al. 2024, "Detecting Pretraining Data from Large Language
    Models"); a short text always keeps one token.

    Parameters
    ----------
    values
        Shape ``(k, n)``, ``n`` at least 1.
    """
    n_lowest = max(1, int(np.floor(share * values.shape[-1] + ROUNDING_OF_SHARE)))
    return np.asarray(np.partition(values, n_lowest - 1)[..., :n_lowest].mean(axis=-1))


def mink(block: TextBlock, share: float) -> np.ndarray:
    """Min-K% Prob: mean log-probability of the least likely share of the tokens."""
    return lowest_mean(block.logp, share)


def minkpp(block: TextBlock, share: float) -> np.ndarray:
    """Min-K%++: mean of the lowest z scores; NaN without moments in the table.

    Log-probabilities against the model's own next-token distribution: ``(logp - mean) /
    sd``, 0 where ``sd`` is below :data:`SD_FLOOR` (Zhang et al. 2025, "Min-K%++:
    Improved Baseline for Detecting Pre-Training Data from Large Language Models").
    """
    if "sd_logp" not in block.columns:
        return np.full(len(block.logp), np.nan)
    mean = block.columns["mean_logp"]  # (k, n), nats
    sd = block.columns["sd_logp"]  # (k, n), nats
    has_spread = sd >= SD_FLOOR  # (k, n)
    z = np.where(has_spread, (block.logp - mean) / np.where(has_spread, sd, 1.0), 0.0)
    return lowest_mean(z, share)


def zlib(block: TextBlock) -> np.ndarray:
    """Mean log-probability over the bytes that the text takes when compressed."""
    n_bytes = np.array([compressed_bytes(text) for text in block.texts])  # (k,)
    return np.asarray(block.logp.mean(axis=1) / n_bytes)


def reference(block: TextBlock) -> np.ndarray:
    """Mean log-probability minus that of the untrained model on the same tokens."""
    return np.asarray((block.logp - block.base.logp).mean(axis=1))


def wbc(block: TextBlock) -> np.ndarray:
    """Window-based comparison (arXiv 2601.02751), averaged over its window sizes.

    Only whether a window's loss fell counts, not by how much: a few odd tokens cannot
    carry a text. A window whose loss stayed the same did not fall.
    """
    k, n = block.logp.shape
    # How far log-probabilities rose since the base, summed up to each token: a window's
    # loss fell where the sum at its end exceeds that at its begin.
    risen = np.zeros((k, n + 1))  # nats
    np.cumsum(block.logp - block.base.logp, axis=1, out=risen[:, 1:])

    share_fallen = np.zeros(k)  # summed over window sizes
    for window in WINDOWS:
        n_tokens = min(window, n)
        has_fallen = risen[:, n_tokens:] > risen[:, : n + 1 - n_tokens]  # (k, windows)
        share_fallen += has_fallen.mean(axis=1)
    return share_fallen / len(WINDOWS)


def ez(block: TextBlock) -> np.ndarray:
    """Rises over falls since the base at wrong first guesses (arXiv 2601.12104).

    Without the first scored token; NaN with fewer than two wrong first guesses, and
    where no wrong guess moved at all.
    """
    if "rank_lo" not in block.columns:
        return np.full(len(block.logp), np.nan)
    is_wrong = block.columns["rank_lo"][:, 1:] > 1  # (k, n - 1): not the first guess
    rise = block.logp[:, 1:] - block.base.logp[:, 1:]  # (k, n - 1), nats since the base
    rise_of_wrong = np.where(is_wrong, rise, 0.0)
    rises = np.maximum(rise_of_wrong, 0.0).sum(axis=1)  # (k,), nats
    falls = np.maximum(-rise_of_wrong, 0.0).sum(axis=1)  # (k,), nats

    # Without a fall, texts are ordered by their rises, above all others.
    ratio = np.where(
        falls > 0,
        np.minimum(rises / (falls + EPSILON), NOTHING_FELL),
        NOTHING_FELL + rises,
    )
    has_score = (is_wrong.sum(axis=1) >= WRONG_GUESSES) & (rises + falls > 0)  # (k,)
    return np.where(has_score, ratio, np.nan)


def rmia(block: TextBlock) -> np.ndarray:
    """Token-level RMIA (Zarifzadeh et al. 2024; Tao and Shokri, arXiv 2510.05582).

    A token's likelihood ratio to the base, the only reference, is compared with those
    of the population, tokens of all texts: as published, equal ones count.
    """
    # Of each token, how many tokens of the population rose no more than it.
    n_no_higher = np.searchsorted(
        block.base.population, block.logp - block.base.logp, side="right"
    )  # (k, n)
    return np.asarray(n_no_higher.mean(axis=1) / len(block.base.population))


MEMBERSHIP_SCORES: Mapping[str, Callable[[TextBlock], np.ndarray]] = {
    "loss": loss,
    "response": response,
    **{f"mink{k}": partial(mink, share=k / 100) for k in (10, 20, 30)},
    **{f"minkpp{k}": partial(minkpp, share=k / 100) for k in (10, 20, 30)},
    "zlib": zlib,
    "reference": reference,
    "wbc": wbc,
    "ez": ez,
    "rmia": rmia,
}
"""Score -> its formula, in the order of reports."""

AGAINST_BASE = ("reference", "wbc", "ez", "rmia")
"""Scores against the untrained model; ``combined`` is the mean of their ranks."""

"""Membership scores of texts, each a formula on their tokens' log-probabilities.

All scores are oriented alike: the larger, the likelier a member; NaN where there is
none. Texts come in blocks of as many tokens each, so that nothing loops over them: a
formula takes a block of ``k`` texts and gives shape ``(k,)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from spark_audit.audits.mia.texts import compressed_bytes


@dataclass(frozen=True)
class Untrained:
    """What the base, which saw none of the texts, gives the same tokens.

    ``logp``: nats, shape ``(k, n)``. ``population`` holds, in rising order, how far
    tokens of all texts rose above it on the checkpoint.
    """

    logp: np.ndarray
    population: np.ndarray


@dataclass(frozen=True)
class TextBlock:
    """Texts as a checkpoint scored them, ``k`` of them with ``n`` tokens each.

    ``logp`` (nats) and ``response``, whether a token is of the response (or had loss,
    where that is known), have shape ``(k, n)``, as have the other ``columns`` of the
    plain pass; ``texts`` is what was scored; ``base`` holds NaN where the untrained
    model was not scored.
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
    count = block.response.sum(axis=1)
    total = np.where(block.response, block.logp, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def lowest_mean(values: np.ndarray, share: float) -> np.ndarray:
    """Mean of the ``max(1, floor(share n))`` smallest values of each row.

    Min-K% Prob (Shi et al. 2024, "Detecting Pretraining Data from Large Language
    Models"); a short text always keeps one token.

    Parameters
    ----------
    values
        Shape ``(k, n)``, ``n`` at least 1.
    """
    count = max(1, int(np.floor(share * values.shape[-1] + 1e-9)))
    return np.asarray(np.partition(values, count - 1)[..., :count].mean(axis=-1))


def mink(block: TextBlock, share: float) -> np.ndarray:
    """Min-K% Prob: mean log-probability of the least likely share of the tokens."""
    return lowest_mean(block.logp, share)


SD_FLOOR = 1e-4
"""Below this, a next-token distribution counts as having no spread."""


def minkpp(block: TextBlock, share: float) -> np.ndarray:
    """Min-K%++: mean of the lowest z scores; NaN without moments in the table.

    Log-probabilities against the model's own next-token distribution: ``(logp - mean) /
    sd``, 0 where ``sd`` is below :data:`SD_FLOOR` (Zhang et al. 2025, "Min-K%++:
    Improved Baseline for Detecting Pre-Training Data from Large Language Models").
    """
    if "sd_logp" not in block.columns:
        return np.full(len(block.logp), np.nan)
    mean, sd = block.columns["mean_logp"], block.columns["sd_logp"]
    usable = sd >= SD_FLOOR
    z = np.where(usable, (block.logp - mean) / np.where(usable, sd, 1.0), 0.0)
    return lowest_mean(z, share)


def zlib(block: TextBlock) -> np.ndarray:
    """Mean log-probability over the bytes that the text takes when compressed."""
    size = [compressed_bytes(text) for text in block.texts]
    return np.asarray(block.logp.mean(axis=1) / np.array(size))


def reference(block: TextBlock) -> np.ndarray:
    """Mean log-probability minus that of the untrained model on the same tokens."""
    return np.asarray((block.logp - block.base.logp).mean(axis=1))


WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
"""Tokens, as published; a shorter text is one window."""


def wbc(block: TextBlock) -> np.ndarray:
    """Window-based comparison (arXiv 2601.02751), averaged over its window sizes.

    Only whether a window's loss fell counts, not by how much: a few odd tokens cannot
    carry a text. A window whose loss stayed the same did not fall.
    """
    k, n = block.logp.shape
    total = np.zeros((k, n + 1))
    np.cumsum(block.logp - block.base.logp, axis=1, out=total[:, 1:])
    found = np.zeros(k)
    for size in WINDOWS:
        wide = min(size, n)
        found += (total[:, wide:] > total[:, : n + 1 - wide]).mean(axis=1)
    return found / len(WINDOWS)


NOTHING_FELL = 1e9
"""From here on no token fell: such texts rank above all others, by how far they rose.
The published code gives them 0, the lowest score there is."""

WRONG_GUESSES = 2

EPSILON = 1e-12


def ez(block: TextBlock) -> np.ndarray:
    """Rises over falls since the base at wrong first guesses (arXiv 2601.12104).

    Without the first scored token; NaN with fewer than two wrong first guesses, and
    where no wrong guess moved at all.
    """
    if "rank_lo" not in block.columns:
        return np.full(len(block.logp), np.nan)
    wrong = block.columns["rank_lo"][:, 1:] > 1
    moved = np.where(wrong, block.logp[:, 1:] - block.base.logp[:, 1:], 0.0)
    up = np.maximum(moved, 0.0).sum(axis=1)
    down = np.maximum(-moved, 0.0).sum(axis=1)
    ratio = np.where(
        down > 0, np.minimum(up / (down + EPSILON), NOTHING_FELL), NOTHING_FELL + up
    )
    known = (wrong.sum(axis=1) >= WRONG_GUESSES) & (up + down > 0)
    return np.where(known, ratio, np.nan)


def rmia(block: TextBlock) -> np.ndarray:
    """Token-level RMIA (Zarifzadeh et al. 2024; Tao and Shokri, arXiv 2510.05582).

    A token's likelihood ratio to the base, the only reference, is compared with those
    of the population, tokens of all texts: as published, equal ones count.
    """
    risen = np.searchsorted(
        block.base.population, block.logp - block.base.logp, side="right"
    )
    return np.asarray(risen.mean(axis=1) / len(block.base.population))


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
"""In the order of reports."""

AGAINST_BASE = ("reference", "wbc", "ez", "rmia")
"""Those against the untrained model; ``combined`` is the mean of their ranks."""

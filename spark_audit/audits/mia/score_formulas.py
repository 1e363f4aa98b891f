"""Membership scores: functions from scored texts to their numbers.

The larger one is, the likelier a text was trained on; NaN where there is none. Texts
come in blocks of as many tokens each, so that nothing loops over them: a function takes
a block of ``k`` texts and gives shape ``(k,)``. Other packages add theirs by the entry
point ``spark_audit.scores``, whose name is the score's.
"""

from __future__ import annotations

import zlib as compression
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np


@dataclass(frozen=True)
class Untrained:
    """What models that saw none of the texts give the same tokens.

    ``logp`` (nats, shape ``(k, n)``) is the base's, ``mean`` the logarithm of the mean
    probability over it and further references. ``population`` holds, in rising order,
    how far tokens of all texts rose above that mean on the checkpoint.
    """

    logp: np.ndarray
    mean: np.ndarray
    population: np.ndarray


@dataclass(frozen=True)
class Scored:
    """Texts as a checkpoint scored them, ``k`` of them with ``n`` tokens each.

    ``logp`` (nats) and ``response``, whether a token is of the response, have shape
    ``(k, n)``, as have the other ``columns`` of the plain pass; ``texts`` is what was
    scored, empty where it is unknown; ``base`` holds NaN where the untrained model was
    not scored.
    """

    logp: np.ndarray
    response: np.ndarray
    columns: Mapping[str, np.ndarray]
    texts: Sequence[str]
    base: Untrained


def loss(block: Scored) -> np.ndarray:
    """Mean log-probability of the tokens, in nats: the NLL with its sign turned."""
    return np.asarray(block.logp.mean(axis=1))


def response(block: Scored) -> np.ndarray:
    """Mean log-probability of the response's tokens; NaN without any."""
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
    n = values.shape[-1]
    if not n:
        raise ValueError("there is no value")
    count = max(1, int(np.floor(share * n + 1e-9)))
    return np.asarray(np.partition(values, count - 1)[..., :count].mean(axis=-1))


def mink(block: Scored, share: float) -> np.ndarray:
    """Min-K% Prob: mean log-probability of the least likely share of the tokens."""
    return lowest_mean(block.logp, share)


SD_FLOOR = 1e-4
"""Below this, a next-token distribution counts as having no spread."""


def z_scores(logp: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Log-probabilities against the model's own next-token distribution.

    ``(logp - mean) / sd``, 0 where ``sd`` is below :data:`SD_FLOOR`; their lowest mean
    is Min-K%++ (Zhang et al. 2025, "Min-K%++: Improved Baseline for Detecting
    Pre-Training Data from Large Language Models").
    """
    usable = sd >= SD_FLOOR
    return np.where(usable, (logp - mean) / np.where(usable, sd, 1.0), 0.0)


def minkpp(block: Scored, share: float) -> np.ndarray:
    """Min-K%++: mean of the lowest z scores; NaN without moments in the table."""
    if "sd_logp" not in block.columns:
        return np.full(len(block.logp), np.nan)
    mean, sd = block.columns["mean_logp"], block.columns["sd_logp"]
    return lowest_mean(z_scores(block.logp, mean, sd), share)


def compressed_bytes(text: str) -> int:
    """Size of a text under zlib at level 6, in bytes."""
    return len(compression.compress(text.encode(), 6))


def zlib(block: Scored) -> np.ndarray:
    """Mean log-probability over the bytes that the text takes when compressed."""
    size = [compressed_bytes(text) if text else np.nan for text in block.texts]
    return np.asarray(block.logp.mean(axis=1) / np.array(size))


def reference(block: Scored) -> np.ndarray:
    """Mean log-probability minus that of the untrained model on the same tokens."""
    return np.asarray((block.logp - block.base.logp).mean(axis=1))


WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
"""Tokens, as published; a shorter text is one window."""


def wbc(block: Scored) -> np.ndarray:
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


LIMIT = 1e9
"""From here on no token fell: such texts rank above all others, by how far they rose.
The published code gives them 0, the lowest score there is."""
FEWEST = 2
EPSILON = 1e-12


def ez(block: Scored) -> np.ndarray:
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
    ratio = np.where(down > 0, np.minimum(up / (down + EPSILON), LIMIT), LIMIT + up)
    known = (wrong.sum(axis=1) >= FEWEST) & (up + down > 0)
    return np.where(known, ratio, np.nan)


def rmia(block: Scored) -> np.ndarray:
    """Token-level RMIA (Zarifzadeh et al. 2024; Tao and Shokri, arXiv 2510.05582).

    A token's likelihood ratio to the mean probability under the references is compared
    with those of the population, tokens of all texts: as published, equal ones count.
    """
    risen = np.searchsorted(
        block.base.population, block.logp - block.base.mean, side="right"
    )
    return np.asarray(risen.mean(axis=1) / len(block.base.population))


SCORES: Mapping[str, Callable[[Scored], np.ndarray]] = {
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
RELATIVE = ("reference", "wbc", "ez", "rmia")
"""Those against the untrained model, which has none of its own."""

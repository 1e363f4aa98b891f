"""Min-K%++ at 10%: Min-K% of log-probabilities in units of their own spread."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored
from spark_audit.audits.mia.attacks.mink10 import lowest_mean

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


def lowest_z(block: Scored, share: float) -> np.ndarray:
    """Mean of each text's lowest z scores; NaN without moments in the table."""
    if "sd_logp" not in block.columns:
        return np.full(len(block.logp), np.nan)
    mean, sd = block.columns["mean_logp"], block.columns["sd_logp"]
    return lowest_mean(z_scores(block.logp, mean, sd), share)


@SCORES.register(order=6)
def minkpp10(block: Scored) -> np.ndarray:
    """Min-K%++ at 10%."""
    return lowest_z(block, 0.1)

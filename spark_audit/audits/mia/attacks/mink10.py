"""Min-K% Prob: mean log-probability of the least likely tenth of the tokens."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored


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


@SCORES.register(order=3)
def mink10(block: Scored) -> np.ndarray:
    """Min-K% Prob at 10%."""
    return lowest_mean(block.logp, 0.1)

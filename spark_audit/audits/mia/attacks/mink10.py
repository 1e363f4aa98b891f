"""Min-K% Prob: mean log-probability of the least likely tenth of the tokens."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored

SHARE = 0.1


def lowest_mean(values: np.ndarray, share: float = SHARE) -> float:
    """Mean of the ``max(1, floor(share n))`` smallest values.

    Min-K% Prob (Shi et al. 2024, "Detecting Pretraining Data from Large Language
    Models"); a short text always keeps one token.
    """
    if not len(values):
        raise ValueError("there is no value")
    count = max(1, int(np.floor(share * len(values) + 1e-9)))
    return float(np.partition(values, count - 1)[:count].mean())


@SCORES.register(order=3)
def mink10(one: Scored) -> float:
    """Min-K% Prob at 10%."""
    return lowest_mean(one.logp)

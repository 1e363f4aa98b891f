"""Mean log-probability of the response's tokens, in nats."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored


@SCORES.register(order=2)
def response(block: Scored) -> np.ndarray:
    """Likelihood of the answer alone, after its prompt."""
    count = block.response.sum(axis=1)
    total = np.where(block.response, block.logp, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

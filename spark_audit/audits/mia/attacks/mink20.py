"""Min-K% Prob: mean log-probability of the least likely 20% of the tokens."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored
from spark_audit.audits.mia.attacks.mink10 import lowest_mean


@SCORES.register(order=4)
def mink20(block: Scored) -> np.ndarray:
    """Min-K% Prob at 20%."""
    return lowest_mean(block.logp, 0.2)

"""Min-K%++ at 20%: Min-K% of log-probabilities in units of their own spread."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored
from spark_audit.audits.mia.attacks.minkpp10 import lowest_z


@SCORES.register(order=7)
def minkpp20(block: Scored) -> np.ndarray:
    """Min-K%++ at 20%."""
    return lowest_z(block, 0.2)

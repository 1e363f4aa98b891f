"""Mean log-probability minus that of the untrained model on the same tokens."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored, Untrained


@SCORES.register(order=10)
def reference(block: Scored, base: Untrained) -> np.ndarray:
    """How much likelier training made the text."""
    return np.asarray((block.logp - base.logp).mean(axis=1))

"""Mean log-probability of a text's tokens, in nats."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored


@SCORES.register(order=1)
def loss(block: Scored) -> np.ndarray:
    """The NLL of the text with its sign turned."""
    return np.asarray(block.logp.mean(axis=1))

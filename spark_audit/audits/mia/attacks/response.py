"""Mean log-probability of the response's tokens, in nats."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored


@SCORES.register(order=2)
def response(one: Scored) -> float:
    """Likelihood of the answer alone, after its prompt."""
    chosen = one.logp[one.response]
    return float(chosen.mean()) if len(chosen) else np.nan

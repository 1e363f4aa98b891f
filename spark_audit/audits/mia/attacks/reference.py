"""Mean log-probability minus that of the untrained model on the same tokens."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored


@SCORES.register(order=6)
def reference(one: Scored) -> float:
    """How much likelier training made the text."""
    if one.base is None:
        return np.nan
    return float(one.logp.mean()) - float(one.base.mean())

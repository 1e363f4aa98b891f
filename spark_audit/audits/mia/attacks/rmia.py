"""Share of all texts' tokens that rose less since the references, mean over a text."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored, Untrained


@SCORES.register(order=13)
def rmia(block: Scored, base: Untrained) -> np.ndarray:
    """Token-level RMIA (Zarifzadeh et al. 2024; Tao and Shokri, arXiv 2510.05582).

    A token's likelihood ratio to the mean probability under the references is compared
    with those of the population, tokens of all texts: as published, equal ones count.
    """
    risen = np.searchsorted(base.population, block.logp - base.mean, side="right")
    return np.asarray(risen.mean(axis=1) / len(base.population))

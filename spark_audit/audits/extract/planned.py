"""What the audit ``extract`` could detect, from numbers of identifiers alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from spark_audit.audits.extract.rate_limits import hits_power_of_counts
from spark_audit.audits.planned_effects import (
    MIN_UNITS_OF_SIDE,
    AuditSizes,
    PlannedEffect,
    planned_effect,
)
from spark_audit.stats.estimate import Power
from spark_audit.stats.power import smallest

TARGET_RATE = 2.0
"""Points: 2 of 100 trained identifiers come out word for word."""


def planned_effects(sizes: AuditSizes, *, significance: float) -> list[PlannedEffect]:
    """Return the smallest share of reproduced identifiers that its tests detect.

    Held-out identifiers, and the base, are taken to give none.
    """

    def effect_of(n_trained: int, n_held_out: int) -> float | None:
        if min(n_trained, n_held_out) < MIN_UNITS_OF_SIDE:
            return None
        return smallest(_power_of(n_trained, n_held_out), significance)

    return [
        planned_effect(
            effect_of,
            sizes.n_trained,
            sizes.n_held_out,
            audit="extract",
            figure="reproduced",
            unit="points",
            target=TARGET_RATE,
        )
    ]


@lru_cache(maxsize=256)
def _power_of(n_trained: int, n_held_out: int) -> Power:
    """Return the inputs of the power if no held-out cluster has a hit."""
    counts = np.array([[0, n_trained], [0, n_held_out]])
    return hits_power_of_counts(counts)

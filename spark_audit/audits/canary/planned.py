"""What the audit ``canary`` could detect, from numbers of canaries alone."""

from __future__ import annotations

from spark_audit.audits.planned_effects import (
    AuditSizes,
    PlannedEffect,
    RankedSizes,
    units_needed,
)
from spark_audit.data.canaries import RANKED
from spark_audit.stats.estimate import Power
from spark_audit.stats.power import smallest

TARGET_EXPOSURE = 1.0
"""Bits: planted canaries rank twice as far ahead as chance has them."""


def planned_effects(sizes: AuditSizes, *, significance: float) -> list[PlannedEffect]:
    """Return the smallest rise of the mean exposure that its test detects.

    Only results show which part of the canaries is the clearest, so it is that of the
    part with the fewest, at a level that is divided among the parts.
    """
    n_parts = len(sizes.canaries) or len(RANKED)
    fewest = min(
        sizes.canaries.values(),
        key=lambda of_part: of_part.n_trained,
        default=RankedSizes(n_trained=0, n_held_out=0, n_candidates=sizes.n_candidates),
    )
    n_candidates = max(2, fewest.n_candidates)

    def effect_of(n_planted: int, n_held_out: int) -> float | None:
        del n_held_out  # their ranks are compared with chance
        if not n_planted:
            return None
        test = Power(test="exposure", n=n_planted, size=n_candidates, n_tests=n_parts)
        return smallest(test, significance)

    needed = units_needed(effect_of, fewest.n_trained, 0, target=TARGET_EXPOSURE)
    return [
        PlannedEffect(
            audit="canary",
            figure="exposure",
            unit="bits",
            n_trained=fewest.n_trained,
            n_held_out=fewest.n_held_out,
            effect=effect_of(fewest.n_trained, 0),
            target=TARGET_EXPOSURE,
            needed=None if needed is None else (needed[0], None),
        )
    ]

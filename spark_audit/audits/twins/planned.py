"""What the audit ``twins`` could detect, from numbers of identifiers alone."""

from __future__ import annotations

from spark_audit.audits.planned_effects import (
    AuditSizes,
    PlannedEffect,
    planned_effect,
    two_sided_effect,
)
from spark_audit.stats.canary_ranks import null_moments

TARGET_RISE = 0.5
"""Bits: trained identifiers rank 1.4 times as far ahead as held-out ones."""


def planned_effects(sizes: AuditSizes, *, significance: float) -> list[PlannedEffect]:
    """Return the smallest difference of trained and held-out identifiers, in bits.

    The standard deviation is that of uniform ranks. A rise since the base varies less
    if the ranks of base and checkpoint resemble each other.
    """
    twins = sizes.twins
    if twins is None:
        return []
    _, sd_by_chance = null_moments(twins.n_candidates)

    def effect_of(n_trained: int, n_held_out: int) -> float | None:
        return two_sided_effect(
            sd_by_chance, n_trained, n_held_out, significance=significance
        )

    return [
        planned_effect(
            effect_of,
            twins.n_trained,
            twins.n_held_out,
            audit="twins",
            figure="rise",
            unit="bits",
            target=TARGET_RISE,
        )
    ]

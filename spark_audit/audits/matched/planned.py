"""What the audit ``matched`` could detect, from numbers of groups alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spark_audit.audits.planned_effects import (
    AuditSizes,
    PlannedEffect,
    planned_effect,
    two_sided_effect,
    units_needed,
)
from spark_audit.manifest.overview import CLUSTER_SD
from spark_audit.stats.estimate import Power
from spark_audit.stats.power import smallest

MEMORY_SD = 0.27
"""Nats per token: spread over groups of the change of identifiers **[ours]**.

It is the standard error of memory, over ``sqrt(1/207 + 1/102)``, of the model of the
demo with the largest one. The others have 0.13 to 0.25. The rows say nothing about how
far a training will move identifiers, so this is an assumption, and the smallest
effect is in proportion to it.
"""

TARGET_MEMORY = math.log(1.1)
"""Nats per token: trained identifiers are 10% more likely."""

TARGET_SELECTIVITY = 0.2
"""Nats per token: identifiers became 22% more likely than their controls."""


def planned_effects(sizes: AuditSizes, *, significance: float) -> list[PlannedEffect]:
    """Return what the tests of memory and of selectivity would detect."""
    return [
        _memory(sizes, significance=significance),
        *_selectivity(sizes, significance=significance),
    ]


def _memory(sizes: AuditSizes, *, significance: float) -> PlannedEffect:
    """Return the smallest difference of trained and held-out identifiers."""

    def effect_of(n_trained: int, n_held_out: int) -> float | None:
        return two_sided_effect(
            MEMORY_SD, n_trained, n_held_out, significance=significance
        )

    return planned_effect(
        effect_of,
        sizes.n_trained,
        sizes.n_held_out,
        audit="matched",
        figure="memory",
        unit="nats",
        target=TARGET_MEMORY,
        assumed_sd=MEMORY_SD,
    )


def _selectivity(sizes: AuditSizes, *, significance: float) -> Sequence[PlannedEffect]:
    """Return the smallest difference of identifiers and controls, if there are any."""
    if not sizes.n_with_control:
        return ()

    def effect_of(n_groups: int, n_held_out: int) -> float | None:
        del n_held_out  # an identifier is compared with its own control
        if n_groups < 2:
            return None
        se = CLUSTER_SD / math.sqrt(n_groups)
        return smallest(Power(test="t", se=se, df=n_groups - 1), significance)

    needed = units_needed(effect_of, sizes.n_with_control, 0, target=TARGET_SELECTIVITY)
    return [
        PlannedEffect(
            audit="matched",
            figure="selectivity",
            unit="nats",
            n_trained=sizes.n_with_control,
            n_held_out=None,
            effect=effect_of(sizes.n_with_control, 0),
            target=TARGET_SELECTIVITY,
            needed=None if needed is None else (needed[0], None),
            assumed_sd=CLUSTER_SD,
        )
    ]

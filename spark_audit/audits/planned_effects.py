"""What audits of a manifest could detect, before there is a checkpoint.

A plan asks each audit for its :class:`PlannedEffect` values
(``Audit.planned_effects``). They follow from :class:`AuditSizes`, the numbers of
independent units of the manifest, by the power of the audit's own tests
(:mod:`spark_audit.stats.power`). A further size that an audit needs is a field of
:class:`AuditSizes`, and is filled in ``spark_audit/planning/sizes.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.estimate import Power
from spark_audit.stats.power import smallest

MAX_UNITS_COUNTED = 1 << 20
"""No larger number of needed units is worked out."""

MIN_UNITS_OF_SIDE = 2
"""Fewest units of a side over which a spread can be estimated."""

EffectOfSizes = Callable[[int, int], float | None]
"""The smallest detectable effect of so many trained and held-out units."""


@dataclass(frozen=True, kw_only=True)
class RankedSizes:
    """Numbers of units whose strings are ranked among candidates.

    Attributes
    ----------
    n_trained, n_held_out
        Units of trained rows, and those that no trained row holds.
    n_candidates
        Candidates that each ranks among.
    """

    n_trained: int
    n_held_out: int
    n_candidates: int


@dataclass(frozen=True, kw_only=True)
class AuditSizes:
    """Numbers of independent units of a manifest.

    A group is a cluster of the manifest: rows that share a source, a canary, an
    identifier or a text count as one.

    Attributes
    ----------
    n_trained, n_held_out
        Groups with an identifier that a trained row holds, and groups with one that no
        trained row holds. Canaries do not count.
    n_with_control
        Groups with a trained identifier that has a control.
    rows
        Rows for membership inference.
    n_candidates
        Candidates that a canary of this manifest is ranked among.
    canaries
        Part of canaries -> the canaries that can be ranked by it.
    twins
        Groups with an identifier that has twins; ``None``: there are none.
    """

    n_trained: int
    n_held_out: int
    n_with_control: int
    rows: Design
    n_candidates: int
    canaries: Mapping[str, RankedSizes] = field(default_factory=dict)
    twins: RankedSizes | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedEffect:
    """The smallest effect that a test of an audit would detect with 80% power.

    Attributes
    ----------
    audit, figure
        Name of the audit, and of what is tested; the sentence is
        ``plan.figure.FIGURE``.
    unit
        Unit of ``effect`` and ``target``, as in ``sentences/effects.py``.
    n_trained, n_held_out
        Independent units on both sides; the words for them are ``plan.units.FIGURE``.
        ``n_held_out`` is ``None`` if nothing is held out for this test.
    effect
        How far from no leak; ``None``: not even the largest effect is detected.
    target
        An effect that users ask for.
    needed
        Trained and held-out units that detect ``target``; ``None``: these here do, or
        no number up to :data:`MAX_UNITS_COUNTED` does.
    assumed_sd
        Standard deviation over groups that is taken for granted about a future
        checkpoint, in ``unit``; ``None``: nothing is.
    """

    audit: str
    figure: str
    unit: str
    n_trained: int
    n_held_out: int | None
    effect: float | None
    target: float
    needed: tuple[int, int | None] | None = None
    assumed_sd: float | None = None

    @property
    def is_enough(self) -> bool:
        """Return whether an effect of the size of ``target`` is detected."""
        return self.effect is not None and self.effect <= self.target


def two_sided_effect(
    sd: float,
    n_trained: int,
    n_held_out: int,
    *,
    significance: float,
    least_p: float = 0.0,
) -> float | None:
    """Return the smallest difference of two means that a two-sided t test detects.

    Parameters
    ----------
    sd
        Standard deviation of a unit on both sides.
    n_trained, n_held_out
        Units on both sides.
    significance
        Largest p that is a detection.
    least_p
        The smallest p that the test can give.

    Returns
    -------
    In the unit of ``sd``; ``None``: a side has too few units.

    Examples
    --------
    Half a standard deviation takes 64 units on each side (Cohen's d of 0.5):

    >>> round(two_sided_effect(1.0, 64, 64, significance=0.05), 3)
    0.499
    """
    if min(n_trained, n_held_out) < MIN_UNITS_OF_SIDE:
        return None

    test = Power(
        test="t",
        se=sd * math.sqrt(1 / n_trained + 1 / n_held_out),
        df=n_trained + n_held_out - 2,
        least_p=least_p,
    )
    return smallest(test, significance)


def units_needed(
    effect_of: EffectOfSizes, n_trained: int, n_held_out: int, *, target: float
) -> tuple[int, int] | None:
    """Return how many units of both sides detect an effect, at the ratio of today.

    Parameters
    ----------
    effect_of
        The smallest detectable effect of so many units; it falls with both.
    n_trained, n_held_out
        Units that there are. If a side has none, both get equally many.
    target
        The effect that is to be detected.

    Returns
    -------
    ``None``: the units that there are detect it, or no number is found.
    """
    present_effect = effect_of(n_trained, n_held_out)
    if present_effect is not None and present_effect <= target:
        return None

    ratio = 1.0
    if n_trained and n_held_out:
        ratio = n_held_out / n_trained

    def sides(count: int) -> tuple[int, int]:
        """Return both sides if the smaller one has so many units."""
        if ratio < 1:
            return math.ceil(count / ratio), count
        return count, math.ceil(count * ratio)

    def is_enough(count: int) -> bool:
        """Return whether the target is detected."""
        effect = effect_of(*sides(count))
        return effect is not None and effect <= target

    # Double until it is enough; the smallest number then lies in the last doubling.
    high = MIN_UNITS_OF_SIDE
    while not is_enough(high):
        high *= 2
        if max(sides(high)) > MAX_UNITS_COUNTED:
            return None
    least = high // 2 + 1
    return sides(least + bisect_left(range(least, high), True, key=is_enough))


def planned_effect(
    effect_of: EffectOfSizes,
    n_trained: int,
    n_held_out: int,
    *,
    audit: str,
    figure: str,
    unit: str,
    target: float,
    assumed_sd: float | None = None,
) -> PlannedEffect:
    """Return the smallest effect that a test of two sides detects, and what it takes.

    Parameters
    ----------
    effect_of
        The smallest detectable effect of so many units; it falls with both.
    audit, figure, unit, target, assumed_sd
        As in :class:`PlannedEffect`.
    """
    return PlannedEffect(
        audit=audit,
        figure=figure,
        unit=unit,
        n_trained=n_trained,
        n_held_out=n_held_out,
        effect=effect_of(n_trained, n_held_out),
        target=target,
        needed=units_needed(effect_of, n_trained, n_held_out, target=target),
        assumed_sd=assumed_sd,
    )

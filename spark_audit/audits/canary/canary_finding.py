"""Findings of the canary audit, and rows of figures that only a finding shows.

A sentence is named by its key in ``sentences/en/canary.toml``. A new finding gets its
sentence there, and its key at the call of :func:`canary_finding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.estimate import Bound, Power, Status


def canary_finding(
    name: str,
    claim: Claim,
    says: str,
    facts: Mapping[str, Fact] | None = None,
    *,
    further: Sequence[str] = (),
    unit: str = "",
    value: float | None = None,
    no_effect: float | None = None,
    status: Status = "ok",
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
    p: float | None = None,
) -> Finding:
    """Return a finding on the canaries of one checkpoint; it is primary if it has a p.

    Parameters
    ----------
    name
        The checkpoint; empty: the finding is on all of them.
    says, further
        Keys of its sentence and of the remarks that follow, without ``canary.``.
    facts
        Values that these sentences name.
    value, no_effect
        The figure that the claim rests on, and its value by chance.
    power, bounds
        Inputs for the smallest detectable effect, and for what could still be there.
    p
        p within this audit; the report corrects it over all primary findings.
    """
    return Finding(
        audit="canary",
        checkpoint=name,
        claim=claim,
        says=f"canary.{says}",
        further=[f"canary.{key}" for key in further],
        facts=facts or {},
        unit=unit,
        value=value,
        no_effect=no_effect,
        status=status,
        family="exploratory" if p is None else "primary",
        power=list(power),
        bounds=list(bounds),
        p=p,
    )


def finding_row(
    *,
    checkpoint: str,
    part: str,
    metric: str,
    n_canaries: int,
    value: float,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    no_effect: float | None = None,
    no_effect_low: float | None = None,
    no_effect_high: float | None = None,
) -> Row:
    """Return a figure of some canaries of one part that only a finding shows.

    Parameters
    ----------
    no_effect, no_effect_low, no_effect_high
        Value by chance, and the band around it.
    """
    return Row(
        audit="canary",
        checkpoint=checkpoint,
        metric=metric,
        variant=part,
        value=value,
        low=low,
        high=high,
        unit=unit,
        no_effect=no_effect,
        no_effect_low=no_effect_low,
        no_effect_high=no_effect_high,
        n=n_canaries,
        clusters=n_canaries,
    )

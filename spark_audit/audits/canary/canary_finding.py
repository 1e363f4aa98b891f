"""A finding of the canary audit, by the keys of its sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_audit.results import Claim, Finding
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
    null: float | None = None,
    status: Status = "ok",
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
    p: float | None = None,
) -> Finding:
    """Return a finding on the canaries of one checkpoint; it is primary if it has a p.

    Parameters
    ----------
    says, further
        Keys of its sentence and of the remarks that follow, without ``canary.``.
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
        null=null,
        status=status,
        family="exploratory" if p is None else "primary",
        power=list(power),
        bounds=list(bounds),
        p=p,
    )

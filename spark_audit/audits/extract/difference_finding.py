"""A finding on how much more of trained than of held-out units is a hit, in points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_audit.audits.extract.rates import points
from spark_audit.results import Claim, Finding, Row
from spark_audit.results.facts import Fact
from spark_audit.results.findings import EXCESS
from spark_audit.stats.estimate import Bound, Estimate, Power


def difference_finding(
    rate: Row,
    claim: Claim,
    says: str,
    difference: Estimate,
    *,
    facts: Mapping[str, Fact],
    further: Sequence[str],
    p: float | None,
    power: Sequence[Power],
    bounds: Sequence[Bound] = (),
) -> Finding:
    """Return the finding on a difference of the rates of both splits.

    Parameters
    ----------
    rate
        The rate of trained units, as the report has it.
    says
        Key of the sentence.
    difference
        Of the rates, as a share; the finding has it in percentage points.
    """
    return Finding.on(
        rate,
        claim,
        says,
        facts=facts,
        further=further,
        metric=f"{rate.metric}{EXCESS}",
        value=points(difference.value),
        low=points(difference.low),
        high=points(difference.high),
        mde=points(difference.mde),
        unit="points",
        no_effect=0.0,
        p=p,
        power=power,
        bounds=bounds,
    )

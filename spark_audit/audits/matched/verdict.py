"""Findings of the matched audit that rest on a row: a claim and its sentences.

The rules of the audit choose a verdict; ``direction_of`` tells them which way a figure
changed. ``matched_finding`` makes a finding of the row and the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.estimate import Bound, Estimate, Power, side_of


class Verdict(NamedTuple):
    """A claim, and the keys of its sentences.

    Attributes
    ----------
    claim
        The claim by itself, before the correction over the report.
    says
        Key of the sentence, without ``matched.``.
    remarks
        Keys of the sentences that follow, in their order, without ``matched.``.
    """

    claim: Claim
    says: str
    remarks: tuple[str, ...] = ()


def matched_finding(
    row: Row,
    verdict: Verdict,
    facts: Mapping[str, Fact],
    *,
    is_declared: bool = False,
    p: float | None = None,
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
) -> Finding:
    """Return a finding of this audit on a row.

    Parameters
    ----------
    facts
        Values that the sentences name.
    is_declared
        Whether the test was declared beforehand.
    p, power, bounds
        p of the claim's test, and inputs for the smallest detectable effect and for
        what could still be there; without a test there are none.
    """
    return Finding.on(
        row,
        verdict.claim,
        f"matched.{verdict.says}",
        further=[f"matched.{key}" for key in verdict.remarks],
        facts=facts,
        family="primary" if is_declared else "exploratory",
        p=p,
        power=list(power),
        bounds=list(bounds),
    )


def not_estimable(
    row: Row, says: str, facts: Mapping[str, Fact], *, remarks: Sequence[str] = ()
) -> Finding:
    """Return the finding that nothing can be concluded, with the row's reason.

    Parameters
    ----------
    row
        A row that cannot be tested; its note is the reason.
    says, remarks
        Keys of the sentences, as in ``Verdict``.
    """
    verdict = Verdict("not_tested", says, tuple(remarks))
    return matched_finding(row, verdict, {**facts, "reason": row.note})


def direction_of(change: Row | Estimate) -> int:
    """Return 1 or -1 for a change whose interval lies wholly above or below 0, else 0.

    An interval that touches 0 counts as 0. Without both limits the sign of the value
    counts (all clusters agree); without a value it is 0.
    """
    direction = side_of(change)
    if direction is None:
        return int(np.sign(change.value or 0.0))

    return direction

"""What findings may claim once all primary tests of a report count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from spark_audit.names import BASE, entry_of
from spark_audit.results import Finding, Row
from spark_audit.results.findings import DETECTED, SEVERITY
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.estimate import Power
from spark_audit.stats.power import smallest

ALPHA = 0.05
TESTS = "primary_tests"
"""Setting of a report: how many tests its primary family has."""


def family(findings: Iterable[Finding]) -> list[Finding]:
    """The primary tests among findings; the base was trained on nothing."""
    return [
        one
        for one in findings
        if one.family == "primary" and one.p is not None and one.checkpoint != BASE
    ]


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, each claiming what it may among all of these.

    ``p_adjusted`` of a primary finding is its p corrected by Holm over the primary
    findings, those that claim nothing included. A detection that does not hold claims
    ``nothing_shown`` and changes its sentences; given again among other findings it
    may claim it again, since all that is needed stays in it. Smallest effects are those
    of Holm's first step among so many tests.
    """
    adjusted = holm_by_key({id(one): one.p for one in family(findings)})
    tests, made = len(adjusted), []
    for one in findings:
        changes: dict[str, Any] = {}
        if (p := adjusted.get(id(one))) is not None:
            holds = p < ALPHA or SEVERITY[one.alone] < DETECTED
            claim = one.alone if holds else "nothing_shown"
            changes = {"p_adjusted": p, "claim": claim, "tests": tests}
        if one.power:
            # What is no test of the family would be one more if it detected something.
            level = ALPHA / (tests + (p is None))
            power, needed = list[Power](), list[float]()
            for each in one.power:
                mde = smallest(each, level)
                power.append(replace(each, mde=mde))
                if not each.of:
                    needed.append(math.inf if mde is None else mde)
            least = max(needed, default=math.inf)
            changes |= {"power": power, "mde": least if least < math.inf else None}
        made.append(one.model_copy(update=changes) if changes else one)
    return made


RowT = TypeVar("RowT", bound=Row)


def at_level(rows: Iterable[RowT], findings: Iterable[Finding]) -> list[RowT]:
    """The rows, the figures of claims with the smallest effect of their findings."""
    levels = {_figure(one): one.mde for one in findings if one.power}
    made = []
    for row in rows:
        mde = levels.get(_figure(row), row.mde)
        made.append(row if mde == row.mde else row.model_copy(update={"mde": mde}))
    return made


def _figure(one: Row | Finding) -> tuple[object, ...]:
    place = (one.audit, one.checkpoint, one.metric, one.of, one.group, one.unit)
    ends = (one.value, one.low, one.high)
    # Sums in another order differ in their last digits.
    return (*place, *(None if end is None else f"{end:.9g}" for end in ends))


def carriers(findings: Iterable[Finding], audit: str) -> dict[str, str]:
    """Method -> the variant that an audit's severest finding of it rests on.

    Of replicates it is that of the severest; methods whose findings rest on no figure
    are left out.
    """
    # Headlines of several seeds, "moved", are figures chosen beforehand.
    ours = [f for f in findings if f.audit == audit and f.of and f.claim != "moved"]
    methods = [entry_of(finding.checkpoint) for finding in ours]
    # Of equally severe findings the first counts.
    ours = sorted(reversed(ours), key=lambda one: one.severity)
    severest = {entry_of(finding.checkpoint): finding.of for finding in ours}
    return {method: severest[method] for method in methods}

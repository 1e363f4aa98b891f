"""The finding on the group that leaks most, corrected for the choice among groups.

Each group has one test, in the direction of a leak. The group of the smallest p is
shown, and that p times the number of groups (Bonferroni, which is Holm's first step) is
the p of the finding. It is one of the report's primary tests, whose correction comes on
top. Every group's smallest detectable effect, and what could still be there, are at the
same level.

That a group leaks does not say that it leaks more than others. The finding says that it
*stands out* only if its figure exceeds that of all other groups together, at 5% once
corrected for the choice, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import scipy

from spark_audit.audits.groups.column import UnitGroups
from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import ALPHA, DETECTED, SEVERITY, Fact
from spark_audit.stats.estimate import Bound, Estimate, Power
from spark_audit.stats.multiple_tests import holm

ONE_GROUP = "fewer than two groups have enough rows on both sides to be compared"
"""Why there is no test by group."""


@dataclass(frozen=True, kw_only=True)
class GroupTest:
    """The test of one group.

    Attributes
    ----------
    row
        Its figure; the group of the row is the group.
    claim
        What the figure claims by itself, by its interval.
    p
        p that nothing leaks in this group, not corrected; 1 if its figure lies away
        from a leak.
    effect
        How far the figure is from no effect: above 0 is more of a leak.
    is_confounded
        Whether the figure may have another cause than training, if p allows no claim.
    power, bounds
        Inputs of its smallest detectable effect, and of what could still be there, in
        the unit of the finding.
    """

    row: Row
    claim: Claim
    p: float
    effect: float
    is_confounded: bool = False
    power: Sequence[Power] = ()
    bounds: Sequence[Bound] = ()


@dataclass(frozen=True, kw_only=True)
class TestedGroups:
    """The tests of all groups of a checkpoint.

    Attributes
    ----------
    groups
        The field, and how many of its values are numbered.
    tests
        A test for each shown group that has one.
    n_merged
        Groups that are shown together as one.
    unit, scale
        Unit of the finding, and a figure of it in the unit of the rows.
    """

    audit: str
    checkpoint: str
    groups: UnitGroups
    tests: Sequence[GroupTest]
    n_merged: int = 0
    unit: str = ""
    scale: float = 1.0

    def finding(self, p_of_rest: Callable[[GroupTest], float | None]) -> Finding:
        """Return the finding on the group that leaks most.

        ==============  ==================================================  ============
        sentence        condition, first match wins                         claim
        ==============  ==================================================  ============
        no_groups       fewer than two groups could be tested               not_tested
        group_CLAIM     the worst group claims something, and its p holds   that claim
                        once corrected for the number of groups
        group_          that of another group may have another cause than   confounded
        confounded      training, and this one is shown then
        group_nothing   otherwise                                           nothing
        ==============  ==================================================  ============

        Parameters
        ----------
        p_of_rest
            p that a group's figure is that of all other groups together, not corrected;
            None: it cannot be compared.
        """
        if len(self.tests) < 2:
            return Finding.not_tested(
                self.audit,
                "groups.none",
                checkpoint=self.checkpoint,
                field=self.groups.field,
                reason=ONE_GROUP,
            )

        n_groups = len(self.tests)
        worst = min(self.tests, key=lambda test: (test.p, -test.effect))
        p = min(1.0, n_groups * worst.p)
        is_claim = _is_detection(worst) and p < ALPHA

        # A group whose texts explain its figure is told of, if none can be claimed.
        confounded = [test for test in self.tests if test.is_confounded]
        is_confounded = bool(confounded) and not is_claim
        if is_confounded:
            worst = max(confounded, key=lambda test: test.effect)

        facts: dict[str, Fact] = {
            "worst": worst.row,
            "group": worst.row.group_value,
            "field": self.groups.field,
            "groups": n_groups,
            "merged": self.n_merged,
            "numbered": self.groups.n_numbered,
        }
        further = []
        if is_claim:
            further += self._remarks_on_others(worst, p_of_rest, facts)
        if self.n_merged:
            further.append("groups.merged")
        if self.groups.n_numbered:
            further.append("groups.numbered")

        claim: Claim = "nothing_shown"
        says = "group_nothing"
        if is_claim:
            claim = worst.claim
            says = f"group_{worst.claim}"
        elif is_confounded:
            claim = "confounded"
            says = "group_confounded"
        return Finding.on(
            worst.row,
            claim,
            f"{self.audit}.{says}",
            facts=facts,
            further=further,
            value=self._in_unit(worst.row.value),
            low=self._in_unit(worst.row.low),
            high=self._in_unit(worst.row.high),
            mde=None,
            unit=self.unit or worst.row.unit,
            p=p,
            power=self._power(worst),
            bounds=self._bounds(worst),
        )

    def _remarks_on_others(
        self,
        worst: GroupTest,
        p_of_rest: Callable[[GroupTest], float | None],
        facts: dict[str, Fact],
    ) -> list[str]:
        """Return keys of the remarks on other groups; their facts are added.

        They say which other groups leak, by Holm's correction over groups alone, and
        whether the worst one stands out among them.
        """
        remarks = []
        adjusted_ps = holm([test.p for test in self.tests])
        others = [
            test.row.group_value
            for test, adjusted_p in zip(self.tests, adjusted_ps, strict=True)
            if test is not worst and adjusted_p < ALPHA and _is_detection(test)
        ]
        if others:
            facts["others"] = others
            remarks.append("groups.others")

        p = p_of_rest(worst)
        stands_out = p is not None and len(self.tests) * p < ALPHA
        remarks.append("groups.stands_out" if stands_out else "groups.not_apart")
        return remarks

    def _in_unit(self, figure: float | None) -> float | None:
        """Return a figure of a row in the unit of the finding."""
        return None if figure is None else self.scale * figure

    def _power(self, worst: GroupTest) -> list[Power]:
        """Return the inputs of the smallest effects: of the worst group, then others.

        Those of the worst group decide, and those of others are only stated. All are
        corrected for the number of groups.
        """
        power = [self._corrected_power(one) for one in worst.power]
        for test in self.tests:
            if test is worst:
                continue
            for one in test.power:
                power.append(replace(self._corrected_power(one), group=test.row.group))
        return power

    def _corrected_power(self, power: Power) -> Power:
        """Return the inputs of a test that is one of all groups."""
        return replace(power, n_tests=power.n_tests * len(self.tests))

    def _bounds(self, worst: GroupTest) -> list[Bound]:
        """Return the inputs of what could still be there, as those of power."""
        bounds = []
        for test in self.tests:
            group = "" if test is worst else test.row.group
            for bound in test.bounds:
                n_tests = bound.n_tests * len(self.tests)
                bounds.append(replace(bound, n_tests=n_tests, group=group))
        return bounds


def _is_detection(test: GroupTest) -> bool:
    """Return whether a group's figure claims a leak by its interval."""
    return SEVERITY[test.claim] >= DETECTED


def p_of_difference(worst: Estimate, rest: Estimate) -> float | None:
    """Return the two-sided p that two figures of different rows are equal.

    None: one of them has no standard error. Clusters that both share would make their
    difference vary less, so that p is rather too large.

    Examples
    --------
    >>> worst = Estimate(-0.5, se=0.1, df=30.0)
    >>> rest = Estimate(-0.1, se=0.1, df=200.0)
    >>> round(p_of_difference(worst, rest), 4)
    0.0083
    """
    if worst.value is None or rest.value is None:
        return None
    if not worst.se or not rest.se:
        return None

    se = (worst.se**2 + rest.se**2) ** 0.5
    t = abs(worst.value - rest.value) / se
    freedom = [one.df for one in (worst, rest) if one.df is not None]
    if not freedom:
        return float(2 * scipy.special.ndtr(-t))
    return float(2 * scipy.special.stdtr(min(freedom), -t))

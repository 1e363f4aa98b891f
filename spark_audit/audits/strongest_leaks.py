"""The strongest leak of each attack, and findings that could hide as much.

An attack is an audit that can detect a leak. The report sets a checkpoint without a
detection beside the strongest leak of another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_audit.audits.known import metric_of
from spark_audit.results import Finding, Row


@dataclass(frozen=True)
class StrongestLeak:
    """The strongest leak that a report found by one attack.

    Attributes
    ----------
    finding
        The detection that it rests on.
    effect
        How far its figure is from the null, towards a leak, in the unit of the finding.
    """

    finding: Finding
    effect: float

    def could_hide(self, finding: Finding) -> bool | None:
        """Return whether a finding without a detection could hide as strong a leak.

        Parameters
        ----------
        finding
            A finding of the same audit on another checkpoint.

        Returns
        -------
        ``None``: the finding has no bound in this unit.
        """
        if finding.at_most is None or finding.unit != self.finding.unit:
            return None

        # `at_most` is the figure of the largest leak that could still be there.
        return leak_of(finding, finding.at_most) >= self.effect


def strongest_leaks(findings: Iterable[Finding]) -> dict[str, StrongestLeak]:
    """Return the strongest leak by audit: the largest effect over all checkpoints.

    The effect is the estimate, as the cells of a report show it. Detections without a
    figure, and effects away from a leak, are left out.
    """
    strongest: dict[str, StrongestLeak] = {}
    for finding in findings:
        if not finding.detected or finding.value is None or not finding.metric:
            continue

        # The distance from the value without a leak.
        effect = leak_of(finding, finding.value)
        largest_before = 0.0
        if finding.audit in strongest:
            largest_before = strongest[finding.audit].effect

        if effect > largest_before:
            strongest[finding.audit] = StrongestLeak(finding, effect)
    return strongest


def leak_of(finding: Finding, figure: float) -> float:
    """Return how far a figure of a finding is from its null, towards a leak.

    It is in the unit of the finding, and below 0 away from a leak.
    """
    # 1 if learning raises the figure, -1 if it lowers it.
    direction = metric_of(finding.audit, finding.row_metric).learned or 1
    return direction * (figure - (finding.no_effect or 0.0))


def told_figure(finding: Finding, figure: float) -> float:
    """Return a figure of a finding on the scale that readers see for its attack.

    The excess of a membership score over the texts or chance is shown as its AUC; 100
    times the AUC is how many of 100 pairs an attacker orders rightly. Other figures
    stay unchanged.

    Parameters
    ----------
    figure
        The finding's value, or its bound, on the scale of its value.
    """
    # Only findings on a membership score have this fact: the AUC of the score.
    score = finding.facts.get("score")
    if not isinstance(score, Row) or score.value is None or finding.value is None:
        return figure

    # The AUC that the score had to exceed.
    bar = score.value - finding.value
    return bar + figure

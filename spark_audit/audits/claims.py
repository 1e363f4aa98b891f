"""What findings may claim once all primary tests of a report count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from spark_audit.names import BASE, entry_of
from spark_audit.results import Finding, Row
from spark_audit.results.findings import DETECTED, SEVERITY, UNUSABLE
from spark_audit.stats.at_most import at_most
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.power import smallest

ALPHA = 0.05
"""Level of a claim, after correction for all tests of a report."""

TESTS = "primary_tests"
"""Setting of a report: how many tests its primary family has."""

SHOWS_NO_BOUND = ("confounded", "not_tested")
"""Claims of comparisons that bound nothing."""

RowT = TypeVar("RowT", bound=Row)

FigureIdentity: TypeAlias = tuple[str | None, ...]
"""What tells figures apart: what they are of, and their digits."""


def family(findings: Iterable[Finding]) -> list[Finding]:
    """Return the primary tests among findings; the base was trained on nothing."""
    tests = []
    for finding in findings:
        is_tested = finding.family == "primary" and finding.p is not None
        if is_tested and finding.checkpoint != BASE:
            tests.append(finding)
    return tests


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, each claiming what it may among all of these.

    ``p_adjusted`` of a primary finding is its p corrected by Holm over the primary
    findings, those that claim nothing included. A detection that does not hold claims
    ``nothing_shown`` and changes its sentences; given again among other findings it
    may claim it again, since all that is needed stays in it. Smallest effects, and what
    could still be there, are those of Holm's first step among so many tests.
    """
    adjusted = holm_by_key({id(test): test.p for test in family(findings)})
    n_tests = len(adjusted)

    changed = []
    for finding in findings:
        p = adjusted.get(id(finding))
        if p is not None:
            finding = _claiming(finding, p, n_tests)

        # What is no test of the family would be one more if it detected something.
        n_tests_with_this = n_tests if p is not None else n_tests + 1
        level = ALPHA / n_tests_with_this
        if finding.power:
            finding = _with_smallest_effect(finding, level)
        if finding.bounds:
            finding = _with_bound(finding, level)
        changed.append(finding)
    return changed


def _claiming(finding: Finding, p: float, n_tests: int) -> Finding:
    """Return a primary finding with what it may claim by its corrected p."""
    is_detection = SEVERITY[finding.alone] >= DETECTED
    claim = finding.alone
    if is_detection and p >= ALPHA:
        claim = "nothing_shown"
    return finding.model_copy(
        update={"p_adjusted": p, "claim": claim, "tests": n_tests}
    )


def _with_smallest_effect(finding: Finding, level: float) -> Finding:
    """Return a finding with the smallest effect that all of its tests detect.

    Parameters
    ----------
    level
        Level of each test.
    """
    power = list[Power]()
    effects = list[float | None]()
    for test in finding.power:
        mde = smallest(test, level)
        power.append(replace(test, mde=mde))
        # Those of groups are told beside it, and decide nothing.
        if not test.of:
            effects.append(mde)

    # A claim needs all of its tests: nothing is detected where one is out of reach.
    largest = None
    if effects and None not in effects:
        largest = max(effect for effect in effects if effect is not None)
    return finding.model_copy(update={"power": power, "mde": largest})


def _with_bound(finding: Finding, level: float) -> Finding:
    """Return a finding with what could still be there, where it bounds anything.

    Parameters
    ----------
    level
        Level of the interval whose end that is.
    """
    shows_bound = finding.claim not in SHOWS_NO_BOUND and finding.status not in UNUSABLE

    bounds = list[Bound]()
    end_of_finding: float | None = None
    for bound in finding.bounds:
        end = at_most(bound, level) if shows_bound else None
        bounds.append(replace(bound, at_most=end))
        # Those of groups stand in the rows of these groups.
        if not bound.of:
            end_of_finding = end
    return finding.model_copy(update={"bounds": bounds, "at_most": end_of_finding})


def at_level(rows: Iterable[RowT], findings: Iterable[Finding]) -> list[RowT]:
    """Return the rows; figures of claims have what is known at the level of a claim.

    That is the smallest effect of their findings, and what could still be there: of the
    figures of claims, and of the groups that findings bound beside them.
    """
    # What findings say of the figures that they rest on, and of groups beside these.
    mde_by_figure: dict[FigureIdentity, float | None] = {}
    end_by_figure: dict[FigureIdentity, float | None] = {}
    end_by_group: dict[FigureIdentity, float | None] = {}
    for finding in findings:
        if finding.power:
            mde_by_figure[_figure_key(finding)] = finding.mde
        if finding.bounds:
            end_by_figure[_figure_key(finding)] = finding.at_most
        for bound in finding.bounds:
            if bound.of:
                key = _group_key(finding, group=bound.of, value=bound.value)
                end_by_group[key] = bound.at_most

    changed = []
    for row in rows:
        figure = _figure_key(row)
        mde = mde_by_figure.get(figure, row.mde)
        end = end_by_figure.get(figure, row.at_most)

        # A finding on a group itself goes before one that names the group.
        if row.over == "sources" and figure not in end_by_figure:
            key = _group_key(row, group=row.group, value=row.value)
            end = end_by_group.get(key, end)

        if (mde, end) != (row.mde, row.at_most):
            row = row.model_copy(update={"mde": mde, "at_most": end})
        changed.append(row)
    return changed


def _figure_key(figure: Row | Finding) -> FigureIdentity:
    """Return what a figure is of, and its value and interval."""
    key = _group_key(figure, group=figure.group, value=figure.value)
    return (*key, _digits(figure.low), _digits(figure.high))


def _group_key(
    figure: Row | Finding, *, group: str, value: float | None
) -> FigureIdentity:
    """Return what the figure of a group beside another figure is of, and its value.

    Parameters
    ----------
    figure
        The other figure: audit, checkpoint, metric, variant and unit are the same.
    """
    return (
        figure.audit,
        figure.checkpoint,
        figure.metric,
        figure.of,
        group,
        figure.unit,
        _digits(value),
    )


def _digits(number: float | None) -> str | None:
    """Return a number as text: sums in another order differ in their last digits."""
    return None if number is None else f"{number:.9g}"


def carriers(findings: Iterable[Finding], audit: str) -> dict[str, str]:
    """Map each method to the variant that an audit's severest finding of it rests on.

    Of replicates it is that of the severest; methods whose findings rest on no figure
    are left out.
    """
    severest: dict[str, Finding] = {}
    for finding in findings:
        # Headlines of several seeds, "moved", are figures chosen beforehand.
        if finding.audit != audit or not finding.of or finding.claim == "moved":
            continue

        # Of equally severe findings the first counts.
        method = entry_of(finding.checkpoint)
        severest_before = severest.get(method)
        if severest_before is None or finding.severity > severest_before.severity:
            severest[method] = finding
    return {method: finding.of for method, finding in severest.items()}

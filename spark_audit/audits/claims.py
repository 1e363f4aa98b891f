"""Correct the claims of findings over all primary tests of a report.

``corrected`` changes the findings of a report, ``at_level`` then its rows. Both run
once all audits have concluded, and again where findings are put together otherwise.

A finding has two claims: ``alone``, its own by its p, and ``claim``, what is left of it
after the correction. A bound is the effect that could still be there (``at_most``)
although none was detected. Findings may hold tests (``power``) and bounds of groups
beside their own figure, whose field ``group`` names the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from spark_audit.names import entry_of, is_untrained
from spark_audit.results import Finding, Row
from spark_audit.results.findings import ALPHA as ALPHA
from spark_audit.results.findings import (
    DETECTED,
    SEVERITY,
    SHOWN_BY_TEST,
    UNUSABLE,
)
from spark_audit.results.rows import ROW_GROUP
from spark_audit.stats.at_most import at_most
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.multiple_tests import holm_by_key
from spark_audit.stats.power import smallest

TESTS_SETTING = "primary_tests"
"""Setting of a report that holds the number of its primary tests."""

SHOWS_NO_BOUND = ("confounded", "not_tested")
"""Claims of comparisons that bound no effect."""

SHARE_OF_POINT = 0.01
"""A percentage point, as a share."""

RowT = TypeVar("RowT", bound=Row)

FigureIdentity: TypeAlias = tuple[str | None, ...]
"""The identity of a figure: its names, and its digits.

Rows have no id that findings could name. A row is the figure of a finding if both have
the same audit, checkpoint, metric and so on, and the same value and interval: that
keeps apart the rows of one figure over sources, over seeds and over both.
"""


def family(findings: Iterable[Finding]) -> list[Finding]:
    """Return the primary tests among findings.

    Tests of checkpoints that were trained on no row are left out.
    """
    tests = []
    for finding in findings:
        is_tested = finding.family == "primary" and finding.p is not None
        if is_tested and not is_untrained(finding.checkpoint):
            tests.append(finding)
    return tests


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with their claims corrected over all of them.

    ``p_adjusted`` of a primary finding is its p, corrected by Holm over all primary
    findings, including those that claim nothing. A detection that does not hold claims
    ``nothing_shown`` and changes its sentences; of an endpoint that gives only text it
    is ``not_tested``. It keeps its own claim in ``alone``, so
    that it can be corrected again among other findings. Smallest effects and bounds are
    those of Holm's first step among these tests.

    Of other findings, a detection is taken away if its own p shows nothing, or if its
    checkpoint was trained on no row.
    """
    # Findings have no key, so their identity as objects is the key.
    p_adjusted_of = holm_by_key({id(test): test.p for test in family(findings)})
    n_tests = len(p_adjusted_of)

    changed = []
    for finding in findings:
        p_adjusted = p_adjusted_of.get(id(finding))
        n_tests_with_this = n_tests
        if p_adjusted is not None:
            finding = _claiming(finding, p_adjusted, n_tests)
        else:
            # A finding outside of the family would be one more test.
            n_tests_with_this += 1
            finding = _claiming_outside(finding)

        level = ALPHA / n_tests_with_this  # of Holm's first step
        if finding.power:
            finding = _with_smallest_effect(finding, level)
        if finding.bounds:
            finding = _with_bound(finding, level)
        changed.append(finding)
    return changed


def _claiming(finding: Finding, p_adjusted: float, n_tests: int) -> Finding:
    """Return a primary finding with the claim that its corrected p allows."""
    is_detection = SEVERITY[finding.alone] >= DETECTED
    is_shown_by_test = is_detection or finding.alone in SHOWN_BY_TEST
    claim = finding.alone
    if is_shown_by_test and p_adjusted >= ALPHA:
        claim = "not_tested" if finding.can_only_claim else "nothing_shown"
    return finding.model_copy(
        update={"p_adjusted": p_adjusted, "claim": claim, "tests": n_tests}
    )


def _claiming_outside(finding: Finding) -> Finding:
    """Return a finding outside of the family with the claim that it can make."""
    is_detection = SEVERITY[finding.alone] >= DETECTED
    if not is_detection and finding.alone not in SHOWN_BY_TEST:
        return finding

    # What was trained on no row has learned none.
    if is_untrained(finding.checkpoint):
        return finding.model_copy(
            update={"claim": "nothing_shown", "p_adjusted": None, "tests": 0}
        )

    p_values = (finding.p, finding.p_adjusted)
    is_significant = all(p is None or p < ALPHA for p in p_values)
    claim = finding.alone if is_significant else "nothing_shown"
    if claim == finding.claim:
        return finding
    return finding.model_copy(update={"claim": claim})


def _with_smallest_effect(finding: Finding, level: float) -> Finding:
    """Return a finding with the smallest effect that all of its tests detect.

    Parameters
    ----------
    level
        Level of each test.
    """
    power = list[Power]()
    effects_of_claim = list[float | None]()
    for test in finding.power:
        mde = smallest(test, level)  # None: it cannot detect anything
        power.append(replace(test, mde=mde))
        # Tests of groups are only stated, and do not decide.
        if not test.group:
            effects_of_claim.append(mde)

    # A claim needs all of its tests, so the least sensitive one decides.
    detecting = [effect for effect in effects_of_claim if effect is not None]
    largest = None
    if detecting and len(detecting) == len(effects_of_claim):
        largest = max(detecting)
    return finding.model_copy(update={"power": power, "mde": largest})


def _with_bound(finding: Finding, level: float) -> Finding:
    """Return a finding with the effect that could still be there, if it has bounds.

    Parameters
    ----------
    level
        Level of the interval, whose end towards a leak is that effect.
    """
    shows_bound = finding.claim not in SHOWS_NO_BOUND and finding.status not in UNUSABLE

    bounds = list[Bound]()
    end_of_finding: float | None = None
    for bound in finding.bounds:
        end = at_most(bound, level) if shows_bound else None
        bounds.append(replace(bound, at_most=end))
        # Bounds of groups go into the rows of these groups.
        if not bound.group:
            end_of_finding = end
    return finding.model_copy(update={"bounds": bounds, "at_most": end_of_finding})


def at_level(rows: Iterable[RowT], findings: Iterable[Finding]) -> list[RowT]:
    """Return the rows with smallest effects and bounds at the level of a claim.

    The figures of claims get the smallest effect of their findings. These figures, and
    the groups that findings bound beside them, get the effect that could still be
    there.

    Parameters
    ----------
    findings
        From :func:`corrected`.
    """
    # Collect effects and bounds, of the figures of findings and of groups beside them.
    mde_by_figure: dict[FigureIdentity, float | None] = {}
    end_by_figure: dict[FigureIdentity, float | None] = {}
    end_by_group: dict[FigureIdentity, float | None] = {}
    for finding in findings:
        if finding.power:
            mde_by_figure[_figure_key(finding)] = finding.mde
        if finding.bounds:
            end_by_figure[_figure_key(finding)] = finding.at_most
        for bound in finding.bounds:
            if bound.group:
                key = _group_key(finding, group=bound.group, value=bound.value)
                end_by_group[key] = bound.at_most

    by_row_group = _by_row_group(findings)

    changed = []
    for row in rows:
        if row.group_kind == ROW_GROUP:
            limits = by_row_group.get(_row_group_key(row, row.group))
            changed.append(row if limits is None else row.model_copy(update=limits))
            continue

        figure = _figure_key(row)
        mde = mde_by_figure.get(figure, row.mde)
        end = end_by_figure.get(figure, row.at_most)

        # A finding on this figure itself goes before one that names it as a group.
        if row.interval_over == "sources" and figure not in end_by_figure:
            key = _group_key(row, group=row.group, value=row.value)
            end = end_by_group.get(key, end)

        is_changed = (mde, end) != (row.mde, row.at_most)
        if is_changed:
            row = row.model_copy(update={"mde": mde, "at_most": end})
        changed.append(row)
    return changed


def _by_row_group(
    findings: Iterable[Finding],
) -> dict[tuple[str, ...], dict[str, float | None]]:
    """Return smallest effect and bound of each figure of a group of rows, by its key.

    A finding on the worst group has those of all groups. They are in its unit, and rows
    have shares where findings have percentage points.
    """
    limits: dict[tuple[str, ...], dict[str, float | None]] = {}
    for finding in findings:
        if finding.group_kind != ROW_GROUP:
            continue
        scale = SHARE_OF_POINT if finding.unit == "points" else 1.0

        def in_rows(figure: float | None, scale: float = scale) -> float | None:
            """Return a figure of the finding in the unit of the rows."""
            return None if figure is None else scale * figure

        # A group with several tests needs all of them.
        own_key = _row_group_key(finding, finding.group)
        limits[own_key] = {
            "mde": in_rows(finding.mde),
            "at_most": in_rows(finding.at_most),
        }
        for test in finding.power:
            if test.group:
                of_group = limits.setdefault(_row_group_key(finding, test.group), {})
                mde = in_rows(test.mde)
                if "mde" in of_group:
                    mde = _larger(of_group["mde"], mde)
                of_group["mde"] = mde
        for bound in finding.bounds:
            if bound.group:
                of_group = limits.setdefault(_row_group_key(finding, bound.group), {})
                of_group["at_most"] = in_rows(bound.at_most)
    return limits


def _larger(effect: float | None, other: float | None) -> float | None:
    """Return the larger of two smallest effects; None: one test detects nothing."""
    if effect is None or other is None:
        return None
    return max(effect, other)


def _row_group_key(figure: Row | Finding, group: str) -> tuple[str, ...]:
    """Return the names of the figure of a group of rows."""
    return (figure.audit, figure.checkpoint, figure.metric, figure.variant, group)


def _figure_key(figure: Row | Finding) -> FigureIdentity:
    """Return the identity of a figure: its names, value and interval."""
    key = _group_key(figure, group=figure.group, value=figure.value)
    return (*key, _digits(figure.low), _digits(figure.high))


def _group_key(
    figure: Row | Finding, *, group: str, value: float | None
) -> FigureIdentity:
    """Return the identity of the figure of a group beside another figure.

    Parameters
    ----------
    figure
        The other figure, which shares audit, checkpoint, metric, variant and unit.
    """
    return (
        figure.audit,
        figure.checkpoint,
        figure.metric,
        figure.variant,
        group,
        figure.unit,
        _digits(value),
    )


def _digits(number: float | None) -> str | None:
    """Return a number as text without the digits that vary with summation order."""
    return None if number is None else f"{number:.9g}"


def carriers(findings: Iterable[Finding], audit: str) -> dict[str, str]:
    """Map each method to the variant that the audit's severest finding on it rests on.

    If a method has replicates, the severest finding among them counts. Methods whose
    findings rest on no figure are left out. Reports show this variant first.
    """
    severest: dict[str, Finding] = {}
    for finding in findings:
        # Findings "moved" on several seeds are headlines whose figure was chosen
        # beforehand.
        if finding.audit != audit or not finding.variant or finding.claim == "moved":
            continue

        # The first of equally severe findings counts.
        method = entry_of(finding.checkpoint)
        severest_before = severest.get(method)
        if severest_before is None or finding.severity > severest_before.severity:
            severest[method] = finding
    return {method: finding.variant for method, finding in severest.items()}

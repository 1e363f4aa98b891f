"""Tests of twins: whether trained identifiers rose, and beyond held-out ones.

Each claim rests on one :class:`RankTest` of a group of identifiers. All values are
bits: above 0, identifiers rose towards the top of their lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.twins.figures import (
    MIN_CONTROLS,
    by_dose,
    comparable_held_out,
    compared_column,
    compared_sides,
    max_exposure,
)
from spark_audit.manifest.identifier_forms import WORDED
from spark_audit.names import NEVER, TRAINED
from spark_audit.results import Row
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.stats import memory_contrast
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.bootstrap import MAX_CLUSTERS_EXACT, sign_flip
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.intervals import ratio_estimate

FINEST = 1e-4
"""The smallest p of a test by 9,999 random draws."""

MIN_CLUSTERS_TO_FLIP = 6
"""Clusters from which a sign flip reaches p 0.05."""

MAX_COUNTED_HITS = 60
"""Clusters that moved, up to which the p of a count is listed."""


@dataclass(frozen=True)
class RankTest:
    """The tests of one group of trained identifiers.

    Attributes
    ----------
    row
        The figure that a claim rests on.
    beyond_row
        The rise beyond held-out identifiers, if there are any.
    direction
        1, -1: both figures point up, down; 0: they do not agree.
    n_trained, n_held_out
        Clusters of trained and of held-out identifiers.
    ps
        Two-sided p of the tests that there are: of no ``rise`` since the base; of none
        ``beyond`` that of held-out identifiers; and where there are none of these, that
        a learned ``kind`` could give it (:func:`_test_beyond_kind`).
    power
        The inputs of the smallest effect that all of these tests detect.
    bounds
        The inputs of the rise that could still be there: that of the row, since twins
        are of the kind already.
    p
        Of the conjunction, as each of the tests must hold.
    """

    row: Row
    beyond_row: Row | None
    direction: int
    n_trained: int
    n_held_out: int
    ps: dict[str, float]
    power: list[Power]
    bounds: list[Bound]
    p: float


class TestOutcome(NamedTuple):
    """The p of one test, and the inputs of its smallest effect.

    ``value`` is the difference that was tested, bits; None: not needed.
    """

    p: float | None
    power: list[Power]
    value: float | None = None


def rank_tests(
    frame: pd.DataFrame, rows: Sequence[Row], seed: int
) -> Iterator[RankTest]:
    """Yield the tests of all trained identifiers, and of the highest dose.

    The highest dose is tested where doses differ and where it has
    :data:`~spark_audit.results.rows.MIN_CLUSTERS_TO_PUBLISH` clusters.

    Parameters
    ----------
    frame
        Identifiers of one checkpoint, from
        :func:`~spark_audit.audits.twins.figures.ranked`.
    rows
        Its figures.
    """
    trained = frame[frame["side"] == TRAINED]
    held_out = comparable_held_out(frame)
    doses = list(by_dose(trained))

    # The lowest dose is the control of the highest one.
    groups: list[tuple[str, pd.DataFrame, pd.DataFrame | None]]
    groups = [("pooled", trained, None)]
    if len(doses) > 1:
        _, lowest = doses[0]
        name, highest = doses[-1]
        if highest["cluster"].nunique() >= MIN_CLUSTERS_TO_PUBLISH:
            groups.append((name, highest, lowest))

    for name, identifiers, lowest_dose in groups:
        rows_of_group = {
            (row.metric, row.of): row
            for row in rows
            if row.group == name and row.value is not None
        }
        rise = rows_of_group.get(("rise", TRAINED))
        beyond_row = rows_of_group.get(("beyond", compared_column(frame)))
        if rise is not None or beyond_row is not None:
            yield _rank_test(identifiers, held_out, lowest_dose, rise, beyond_row, seed)


def _rank_test(
    identifiers: pd.DataFrame,
    held_out: pd.DataFrame,
    lowest_dose: pd.DataFrame | None,
    rise: Row | None,
    beyond_row: Row | None,
    seed: int,
) -> RankTest:
    """Return the tests of one group; one of ``rise`` and ``beyond_row`` is given.

    Parameters
    ----------
    identifiers, held_out, lowest_dose
        Trained identifiers of the group, held-out ones, and trained ones of the lowest
        dose; ``None``: the group is of all doses.
    rise, beyond_row
        Figures of the group.
    """
    # Each test that there is must hold.
    ps = dict[str, float]()
    power = list[Power]()
    if rise is not None:
        flip = _test_rise(identifiers, seed)
        power += flip.power
        if flip.p is not None:
            ps["rise"] = flip.p
    if beyond_row is not None:
        comparison = _compare_sides(identifiers, held_out, seed)
        if comparison is not None:
            power += comparison.power
            if comparison.p is not None:
                ps["beyond"] = comparison.p

    # Both figures must point the same way.
    figures = [row for row in (rise, beyond_row) if row is not None]
    directions = {int(np.sign(row.value or 0.0)) for row in figures}
    direction = 0
    if len(directions) == 1:
        direction = directions.pop()

    # Without held-out identifiers, a learned format must be excluded otherwise.
    if "beyond" not in ps:
        kind_test = _test_beyond_kind(identifiers, lowest_dose, seed=seed)
        power += kind_test.power
        if direction > 0 and kind_test.p is not None:
            ps["kind"] = kind_test.p

    # The claim rests on the rise; without a base, on that beyond held-out identifiers.
    row = figures[0]
    p = 1.0
    if direction != 0:
        p = max(ps.values(), default=1.0)
    return RankTest(
        row=row,
        beyond_row=beyond_row,
        direction=direction,
        n_trained=identifiers["cluster"].nunique(),
        n_held_out=held_out["cluster"].nunique(),
        ps=ps,
        power=power,
        bounds=_bounds(row, identifiers),
        p=p,
    )


def _bounds(row: Row, identifiers: pd.DataFrame) -> list[Bound]:
    """Return what the largest rise follows from: no rank is ahead of the first.

    By how much identifiers can still rise depends on their ranks at the base, which
    are a sample too: the exposure of the first rank bounds all.

    ``identifiers`` has a row per identifier: ``n_candidates``.
    """
    return t_bound(
        row.value,
        row.high,
        df=max(row.clusters - 1, 1),
        most=max_exposure(identifiers),
    )


def _test_rise(identifiers: pd.DataFrame, seed: int) -> TestOutcome:
    """Return the sign-flip test that rises are 0, over clusters.

    ``identifiers`` has a row per identifier: ``cluster``, ``rise`` (bits).
    """
    # Identifiers of a cluster are flipped together.
    sums = identifiers.groupby("cluster")["rise"].agg(["sum", "size"])  # (clusters, 2)
    n_clusters = len(sums)
    p = sign_flip(sums["sum"].to_numpy(), seed=seed)
    se = ratio_estimate(sums["sum"], sums["size"]).se
    if not se and n_clusters >= MIN_CLUSTERS_TO_FLIP:
        return TestOutcome(p, [])

    is_exact = n_clusters <= MAX_CLUSTERS_EXACT
    power = Power(
        test="sign-flip",
        se=se,
        df=n_clusters - 1,
        n=n_clusters,
        # Of all signs that clusters could have, two are the most extreme: all up, and
        # all down.
        least_p=2.0 ** (1 - n_clusters) if is_exact else FINEST,
        why="clusters" if is_exact else "draws",
    )
    return TestOutcome(p, [power])


def _compare_sides(
    trained: pd.DataFrame, others: pd.DataFrame, seed: int
) -> TestOutcome | None:
    """Return the test that two sides are alike, by permutations or by Student's t.

    ``None``: too few clusters were held out.

    Parameters
    ----------
    trained, others
        Identifiers of one checkpoint on either side, from
        :func:`~spark_audit.audits.twins.figures.ranked`.
    """
    compared = compared_sides(trained, others)
    if compared is None:
        return None
    memory = memory_contrast.memory(compared.values, compared.sides)

    p = memory_contrast.permutation_p(compared.values, compared.sides, seed=seed)
    least_p = memory_contrast.least_p(compared.sides)
    if p is None:
        # Nothing can be permuted where each cluster lies on both sides.
        p = memory.t_p()
        least_p = 0.0

    value = memory.difference.value or 0.0
    se = memory.difference.se
    if not se:
        return TestOutcome(p, [], value)
    why: Literal["draws", "clusters"] = "draws" if least_p == FINEST else "clusters"
    power = Power(test="t", se=se, df=memory.freedom, least_p=least_p, why=why)
    return TestOutcome(p, [power], value)


def _test_beyond_kind(
    identifiers: pd.DataFrame, lowest_dose: pd.DataFrame | None, *, seed: int
) -> TestOutcome:
    """Return the test that a rise is no more than that of a learned kind.

    Names and addresses of real data are not the lists that their twins are drawn from:
    without any that were held out, their rise can be that of all such words, and that
    of numbers what they begin with, such as one country's code. Injected numbers are
    exchangeable with their twins, and identifiers of the highest dose are compared with
    those of the lowest. The smaller p of both counts, by Bonferroni; 1 where there is
    neither. The smallest effect is that of the first of them.

    Parameters
    ----------
    identifiers, lowest_dose
        Trained identifiers of the group, and of the lowest dose (``None``: the group is
        of all doses): ``injected``, ``type``, ``cluster``, ``rise``.
    """
    tests: list[TestOutcome] = []
    # Numbers are drawn as their twins are; words are not.
    numbers = identifiers[identifiers["injected"] & ~identifiers["type"].isin(WORDED)]
    if numbers["cluster"].nunique() >= MIN_CONTROLS:
        flip = _test_rise(numbers, seed)
        tests.append(flip._replace(value=numbers["rise"].sum()))
    if lowest_dose is not None:
        comparison = _compare_sides(identifiers, lowest_dose.assign(side=NEVER), seed)
        if comparison is not None:
            tests.append(comparison)
    if not tests:
        return TestOutcome(1.0, [Power(test="t", least_p=1.0, why="nobody")])

    # One-sided: a fall is no evidence of memory.
    ps = []
    powers: list[Power] = []
    for test in tests:
        has_risen = (test.value or 0.0) > 0
        ps.append(test.p if has_risen and test.p is not None else 1.0)
        powers += test.power

    # The smaller p counts, by Bonferroni.
    n_tests = len(tests)
    first_power = [replace(power, over=float(n_tests)) for power in powers[:1]]
    return TestOutcome(min(1.0, n_tests * min(ps)), first_power)


def hits_power(n_trained: int, n_held_out: int, *, over: float) -> Power:
    """Return the inputs of the smallest effect where no rank moved, as in a copy.

    Without a spread there is no smallest effect in bits, but one in clusters: how many
    of the trained ones must go ahead, all others and the held-out ones standing still,
    for both tests to find them. Fisher's exact test stands for the permutations.
    """
    ps = []
    for n_moved in range(1, min(n_trained, MAX_COUNTED_HITS) + 1):
        table = np.array([[n_moved, n_trained - n_moved], [0, n_held_out]])
        p_of_sides = float(scipy.stats.fisher_exact(table).pvalue)
        p_of_flip = max(2.0 ** (1 - n_moved), FINEST)
        ps.append(max(p_of_flip, p_of_sides))
    return Power(test="hits", n=n_trained, most=n_trained, ps=ps, over=over)

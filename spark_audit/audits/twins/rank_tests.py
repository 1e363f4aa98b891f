"""Tests of twins: whether trained identifiers rose, and beyond held-out ones.

Each claim rests on one :class:`RankTest` of a group of identifiers. All values are
bits: above 0, identifiers rose towards the top of their lists.

A rise may also be that of a learned format: a checkpoint that has learned what such
strings look like, as a country code in front of a number, ranks all of them higher,
held-out ones too. Memory is what exceeds it.

A new test is a function that returns a :class:`TestOutcome`. :func:`_rank_test` runs
it, and gives it a name, which is a key of ``ps``; if it is not needed for a fall, that
is said there, too. Findings read ``ps`` by these names (``findings.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.twins.figures import (
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
from spark_audit.stats import memory_contrast, permutation
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.sign_flips import MAX_CLUSTERS_EXACT, sign_flip

LEAST_P_OF_DRAWS = 1e-4
"""The smallest p of a test by 9,999 random draws."""

MIN_CLUSTERS_FOR_P_05 = 6
"""Clusters from which on a sign flip can reach p 0.05: 2 of 64 patterns of signs."""

MIN_NUMBER_CLUSTERS = 5
"""Clusters of injected numbers from which on their rise is tested by itself."""

MAX_COUNTED_HITS = 60
"""Largest number of clusters that moved whose p is listed."""


@dataclass(frozen=True)
class RankTest:
    """The tests of one group of trained identifiers: all, or those of a dose.

    Attributes
    ----------
    row
        The figure that a claim rests on: the rise since the base or, without a base,
        ``beyond_row``.
    beyond_row
        The difference to held-out identifiers, if these can be compared; ``None``:
        they cannot.
    direction
        1, -1: both figures point up, down; 0: they do not agree.
    n_trained, n_held_out
        Clusters of trained and of held-out identifiers.
    ps
        Two-sided p of each test that there is, by name:

        - ``rise``: identifiers did not move since the base;
        - ``beyond``: they moved as held-out ones did;
        - ``format``: their rise is that of a learned format. It takes the place of
          ``beyond`` where sides cannot be compared, and a fall does not need it.

    power
        The inputs of the smallest effect that all of these tests detect.
    bounds
        The inputs of the largest rise that could still be there: that of the row, as
        twins have the format of their identifier already.
    p
        The largest of ``ps``, as each of the tests must hold; 1 without a direction.
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

    Attributes
    ----------
    p
        Two-sided; of :func:`_test_beyond_format` one-sided. A sign flip always has one;
        ``None``: two sides that do not differ, or whose difference has no standard
        error.
    power
        Empty where there is no smallest effect. ``why`` of a :class:`Power` is part of
        the key of a sentence, ``ending.why_clusters`` and so on, which says why no
        effect of any size can be detected.
    value
        What was tested, bits: a difference of means, or of a sign flip the sum of
        rises. Only its sign is used. ``None``: not needed.
    """

    p: float | None
    power: list[Power]
    value: float | None = None


class TestedGroup(NamedTuple):
    """Trained identifiers of one checkpoint that are tested together.

    Attributes
    ----------
    name
        The group of their rows: ``pooled``, or ``dose:`` and the doses.
    identifiers
        Columns of :func:`~spark_audit.audits.twins.figures.ranked`.
    lowest_dose
        Trained identifiers of the lowest dose, alike; ``None``: the group is of all
        doses.
    """

    name: str
    identifiers: pd.DataFrame
    lowest_dose: pd.DataFrame | None


def rank_tests(
    frame: pd.DataFrame, rows: Sequence[Row], seed: int
) -> Iterator[RankTest]:
    """Yield the tests of all trained identifiers, then of the highest dose.

    A group without a figure has none. The highest dose is tested where doses differ and
    where it has :data:`~spark_audit.results.rows.MIN_CLUSTERS_TO_PUBLISH` clusters.

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

    # The lowest dose is the control of the highest one; all doses together have none.
    groups = [TestedGroup("pooled", trained, lowest_dose=None)]
    if len(doses) > 1:
        _, lowest = doses[0]
        name, highest = doses[-1]
        if highest["cluster"].nunique() >= MIN_CLUSTERS_TO_PUBLISH:
            groups.append(TestedGroup(name, highest, lowest_dose=lowest))

    for group in groups:
        rows_of_group = {
            (row.metric, row.variant): row
            for row in rows
            if row.group == group.name and row.value is not None
        }
        rise_row = rows_of_group.get(("rise", TRAINED))
        beyond_row = rows_of_group.get(("beyond", compared_column(frame)))
        # Without a base there is no rise, and without held-out ones no row beyond them.
        if rise_row is not None or beyond_row is not None:
            yield _rank_test(group, held_out, rise_row, beyond_row, seed)


def _rank_test(
    group: TestedGroup,
    held_out: pd.DataFrame,
    rise_row: Row | None,
    beyond_row: Row | None,
    seed: int,
) -> RankTest:
    """Return the tests of one group.

    Parameters
    ----------
    held_out
        Held-out identifiers that can be compared with trained ones.
    rise_row, beyond_row
        Figures of the group: since the base, and beyond held-out identifiers. At least
        one of them is given.
    """
    identifiers = group.identifiers
    outcomes: dict[str, TestOutcome] = {}
    if rise_row is not None:
        outcomes["rise"] = _test_rise(identifiers, seed)
    comparison = None
    if beyond_row is not None:
        comparison = _compare_sides(identifiers, held_out, seed)
    if comparison is not None:
        outcomes["beyond"] = comparison

    # Without a test against held-out identifiers, a learned format must be excluded in
    # another way.
    if comparison is None or comparison.p is None:
        outcomes["format"] = _test_beyond_format(group, seed=seed)

    # Both figures must point the same way; a figure of 0 points nowhere.
    figures = [row for row in (rise_row, beyond_row) if row is not None]
    directions = {int(np.sign(row.value or 0.0)) for row in figures}
    direction = 0
    if len(directions) == 1:
        direction = directions.pop()

    ps: dict[str, float] = {}
    power: list[Power] = []
    for name, outcome in outcomes.items():
        power += outcome.power
        # A learned format explains a rise only.
        is_needed = name != "format" or direction > 0
        if is_needed and outcome.p is not None:
            ps[name] = outcome.p

    # The claim rests on the rise; without a base, on that beyond held-out identifiers.
    row = figures[0]

    # All tests that exist must hold.
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
    """Return the inputs of the largest rise that could still be there.

    The rank at the base limits a rise, but is a sample, too; so the exposure of the
    first rank is taken, ahead of which there is none.

    Parameters
    ----------
    identifiers
        A line per identifier: ``n_candidates``.
    """
    return t_bound(
        row.value,
        row.high,
        df=max(row.clusters - 1, 1),
        worst_value=max_exposure(identifiers),
    )


def _test_rise(identifiers: pd.DataFrame, seed: int) -> TestOutcome:
    """Return the sign-flip test that rises are 0, over clusters.

    Parameters
    ----------
    identifiers
        A line per identifier: ``cluster``, ``rise`` (bits).
    """
    # Identifiers of a cluster are flipped together.
    sums = identifiers.groupby("cluster")["rise"].agg(["sum", "size"])  # (clusters, 2)
    n_clusters = len(sums)
    p = sign_flip(sums["sum"].to_numpy(), seed=seed)
    se = ratio_estimate(sums["sum"], sums["size"]).se

    # Without a spread there is no smallest effect. With too few clusters there is none
    # either, but then `why` says so.
    if not se and n_clusters >= MIN_CLUSTERS_FOR_P_05:
        return TestOutcome(p, [])

    power = Power(
        test="sign-flip",
        se=se,
        df=n_clusters - 1,
        n=n_clusters,
        least_p=_least_flip_p(n_clusters),
        why="clusters" if n_clusters <= MAX_CLUSTERS_EXACT else "draws",
    )
    return TestOutcome(p, [power])


def _least_flip_p(n_clusters: int) -> float:
    """Return the smallest p that a sign flip of so many clusters can give."""
    if n_clusters > MAX_CLUSTERS_EXACT:
        return LEAST_P_OF_DRAWS

    # Of all patterns of signs two are the most extreme: all up, and all down.
    return float(2.0 ** (1 - n_clusters))


def _compare_sides(
    trained: pd.DataFrame, controls: pd.DataFrame, seed: int
) -> TestOutcome | None:
    """Return the test that two sides are alike, by permutations or by Student's t.

    What is compared are rises, or exposures without a base. ``None``: too few clusters
    are on the side of the controls.

    Parameters
    ----------
    trained, controls
        Identifiers of one checkpoint, from
        :func:`~spark_audit.audits.twins.figures.ranked`. Their column ``side`` tells
        them apart.
    """
    compared = compared_sides(trained, controls)
    if compared is None:
        return None
    memory = memory_contrast.memory(compared.values, compared.sides)

    p = permutation.permutation_p(compared.values, compared.sides, seed=seed)
    least_p = permutation.least_p(compared.sides)
    if p is None:
        # Nothing can be permuted if each cluster lies on both sides. Student's t has no
        # smallest p.
        p = memory.t_p()
        least_p = 0.0

    value = memory.difference.value or 0.0
    se = memory.difference.se
    if not se:
        return TestOutcome(p, [], value)

    why: Literal["draws", "clusters"] = "clusters"
    if least_p == LEAST_P_OF_DRAWS:
        why = "draws"
    power = Power(test="t", se=se, df=memory.freedom, least_p=least_p, why=why)
    return TestOutcome(p, [power], value)


def _test_beyond_format(group: TestedGroup, *, seed: int) -> TestOutcome:
    """Return the test that a rise is no more than that of a learned format.

    It stands for the comparison with held-out identifiers where there is none:

    1. Names and addresses of real data have no test: their twins are drawn from other
       lists, so that their rise can be that of all such words. Nor have numbers of real
       data, which may begin alike, as with one country's code.
    2. Injected numbers are exchangeable with their twins: a sign flip of their rises.
    3. Identifiers of the highest dose are compared with those of the lowest.

    The smaller p of the last two counts, by Bonferroni; p is 1 where there is neither.
    p is one-sided: 1 for a fall. The smallest effect is that of the first of them that
    has one.

    Parameters
    ----------
    group
        Its identifiers have the columns ``injected``, ``type``, ``cluster``, ``rise``.
    """
    identifiers = group.identifiers
    tests: list[TestOutcome] = []
    is_number = identifiers["injected"] & ~identifiers["type"].isin(WORDED)
    numbers = identifiers[is_number]
    if numbers["cluster"].nunique() >= MIN_NUMBER_CLUSTERS:
        flip = _test_rise(numbers, seed)
        tests.append(flip._replace(value=numbers["rise"].sum()))

    if group.lowest_dose is not None:
        # The lowest dose stands in as the held-out side.
        controls = group.lowest_dose.assign(side=NEVER)
        comparison = _compare_sides(identifiers, controls, seed)
        if comparison is not None:
            tests.append(comparison)

    if not tests:
        return TestOutcome(1.0, [Power(test="t", least_p=1.0, why="nobody")])

    # A fall is no evidence of memory.
    ps: list[float] = []
    powers: list[Power] = []
    for test in tests:
        is_rise = (test.value or 0.0) > 0
        p = 1.0
        if test.p is not None and is_rise:
            p = test.p
        ps.append(p)
        powers += test.power

    # Bonferroni, of the p and of the smallest effect alike.
    n_tests = len(tests)
    p_of_smaller = min(1.0, n_tests * min(ps))
    if not powers:
        return TestOutcome(p_of_smaller, [])
    first_power = replace(powers[0], n_tests=float(n_tests))
    return TestOutcome(p_of_smaller, [first_power])


def hits_power(n_trained: int, n_held_out: int, *, n_tests: float) -> Power:
    """Return the inputs of the smallest effect where no rank moved, as in a copy.

    Without a spread there is no smallest effect in bits, but one in clusters: how many
    of the trained ones must go ahead, all others and the held-out ones standing still,
    for both tests (``rise`` and ``beyond``) to find them. Fisher's exact test stands
    for the permutations, which are drawn.

    Parameters
    ----------
    n_trained, n_held_out
        Clusters of trained and of held-out identifiers.
    n_tests
        Tests that the p of the finding is corrected over.
    """
    ps: list[float] = []
    for n_moved in range(1, min(n_trained, MAX_COUNTED_HITS) + 1):
        table = np.array(
            [
                [n_moved, n_trained - n_moved],
                [0, n_held_out],
            ]
        )  # (sides, moved and not)
        fisher_p = float(scipy.stats.fisher_exact(table).pvalue)
        p_beyond = max(fisher_p, LEAST_P_OF_DRAWS)

        # Clusters that stand still do not change a sign flip.
        p_rise = _least_flip_p(n_moved)
        ps.append(max(p_rise, p_beyond))
    return Power(
        test="hits", n=n_trained, largest_effect=n_trained, ps=ps, n_tests=n_tests
    )

"""Equivalence tests: against statsmodels' TOST, and their error under clusters."""

import numpy as np
import pytest
import scipy
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from spark_audit.stats.equivalence import (
    margin_to_expect,
    mean_within,
    two_one_sided_tests,
)
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.memory_contrast import Sides, memory

EQUAL = {"rel": 1e-12, "abs": 1e-12}


@pytest.mark.parametrize("n", [2, 5, 40])
@pytest.mark.parametrize("limits", [(-0.3, 0.3), (-0.1, 0.5), (0.2, 0.9)])
def test_a_mean_of_single_rows_has_the_p_of_statsmodels(n, limits):
    values = np.random.default_rng(n).normal(0.1, 0.7, n)
    low, high = limits

    tests = mean_within(values, range(n), low=low, high=high)

    p, above, below = DescrStatsW(values).ttost_mean(low, high)
    assert tests is not None
    assert tests.p == pytest.approx(p, **EQUAL)
    assert tests.p_above == pytest.approx(above[1], **EQUAL)
    assert tests.p_below == pytest.approx(below[1], **EQUAL)


def test_two_models_on_the_same_rows_have_the_p_of_statsmodels():
    rng = np.random.default_rng(3)
    first = rng.normal(2.0, 1.0, 30)
    second = first + rng.normal(0.05, 0.2, 30)

    tests = mean_within(first - second, range(30), low=-0.1, high=0.1)

    p, *_ = DescrStatsW(first - second).ttost_mean(-0.1, 0.1)
    assert tests is not None
    assert tests.p == pytest.approx(p, **EQUAL)


def test_two_groups_of_rows_have_the_p_of_statsmodels():
    rng = np.random.default_rng(5)
    forget = rng.normal(0.0, 0.5, 25)
    held_out = rng.normal(0.1, 0.8, 40)
    sides = Sides.of([True] * 25 + [False] * 40, range(65), [[0] * 65])
    difference = memory(np.concatenate([forget, held_out]), sides).difference

    groups = CompareMeans(DescrStatsW(forget), DescrStatsW(held_out))
    p, ((_, p_above, df), _) = groups.ttost_ind(-0.4, 0.4, usevar="unequal")
    assert difference.value is not None
    # Degrees of freedom are ours: their formula is that of shares of a side.
    as_welch = Estimate(difference.value, se=difference.se, df=df)
    tests = two_one_sided_tests(as_welch, low=-0.4, high=0.4)

    assert tests is not None
    assert tests.p == pytest.approx(p, **EQUAL)
    assert tests.p_above == pytest.approx(p_above, **EQUAL)


def test_equivalence_is_shown_where_the_interval_lies_within_the_margin():
    for seed in range(50):
        values = np.random.default_rng(seed).normal(0.0, 1.0, 12)
        tests = mean_within(values, range(12), low=-0.6, high=0.6)
        assert tests is not None
        is_within = -0.6 < tests.low and tests.high < 0.6
        assert (tests.p < 0.05) == is_within
        smallest = tests.smallest_margin
        at_limit = mean_within(values, range(12), low=-smallest, high=smallest)
        assert at_limit is not None
        assert at_limit.p == pytest.approx(0.05, rel=1e-9)


def clustered(rng: np.random.Generator, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 24 sources of unequal size that share most of their deviation."""
    sizes = rng.integers(1, 9, 24)
    clusters = np.repeat(np.arange(24), sizes)
    of_source = rng.normal(0.0, 1.0, 24)
    return mean + of_source[clusters] + rng.normal(0, 0.3, len(clusters)), clusters


def test_a_difference_at_the_margin_is_called_equivalent_in_at_most_5_percent():
    rng = np.random.default_rng(11)
    n_draws = 2000
    by_cluster = 0
    by_row = 0
    for _ in range(n_draws):
        values, clusters = clustered(rng, mean=0.8)
        tests = mean_within(values, clusters, low=-0.8, high=0.8)
        as_rows = mean_within(values, range(len(values)), low=-0.8, high=0.8)
        assert tests is not None
        assert as_rows is not None
        by_cluster += tests.p < 0.05
        by_row += as_rows.p < 0.05

    # More than 5% would be found with a chance of 0.999 if 8% were true.
    assert scipy.stats.binomtest(by_cluster, n_draws, 0.05, "greater").pvalue > 0.001
    assert by_cluster > 0
    # Tests over rows are wrong much more often: clusters must count.
    assert by_row > 0.1 * n_draws


def test_without_a_difference_the_expected_margin_is_shown_in_80_percent():
    rng = np.random.default_rng(13)
    n_draws = 2000
    n_shown = 0
    margin = margin_to_expect(1.0 / np.sqrt(20), 19)
    for _ in range(n_draws):
        tests = mean_within(rng.normal(0, 1, 20), range(20), low=-margin, high=margin)
        assert tests is not None
        n_shown += tests.p < 0.05
    assert 0.75 < n_shown / n_draws < 0.85


def test_without_a_spread_there_is_no_test():
    assert mean_within([0.1, 0.1], ["a", "b"], low=-1, high=1) is None
    assert mean_within([0.1, 0.2], ["a", "a"], low=-1, high=1) is None
    assert two_one_sided_tests(Estimate.missing("none"), low=-1, high=1) is None
    with pytest.raises(ValueError, match="limit"):
        two_one_sided_tests(Estimate(0.0, se=1.0), low=1, high=-1)

"""The permutation test of memory beside SciPy's."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from spark_audit.stats.memory_contrast import Sides
from spark_audit.stats.permutation import permutation_p


def occurrences(trained: Any, clusters: Any, tokens: Any = None) -> Sides:
    return Sides.of(trained, clusters, strata=[np.zeros(len(trained))], tokens=tokens)


def test_permutations_agree_with_scipys_over_one_stratum():
    """The studentised difference of token means, dealt exactly to 5 and 5 clusters."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(1, 5, 10).astype(float)
    x = (rng.normal(0, 1, 10) - 0.9 * (np.arange(10) < 5)) * tokens

    def t(chosen: np.ndarray, others: np.ndarray) -> float:
        means = []
        variance = 0.0
        for side in (chosen.astype(int), others.astype(int)):
            mean = x[side].sum() / tokens[side].sum()
            residual = ((x[side] - mean * tokens[side]) ** 2).sum()
            variance += residual / tokens[side].sum() ** 2 * len(side) / (len(side) - 1)
            means.append(mean)
        return float(abs(means[0] - means[1]) / np.sqrt(variance))

    exact = stats.permutation_test(
        (np.arange(5), np.arange(5, 10)), t, n_resamples=np.inf, alternative="greater"
    ).pvalue
    sides = occurrences(np.arange(10) < 5, np.arange(10), tokens=tokens)
    p = permutation_p(x, sides, seed=0)
    assert p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9999))


def test_nothing_can_be_dealt_where_a_stratum_has_one_side():
    sides = occurrences([1, 1, 0, 0], [0, 1, 0, 1])
    assert permutation_p(np.arange(4.0), sides, seed=0) is None


def test_a_sampled_permutation_p_counts_the_data_themselves():
    """Of so few deals none is as extreme: p is one over their number, and never 0."""
    trained = np.arange(40) < 20
    x = np.where(trained, -1.0, 1.0) + np.random.default_rng(0).normal(0, 0.01, 40)
    sides = occurrences(trained, np.arange(40))
    assert permutation_p(x, sides, seed=0, replicates=99) == 1 / 100
    assert permutation_p(x, sides, seed=0, replicates=999) == 1 / 1000

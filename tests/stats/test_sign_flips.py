import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spark_audit.stats import sign_flips
from spark_audit.stats.sign_flips import max_t, sign_flip


def brute_sign_flip(num: Sequence[float]) -> float:
    sums = [abs(np.dot(s, num)) for s in itertools.product((-1, 1), repeat=len(num))]
    return float(np.mean(np.array(sums) >= abs(sum(num)) - 1e-9))


class TestSignFlip:
    def test_equals_scipys_permutation_test(self):
        d = np.array([1.1, 0.4, -0.2, 0.9, 0.3, -0.1, 0.7, 0.5])
        result = stats.permutation_test(
            (d,), np.sum, permutation_type="samples", n_resamples=np.inf
        )
        assert sign_flip(d, seed=0) == result.pvalue

    @given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
    def test_equals_enumeration_with_ties(self, values):
        # Tenths are not exact in binary: sums that are equal on paper differ.
        num = [v / 10 for v in values]
        assert sign_flip(num, seed=0) == brute_sign_flip(num)

    def test_random_signs_agree_with_the_exact_p(self, monkeypatch):
        num = np.random.default_rng(1).normal(0.3, 1, 16)
        exact = sign_flip(num, seed=0)
        monkeypatch.setattr(sign_flips, "MAX_CLUSTERS_EXACT", 0)
        p = sign_flip(num, seed=0, replicates=20_000)
        hits = round(p * 20_001) - 1
        assert stats.binomtest(hits, 20_000, exact).pvalue > 1e-3
        assert sign_flip(num, seed=0, replicates=20_000) == p

    def test_random_p_is_never_zero(self):
        assert sign_flip(np.ones(60), seed=0, replicates=99) == 0.01

    def test_nan_and_infinity_are_refused(self):
        for value in (np.nan, np.inf):
            with pytest.raises(ValueError, match="^num "):
                sign_flip([value, 1.0], seed=0)
            with pytest.raises(ValueError, match="^num "):
                max_t([[value]], seed=0)


def brute_max_t(num: np.ndarray) -> np.ndarray:
    """Westfall and Young's procedure, written with loops."""
    clusters, columns = num.shape
    norm = np.sqrt((num**2).sum(axis=0))
    observed = np.abs(num.sum(axis=0)) / norm
    order = sorted(range(columns), key=lambda k: -observed[k])
    adjusted = np.ones(columns)
    floor = 0.0
    for position, column in enumerate(order):
        hits = 0
        for signs in itertools.product((-1, 1), repeat=clusters):
            flipped = np.abs(np.array(signs) @ num) / norm
            hits += max(flipped[order[position:]]) >= observed[column] - 1e-9
        floor = max(floor, hits / 2**clusters)
        adjusted[column] = floor
    return adjusted


class TestMaxT:
    @pytest.mark.parametrize("seed", range(5))
    def test_max_t_equals_enumeration_of_all_signs(self, seed):
        rng = np.random.default_rng(seed)
        num = rng.integers(-4, 7, (7, 4)) / 10
        result = max_t(num, seed=0)
        expected = brute_max_t(num)
        np.testing.assert_allclose(result, expected, rtol=1e-14)

    def test_a_column_of_zeros_gets_one_and_adjusts_nothing(self):
        num = np.random.default_rng(0).normal(0.5, 1, (9, 2))
        wider = np.insert(num, 1, 0.0, axis=1)
        result = max_t(wider, seed=0)
        assert result[1] == 1.0
        np.testing.assert_array_equal(result[[0, 2]], max_t(num, seed=0))

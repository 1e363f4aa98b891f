import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from spark_audit.stats import bootstrap
from spark_audit.stats.bootstrap import (
    cluster_sums,
    correlated,
    draw_weights,
    holm,
    holm_by_key,
    max_t,
    median_replicates,
    sign_flip,
)


def brute_sign_flip(num: Sequence[float]) -> float:
    sums = [abs(np.dot(s, num)) for s in itertools.product((-1, 1), repeat=len(num))]
    return float(np.mean(np.array(sums) >= abs(sum(num)) - 1e-9))


class TestClusterSums:
    @given(st.lists(st.tuples(st.integers(0, 6), st.integers(-9, 9)), min_size=1))
    def test_equals_a_loop(self, rows):
        codes = [c for c, _ in rows]
        values = np.array([[v, 2.0 * v] for _, v in rows])
        expected = np.zeros((8, 2))
        for code, value in zip(codes, values, strict=True):
            expected[code] += value
        np.testing.assert_array_equal(cluster_sums(values, codes, 8), expected)
        np.testing.assert_array_equal(
            cluster_sums(values[:, 0], codes), expected[: max(codes) + 1, 0]
        )

    def test_float32_is_summed_in_float64(self):
        values = np.array([2.0**24, 1.0, 1.0], dtype=np.float32)
        assert cluster_sums(values, [0, 0, 0])[0] == 2**24 + 2


class TestWeights:
    def test_memory_blocks_change_nothing(self, monkeypatch):
        def everything() -> list[np.ndarray]:
            rng = np.random.default_rng(0)
            weights = draw_weights(13, replicates=101, seed=1)
            values, codes = rng.normal(size=40), rng.integers(0, 13, 40)
            table = rng.normal(size=(24, 3))
            return [
                weights.drawn,
                weights.totals(table[:13]),
                median_replicates(weights, values, codes),
                max_t(table, seed=2, replicates=199),
                max_t(table[:9], seed=2),
            ]

        whole = everything()
        monkeypatch.setattr("spark_audit.stats.bootstrap._REPLICATES_CHUNK", 39)
        for one, other in zip(whole, everything(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, equal_nan=True)


class TestMedianReplicates:
    @given(
        st.lists(
            st.tuples(st.integers(0, 3), st.floats(-100, 100, width=32)), min_size=1
        ),
        st.integers(0, 10**6),
    )
    def test_equals_numpy_on_the_expanded_resample(self, rows, seed):
        codes = np.array([c for c, _ in rows])
        values = np.array([v for _, v in rows])
        weights = draw_weights(4, replicates=6, seed=seed)
        found = median_replicates(weights, values, codes)
        for weight, one in zip(weights.drawn, found, strict=True):
            expanded = np.repeat(values, weight[codes])
            if len(expanded):
                assert one == np.median(expanded)
            else:
                assert np.isnan(one)

    def test_no_values(self):
        weights = draw_weights(2, replicates=3, seed=0)
        found = median_replicates(weights, [], np.array([], dtype=int))
        assert np.isnan(found).all()


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
        monkeypatch.setattr(bootstrap, "MAX_CLUSTERS_EXACT", 0)
        p = sign_flip(num, seed=0, replicates=20_000)
        hits = round(p * 20_001) - 1
        assert stats.binomtest(hits, 20_000, exact).pvalue > 1e-3
        assert sign_flip(num, seed=0, replicates=20_000) == p

    def test_random_p_is_never_zero(self):
        assert sign_flip(np.ones(60), seed=0, replicates=99) == 0.01

    def test_refuses(self):
        for value in (np.nan, np.inf):
            with pytest.raises(ValueError, match="^num holds NaN or an infinity$"):
                sign_flip([value, 1.0], seed=0)
            with pytest.raises(ValueError, match="^num holds NaN or an infinity$"):
                max_t([[value]], seed=0)


def brute_max_t(num: np.ndarray) -> np.ndarray:
    """Westfall and Young's procedure, written with loops."""
    clusters, columns = num.shape
    norm = np.sqrt((num**2).sum(axis=0))
    observed = np.abs(num.sum(axis=0)) / norm
    order = sorted(range(columns), key=lambda k: -observed[k])
    adjusted, floor = np.ones(columns), 0.0
    for place, column in enumerate(order):
        hits = 0
        for signs in itertools.product((-1, 1), repeat=clusters):
            flipped = np.abs(np.array(signs) @ num) / norm
            hits += max(flipped[order[place:]]) >= observed[column] - 1e-9
        floor = max(floor, hits / 2**clusters)
        adjusted[column] = floor
    return adjusted


class TestMaxT:
    @pytest.mark.parametrize("seed", range(5))
    def test_equals_enumeration(self, seed):
        rng = np.random.default_rng(seed)
        num = rng.integers(-4, 7, (7, 4)) / 10
        found = max_t(num, seed=0)
        expected = brute_max_t(num)
        np.testing.assert_allclose(found, expected, rtol=1e-14)

    def test_a_column_of_zeros_gets_one_and_adjusts_nothing(self):
        num = np.random.default_rng(0).normal(0.5, 1, (9, 2))
        wider = np.insert(num, 1, 0.0, axis=1)
        found = max_t(wider, seed=0)
        assert found[1] == 1.0
        np.testing.assert_array_equal(found[[0, 2]], max_t(num, seed=0))


class TestAdjustedP:
    @pytest.mark.parametrize("seed", range(6))
    def test_equals_statsmodels(self, seed):
        rng = np.random.default_rng(seed)
        p = np.round(rng.random(1 + 3 * seed), seed % 3 + 1)  # with ties, 0 and 1
        theirs = multipletests(p, method="holm")[1]
        np.testing.assert_allclose(holm(p), theirs, rtol=1e-12)
        by_key = holm_by_key({**dict(enumerate(p)), "unknown": None})
        assert [*by_key.values()] == holm(p).tolist()
        assert holm_by_key({"unknown": None}) == {}


class TestCorrelated:
    """Max-T of correlated normal tests against what is known of its ends."""

    def test_equal_tests_are_one_test(self):
        found, _ = correlated([0.03, 0.03, 0.5], np.ones((3, 3)))
        np.testing.assert_allclose(found, [0.03, 0.03, 0.5], atol=0.005)

    def test_independent_tests_are_sidaks(self):
        p = np.array([0.004, 0.2, 0.02, 1.0])
        expected = np.minimum(1 - (1 - p) ** 4, holm(p))
        np.testing.assert_allclose(correlated(p, np.eye(4))[0], expected, atol=0.006)

    def test_never_above_holm_nor_below_the_p_itself(self):
        rng = np.random.default_rng(0)
        for _ in range(5):
            p = rng.uniform(0, 1, 5) ** 4
            root = rng.normal(0, 1, (5, 3))
            root /= np.linalg.norm(root, axis=1, keepdims=True)
            found, _ = correlated(p, root @ root.T)
            assert (found <= holm(p) + 1e-12).all()
            assert (found >= p - 0.006).all()

    def test_no_p_is_zero_and_the_smallest_are_holms(self):
        found, _ = correlated([1e-30, 1e-9], np.eye(2))
        np.testing.assert_allclose(found, [2e-30, 1e-9])

    def test_size_over_correlated_nulls(self):
        rng = np.random.default_rng(1)
        root = np.array([[1, 0.0], [0.9, 0.19**0.5], [0.6, -0.8]])
        z = rng.standard_normal((60, 2)) @ root.T
        claimed = sum(
            correlated(2 * stats.norm.sf(abs(each)), root @ root.T)[0].min() < 0.05
            for each in z
        )
        # 9 or more of 60 at 5 % have a chance below 0.5 %.
        assert claimed < 9

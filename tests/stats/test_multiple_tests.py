import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from spark_audit.stats.multiple_tests import correlated, holm, holm_by_key


class TestAdjustedP:
    @pytest.mark.parametrize("seed", range(6))
    def test_holm_equals_that_of_statsmodels(self, seed):
        rng = np.random.default_rng(seed)
        p = np.round(rng.random(1 + 3 * seed), seed % 3 + 1)  # with ties, 0 and 1
        holm_p = multipletests(p, method="holm")[1]
        np.testing.assert_allclose(holm(p), holm_p, rtol=1e-12)
        by_key = holm_by_key({**dict(enumerate(p)), "unknown": None})
        assert [*by_key.values()] == holm(p).tolist()
        assert holm_by_key({"unknown": None}) == {}


class TestCorrelated:
    """Max-T of correlated normal tests against what is known of its ends."""

    def test_equal_tests_are_one_test(self):
        adjusted, _ = correlated([0.03, 0.03, 0.5], np.ones((3, 3)))
        np.testing.assert_allclose(adjusted, [0.03, 0.03, 0.5], atol=0.005)

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
            adjusted, _ = correlated(p, root @ root.T)
            assert (adjusted <= holm(p) + 1e-12).all()
            assert (adjusted >= p - 0.006).all()

    def test_no_p_is_zero_and_the_smallest_are_holms(self):
        adjusted, _ = correlated([1e-30, 1e-9], np.eye(2))
        np.testing.assert_allclose(adjusted, [2e-30, 1e-9])

    def test_correlated_nulls_are_rejected_at_the_level(self):
        rng = np.random.default_rng(1)
        root = np.array([[1, 0.0], [0.9, 0.19**0.5], [0.6, -0.8]])
        z = rng.standard_normal((60, 2)) @ root.T
        claimed = sum(
            correlated(2 * stats.norm.sf(abs(row)), root @ root.T)[0].min() < 0.05
            for row in z
        )
        # 9 or more of 60 at 5 % have a chance below 0.5 %.
        assert claimed < 9

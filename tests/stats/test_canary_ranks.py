import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gammaln

from spark_audit.stats.canary_ranks import (
    candidate_rank,
    chance_mde,
    exposure_bits,
    lower_tail_exposure,
    null_mean,
    null_moments,
    top_k,
    top_k_credit,
    top_k_mde,
    uniformity_p,
)

N = 512
RANKS = [1, 5, 10, 100, 200, 256, 300, 400, 450, 512]


class TestRanks:
    @given(st.lists(st.integers(0, 6), min_size=2, max_size=30), st.data())
    def test_the_rank_equals_that_of_sorting(self, values, data):
        true = data.draw(st.integers(0, len(values) - 1))
        rank, ties = candidate_rank(values, true)
        assert rank == stats.rankdata(values, "min")[true]
        assert rank + ties == stats.rankdata(values, "max")[true]

    def test_nan_is_an_error_and_no_exposure(self):
        for nll in ([np.nan, 1.0], [1.0, np.nan]):
            with pytest.raises(ValueError, match="NLL"):
                candidate_rank(nll, 0)
        with pytest.raises(ValueError, match="rank"):
            exposure_bits([1.0, np.nan], 5)

    @pytest.mark.parametrize("true", [2, -1])
    def test_true_one_must_be_among_the_candidates(self, true):
        with pytest.raises(ValueError, match="candidates"):
            candidate_rank([1.0, 2.0], true)


class TestExposure:
    def test_the_lower_tail_mirrors_the_upper_one(self):
        mirrored = N + 1 - np.array(RANKS)
        np.testing.assert_array_equal(
            lower_tail_exposure(RANKS, N), exposure_bits(mirrored, N)
        )
        assert lower_tail_exposure(N, N) == 9.0

    @pytest.mark.parametrize("rank", [0, 0.5, 513])
    def test_what_is_no_rank_is_refused(self, rank):
        with pytest.raises(ValueError, match="rank"):
            exposure_bits(rank, N)


class TestTies:
    @given(st.lists(st.integers(0, 4), min_size=2, max_size=7), st.data())
    def test_equals_the_mean_over_all_orders(self, values, data):
        """Breaking ties at random gives every rank between the ends as often."""
        n = len(values)
        true = data.draw(st.integers(0, n - 1))
        low, ties = candidate_rank(values, true)
        orders = np.array(list(itertools.permutations(range(n))))
        before = np.asarray(values) + orders / n < values[true] + orders[:, [true]] / n
        ranks = 1 + before.sum(axis=1)
        assert low + ties / 2 == pytest.approx(ranks.mean())
        bits = exposure_bits(ranks, n)
        lower = lower_tail_exposure(ranks, n)
        assert exposure_bits(low, n, ties=ties) == pytest.approx(bits.mean())
        assert lower_tail_exposure(low, n, ties=ties) == pytest.approx(lower.mean())
        for k in range(1, n + 1):
            credit = top_k_credit(low, k=k, ties=ties)
            assert credit == pytest.approx(np.mean(ranks <= k))

    def test_all_tied_is_chance_and_the_mid_rank_is_not(self):
        null, _ = null_moments(N)
        assert exposure_bits(1, N, ties=N - 1) == pytest.approx(null, abs=1e-12)
        assert lower_tail_exposure(1, N, ties=N - 1) == pytest.approx(null, abs=1e-12)
        assert exposure_bits((N + 1) / 2, N) < null - 0.4
        estimate = top_k([1] * 50, k=10, n_candidates=N, ties=[N - 1] * 50)
        assert estimate.hits == pytest.approx(500 / N)
        assert estimate.rate == pytest.approx(estimate.null)
        assert estimate.p == 1.0
        assert estimate.low == 0.0
        assert estimate.high == top_k([1] + [N] * 49, k=10, n_candidates=N).high
        assert uniformity_p([1] * 50, [N] * 50, ties=[N - 1] * 50) > 0.02

    def test_a_mean_of_mid_ranks_between_two_points_has_the_larger_p(self):
        null = null_mean([7, 7], of="rank")
        assert null.above(2.25) == null.above(2.0)


class TestNull:
    @given(st.integers(2, 3000))
    def test_moments_are_the_exact_ones(self, n):
        ranks = np.arange(1, n + 1)
        bits = np.log2(n / ranks)
        expected = (n + 1) / 2, np.sqrt((n**2 - 1) / 12)
        np.testing.assert_allclose(null_moments(n, of="rank"), expected, rtol=1e-12)
        expected = np.log2(n) - gammaln(n + 1) / n / np.log(2), bits.std()
        np.testing.assert_allclose(null_moments(n), expected, rtol=1e-8, atol=1e-9)

    def test_bands_of_50_canaries_are_as_calculated(self):
        ranks = null_mean([N] * 50, of="rank")
        bits = null_mean([N] * 50)
        assert ranks.band() == pytest.approx((215.5, 297.5), abs=0.1)
        assert bits.band() == pytest.approx((1.065, 1.845), abs=2e-3)
        assert bits.quantile(0.95) == pytest.approx(1.772, abs=1e-3)
        assert bits.above(1.801) == pytest.approx(0.038, abs=5e-4)

    def test_equals_enumeration_of_three_canaries(self):
        sizes = [5, 7, 7]
        all_ranks = list(itertools.product(*(range(1, size + 1) for size in sizes)))
        means = np.array([np.mean(ranks) for ranks in all_ranks])
        bits = np.array([exposure_bits(ranks, sizes).mean() for ranks in all_ranks])
        ranks = null_mean(sizes, of="rank")
        exposures = null_mean(sizes)
        # Some sums lie within a grid step of each other: compare between them.
        for value in np.unique(means):
            above = np.mean(means >= value)
            assert ranks.above(value) == pytest.approx(above, abs=1e-12)
        distinct = np.unique(bits.round(9))
        for value in (distinct[1:] + distinct[:-1]) / 2:
            expected = np.mean(bits > value)
            assert exposures.above(value) == pytest.approx(expected, abs=1e-9)

    def test_tails_never_reach_zero(self):
        estimate = null_mean([N] * 50)
        assert 0 < estimate.above(9.0) <= 1e-11
        assert estimate.above(-1.0) == pytest.approx(1.0, abs=1e-12)

    def test_a_null_without_candidates_is_refused(self):
        with pytest.raises(ValueError, match="^n_candidates "):
            null_mean([])
        with pytest.raises(ValueError, match=r"\b2\b"):
            null_mean([1])
        with pytest.raises(ValueError, match=r"\b2\b"):
            null_moments(1)


class TestTopK:
    # k, chance of none, then P(at least m) by m, for 50 canaries among 512.
    CHANCES = (
        (1, {0: 1.0, 1: 0.0931, 2: 0.0044}),
        (5, {3: 0.0130}),
        (10, {1: 0.6270, 2: 0.2555, 3: 0.0742, 4: 0.0164, 5: 0.0029}),
    )

    @pytest.mark.parametrize(("k", "tails"), CHANCES)
    def test_the_chance_of_hits_is_binomial(self, k, tails):
        for hits, p in tails.items():
            ranks = [1] * hits + [N] * (50 - hits)
            estimate = top_k(ranks, k=k, n_candidates=N)
            assert (estimate.hits, estimate.rate) == (hits, hits / 50)
            assert estimate.p == pytest.approx(p, abs=5e-5)
            assert estimate.null == k / N
            test = stats.binomtest(hits, 50, k / N, alternative="greater")
            assert estimate.p == pytest.approx(test.pvalue, rel=1e-9)

    def test_smallest_rate_that_is_found(self):
        for k, hits, rate in ((1, 2, 0.059), (10, 4, 0.108)):
            smallest_rate = top_k_mde(50, k=k, n_candidates=N)
            assert smallest_rate == pytest.approx(rate, abs=5e-4)
            assert stats.binom.sf(hits - 1, 50, smallest_rate) == pytest.approx(0.8)
            assert stats.binom.sf(hits - 1, 50, k / N) <= 0.05
            assert stats.binom.sf(hits - 2, 50, k / N) > 0.05

    def test_too_few_canaries_find_nothing(self):
        assert top_k_mde(1, k=40, n_candidates=N) is None

    def test_top_k_without_ranks_or_with_a_wrong_k_is_refused(self):
        with pytest.raises(ValueError, match="^k "):
            top_k([1], k=0, n_candidates=N)
        with pytest.raises(ValueError, match="rank"):
            top_k([], k=1, n_candidates=N)


@pytest.mark.parametrize(
    ("n", "ranks", "bits"),
    [(50, 58.6, 0.558), (1000, 13.1, 0.125)],
)
def test_smallest_shift_that_is_found(n, ranks, bits):
    assert chance_mde(n, n_candidates=N, of="rank") == pytest.approx(ranks, abs=0.05)
    assert chance_mde(n, n_candidates=N) == pytest.approx(bits, abs=1e-3)


@pytest.mark.parametrize("few", [False, True])
def test_uniformity_is_the_smaller_p_of_scipys_two(few):
    """Of the mean, and of the whole distribution: twice the smaller."""
    ranks = np.random.default_rng(few).integers(1, 300 if few else N + 1, 50)
    ks = stats.kstest((ranks - 0.5) / N, "uniform").pvalue
    z = (ranks.mean() - (N + 1) / 2) / np.sqrt((N**2 - 1) / 12 / 50)
    expected = min(1.0, 2 * min(ks, 2 * stats.norm.sf(abs(z))))
    assert uniformity_p(ranks, N) == pytest.approx(expected)
    with pytest.raises(ValueError, match="rank"):
        uniformity_p([], N)

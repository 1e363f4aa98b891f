from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, special, stats

from spark_audit.stats.epsilon import (
    candidate_guess_bound,
    largest_exposure,
    one_run_bound,
    two_sided_bound,
)
from spark_audit.stats.exposure import exposure_bits, null_moments

N = 512


def top_k_probability(epsilon: float, k: int, n: int) -> float:
    return k * np.exp(epsilon) / (k * np.exp(epsilon) + n - k)


class TestCandidateGuess:
    @pytest.mark.parametrize(
        ("k", "hits", "epsilon"),
        [
            (1, 1, 0.0),
            (1, 2, 1.3034),
            (1, 5, 3.0645),
            (1, 25, 5.7309),
            (1, 50, 9.0211),
            (10, 4, 0.3610),
            (10, 10, 1.8528),
            (10, 50, 6.7007),
        ],
    )
    def test_of_50_canaries_among_512(self, k: int, hits: int, epsilon: float) -> None:
        found = candidate_guess_bound(hits, 50, n_candidates=N, k=k)
        assert found.canary == pytest.approx(epsilon, abs=5e-5)

    @pytest.mark.parametrize(("k", "hits"), [(1, 2), (1, 50), (10, 4), (100, 30)])
    def test_is_where_the_binomial_test_stops_rejecting(
        self, k: int, hits: int
    ) -> None:
        found = candidate_guess_bound(hits, 50, n_candidates=N, k=k).canary
        p = stats.binom.sf(hits - 1, 50, top_k_probability(found, k, N))
        assert p == pytest.approx(0.05, rel=1e-6)

    @pytest.mark.parametrize("k", [1, 10])
    def test_is_zero_exactly_where_chance_is_not_rejected(self, k: int) -> None:
        for hits in range(8):
            p = stats.binom.sf(hits - 1, 50, k / N)
            found = candidate_guess_bound(hits, 50, n_candidates=N, k=k).canary
            assert (found == 0) == (p > 0.05)

    def test_a_smaller_significance_is_the_limit_of_that_level(self) -> None:
        found = candidate_guess_bound(
            25, 50, n_candidates=N, significance=0.05 / 17
        ).canary
        p = stats.binom.sf(24, 50, top_k_probability(found, 1, N))
        assert p == pytest.approx(0.05 / 17, rel=1e-6)
        assert found < candidate_guess_bound(25, 50, n_candidates=N).canary

    def test_rows_and_adjacency_share_it_out(self) -> None:
        found = candidate_guess_bound(25, 50, n_candidates=N, rows=6)
        assert found.record == found.canary / 6
        assert found.canary_add_remove == found.canary / 2
        assert found.record_add_remove == found.canary / 12

    def test_refuses(self) -> None:
        for options in ({"k": 0}, {"k": N}, {"rows": 0}):
            with pytest.raises(ValueError, match="^candidate_guess_bound needs"):
                candidate_guess_bound(1, 5, n_candidates=N, **options)
        for hits, n in ((6, 5), (-1, 5), (0, 0)):
            with pytest.raises(ValueError, match="^events must lie between"):
                candidate_guess_bound(hits, n, n_candidates=N)
        with pytest.raises(ValueError, match="^significance must lie"):
            candidate_guess_bound(1, 5, n_candidates=N, significance=0.0)


class TestLargestExposure:
    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0, 4.0, 8.0])
    def test_is_the_best_posterior_with_bounded_odds(self, epsilon: float) -> None:
        """A linear programme over all posteriors whose odds are at most e^eps."""
        n = 24
        bits = exposure_bits(np.arange(1, n + 1), n)
        # Weights between t and t e^eps, their sum 1; the last variable is t.
        bounds = np.zeros((2 * n, n + 1))
        bounds[:n, :n], bounds[:n, n] = np.eye(n), -np.exp(epsilon)
        bounds[n:, :n], bounds[n:, n] = -np.eye(n), 1.0
        best = optimize.linprog(
            -np.append(bits, 0.0),
            A_ub=bounds,
            b_ub=np.zeros(2 * n),
            A_eq=[[1.0] * n + [0.0]],
            b_eq=[1.0],
        )
        assert largest_exposure(epsilon, n) == pytest.approx(-best.fun, rel=1e-8)

    @pytest.mark.parametrize(
        ("epsilon", "relaxed"),
        [(0, 1.4313), (1, 2.2576), (2, 3.2823), (4, 5.6257), (8, 8.7236)],
    )
    def test_is_below_what_all_top_k_bounds_together_allow(
        self, epsilon: float, relaxed: float
    ) -> None:
        k = np.arange(1, N)
        p = k / (k + (N - k) * np.exp(-float(epsilon)))
        assert np.sum(p * np.log2((k + 1) / k)) == pytest.approx(relaxed, abs=5e-5)
        found = largest_exposure(epsilon, N)
        assert null_moments(N).exposure_mean - 1e-9 <= found <= relaxed + 1e-4

    def test_limits(self) -> None:
        assert largest_exposure(0.0, N) == pytest.approx(null_moments(N).exposure_mean)
        assert largest_exposure(800.0, N) == pytest.approx(9.0)
        with pytest.raises(ValueError, match="^epsilon must not be negative"):
            largest_exposure(-1.0, N)


class TestOneRun:
    @pytest.mark.parametrize(
        ("n", "guesses", "correct", "delta", "epsilon"),
        [
            (100, 100, 60, 0, 0.05191),
            (100, 100, 60, 1e-5, 0.05168),
            (1000, 100, 90, 1e-5, 1.62614),
            (1000, 100, 100, 0, 3.49297),
            (1000, 100, 100, 1e-5, 3.46538),
            (50, 50, 40, 0, 0.77409),
            (1000, 1000, 560, 0, 0.13450),
        ],
    )
    def test_agrees_with_jax_privacy(
        self, n: int, guesses: int, correct: int, delta: float, epsilon: float
    ) -> None:
        found = one_run_bound(n, guesses, correct, delta=delta)
        assert found == pytest.approx(epsilon, abs=5e-6)

    @pytest.mark.parametrize(
        ("guesses", "epsilon"),
        [(10, 1.05), (20, 1.82), (50, 2.78), (100, 3.49), (500, 5.11), (1000, 5.81)],
    )
    def test_ceiling(self, guesses: int, epsilon: float) -> None:
        found = one_run_bound(guesses, guesses, guesses)
        assert found == pytest.approx(epsilon, abs=5e-3)
        assert found == pytest.approx(-np.log(0.05 ** (-1 / guesses) - 1))

    def test_coin_flips_prove_nothing(self) -> None:
        assert one_run_bound(100, 100, 50) == 0.0
        assert one_run_bound(100, 100, 0, delta=1e-5) == 0.0

    def test_refuses(self) -> None:
        with pytest.raises(ValueError, match="^one_run_bound needs guesses <= n"):
            one_run_bound(10, 11, 5)
        with pytest.raises(ValueError, match="^one_run_bound needs guesses <= n"):
            one_run_bound(10, 10, 5, delta=1.0)


class TestTwoSided:
    def test_examples(self) -> None:
        assert two_sided_bound(80, 1000, 50, 1000) == 0.0
        assert two_sided_bound(100, 1000, 0, 1000) == pytest.approx(3.1045, abs=5e-5)

    def test_delta_is_taken_off(self) -> None:
        bound = stats.beta.ppf(0.025, 100, 901)
        far = 1 - 0.025 ** (1 / 1000)
        found = two_sided_bound(100, 1000, 0, 1000, delta=0.01)
        assert found == pytest.approx(np.log((bound - 0.01) / far))
        assert two_sided_bound(100, 1000, 0, 1000, delta=0.5) == 0.0
        with pytest.raises(ValueError, match="^delta must lie"):
            two_sided_bound(1, 2, 1, 2, delta=-0.1)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_bounds_hold_for_randomised_response(epsilon: float, k: int) -> None:
    """A mechanism that is exactly epsilon-DP over the candidates.

    It names k of the N candidates, a set with the true one ``e^eps`` times as often as
    a set without it: the worst case of the bound.
    """
    rng = np.random.default_rng(5)
    runs, n = 3000, 50
    inside = k * np.exp(epsilon) / (k * np.exp(epsilon) + N - k)
    hits = rng.binomial(n, inside, runs)
    bounds = [
        candidate_guess_bound(int(x), n, n_candidates=N, k=k).canary for x in hits
    ]
    violated = np.sum(np.array(bounds) > epsilon)
    # At most 5 % of 3,000; 186 would have a chance below 0.2 % at exactly 5 %.
    assert violated <= 185


@pytest.mark.slow
def test_one_run_bound_holds_for_randomised_response() -> None:
    rng = np.random.default_rng(6)
    epsilon, n = 1.0, 100
    correct = rng.binomial(n, special.expit(epsilon), 2000)
    violated = sum(one_run_bound(n, n, int(v)) > epsilon for v in correct)
    assert violated <= 129

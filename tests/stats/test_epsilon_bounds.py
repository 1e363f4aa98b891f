from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, stats

from spark_audit.stats.epsilon_bounds import (
    candidate_guess_bound,
    declared_guesses,
    one_run_bound,
    one_run_mu,
    one_run_p,
)

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
    def test_the_bound_of_50_canaries_among_512_is_as_calculated(
        self, k, hits, epsilon
    ):
        bound = candidate_guess_bound(hits, 50, n_candidates=N, k=k)
        assert bound.canary == pytest.approx(epsilon, abs=5e-5)

    @pytest.mark.parametrize(("k", "hits"), [(1, 2), (1, 50), (10, 4), (100, 30)])
    def test_is_where_the_binomial_test_stops_rejecting(self, k, hits):
        epsilon = candidate_guess_bound(hits, 50, n_candidates=N, k=k).canary
        p = stats.binom.sf(hits - 1, 50, top_k_probability(epsilon, k, N))
        assert p == pytest.approx(0.05, rel=1e-6)

    def test_rows_and_adjacency_share_it_out(self):
        bound = candidate_guess_bound(25, 50, n_candidates=N, rows=6)
        assert bound.record == bound.canary / 6
        assert bound.canary_add_remove == bound.canary / 2
        assert bound.record_add_remove == bound.canary / 12

    def test_a_bound_by_guesses_refuses_impossible_counts(self):
        for options in ({"k": 0}, {"k": N}, {"rows": 0}):
            with pytest.raises(ValueError, match="^candidate_guess_bound "):
                candidate_guess_bound(1, 5, n_candidates=N, **options)
        for hits, n in ((6, 5), (-1, 5), (0, 0)):
            with pytest.raises(ValueError, match="^events "):
                candidate_guess_bound(hits, n, n_candidates=N)
        with pytest.raises(ValueError, match="^significance "):
            candidate_guess_bound(1, 5, n_candidates=N, significance=0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at which a mu-Gaussian-DP mechanism has this delta, 0 if it needs none.

    Dong, Roth and Su (2022), "Gaussian Differential Privacy", Corollary 1.
    """

    def beyond(epsilon: float) -> float:
        low = -epsilon / mu - mu / 2
        high = -epsilon / mu + mu / 2
        share_left = np.exp(epsilon + stats.norm.logcdf(low))
        return float(stats.norm.cdf(high) - share_left - delta)

    if mu <= 0 or beyond(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(beyond, 0.0, 50 * mu + 50))


# --- one run --------------------------------------------------------------------------


def steinke_p(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """Their bound written out, by sums of the probability mass."""
    q = np.exp(epsilon) / (1 + np.exp(epsilon))
    mass = [stats.binom.pmf(k, r, q) for k in range(r + 1)]
    beta = sum(mass[v:])
    alpha = max((sum(mass[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, beta + 2 * m * delta * alpha)


def most_likely(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """The largest chance of v right guesses that the curve allows: a linear program.

    The curve of (eps, delta)-DP is made of lines, and each tail has one inequality a
    line: those of Mahloujifar's theorem for the sets {i, ..., r}.
    """
    rows = [np.ones(r + 1)]
    limits = [1.0]
    js = np.arange(r + 1)
    for i in range(1, r + 1):
        right = np.where(js >= i, js, 0) / m
        wrong = np.where(js >= i - 1, r - js, 0) / m
        rows += [right - np.exp(epsilon) * wrong, right - np.exp(-epsilon) * wrong]
        limits += [delta, 1 - np.exp(-epsilon) * (1 - delta)]
    solution = optimize.linprog(
        -(js >= v).astype(float), A_ub=np.array(rows), b_ub=limits, bounds=(0, 1)
    )
    return float(-solution.fun)


class TestOneRun:
    @pytest.mark.parametrize(
        ("coins", "guesses", "correct", "delta", "epsilon"),
        [
            (100, 100, 60, 0.0, 0.05191),
            (100, 100, 60, 1e-5, 0.05168),
            (1000, 100, 90, 1e-5, 1.62614),
            (1000, 100, 100, 0.0, 3.49297),
            (50, 50, 40, 0.0, 0.77409),
            (1000, 1000, 560, 0.0, 0.13450),
        ],
    )
    def test_the_bound_equals_that_of_published_code(
        self, coins, guesses, correct, delta, epsilon
    ):
        found = one_run_bound(correct, guesses, coins, delta=delta).canary
        assert found == pytest.approx(epsilon, abs=5e-6)

    def test_the_curve_of_delta_helps_where_every_guess_is_right(self):
        # Steinke's alone: 3.46538.
        assert one_run_bound(100, 100, 1000, delta=1e-5).canary > 3.49
        assert one_run_bound(500, 500, 1000, delta=0.01).canary > 4.9

    @pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
    def test_p_is_the_theorem_written_out(self, epsilon, delta):
        for v in (1, 7, 12, 20):
            p_value = one_run_p(v, 20, 30, epsilon=epsilon, delta=delta)
            assert p_value == pytest.approx(steinke_p(v, 20, 30, epsilon, delta))

    @pytest.mark.parametrize("delta", [0.0, 0.003, 0.02])
    @pytest.mark.parametrize(("v", "r", "m"), [(9, 10, 12), (15, 16, 30), (20, 20, 20)])
    def test_the_bound_is_where_both_theorems_stop_refuting(self, v, r, m, delta):
        bound = one_run_bound(v, r, m, delta=delta).canary
        assert bound > 0
        for epsilon, refuted in ((bound - 1e-4, True), (bound + 1e-4, False)):
            by_both = (
                steinke_p(v, r, m, epsilon, delta),
                most_likely(v, r, m, epsilon, delta),
            )
            assert (min(by_both) <= 0.05) == refuted

    def test_groups_share_it_out(self):
        bound = one_run_bound(25, 25, 50, rows=6)
        assert bound.record == pytest.approx(bound.canary / 6)
        assert bound.canary_add_remove == pytest.approx(bound.canary / 2)
        assert bound.record_add_remove == pytest.approx(bound.canary / 12)
        # Delta grows with the group: what is left for a record is less than a share.
        loose = one_run_bound(25, 25, 50, rows=6, delta=1e-3)
        assert 0 < loose.record < loose.canary / 6
        mu = one_run_mu(25, 25, 50)
        assert one_run_mu(25, 25, 50, rows=6) == pytest.approx(mu / 6)

    def test_half_of_the_coins_are_guessed(self):
        assert [declared_guesses(n) for n in (1, 2, 50, 51)] == [1, 1, 25, 26]

    def test_a_bound_of_one_run_refuses_impossible_counts(self):
        with pytest.raises(ValueError, match="^delta "):
            one_run_bound(1, 5, 9, delta=1.0)
        for call in (one_run_bound, one_run_mu):
            with pytest.raises(ValueError, match="^guesses "):
                call(5, 9, 4)
            with pytest.raises(ValueError, match="^rows "):
                call(1, 5, 9, rows=0)
            with pytest.raises(ValueError, match="^events "):
                call(6, 5, 9)


def gaussian(rng: np.random.Generator, runs: int, coins: int, mu: float) -> np.ndarray:
    """Right guesses at the bits whose noisy answers lie furthest out."""
    bits = rng.choice([-0.5, 0.5], (runs, coins))
    released = mu * bits + rng.normal(size=bits.shape)
    chosen = np.argsort(-np.abs(released), axis=1)[:, : declared_guesses(coins)]
    return np.count_nonzero(
        np.take_along_axis(released * bits > 0, chosen, axis=1), axis=1
    )


def too_high(counts: np.ndarray, limit: float, bound: Callable[[int], float]) -> int:
    """In how many runs the bound lies above the truth."""
    bounds = {v: bound(int(v)) for v in set(counts.tolist())}
    return sum(bounds[v] > limit + 1e-9 for v in counts.tolist())


# At a chance of 5 %, 200 runs have more than 20 in 0.1 % of cases, 1,000 more than 72.
SIMULATED = [
    (50, 200, 20),
    *(pytest.param(n, 1000, 72, marks=pytest.mark.slow) for n in (50, 500)),
]


@pytest.mark.parametrize(("coins", "runs", "most"), SIMULATED)
@pytest.mark.parametrize(("mu", "delta"), [(0.3, 1e-2), (1.0, 1e-2), (1.0, 1e-5)])
def test_one_run_bounds_hold_for_the_gaussian_mechanism(mu, delta, coins, runs, most):
    right = gaussian(np.random.default_rng(12), runs, coins, mu)
    r = declared_guesses(coins)
    truth = gaussian_epsilon(mu, delta)

    def bound(v: int) -> float:
        return one_run_bound(v, r, coins, delta=delta).canary

    assert too_high(right, truth, bound) <= most
    assert too_high(right, mu, lambda v: one_run_mu(v, r, coins)) <= most


def by_shared_luck(mu: float, guesses: int) -> tuple[np.ndarray, float]:
    """Chance of at least 0 to ``guesses`` right ones where all coins share one draw.

    The mechanism draws |L|, the absolute privacy loss of N(0, 1) against N(mu, 1), once
    for all coins, shows it, and tells each coin rightly at odds of e^|L|: of each coin
    alone that is the Gaussian mechanism. Also the chance of one right guess.
    """
    z = np.linspace(-9, mu + 9, 20001)
    weight = stats.norm.pdf(z) + stats.norm.pdf(z - mu)
    weight /= weight.sum()
    q = stats.logistic.cdf(np.abs(mu * mu / 2 - mu * z))
    at_least = [weight @ stats.binom.sf(v - 1, guesses, q) for v in range(guesses + 1)]
    return np.array(at_least), float(weight @ q)


@pytest.mark.parametrize(
    ("mu", "coins"),
    [(0.5, 50), (2.0, 50), pytest.param(1.0, 1000, marks=pytest.mark.slow)],
)
def test_mu_holds_where_all_coins_share_their_luck(mu, coins):
    """Bounds for independent errors (arXiv 2509.08704 as public code has it) do not."""
    for guesses in (coins, declared_guesses(coins)):
        at_least, _ = by_shared_luck(mu, guesses)
        # What more than 5% of runs reach refutes nothing.
        reached = int(np.flatnonzero(at_least > 0.05).max())
        assert one_run_mu(reached, guesses, coins) <= mu
    at_least, right = by_shared_luck(mu, coins)
    independent = stats.binom.sf(np.arange(coins + 1) - 1, coins, right)
    refuted = at_least[np.argmax(independent <= 0.05)]
    assert refuted > 0.05
    if (mu, coins) == (1.0, 1000):
        assert refuted == pytest.approx(0.41, abs=0.01)
        seen = round(coins * right)
        assert one_run_mu(seen, coins, coins) == pytest.approx(0.34, abs=0.01)

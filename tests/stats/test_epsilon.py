from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from spark_audit.stats.epsilon import (
    candidate_guess_bound,
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

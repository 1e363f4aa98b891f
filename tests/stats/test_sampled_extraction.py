import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from spark_audit.stats.sampled_extraction import n_p, top_k_logp


def decoded_logp(
    logits: np.ndarray, targets: np.ndarray, *, top_k: int, temperature: float = 1.0
) -> np.ndarray:
    """Log probability of targets under temperature and top-k sampling."""
    least = np.sort(logits, axis=1)[:, -top_k, None]
    kept_logits = np.where(logits < least, -np.inf, logits / temperature)
    return log_softmax(kept_logits, axis=1)[np.arange(len(targets)), targets]


class TestTries:
    def test_tries_in_the_far_tail_stay_finite(self):
        assert n_p(-40.0) == pytest.approx(1.6315663e17, rel=5e-8)
        assert np.isfinite(n_p(-700.0))
        assert n_p(-np.inf) == np.inf
        assert n_p(-800.0) == np.inf

    @given(st.integers(2, 2000), st.sampled_from([0.1, 0.5, 0.9]))
    def test_is_the_first_try_that_is_enough(self, denominator, p):
        tries = int(n_p(-math.log(denominator), p=p))
        miss = 1 - Fraction(1, denominator)
        # A logarithm's rounding decides where both sides are equal.
        assert float(1 - miss**tries) >= p - 1e-12
        assert tries == 1 or float(1 - miss ** (tries - 1)) < p + 1e-12

    def test_what_is_no_probability_is_refused(self):
        for logp in (0.1, np.nan):
            with pytest.raises(ValueError, match="NaN"):
                n_p(logp)
        with pytest.raises(ValueError, match="^p "):
            n_p(-1.0, p=1.0)


class TestDecoding:
    def test_columns_of_a_token_table_give_the_same(self):
        rng = np.random.default_rng(0)
        logits = rng.normal(0, 3, (200, 90))
        targets = rng.integers(0, 90, 200)
        target_logits = np.take_along_axis(logits, targets[:, None], axis=1)
        total = np.log(np.exp(logits).sum(axis=1))
        nll = total - target_logits[:, 0]
        rank = 1 + (logits > target_logits).sum(axis=1)
        best = np.sort(logits, axis=1)[:, -40:]
        mass = np.log(np.exp(best).sum(axis=1)) - total
        logp_found = top_k_logp(nll, rank, mass, k=40)
        assert np.isneginf(logp_found[rank > 40]).all()
        expected = decoded_logp(logits, targets, top_k=40)
        np.testing.assert_allclose(logp_found, expected, atol=1e-9)

    def test_half_the_temperature_doubles_the_logits(self):
        """TV-X2: logits [2, 1, 0, -1], token 1, T = 0.5, of the likeliest two."""
        logp = np.array([2.0, 1, 0, -1]) - np.log(np.exp([2.0, 1, 0, -1]).sum())
        cold = np.log(np.exp(2 * logp[:2]).sum())
        logp_found = top_k_logp([-2 * logp[1]], [2], [cold], k=2)
        assert logp_found[0] == pytest.approx(-2.1269280, abs=1e-7)

    def test_rounding_makes_no_probability_above_one(self):
        assert top_k_logp([0.1], [1], [-0.1000001], k=40)[0] == 0.0
        with pytest.raises(ValueError, match="NLL"):
            top_k_logp([np.nan], [1], [0.0], k=40)

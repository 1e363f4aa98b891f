"""The bound of extraction against another project's code, and against real decoders.

Decoders work on made-up logits in numpy: no model is needed to draw from them.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from spark_audit.stats.extraction_bound import bits_of_logp, bound_bits, chance_within
from spark_audit.stats.quantiles import quantile_estimate

VOCABULARY = 60
TOKENS = 3
IDENTIFIERS = 1_000
DRAWS = 400


def cost_of_easiest_window(
    ranks: list[int], chances: list[float], *, length: int, threshold: int
) -> float:
    """Bits of the easiest run of so many tokens, as Algorithm 2 of the paper has it.

    Written after ``inextractability/core.py`` of github.com/Emory-AIMS/Inextractability
    (MIT, commit 6486898): a token counts 1 / rank up to the threshold, and beyond it
    with the model's own probability.
    """
    costs = []
    for first in range(len(ranks) - length + 1):
        bits = 0.0
        for token in range(first, first + length):
            if ranks[token] <= threshold:
                bits += math.log2(ranks[token])
            else:
                bits -= math.log2(chances[token])
        costs.append(bits)
    return min(costs)


def test_it_is_that_of_the_published_code_where_all_ranks_count():
    rng = np.random.default_rng(0)
    for _ in range(200):
        length = int(rng.integers(1, 12))
        n_tokens = length + int(rng.integers(0, 20))
        ranks = rng.integers(1, 32_000, n_tokens) ** rng.integers(0, 2, n_tokens)
        chances = rng.uniform(1e-6, 1, n_tokens)
        windows = [ranks[i : i + length] for i in range(n_tokens - length + 1)]
        assert min(bound_bits(window) for window in windows) == pytest.approx(
            cost_of_easiest_window(
                ranks.tolist(), chances.tolist(), length=length, threshold=32_000
            ),
            abs=1e-9,
        )


def test_the_published_default_threshold_bounds_no_other_temperature():
    """Why the bound here counts all ranks, whatever the model's probability is."""
    logits = np.concatenate([[8.0], np.zeros(99)])  # 99 tokens tie behind the first
    chances = np.exp(logits) / np.exp(logits).sum()
    cost = cost_of_easiest_window([50], [chances[50]], length=1, threshold=20)
    hot = np.exp(logits / 20) / np.exp(logits / 20).sum()
    assert hot[50] > 2**-cost
    assert hot[50] <= 2 ** -bound_bits([2])


# What is left of a distribution: cuts keep the likeliest tokens, ties with the last one
# as the sort has them.
Cut = Callable[[np.ndarray], np.ndarray]


def top_k(k: int) -> Cut:
    return lambda p: np.arange(p.shape[-1]) < k * np.ones_like(p)


def top_p(mass: float) -> Cut:
    return lambda p: np.cumsum(p, axis=-1) - p < mass


def min_p(share: float) -> Cut:
    return lambda p: p >= share * p[..., :1]


def decoder(temperature: float, *cuts: Cut) -> Callable[[np.ndarray], np.ndarray]:
    """Chances of all tokens after a temperature and cuts, ``(..., V)`` both."""

    def chances(logits: np.ndarray) -> np.ndarray:
        order = np.argsort(-logits, axis=-1, kind="stable")
        ordered = np.take_along_axis(logits, order, axis=-1) / temperature
        p = np.exp(ordered - ordered[..., :1])
        p /= p.sum(axis=-1, keepdims=True)
        for cut in cuts:
            p = np.where(cut(p), p, 0.0)
            p /= p.sum(axis=-1, keepdims=True)
        placed = np.zeros_like(p)
        np.put_along_axis(placed, order, p, axis=-1)
        return placed

    return chances


DECODERS = [
    *(decoder(t) for t in (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 5.0)),
    *(decoder(1.0, top_k(k)) for k in (2, 5, 10, 20, 40)),
    *(decoder(1.0, top_p(mass)) for mass in (0.1, 0.3, 0.5, 0.8, 0.9, 0.95)),
    *(decoder(1.0, min_p(share)) for share in (0.02, 0.05, 0.1, 0.2, 0.5)),
    decoder(1.0, top_k(1)),  # greedy
    decoder(0.7, top_k(10)),
    decoder(1.3, top_p(0.9)),
    decoder(0.5, min_p(0.1)),
    decoder(1.2, top_k(20), top_p(0.8)),
    decoder(20.0, top_k(3)),
]


class Scene:
    """Identifiers with the logits of each of their tokens, some of which tie."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        shape = (IDENTIFIERS, TOKENS, VOCABULARY)
        sharpness = rng.uniform(0.2, 3.0, (IDENTIFIERS, 1, 1))
        self.logits = (rng.normal(0, 1, shape) * sharpness).round(1)

        # Identifiers are likely strings, or nothing would ever come out.
        order = np.argsort(-self.logits, axis=-1)
        place = np.minimum(rng.geometric(0.4, (IDENTIFIERS, TOKENS)) - 1, 30)
        self.tokens = np.take_along_axis(order, place[..., None], axis=-1)[..., 0]
        own = np.take_along_axis(self.logits, self.tokens[..., None], axis=-1)
        self.ranks = 1 + (self.logits > own).sum(axis=-1)  # ties: the best one
        self.bits = np.array([bound_bits(ranks) for ranks in self.ranks])

    def measured(self, p: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """How often each identifier is drawn, and its chance; ``p``: of all tokens."""
        ends = np.take_along_axis(
            p.cumsum(axis=-1), self.tokens[..., None], axis=-1
        )  # (identifiers, tokens, 1)
        own = np.take_along_axis(p, self.tokens[..., None], axis=-1)
        drawn = np.random.default_rng(seed).random((IDENTIFIERS, TOKENS, DRAWS))
        is_token = (drawn < ends) & (drawn >= ends - own)
        return is_token.all(axis=1).sum(axis=1), own.prod(axis=1)[:, 0]


def test_no_decoder_that_keeps_the_order_draws_more_than_the_bound():
    scene = Scene()
    assert len(DECODERS) == 30
    n_drawn = 0
    for seed, chances_of in enumerate(DECODERS):
        hits, chance = scene.measured(chances_of(scene.logits), seed)
        n_drawn += int(hits.sum())
        assert (chance <= 2.0**-scene.bits * (1 + 1e-9)).all()
        # Beyond chance: of 30,000 rates one is this far above its bound in 1 of 100.
        p = binom.sf(hits - 1, DRAWS, np.minimum(1.0, 2.0**-scene.bits))
        assert p.min() > 0.01 / (30 * IDENTIFIERS)
    assert n_drawn > 100_000


def test_a_decoder_that_changes_the_order_is_seen_to_draw_more():
    """Else the test above could not fail."""
    scene = Scene()
    biased = scene.logits.copy()
    np.put_along_axis(biased, scene.tokens[..., None], 5.0, axis=-1)
    hits, _ = scene.measured(decoder(1.0)(biased), seed=0)
    p = binom.sf(hits - 1, DRAWS, 2.0**-scene.bits)
    assert p.min() < 1e-9


def test_several_draws_bound_the_number_of_identifiers_that_come_out():
    rng = np.random.default_rng(2)
    bits = rng.uniform(0, 14, 400)
    came_out = rng.random((400, 1_000, 1)) < 2.0 ** -bits[:, None, None]
    share = came_out.any(axis=1).mean()
    expected = chance_within(bits, 1_000)
    assert share == pytest.approx(expected.mean(), abs=0.03)
    # Far beyond what floating point adds one by one.
    assert chance_within(60.0, 1_000_000) == pytest.approx(1e6 * 2.0**-60, rel=1e-9)
    assert chance_within(0.0, 1) == 1.0


def test_a_rank_below_one_is_no_rank():
    for ranks in ([0], [1, np.nan]):
        with pytest.raises(ValueError, match="rank"):
            bound_bits(ranks)


def test_log_probabilities_in_bits():
    assert bits_of_logp(np.log([1.0, 0.125])).tolist() == pytest.approx([0.0, 3.0])
    assert bits_of_logp(-np.inf) == np.inf


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_interval_of_a_quantile_holds_it_as_often_as_it_says(share):
    """Over clusters of a few values that are alike."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 4, 150)
    clusters = np.repeat(np.arange(150), sizes)
    truth = float(np.quantile(rng.normal(0, 1, 400_000) * math.sqrt(1.5), share))
    held = []
    for _ in range(300):
        values = rng.normal(0, 1, 150)[clusters] + rng.normal(0, 0.7071, len(clusters))
        estimate = quantile_estimate(values, clusters, share=share)
        held.append(estimate.low <= truth <= estimate.high)
    # 95% of 300, less what chance takes from it.
    assert np.mean(held) >= 0.92

"""Trained against never trained, beside Welch's t and the plainest sums."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from spark_audit.stats.memory_contrast import Sides, memory


def sides(trained: Any, clusters: Any, strata: Any = None, tokens: Any = None) -> Sides:
    is_trained = np.asarray(trained, dtype=bool)
    return Sides(
        trained=is_trained,
        tokens=np.ones(len(is_trained)) if tokens is None else np.asarray(tokens),
        clusters=np.asarray(clusters),
        strata=np.zeros((len(is_trained), 1), int)
        if strata is None
        else np.asarray(strata),
    )


def test_strata_are_weighed_as_trained_rows_have_them():
    """Types apart by 5 nats, mixed 3 to 1 and 1 to 3: no difference within them."""
    trained = np.repeat([True, True, False, False], [30, 10, 10, 30])
    stratum = np.repeat([0, 1, 0, 1], [30, 10, 10, 30])
    rng = np.random.default_rng(1)
    x = 5.0 * stratum + rng.normal(0, 0.01, 80)
    tokens = rng.integers(1, 5, 80)
    result = memory(x * tokens, sides(trained, np.arange(80), stratum[:, None], tokens))
    tokens_by_stratum = [tokens[trained & (stratum == k)].sum() for k in (0, 1)]
    means = [
        (x * tokens)[~trained & (stratum == k)].sum()
        / tokens[~trained & (stratum == k)].sum()
        for k in (0, 1)
    ]
    assert result.held_out.value == pytest.approx(
        np.average(means, weights=tokens_by_stratum)
    )
    assert result.trained.value == pytest.approx(
        (x * tokens)[trained].sum() / tokens[trained].sum()
    )
    assert result.difference.value == pytest.approx(0, abs=0.01)
    assert result.difference.n == tokens[trained].sum()


def test_a_cluster_on_both_sides_is_left_out_of_both():
    """Sources differ by 3 nats; trained and other rows of one differ by 0.1 +- 0.01."""
    rng = np.random.default_rng(2)
    level = rng.normal(0, 3, 20)
    noise = rng.normal(0.1, 0.01, 20)
    x = np.concatenate([level + noise, level])
    codes = np.tile(np.arange(20), 2)
    merged = memory(x, sides(np.arange(40) < 20, codes)).difference
    separate = memory(x, sides(np.arange(40) < 20, np.arange(40))).difference
    assert merged.value == separate.value == pytest.approx(noise.mean())
    assert merged.se == pytest.approx(noise.std(ddof=1) / np.sqrt(20))
    assert separate.se > 0.8
    assert merged.clusters == 20


def test_fine_strata_only_where_each_has_two_clusters():
    """The cue is in the stratum of type 0, and not in that of type 1."""
    trained = [1, 1, 1, 0, 0, 0, 0] + [1, 1, 0, 0, 0]
    stratum = [0] * 7 + [1] * 5
    cue = [0, 0, 1, 0, 0, 1, 1] + [0, 1, 0, 0, 1]
    x = np.array([1, 1, 9, 1, 1, 9, 9, 4, 6, 3, 3, 9.0])
    strata = np.stack([stratum, cue], axis=1)
    result = memory(x, sides(trained, np.arange(12), strata))
    # 2 of 5 trained ones have cue 0 of type 0, 1 of 5 cue 1, 2 of 5 are of type 1.
    assert result.held_out.value == pytest.approx(0.4 * 1 + 0.2 * 9 + 0.4 * 5)
    assert result.trained.value == pytest.approx(np.mean([1, 1, 9, 4, 6]))


@pytest.mark.parametrize(
    ("trained", "clusters", "note"),
    [
        ([1, 1, 1], [0, 1, 2], "no identifier stands in rows never trained on"),
        ([0, 0, 0], [0, 1, 2], "no identifier stands in trained rows"),
        ([1, 1, 0, 0], [0, 1, 2, 2], "no trained identifier has held-out ones"),
        ([1, 1, 0, 0], [0, 0, 1, 2], "undefined without one cluster"),
    ],
)
def test_what_cannot_be_compared_says_why(trained, clusters, note):
    result = memory(np.arange(float(len(trained))), sides(trained, clusters))
    for estimate in (result.trained, result.held_out, result.difference):
        assert estimate.value is None
    assert note in result.difference.note
    options = {"reasons": ("no trained one", "no other one")}
    named = memory(np.zeros(len(trained)), sides(trained, clusters), **options)
    has_one_side = len(set(trained)) == 1
    assert has_one_side == (named.difference.note in options["reasons"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "others"),
    [(5, 5), (10, 10), (26, 25), (51, 51), (60, 60), (100, 8), (8, 100)],
)
@pytest.mark.parametrize("skewed", [False, True])
def test_it_holds_its_level(ours, others, skewed):
    """No difference: normal clusters of unequal size, and lognormal ones."""
    rng = np.random.default_rng(3)
    simulations = 2000
    missed = 0
    count = ours + others
    for _ in range(simulations):
        rows = rng.integers(1, 5, count)
        codes = np.repeat(np.arange(count), rows)
        effect = np.exp(rng.normal(0, 1, count)) if skewed else rng.normal(0, 1, count)
        x = effect[codes] + rng.normal(0, 0.5, len(codes))
        kinds = rng.integers(0, 2, (len(codes), 1))
        difference = memory(x, sides(codes < ours, codes, kinds)).difference
        missed += not difference.low <= 0 <= difference.high
    # Skew that lies on the small side alone is what no t interval holds.
    bound = 0.055 if not skewed else 0.13 if min(ours, others) < 10 else 0.065
    assert stats.binomtest(missed, simulations, bound, "greater").pvalue > 0.001


def test_the_smallest_effect_is_that_of_the_test_s_own_freedom():
    """Five clusters a side: noncentral t of the degrees of freedom that p is of."""
    trained = np.arange(10) < 5
    small_sides = sides(trained, np.arange(10))
    result = memory(np.random.default_rng(2).normal(0, 1, 10), small_sides)
    df = int(result.freedom)
    ratio = result.difference.mde / result.difference.se
    critical = stats.t.ppf(0.975, df)
    power = stats.nct.sf(critical, df, ratio) + stats.nct.cdf(-critical, df, ratio)
    assert power == pytest.approx(0.8, abs=1e-6)

"""Weights of many clusters, which are drawn by block, beside those drawn one by one."""

import numpy as np
import pytest

from spark_audit.stats.bootstrap import (
    Weights,
    draw_in_strata,
    draw_weights,
    median_replicates,
)
from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.intervals import ratio, ratio_estimate
from spark_audit.stats.roc_replicates import roc_replicates
from spark_audit.stats.sign_flips import sign_flip

CLUSTERS = 2000


@pytest.fixture
def blocked(monkeypatch) -> None:
    monkeypatch.setattr("spark_audit.stats.bootstrap.BLOCKS", 400)


def sums() -> np.ndarray:
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, 6, CLUSTERS)
    return np.stack([rng.gamma(2.0, tokens), tokens], axis=1)


def one_by_one(drawn: np.ndarray) -> Weights:
    return Weights(drawn, np.arange(drawn.shape[1]))


def test_a_block_stands_for_all_of_its_clusters(blocked):
    weights = draw_weights(CLUSTERS, replicates=50, seed=0)
    assert len(weights) == 50
    assert np.bincount(weights.column).tolist() == [CLUSTERS // 400] * 400
    weights_by_cluster = weights.drawn[:, weights.column]
    assert set(weights_by_cluster.sum(axis=1)) == {CLUSTERS}
    np.testing.assert_allclose(weights.totals(sums()), weights_by_cluster @ sums())
    values = np.arange(4000.0)
    codes = np.arange(4000) % CLUSTERS
    np.testing.assert_array_equal(
        median_replicates(weights, values, codes),
        median_replicates(one_by_one(weights_by_cluster), values, codes),
    )


def test_limits_are_as_wide_as_those_over_clusters(blocked):
    """And not wider, as they would be if neighbours went together."""
    table = sums()
    # Clusters that stand together are alike: blocks must not be runs of them.
    table[:, 0] *= 1 + (np.arange(CLUSTERS) // 100 % 2)
    weights = draw_weights(CLUSTERS, replicates=4000, seed=0)
    drawn = ratio(weights.totals(table))
    estimate = ratio_estimate(*table.T, replicates=drawn)
    low, high, own_low, own_high = (
        x or 0.0
        for x in (
            estimate.parity_low,
            estimate.parity_high,
            estimate.low,
            estimate.high,
        )
    )
    assert high - low == pytest.approx(own_high - own_low, rel=0.1)


def test_strata_keep_their_sizes_whether_or_not_they_are_blocked(blocked):
    strata = np.repeat([2, 5, 7], [30, 1200, 500])[np.argsort(np.arange(1730) % 7)]
    weights = draw_in_strata(strata, replicates=20, seed=1)
    assert weights.drawn.shape[1] < len(strata)
    weights_by_cluster = weights.drawn[:, weights.column]
    for stratum, size in ((2, 30), (5, 1200), (7, 500)):
        drawn = weights_by_cluster[:, strata == stratum].sum(axis=1)
        # Blocks differ by one cluster at most.
        assert abs(drawn - size).max() <= 0.15 * size
    small = draw_in_strata(strata[strata != 5] * 0, replicates=20, seed=1)
    assert small.drawn.shape[1] == 400
    few = draw_in_strata(np.repeat([1, 4], [30, 60]), replicates=20, seed=1)
    assert set(few.drawn[:, :30].sum(axis=1)) == {30}


def test_resampled_areas_are_those_of_the_whole_matrix(blocked):
    rng = np.random.default_rng(0)
    member = np.arange(CLUSTERS) % 2 == 0
    design = Design.of(member, np.array([f"c{k}" for k in range(CLUSTERS)]), None)
    weights = design.draw(replicates=30, seed=0)
    scores = rng.normal(member * 0.2)
    np.testing.assert_allclose(
        roc_replicates(design, scores, weights).auc,
        roc_replicates(
            design, scores, one_by_one(weights.drawn[:, weights.column])
        ).auc,
    )


def test_the_sign_flip_test_keeps_its_level_and_sees_what_is_there(blocked):
    rng = np.random.default_rng(0)
    null = [
        sign_flip(rng.standard_t(3, CLUSTERS), seed=k, replicates=499)
        for k in range(60)
    ]
    assert np.sum(np.array(null) < 0.05) <= 8
    assert sign_flip(rng.normal(0.15, 1, CLUSTERS), seed=0) < 0.001

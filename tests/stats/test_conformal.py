"""Conformal p of rows, and what is named: against plain counts, and in simulation."""

import numpy as np
import pytest
import scipy

from spark_audit.stats.conformal import conformal_p, discoveries, simes, standardised

SIZE = 5
TASKS = 4


def world(rng: np.random.Generator, effect: float) -> dict[str, np.ndarray]:
    """Tasks on scales of their own, clusters of five, doses, and 30% strangers."""
    rows = []
    for task in range(TASKS):
        middle = rng.normal()
        spread = rng.uniform(0.5, 2)
        for trained, count in ((True, 60), (False, 40)):
            made = 0
            while made < count:
                size = SIZE if rng.random() < 0.3 else 1
                true = trained and rng.random() > 0.3
                dose = rng.choice([1, 4, 16]) if true else 0
                shared = 0.6 * rng.normal()
                for _ in range(size):
                    own = shared + 0.8 * rng.normal() + effect * np.log2(1 + dose)
                    cluster = f"{task}-{trained}-{made // SIZE}-{size}-{shared:.9f}"
                    rows.append((task, cluster, trained, dose, middle + spread * own))
                    made += 1
    names = ("task", "cluster", "trained", "dose", "score")
    return dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))


def tried(seed: int, effect: float) -> tuple[float, float, float]:
    """False share, power at dose 16, and share of strangers that are named."""
    x = world(np.random.default_rng(seed), effect)
    held = ~x["trained"]
    scores = standardised(x["score"], held, x["task"], x["cluster"])
    found = discoveries(conformal_p(scores, held, x["cluster"]), share=0.1)
    strangers = x["trained"] & (x["dose"] == 0)
    top = x["dose"] == 16
    false = (found & strangers).sum() / max(found.sum(), 1)
    return false, found[top].mean(), found[strangers].mean()


@pytest.mark.parametrize("effect", [0.0, 0.3, 1.0, 2.0])
def test_the_share_of_false_ones_is_kept_with_strangers_clusters_and_doses(effect):
    results = np.array([tried(seed, effect) for seed in range(60)])
    false, power, strangers = results.mean(axis=0)
    assert false <= 0.1 + 2 * results[:, 0].std() / np.sqrt(60)
    assert strangers <= 0.05
    if effect >= 1:
        assert power >= 0.5


def test_p_counts_held_out_clusters_once():
    """By a plain loop; ties count as at least as familiar."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 8, 60).astype(float)
    held = np.arange(60) >= 30
    cluster = np.arange(60) // 3
    p = conformal_p(scores, held, cluster)
    clusters = sorted({*cluster[held]})
    for i in range(30):
        shares = [(scores[held & (cluster == c)] >= scores[i]).mean() for c in clusters]
        assert p[i] == pytest.approx((1 + sum(shares)) / (1 + len(clusters)))
    assert np.isnan(p[held]).all()


def test_rows_without_a_score_are_never_named():
    scores = np.array([np.nan, 9.0, 1.0, 2.0, 3.0, 4.0])
    held = np.array([False, False, True, True, True, True])
    p = conformal_p(scores, held, np.arange(6))
    assert np.isnan(p[0])
    assert p[1] == pytest.approx(0.2)
    assert not discoveries(p, share=0.1).any()


def test_held_out_rows_are_measured_without_their_own_cluster():
    scores = np.array([1.0, 2.0, 3.0, 10.0, 5.0])
    held = np.array([True, True, True, True, False])
    found = standardised(scores, held, np.zeros(5), np.array([0, 1, 2, 3, 4]))
    assert found[3] == pytest.approx((10 - 2) / 1)
    assert found[4] == pytest.approx((5 - 2.5) / 1.0)


def test_a_task_without_held_out_rows_has_no_score():
    found = standardised([1.0, 2.0], [False, False], [0, 0], [0, 1])
    assert np.isnan(found).all()


def test_named_is_benjamini_and_hochberg_and_never_above_5_per_cent():
    p = np.array([0.001, 0.02, 0.03, 0.06, 0.07])
    adjusted = scipy.stats.false_discovery_control(p)
    assert (adjusted <= 0.1).all()
    assert discoveries(p, share=0.1).tolist() == [True, True, True, False, False]


def test_simes_is_the_smallest_scaled_p():
    assert simes([0.01, 0.5, 0.9]) == pytest.approx(0.03)
    assert simes([0.04, 0.04, 0.04]) == pytest.approx(0.04)

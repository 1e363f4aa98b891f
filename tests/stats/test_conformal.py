"""Conformal p of rows, and what is named: against plain counts, and in simulation."""

import numpy as np
import pytest
import scipy

from spark_audit.stats.conformal import (
    conformal_p,
    discoveries,
    simes,
    standardised,
    untrained_shares,
)

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
    p = conformal_p(scores, held, x["cluster"])
    untrained = untrained_shares(p, x["cluster"], x["task"])
    found = discoveries(p, share=0.1, untrained=untrained)
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


def test_the_estimate_names_a_fifth_more_rows_within_the_same_bound():
    """Of middling memory, where neither none nor nearly all of the rows are named."""
    before = 0
    after = 0
    false_shares = []
    for seed in range(20):
        x = world(np.random.default_rng(seed), 0.6)
        held = ~x["trained"]
        scores = standardised(x["score"], held, x["task"], x["cluster"])
        p = conformal_p(scores, held, x["cluster"])
        untrained = untrained_shares(p, x["cluster"], x["task"])
        named = discoveries(p, share=0.1, untrained=untrained)
        before += discoveries(p, share=0.1).sum()
        after += named.sum()
        n_false = (named & x["trained"] & (x["dose"] == 0)).sum()
        false_shares.append(n_false / max(named.sum(), 1))
    assert after >= 1.2 * before > 0
    assert np.mean(false_shares) <= 0.1


def test_a_cluster_of_strangers_that_looks_familiar_at_once_is_named_in_one_of_ten():
    """Five clusters of eight rows that are nearly one row each, and 50 held out."""
    reports = 200
    n_with_named = 0
    cluster = np.repeat(np.arange(55), 8)
    held = cluster >= 5
    for seed in range(reports):
        rng = np.random.default_rng(seed)
        scores = np.repeat(rng.normal(size=55), 8) + 0.001 * rng.normal(size=440)
        p = conformal_p(scores, held, cluster)
        untrained = untrained_shares(p, cluster)
        n_with_named += discoveries(p, share=0.1, untrained=untrained).any()
    assert n_with_named <= scipy.stats.binom.ppf(0.999, reports, 0.1)


def test_untrained_shares_are_harmonic_means_over_all_rows_and_of_the_task():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=60)
    p[[3, 40]] = np.nan
    cluster = rng.integers(0, 20, 60)
    task = np.arange(60) // 20

    def storey(rows: list[int]) -> float:
        rows = [i for i in rows if np.isfinite(p[i])]
        largest = max(sum(cluster[i] == c for i in rows) for c in range(20))
        return (largest + sum(p[i] > 0.5 for i in rows)) / (len(rows) / 2)

    shares = untrained_shares(p, cluster, task)
    for i in range(60):
        of_all = storey([*range(60)])
        of_task = storey([j for j in range(60) if task[j] == task[i]])
        expected = 2 * of_all * of_task / (of_all + of_task)
        assert np.isnan(p[i]) or shares[i] == pytest.approx(expected)
    assert np.isnan(shares[[3, 40]]).all()


def test_named_is_benjamini_and_hochberg_of_p_times_the_share():
    rng = np.random.default_rng(1)
    p = rng.uniform(0, 0.2, 40)
    untrained = rng.uniform(0.2, 1.1, 40)
    adjusted = scipy.stats.false_discovery_control(p * untrained)
    expected = (adjusted <= 0.1) & (p <= 0.05)
    assert 0 < expected.sum() < 40
    named = discoveries(p, share=0.1, untrained=untrained)
    assert named.tolist() == expected.tolist()


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

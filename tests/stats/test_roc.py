"""ROC statistics against scikit-learn, SciPy and plain transcriptions."""

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from spark_audit.errors import NotEstimableError
from spark_audit.stats.bootstrap import draw_weights
from spark_audit.stats.clustered_roc import (
    Design,
    auc_difference,
    auc_estimate,
)
from spark_audit.stats.clustered_tpr import chance, tpr_estimate
from spark_audit.stats.roc import auc, chance_band, tpr_at_fpr
from spark_audit.stats.roc_replicates import roc_replicates

RNG = np.random.default_rng

# --- one row a cluster ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_auc_equals_scikit_learn_and_mann_whitney(seed):
    rng = RNG(seed)
    x, y = (np.round(rng.normal(0.3 * (n == 37), 1, n), 1) for n in (37, 23))
    scores_of_both = np.concatenate([x, y])
    labels = np.repeat([1, 0], [37, 23])
    assert auc(x, y) == pytest.approx(metrics.roc_auc_score(labels, scores_of_both))
    assert auc(x, y) == pytest.approx(stats.mannwhitneyu(x, y).statistic / 37 / 23)


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [
        ([], [1.0], "there is no member"),
        ([1.0], [], "there is no non-member"),
        ([1.0, np.nan], [0.0], "a score is NaN"),
    ],
)
def test_what_is_undefined_is_said(members, others, message):
    functions = (
        auc,
        lambda a, b: tpr_at_fpr(a, b, 0.1),
    )
    for function in functions:
        with pytest.raises(NotEstimableError, match=message):
            function(members, others)  # type: ignore[operator]


# --- TPR at a budget of false positives -----------------------------------------------


def test_false_positives_never_exceed_the_budget():
    """Other tools take the first, the nearest or an interpolated threshold."""
    rng = RNG(0)
    for _ in range(300):
        x, y = (np.round(rng.normal(0, 1, rng.integers(1, 60)), 1) for _ in "xy")
        fpr = float(rng.choice([0.3, 0.1, 0.05, 0.29, 0.01, 0.001]))
        rate = tpr_at_fpr(x, y, fpr)
        assert rate.fpr <= fpr + 1e-12
        assert rate.fpr == np.mean(y > rate.threshold)
        # The best point of the curve within the budget, without interpolation.
        rates = metrics.roc_curve(
            np.repeat([1, 0], [len(x), len(y)]),
            np.concatenate([x, y]),
            drop_intermediate=False,
        )
        within = rates[0] <= fpr + 1e-12
        assert rate.value == pytest.approx(rates[1][within].max())


def test_a_budget_is_floored_without_round_off():
    y = np.arange(100.0)
    assert tpr_at_fpr(y, y, 0.29).fpr == pytest.approx(0.29)
    assert tpr_at_fpr([98.0], y, 0.01).value == 0, "a tie is a non-member"
    assert tpr_at_fpr([98.5], y, 0.01).value == 1


@pytest.mark.parametrize(
    ("n", "mean", "low", "high"),
    [(300, 5.32, 2.3, 9.3), (1000, 5.09, 3.3, 7.1), (2700, 5.04, 3.9, 6.3)],
)
def test_the_band_of_chance_is_as_calculated(n, mean, low, high):
    band = chance_band(n, n, 0.05)
    assert 100 * band.mean == pytest.approx(mean, abs=0.006)
    assert 100 * band.low == pytest.approx(low, abs=0.051)
    assert 100 * band.high == pytest.approx(high, abs=0.051)


# --- clusters and tasks ---------------------------------------------------------------


def split(y: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return s[y.astype(bool)], s[~y.astype(bool)]


def rounded(m: int, n: int, seed: int, *, shift: float = 0.3) -> tuple[Any, Any]:
    """Scores with ties."""
    rng = RNG(seed)
    return np.round(rng.normal(shift, 1, m), 1), np.round(rng.normal(0, 1, n), 1)


def naive_obuchowski(
    x: np.ndarray, y: np.ndarray, cx: np.ndarray, cy: np.ndarray
) -> tuple[float, float]:
    """AUC and variance: S10, S01, S11 of Obuchowski (1997) by loops over clusters."""
    kernel = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    m, n = kernel.shape
    theta = kernel.mean()
    v10 = kernel.mean(axis=1)
    v01 = kernel.mean(axis=0)
    names = sorted(set(cx) | set(cy))
    i10 = len(set(cx))
    i01 = len(set(cy))
    i = len(names)
    s10 = s01 = s11 = 0.0
    for name in names:
        a = v10[cx == name].sum() - (cx == name).sum() * theta
        b = v01[cy == name].sum() - (cy == name).sum() * theta
        s10 += i10 / ((i10 - 1) * m) * a * a
        s01 += i01 / ((i01 - 1) * n) * b * b
        s11 += i / (i - 1) * a * b
    return float(theta), float(s10 / m + s01 / n + 2 * s11 / (m * n))


def clustered(
    seed: int,
    *,
    sides: tuple[int, int] = (20, 15),
    size: int = 3,
    icc: float = 0.6,
    shift: float = 0.3,
) -> tuple[Design, np.ndarray]:
    """Clusters of 1 to ``size`` rows that share a part of their scores."""
    rng = RNG(seed)
    member = []
    cluster = []
    scores = []
    for side, count in zip((True, False), sides, strict=True):
        for i in range(count):
            rows = int(rng.integers(1, size + 1))
            member += [side] * rows
            cluster += [f"{'mn'[side]}{i}"] * rows
            common = rng.normal(shift * side, np.sqrt(icc))
            scores += list(common + rng.normal(0, np.sqrt(1 - icc), rows))
    return Design.of(member, cluster), np.array(scores)


def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Shape ``(m, n)``: 1 above, one half tied, 0 below."""
    return np.asarray((x[:, None] > y) + 0.5 * (x[:, None] == y))


def test_single_rows_give_delong():
    x, y = rounded(60, 40, 1)
    design = Design.of(np.repeat([True, False], [60, 40]), np.arange(100))
    estimate = auc_estimate(design, np.concatenate([x, y]))[0]
    psi = kernel(x, y)
    variance = psi.mean(1).var(ddof=1) / 60 + psi.mean(0).var(ddof=1) / 40
    assert estimate.value == pytest.approx(psi.mean())
    assert estimate.se == pytest.approx(np.sqrt(variance))
    assert (estimate.interval, estimate.n, estimate.clusters) == ("delong", 100, 100)


@pytest.mark.parametrize("mixed", [False, True])
def test_errors_of_clusters_are_those_of_obuchowski(mixed):
    """With clusters on one side, and with clusters on both."""
    rng = RNG(2)
    member = np.repeat([True, False], [50, 40])
    cluster = rng.integers(0, 12, 90)
    if not mixed:
        cluster = cluster + 100 * member
    scores = np.round(rng.normal(0, 1, 90) + cluster % 5 + 0.4 * member, 1)
    value, variance = naive_obuchowski(
        scores[member], scores[~member], cluster[member], cluster[~member]
    )
    estimate = auc_estimate(Design.of(member, cluster), scores)[0]
    assert estimate.value == pytest.approx(value)
    assert estimate.se == pytest.approx(np.sqrt(variance))
    assert estimate.clusters == len(set(cluster))


def test_some_rows_of_a_design_are_a_design_of_these_rows():
    """Clusters that keep no row count in no estimate and no variance."""
    rng = RNG(3)
    design = Design.of(rng.random(90) < 0.5, rng.integers(0, 12, 90))
    scores = rng.normal(0, 1, 90)
    rows = np.flatnonzero(design.cluster % 3 != 1)
    taken = design.take(rows)
    afresh = Design.of(design.member[rows], design.cluster[rows])
    assert taken.n_clusters == afresh.n_clusters < design.n_clusters
    assert auc_estimate(taken, scores[rows]) == auc_estimate(afresh, scores[rows])
    assert taken.point(0.5) == afresh.point(0.5)


def test_auc_is_the_mean_over_tasks():
    sides_by_task = [clustered(seed, sides=(12, 9)) for seed in (1, 2, 3)]
    single = [auc_estimate(design, scores)[0] for design, scores in sides_by_task]
    design = Design.of(
        np.concatenate([d.member for d, _ in sides_by_task]),
        np.concatenate([d.cluster + 100 * i for i, (d, _) in enumerate(sides_by_task)]),
        np.repeat(["a", "b", "c"], [len(s) for _, s in sides_by_task]),
    )
    # Another scale in each task must not matter.
    scores = np.concatenate(
        [10.0 * i + (i + 1) * s for i, (_, s) in enumerate(sides_by_task)]
    )
    estimate = auc_estimate(design, scores)[0]
    assert estimate.value == pytest.approx(np.mean([e.value for e in single]))
    ses = [e.se for e in single if e.se]
    assert estimate.se == pytest.approx(np.sqrt(np.sum(np.square(ses))) / 3)
    weights = design.draw(replicates=50, seed=0)
    for i in range(3):
        for side in (True, False):
            clusters_of_side = np.unique(
                design.cluster[(design.task == i) & (design.member == side)]
            )
            assert (
                weights.drawn[:, weights.column[clusters_of_side]].sum(axis=1)
                == len(clusters_of_side)
            ).all()


def test_bootstrap_agrees_with_scipy():
    """Rows as clusters: SciPy resamples both sides, as the strata do."""
    x, y = rounded(80, 60, 6, shift=0.5)
    design = Design.of(np.repeat([True, False], [80, 60]), np.arange(140))
    replicates = roc_replicates(
        design, np.concatenate([x, y]), design.draw(replicates=4000, seed=0)
    ).auc
    estimate = auc_estimate(design, np.concatenate([x, y]), replicates=replicates)[0]
    reference = stats.bootstrap(
        (x, y),
        lambda a, b: auc(a, b),
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=RNG(0),
    )
    expected = tuple(reference.confidence_interval)
    assert (estimate.parity_low, estimate.parity_high) == pytest.approx(
        expected, abs=0.008
    )
    assert np.std(replicates) == pytest.approx(reference.standard_error, rel=0.06)
    assert estimate.se == pytest.approx(reference.standard_error, rel=0.06)


def test_difference_equals_paired_delong_for_single_rows():
    rng = RNG(8)
    scores = rng.normal(0, 1, (90, 2)) + rng.normal(0, 1, (90, 1))
    member = np.repeat([True, False], [50, 40])
    difference, _ = auc_difference(Design.of(member, np.arange(90)), *scores.T)
    first, second = (kernel(s[member], s[~member]) for s in scores.T)
    placement_difference = first - second
    variance = (
        placement_difference.mean(1).var(ddof=1) / 50
        + placement_difference.mean(0).var(ddof=1) / 40
    )
    assert difference.value == pytest.approx(placement_difference.mean())
    assert difference.se == pytest.approx(np.sqrt(variance))


def test_perfect_order_has_an_exact_bound():
    design = Design.of(np.repeat([True, False], [30, 20]), np.arange(50))
    scores = np.where(design.member, 2.0, 1.0) + np.arange(50) / 1000
    estimate = auc_estimate(design, scores)[0]
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(0.025 ** (1 / 20))
    assert estimate.interval == "clopper-pearson"
    reverse = auc_estimate(design, -scores)[0]
    assert (reverse.value, reverse.low) == (0.0, 0.0)
    assert reverse.high == pytest.approx(1 - 0.025 ** (1 / 20))


@pytest.mark.parametrize("others", [5, 6, 20, 3000])
def test_a_perfect_order_has_an_exact_p(others):
    """Below 0.05 exactly where the exact interval leaves 0.5 out, and never 0."""
    design = Design.of(
        np.repeat([True, False], [3000, others]), np.arange(3000 + others)
    )
    scores = np.where(design.member, 2.0, 1.0)
    for sign in (1, -1):
        estimate, p = auc_estimate(design, sign * scores)
        assert p > 0
        if others < 1000:
            assert p == pytest.approx(2 * 0.5**others)
        assert (p < 0.05) == (not estimate.low <= 0.5 <= estimate.high)  # type: ignore[operator]


def test_differences_of_perfect_orders_are_tested():
    design = Design.of(np.repeat([True, False], [9, 7]), np.arange(16))
    scores = np.where(design.member, 2.0, 1.0) + np.arange(16) / 1000
    difference, p = auc_difference(design, scores, -scores)
    assert p == pytest.approx(2 * 0.5**7)
    assert (difference.value, difference.high) == (1.0, 1.0)
    assert difference.low == pytest.approx(2 * 0.0125 ** (1 / 7) - 1)
    reversed_difference, _ = auc_difference(design, -scores, scores)
    assert (
        reversed_difference.value,
        reversed_difference.low,
        reversed_difference.high,
    ) == (-1.0, -1.0, -difference.low)  # type: ignore[operator]
    # The perfect one adds no variance: its exact p is the least.
    nearly = -scores
    nearly[0] = 0.0
    _, least = auc_difference(design, scores, nearly)
    assert least >= 2 * 0.5**7
    same, none = auc_difference(design, scores, 2 * scores)
    assert (same.value, none) == (0.0, None)


@pytest.mark.parametrize(
    ("member", "cluster", "scores", "reason"),
    [
        ([], [], [], "there is no row"),
        ([1, 1], [0, 1], [1.0, 2.0], "there are no non-members"),
        ([1, 0, 0], [0, 1, 2], [1.0, 2.0, 3.0], "only 1 cluster holds members"),
        ([1, 1, 0, 0], [0, 1, 2, 3], [1.0] * 4, "all scores are equal"),
        ([1, 1, 0, 0], [0, 1, 2, 3], [1.0, 2, 3, np.nan], "a score is NaN"),
    ],
)
def test_missing_estimates_give_their_reason(member, cluster, scores, reason):
    design = Design.of(np.array(member, bool), np.array(cluster))
    estimate = auc_estimate(design, np.array(scores, float))[0]
    assert estimate.status == "not_estimable"
    assert reason in estimate.note
    assert auc_difference(design, np.array(scores), np.array(scores))[0].value is None


def tpr(design: Design, scores: np.ndarray, fpr: float, **options: Any) -> Any:
    weights = design.draw(**{"replicates": 500, "seed": 0} | options)
    (replicates,) = roc_replicates(design, scores, weights, budgets=[fpr]).tpr
    return tpr_estimate(design, scores, fpr, replicates=replicates)


def test_a_rate_at_a_budget_has_an_interval():
    design, scores = clustered(9, sides=(120, 110), shift=1.0)
    estimate = tpr(design, scores, 0.1)
    x, y = split(design.member, scores)
    plain = tpr_at_fpr(x, y, 0.1)
    assert estimate.value == pytest.approx(plain.value)
    assert estimate.low < estimate.value < estimate.high  # type: ignore[operator]
    assert (estimate.interval, estimate.status) == ("percentile", "ok")
    assert f"achieved FPR {plain.fpr:.4g}" in estimate.note


@pytest.mark.parametrize(
    ("rows_per_cluster", "needed", "fpr", "is_told"),
    [
        (1, 100, 0.01, True),
        (1, 99, 0.01, False),
        (5, 100, 0.01, True),
        (5, 99, 0.01, False),
        (1, 20, 0.05, True),
        (2, 999, 0.001, False),
    ],
)
def test_a_rate_needs_a_held_out_cluster_that_may_exceed_the_threshold(
    rows_per_cluster, needed, fpr, is_told
):
    """Rows of one source stand or fall together, so that they count as one."""
    n_clusters = 30 + needed
    cluster = np.repeat(np.arange(n_clusters), rows_per_cluster)
    design = Design.of(cluster < 30, cluster)
    scores = np.random.default_rng(0).normal(size=len(cluster))
    estimate = tpr(design, scores, fpr, replicates=20)
    assert (estimate.value is not None) == is_told
    if is_told:
        assert "coarse" in estimate.note
    else:
        assert estimate.status == "not_estimable"
        # It says from how many on it would be, and how many there are.
        assert f"needs {round(1 / fpr)} " in estimate.note
        assert estimate.note.endswith(f" {needed}")


def test_a_large_source_resolves_no_small_rate():
    """Of 300 held-out clusters one has most rows: it decides the threshold alone."""
    cluster = np.r_[np.arange(330), np.full(2000, 329)]
    design = Design.of(cluster < 30, cluster)
    scores = np.random.default_rng(0).normal(size=len(cluster))
    assert tpr(design, scores, 0.01, replicates=20).value is None
    even = design.take(np.arange(330))
    assert tpr(even, scores[:330], 0.01, replicates=20).value is not None


def test_every_task_must_resolve_a_rate():
    task = np.repeat([0, 1], [180, 100])
    rows = np.arange(280)
    member = (rows % 180) < 60
    design = Design.of(member, rows, task)
    scores = np.random.default_rng(0).normal(size=280)
    assert tpr(design, scores, 0.01, replicates=20).value is None
    assert tpr(design.take(rows[:180]), scores[:180], 0.01).value is not None


def test_a_rate_of_zero_has_an_interval():
    design = Design.of(np.repeat([True, False], [30, 40]), np.arange(70))
    scores = np.where(design.member, 0.0, 1.0) + np.arange(70) / 1000
    estimate = tpr(design, scores, 0.1)
    assert (estimate.value, estimate.low) == (0.0, 0.0)
    assert estimate.high > 0.05  # type: ignore[operator]
    assert estimate.interval == "korn-graubard"
    assert estimate.parity_low is None, "resamples agree"


def test_chance_of_a_design_is_that_of_its_tasks():
    single = Design.of(np.repeat([True, False], [300, 300]), np.arange(600))
    assert chance(single, 0.05, seed=0) == chance_band(300, 300, 0.05)
    tasks = np.tile([0, 1, 2], 200)
    several = Design.of(single.member, single.cluster, tasks)
    band = chance(several, 0.05, seed=0)
    band_of_one = chance_band(100, 100, 0.05)
    assert band.mean == pytest.approx(band_of_one.mean)
    assert band.high - band.low < 0.75 * (band_of_one.high - band_of_one.low)
    assert band.low < band.mean < band.high
    pairs = Design.of(single.member, np.arange(600) // 2)
    assert chance(pairs, 0.05, seed=0) == chance_band(150, 150, 0.05)


# --- simulations ----------------------------------------------------------------------


def coverage(truth: float, runs: int, **options: Any) -> tuple[float, float]:
    """Coverage of the decision and of the percentile interval."""
    hits = np.zeros(2)
    for seed in range(runs):
        design, scores = clustered(seed, **options)
        replicates = roc_replicates(
            design, scores, design.draw(replicates=400, seed=seed)
        ).auc
        estimate = auc_estimate(design, scores, replicates=replicates)[0]
        bounds = (
            (estimate.low, estimate.high),
            (estimate.parity_low, estimate.parity_high),
        )
        hits += [low <= truth <= high for low, high in bounds]  # type: ignore[operator]
    return tuple(hits / runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sides", "size", "icc", "shift"),
    [((100, 60), 1, 0.5, 0.5), ((60, 40), 5, 0.7, 0.5), ((15, 10), 4, 0.7, 0.3)]
    + [((100, 100), 1, 0.5, 2.5)],
)
def test_intervals_of_auc_cover_the_truth(sides, size, icc, shift):
    truth = float(stats.norm.cdf(shift / np.sqrt(2)))
    jackknife, percentile = coverage(
        truth, 1000, sides=sides, size=size, icc=icc, shift=shift
    )
    assert 0.93 < jackknife < 0.98
    assert percentile > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_intervals_of_rates_cover_the_truth(shift):
    truth = float(stats.norm.sf(stats.norm.isf(0.05) - shift))
    hits = 0
    runs = 800
    for seed in range(runs):
        design, scores = clustered(seed, sides=(200, 300), size=1, shift=shift)
        estimate = tpr(design, scores, 0.05, replicates=400, seed=seed)
        hits += estimate.low <= truth <= estimate.high
    assert hits / runs > 0.93


# --- what a mutation of the code once survived ----------------------------------------


def by_tasks(seed: int) -> tuple[Design, np.ndarray]:
    """Two tasks of clusters of two rows, with scores of different places."""
    rng = RNG(seed)
    task = np.repeat([0, 1], 60)
    design = Design.of(rng.random(120) < 0.5, np.arange(120) // 2, task)
    return design, rng.normal(design.member * 0.8, 1.0)


def test_resampled_rates_are_those_of_the_rows_repeated():
    design, scores = by_tasks(1)
    weights = draw_weights(design.n_clusters, replicates=20, seed=0)
    (replicates,) = roc_replicates(design, scores, weights, budgets=[0.1]).tpr
    for replicate, drawn in zip(replicates, weights.drawn, strict=True):
        rates = []
        for is_task in (design.task == 0, design.task == 1):
            times = np.asarray(drawn, np.int64)[design.cluster[is_task]]
            values = np.repeat(scores[is_task], times)
            member = np.repeat(design.member[is_task], times)
            allowed = int(np.floor(0.1 * (~member).sum() + 1e-9))
            threshold = np.sort(values[~member])[::-1][allowed]
            rates.append(np.mean(values[member] > threshold))
        assert replicate == pytest.approx(np.mean(rates))


def test_each_task_has_its_threshold():
    design, scores = by_tasks(2)
    # Few members above the threshold: the exact interval counts them.
    scores = scores - 2.0 * design.member
    weights = draw_weights(design.n_clusters, replicates=99, seed=0)
    (replicates,) = roc_replicates(design, scores, weights, budgets=[0.1]).tpr
    moved = scores + 100.0 * design.task
    estimate, estimate_moved = (
        tpr_estimate(design, values, 0.1, replicates=replicates)
        for values in (scores, moved)
    )
    assert estimate.interval == "korn-graubard"
    assert (estimate.low, estimate.high) == (estimate_moved.low, estimate_moved.high)


def test_degrees_of_freedom_are_satterthwaite_s():
    rng = RNG(3)
    x = rng.normal(0.7, 1, 6)
    y = rng.normal(0, 1, 9)
    member = np.repeat([True, False], [6, 9])
    design = Design.of(member, np.arange(15))
    _, p = auc_estimate(design, np.concatenate([x, y]))
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    value = wins.mean()
    sides = [wins.mean(axis=axis).var(ddof=1) / n for axis, n in ((1, 6), (0, 9))]
    df = sum(sides) ** 2 / (sides[0] ** 2 / 5 + sides[1] ** 2 / 8)
    logit = np.log(value / (1 - value))
    distance = abs(logit) * value * (1 - value) / np.sqrt(sum(sides))
    assert p == pytest.approx(2 * stats.t.sf(distance, df), rel=0.05)

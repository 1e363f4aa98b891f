"""ROC statistics against scikit-learn, SciPy and plain transcriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from spark_audit.errors import NotEstimableError
from spark_audit.stats.roc import (
    auc,
    chance_band,
    chance_p,
    delong,
    paired_delong,
    roc_curve,
    split_tpr,
    tost,
    tpr_at_fpr,
)

RNG = np.random.default_rng

Y1 = np.array([0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1], bool)
S1 = np.array([0.1, 0.35, 0.24, 0.8, 0.2, 0.85, 0.13, 0.85, 0.74, 0.58, 0.71, 0.25])


def split(y: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return s[y.astype(bool)], s[~y.astype(bool)]


def rounded(m: int, n: int, seed: int, *, shift: float = 0.3) -> tuple[Any, Any]:
    """Scores with ties."""
    rng = RNG(seed)
    return np.round(rng.normal(shift, 1, m), 1), np.round(rng.normal(0, 1, n), 1)


def psi(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kernel matrix ``(m, n)``: 1 above, one half tied, 0 below."""
    return (x[:, None] > y) + 0.5 * (x[:, None] == y)


# --- one row a cluster ----------------------------------------------------------------


def test_auc_and_delong_interval_of_the_published_example() -> None:
    """The figures that the README of the package pauc prints."""
    found = delong(*split(Y1, S1))
    assert found.value == pytest.approx(0.7083333, abs=1e-7)
    assert found.variance == pytest.approx(0.0284722, abs=1e-7)
    assert (found.wald_low, found.wald_high) == pytest.approx((0.3776, 1.0), abs=5e-5)
    assert (found.low, found.high) == pytest.approx((0.3288, 0.9233), abs=5e-5)


def test_paired_delong_by_hand() -> None:
    y = np.array([0, 0, 1, 1, 0, 1, 0], bool)
    s = np.array(
        [[0.1, 0.35, 0.4, 0.8, 0.2, 0.75, 0.1], [0.5, 0.92, 0.1, 0.1, 0.8, 0.95, 0.9]]
    ).T
    found = paired_delong(s[y], s[~y])
    assert found.values == pytest.approx((1.0, 1 / 3))
    assert found.covariance == pytest.approx(np.array([[0, 0], [0, 1 / 9]]))
    assert found.difference == pytest.approx(2 / 3)
    assert found.z == pytest.approx(2.0)
    assert found.p == pytest.approx(0.0455003, abs=1e-7)


def test_whole_weights_are_repeated_rows() -> None:
    s = np.array([0.9, 0.8, 0.4, 0.35, 0.7, 0.4, 0.2, 0.1])
    y = np.array([1, 1, 1, 1, 0, 0, 0, 0], bool)
    w = np.array([2, 0, 1, 1, 1, 2, 0, 1])
    assert auc(*split(y, s)) == pytest.approx(0.78125)
    weighted = auc(*split(y, s), weights=split(y, w))
    assert weighted == pytest.approx(0.6875)
    assert weighted == auc(*split(np.repeat(y, w), np.repeat(s, w)))


@pytest.mark.parametrize("seed", range(5))
def test_auc_equals_scikit_learn_and_mann_whitney(seed: int) -> None:
    x, y = rounded(37, 23, seed)
    both = np.concatenate([x, y])
    labels = np.repeat([1, 0], [37, 23])
    weights = RNG(seed).random(60)
    assert auc(x, y) == pytest.approx(metrics.roc_auc_score(labels, both))
    assert auc(x, y) == pytest.approx(stats.mannwhitneyu(x, y).statistic / 37 / 23)
    assert auc(x, y, weights=(weights[:37], weights[37:])) == pytest.approx(
        metrics.roc_auc_score(labels, both, sample_weight=weights)
    )


@pytest.mark.parametrize("seed", range(3))
def test_delong_equals_the_plain_kernel(seed: int) -> None:
    x, y = rounded(31, 17, seed)
    kernel = psi(x, y)
    variance = kernel.mean(1).var(ddof=1) / 31 + kernel.mean(0).var(ddof=1) / 17
    found = delong(x, y)
    assert found.value == pytest.approx(kernel.mean())
    assert found.variance == pytest.approx(variance)
    assert 0 < found.low < found.value < found.high < 1


def test_paired_covariance_equals_the_plain_kernel() -> None:
    rng = RNG(5)
    x = np.round(rng.normal(0.4, 1, (29, 2)) + rng.normal(0, 1, (29, 1)), 1)
    y = np.round(rng.normal(0, 1, (21, 2)) + rng.normal(0, 1, (21, 1)), 1)
    kernels = [psi(x[:, k], y[:, k]) for k in (0, 1)]
    expected = (
        np.cov([k.mean(1) for k in kernels]) / 29
        + np.cov([k.mean(0) for k in kernels]) / 21
    )
    found = paired_delong(x, y)
    assert found.covariance == pytest.approx(expected)
    swapped = paired_delong(x[:, ::-1], y[:, ::-1])
    assert swapped.difference == pytest.approx(-found.difference)
    assert swapped.p == pytest.approx(found.p)


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [
        ([], [1.0], "there is no member"),
        ([1.0], [], "there is no non-member"),
        ([1.0, np.nan], [0.0], "a score is NaN"),
    ],
)
def test_what_is_undefined_is_said(members: Any, others: Any, message: str) -> None:
    functions = (
        auc,
        delong,
        roc_curve,
        lambda a, b: tpr_at_fpr(a, b, 0.1),
        lambda a, b: split_tpr(a, b, 0.1, seed=0),
    )
    for function in functions:
        with pytest.raises(NotEstimableError, match=message):
            function(members, others)  # type: ignore[operator]


def test_no_variance_is_no_interval() -> None:
    with pytest.raises(NotEstimableError, match="no spread"):
        delong([3.0, 4.0], [1.0, 2.0])
    with pytest.raises(NotEstimableError, match="no spread"):
        delong([1.0, 1.0], [1.0, 1.0])
    with pytest.raises(NotEstimableError, match="needs 2 members"):
        delong([3.0], [1.0, 2.0])
    with pytest.raises(NotEstimableError, match="alike"):
        paired_delong([[1, 2], [3, 4]], [[0, 1], [2, 3]])
    assert auc([1.0], [1.0]) == 0.5


# --- TPR at a budget of false positives -----------------------------------------------

NEGATIVES = np.arange(20) / 20
POSITIVES = np.array([0.05, 0.2, 0.41, 0.55, 0.62, 0.78, 0.88, 0.93, 0.97, 0.99])


@pytest.mark.parametrize(
    ("fpr", "tpr", "achieved", "resolvable"),
    [(0.05, 0.3, 0.05, True), (0.1, 0.4, 0.1, True), (0.01, 0.2, 0, False)]
    + [(0.001, 0.2, 0, False)],
)
def test_tpr_by_the_declared_convention(
    fpr: float, tpr: float, achieved: float, resolvable: bool
) -> None:
    found = tpr_at_fpr(POSITIVES, NEGATIVES, fpr)
    assert (found.value, found.fpr) == pytest.approx((tpr, achieved))
    assert found.resolvable is resolvable
    assert found.note.startswith("coarse" if resolvable else "not resolvable")


def test_false_positives_never_exceed_the_budget() -> None:
    """Other tools take the first, the nearest or an interpolated threshold."""
    rng = RNG(0)
    for _ in range(300):
        x, y = (np.round(rng.normal(0, 1, rng.integers(1, 60)), 1) for _ in "xy")
        fpr = float(rng.choice([0.3, 0.1, 0.05, 0.29, 0.01, 0.001]))
        found = tpr_at_fpr(x, y, fpr)
        assert found.fpr <= fpr + 1e-12
        assert found.fpr == np.mean(y > found.threshold)
        # The best point of the curve within the budget, without interpolation.
        rates = metrics.roc_curve(
            np.repeat([1, 0], [len(x), len(y)]),
            np.concatenate([x, y]),
            drop_intermediate=False,
        )
        within = rates[0] <= fpr + 1e-12
        assert found.value == pytest.approx(rates[1][within].max())


def test_a_budget_is_floored_without_round_off() -> None:
    y = np.arange(100.0)
    assert tpr_at_fpr(y, y, 0.29).fpr == pytest.approx(0.29)
    assert tpr_at_fpr([98.0], y, 0.01).value == 0, "a tie is a non-member"
    assert tpr_at_fpr([98.5], y, 0.01).value == 1


@pytest.mark.parametrize("seed", range(3))
def test_curve_equals_scikit_learn(seed: int) -> None:
    x, y = rounded(40, 25, seed)
    found = roc_curve(x, y)
    fpr, tpr, thresholds = metrics.roc_curve(
        np.repeat([1, 0], [40, 25]), np.concatenate([x, y]), drop_intermediate=False
    )
    assert found.fpr == pytest.approx(fpr)
    assert found.tpr == pytest.approx(tpr)
    assert found.thresholds[1:] == pytest.approx(thresholds[1:])
    assert found.thresholds[0] == np.inf
    assert np.trapezoid(found.tpr, found.fpr) == pytest.approx(auc(x, y))


@pytest.mark.parametrize(
    ("n", "mean", "low", "high"),
    [(300, 5.32, 2.3, 9.3), (1000, 5.09, 3.3, 7.1), (2700, 5.04, 3.9, 6.3)],
)
def test_chance_band(n: int, mean: float, low: float, high: float) -> None:
    found = chance_band(n, n, 0.05)
    assert 100 * found.mean == pytest.approx(mean, abs=0.006)
    assert 100 * found.low == pytest.approx(low, abs=0.051)
    assert 100 * found.high == pytest.approx(high, abs=0.051)


def test_chance_p() -> None:
    assert chance_p(0.0803, 1000, 1000, 0.05) == pytest.approx(0.0033, abs=2e-4)
    assert chance_p(0.0, 100, 100, 0.05) == 1.0
    # Two members, one other, no false positive allowed: all orders are equally likely.
    assert chance_p(1.0, 2, 1, 0.05) == pytest.approx(1 / 3)
    with pytest.raises(NotEstimableError, match="empty"):
        chance_band(0, 10, 0.05)


def test_split_threshold() -> None:
    rng = RNG(3)
    x, y = rng.normal(1, 1, 200), rng.normal(0, 1, 300)
    found = split_tpr(x, y, 0.05, seed=1)
    assert found.tpr == np.mean(x > found.threshold)
    reference = stats.binomtest(round(200 * found.tpr), 200).proportion_ci()
    assert (found.tpr_low, found.tpr_high) == pytest.approx(tuple(reference))
    assert round(found.fpr * 150) == pytest.approx(found.fpr * 150)
    assert found.fpr_low <= found.fpr <= found.fpr_high
    with pytest.raises(NotEstimableError, match="cannot be split"):
        split_tpr(x, [1.0], 0.05, seed=1)


def test_equivalence() -> None:
    inside = tost(0.5173, 0.0094, low=0.45, high=0.55)
    assert (inside.low, inside.high) == pytest.approx((0.5018, 0.5328), abs=5e-5)
    assert inside.equivalent
    assert not tost(0.5173, 0.0094, low=0.48, high=0.52).equivalent
    assert tost(0.5, 0.01, low=0.48, high=0.52, df=3).p > (
        tost(0.5, 0.01, low=0.48, high=0.52).p
    )


@pytest.mark.slow
def test_chance_band_holds_its_level() -> None:
    rng = RNG(0)
    band = chance_band(300, 400, 0.05)
    values = np.array(
        [
            tpr_at_fpr(rng.normal(size=300), rng.normal(size=400), 0.05).value
            for _ in range(6000)
        ]
    )
    outside = np.mean((values < band.low - 1e-9) | (values > band.high + 1e-9))
    assert 0.025 < outside < 0.053
    assert values.mean() == pytest.approx(band.mean, abs=0.001)
    p = np.array([chance_p(v, 300, 400, 0.05) for v in values])
    assert 0.03 < np.mean(p <= 0.05) <= 0.056

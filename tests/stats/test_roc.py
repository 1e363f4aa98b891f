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
    tost,
    tpr_at_fpr,
)

RNG = np.random.default_rng

# --- one row a cluster ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_auc_equals_scikit_learn_and_mann_whitney(seed: int) -> None:
    rng = RNG(seed)
    x, y = (np.round(rng.normal(0.3 * (n == 37), 1, n), 1) for n in (37, 23))
    both = np.concatenate([x, y])
    labels = np.repeat([1, 0], [37, 23])
    assert auc(x, y) == pytest.approx(metrics.roc_auc_score(labels, both))
    assert auc(x, y) == pytest.approx(stats.mannwhitneyu(x, y).statistic / 37 / 23)


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
        lambda a, b: tpr_at_fpr(a, b, 0.1),
    )
    for function in functions:
        with pytest.raises(NotEstimableError, match=message):
            function(members, others)  # type: ignore[operator]


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


@pytest.mark.parametrize(
    ("n", "mean", "low", "high"),
    [(300, 5.32, 2.3, 9.3), (1000, 5.09, 3.3, 7.1), (2700, 5.04, 3.9, 6.3)],
)
def test_chance_band(n: int, mean: float, low: float, high: float) -> None:
    found = chance_band(n, n, 0.05)
    assert 100 * found.mean == pytest.approx(mean, abs=0.006)
    assert 100 * found.low == pytest.approx(low, abs=0.051)
    assert 100 * found.high == pytest.approx(high, abs=0.051)


def test_chance_needs_both_sides() -> None:
    with pytest.raises(NotEstimableError, match="empty"):
        chance_band(0, 10, 0.05)


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

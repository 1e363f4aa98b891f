from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import estimates_of, replicates_of
from spark_audit.stats.selectivity import Windows, reweighted, rtm_bias, unlike_drift

# Source A: spans (PII [3, 1], control [2, 1.5]) and (PII [4, 2, .5], control
# [1, 2.5, .9]); B: ([6], [2.5]); C: ([.5, .7, 1.2, 2], [.6, .9, 1, 1.9]).
PII = np.array([4.0, 6.5, 6.0, 4.4])
CONTROL = np.array([3.5, 4.4, 2.5, 4.4])
TOKENS = np.array([2, 3, 1, 4])
CODES = np.array([0, 0, 1, 2])


def value_of(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value


def estimated(estimand: Any, weights: Any = None) -> Estimate:
    drawn = {} if weights is None else replicates_of({0: estimand}, weights)
    return estimates_of({0: estimand}, drawn)[0]


def rtm_bias_estimate(*models: Any, weights: Any = None) -> Estimate:
    return estimated(rtm_bias(*models), weights)


class TestDeltaSel:
    def test_spans_and_sources_are_weighed_as_calculated(self):
        spans = PII, CONTROL, TOKENS, CODES
        estimates = [*map(estimated, reweighted(*spans).values())]
        values = [value_of(e) for e in estimates]
        assert values == pytest.approx([1.1125, 1.325], rel=1e-12)
        assert [e.n for e in estimates] == [4, 3]
        assert [e.clusters for e in estimates] == [3, 3]


def a_pool(seed: int = 0, *, cells: bool = False) -> tuple[Windows, list[np.ndarray]]:
    """Windows of 9 sources with two examples each, and two checkpoints' NLL."""
    rng = np.random.default_rng(seed)
    pool_cells, span_cells = np.sort(rng.integers(0, 18, (2, 70)))
    hard = rng.normal(size=18)
    x = hard[pool_cells] + rng.normal(2, 1, 70)
    models = [hard[pool_cells] + b * x + rng.normal(size=70) for b in (0.5, 0.8)]
    return Windows(
        pool=x,
        pool_clusters=pool_cells // 2,
        spans=hard[span_cells[:20]] + rng.normal(3, 1, 20),
        span_tokens=rng.integers(1, 6, 20),
        span_clusters=span_cells[:20] // 2,
        n_clusters=9,
        pool_cells=pool_cells * cells,
        span_cells=span_cells[:20] * cells,
    ), models


def without(windows: Windows, cluster: int) -> tuple[Windows, np.ndarray]:
    pool = windows.pool_clusters != cluster
    span = windows.span_clusters != cluster
    kept_windows = Windows(
        windows.pool[pool],
        windows.pool_clusters[pool],
        windows.spans[span],
        windows.span_tokens[span],
        windows.span_clusters[span],
        windows.n_clusters,
        windows.pool_cells[pool],
        windows.span_cells[span],
    )
    return kept_windows, pool


def plain_bias(windows: Windows, a: np.ndarray, b: np.ndarray | None) -> float:
    """R1 from its parts, the slopes by least squares on deviations from the cells."""
    cells = windows.pool_cells
    x = windows.pool

    def apart(values: np.ndarray) -> np.ndarray:
        return values - [values[cells == cell].mean() for cell in cells]

    slopes = [np.polyfit(apart(x), apart(y), 1)[0] for y in (a, x if b is None else b)]
    centre = np.zeros(len(windows.spans))
    tokens = windows.span_tokens.astype(float)
    for i, cell in enumerate(windows.span_cells):
        mine = x[cells == cell]
        tokens[i] *= len(mine) > 0
        centre[i] = mine.mean() if len(mine) else 0.0
    if not tokens.any():
        return np.nan
    gap = np.average(windows.spans - centre, weights=tokens)
    return float((slopes[1] - slopes[0]) * gap)


class TestRtmBias:
    @pytest.mark.parametrize("cells", [False, True])
    @pytest.mark.parametrize("paired", [False, True])
    def test_is_the_formula_with_its_jackknife(self, cells, paired):
        windows, (a, b) = a_pool(cells=cells)
        estimate = rtm_bias_estimate(windows, a, b if paired else None)
        value = plain_bias(windows, a, b if paired else None)
        left_out = []
        for c in range(9):
            rest, pool = without(windows, c)
            left_out.append(plain_bias(rest, a[pool], b[pool] if paired else None))
        deviations = np.array(left_out) - value
        assert estimate.value == pytest.approx(value)
        assert estimate.se == pytest.approx(np.sqrt(8 / 9 * np.sum(deviations**2)))
        assert (estimate.n, estimate.clusters) == (70, 9)

    def test_a_pool_that_tells_nothing_is_not_estimable(self):
        windows, (a, _) = a_pool(cells=True)
        elsewhere = replace(
            windows,
            span_cells=np.arange(100, 120),
        )
        flat = replace(windows, pool=np.ones(70))
        broken = replace(windows, pool=np.full(70, np.nan))
        for case, reason in (
            (elsewhere, "no span shares a cell with a window of the pool"),
            (flat, "the pool's windows do not vary on the reference model"),
            (broken, "a sum is NaN or infinite"),
        ):
            estimate = rtm_bias_estimate(case, a)
            assert estimate.note == reason
            assert estimate.status == "not_estimable"


class TestUnlikeDrift:
    @pytest.mark.parametrize(
        ("contrast", "drift", "low", "high", "unlike"),
        [
            (0.30, 0.04, 0.03, 0.05, True),  # more than a tenth, and clearly
            (-0.30, -0.04, -0.05, -0.03, True),
            (0.30, 0.04, -0.01, 0.09, False),  # not clearly
            (0.50, 0.04, 0.03, 0.05, False),  # less than a tenth
            (0.00, 0.04, 0.03, 0.05, True),
            (0.30, 0.04, None, None, True),  # all clusters agree
            (0.30, 0.00, None, None, False),
        ],
    )
    def test_is_more_than_a_tenth_of_the_contrast_and_beyond_chance(
        self, contrast, drift, low, high, unlike
    ):
        assert unlike_drift(contrast, drift, low, high) is unlike


def matched_examples(
    rng: np.random.Generator,
    betas: list[float],
    *,
    examples: int,
    gap: float = 0.89,
    between: float = 0.0,
    windows: int = 40,
    sd: float = 1.5,
    caliper: float = 0.5,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
    """Examples with one span and its nearest window, and no effect on PII.

    Returns the reference NLL ``(examples, 1 + windows)``, span first; whether it is
    matched; the control's column; each checkpoint's NLL. The total SD stays ``sd``
    within an example; ``between`` is the SD of a difficulty all models share.
    """
    shape = (examples, 1 + windows)
    hard = between * rng.normal(size=(examples, 1))
    own_noise = sd * rng.normal(size=shape)
    mean = np.zeros(1 + windows)
    mean[0] = gap
    x = hard + mean + own_noise
    distance = np.abs(x[:, 1:] - x[:, :1])
    control = 1 + distance.argmin(axis=1)
    matched = distance.min(axis=1) <= caliper
    models = [
        hard
        + mean
        + beta * own_noise
        + sd * np.sqrt(1 - beta**2) * rng.normal(size=shape)
        for beta in betas
    ]
    return x, matched, control, models


def as_windows(x: np.ndarray, *, cells: bool) -> Windows:
    examples = x.shape[0]
    windows = x.shape[1] - 1
    codes = np.repeat(np.arange(examples), windows)
    return Windows(
        pool=x[:, 1:].ravel(),
        pool_clusters=codes,
        spans=x[:, 0],
        span_tokens=np.ones(examples),
        span_clusters=np.arange(examples),
        n_clusters=examples,
        pool_cells=codes * cells,
        span_cells=np.arange(examples) * cells,
    )


class TestRegressionToTheMean:
    """Simulations without any effect on PII: the table behind R1."""

    @pytest.mark.parametrize(
        ("beta", "predicted"),
        [(0.95, 0.0445), (0.7, 0.267)],
    )
    def test_delta_sel_has_the_predicted_mean(self, beta, predicted):
        rng = np.random.default_rng(0)
        x, kept, control, (y,) = matched_examples(rng, [beta], examples=20_000)
        difference = (y[:, 0] - y[np.arange(len(y)), control])[kept]
        mean, se = difference.mean(), difference.std() / np.sqrt(len(difference))
        assert predicted == pytest.approx((1 - beta) * 0.89)
        # Matching inside a caliper leaves about 0.005 of the gap.
        assert mean == pytest.approx(predicted, abs=0.008 + 3 * se)
        estimate = rtm_bias_estimate(as_windows(x, cells=True), y[:, 1:].ravel())
        assert estimate.value == pytest.approx(predicted, abs=0.01)

    def test_examples_of_unequal_difficulty_need_the_slope_within(self):
        """Pooled over examples the slope is too steep and hides part of the bias."""
        rng = np.random.default_rng(3)
        x, kept, control, (y,) = matched_examples(
            rng, [0.7], examples=20_000, between=1.5
        )
        mean = (y[:, 0] - y[np.arange(len(y)), control])[kept].mean()
        pool = y[:, 1:].ravel()
        within, pooled = (
            value_of(rtm_bias_estimate(as_windows(x, cells=c), pool))
            for c in (True, False)
        )
        assert mean == pytest.approx(0.267, abs=0.04)
        assert within == pytest.approx(0.267, abs=0.02)
        assert pooled == pytest.approx(0.267 / 2, abs=0.02)

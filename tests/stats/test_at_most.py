"""What could still be there is the end of the interval at the level of a claim."""

import importlib
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from spark_audit.stats.at_most import (
    at_most,
    exposure_at_most,
    rate_limits_at,
    rate_side,
    t_bound,
)
from spark_audit.stats.canary_ranks import exposure_bits, null_mean
from spark_audit.stats.clustered_roc import Design, auc_difference, auc_estimate
from spark_audit.stats.estimate import Bound
from spark_audit.stats.intervals import rate_estimate, ratio_estimate
from spark_audit.stats.memory_contrast import Sides, memory
from spark_audit.stats.permutation import permutation_p

LEVELS = (0.05, 0.05 / 4, 0.05 / 38)


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("at_most")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("direction", [1, -1])
def test_of_a_mean_it_is_the_end_of_students_interval(level, direction):
    changes = np.random.default_rng(0).normal(0.1 * direction, 1, 23)
    mean = ratio_estimate(changes, np.ones(23))
    end = mean.high if direction == 1 else mean.low
    (bound,) = t_bound(mean.value, end, df=mean.df, direction=direction)
    expected = stats.t.interval(
        1 - level, 22, loc=changes.mean(), scale=stats.sem(changes)
    )
    assert at_most(bound, level) == pytest.approx(expected[direction == 1], rel=1e-9)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("hits", [0, 1, 7, 20])
def test_of_a_count_it_is_the_exact_limit(level, hits):
    bound = Bound(test="hits", value=hits, n=20, worst_value=20)
    exact = stats.binomtest(hits, 20).proportion_ci(1 - level, method="exact")
    assert at_most(bound, level) == pytest.approx(20 * exact.high, rel=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_of_rates_it_is_newcombes_limit_of_the_limits_of_both(level):
    rng = np.random.default_rng(0)
    many = rng.random(80) < 0.4
    for trained_hits, held_out_hits in (
        (many, many[:50]),
        (np.zeros(60), np.zeros(40)),
    ):
        sides = [
            rate_side(trained_hits, np.ones(len(trained_hits)), sign=1),
            rate_side(held_out_hits, np.ones(len(held_out_hits)), sign=-1),
        ]
        assert sides[0] is not None
        assert sides[1] is not None
        bound = Bound(test="rates", value=0.0, rates=[*sides], worst_value=1.0)
        (_, high), (low, _) = (rate_limits_at(side, level) for side in sides)
        upper = math.hypot(high - sides[0].share, sides[1].share - low)
        expected = sides[0].share - sides[1].share + upper
        assert at_most(bound, level) == pytest.approx(expected)
        if not trained_hits.any():
            exact = stats.binomtest(0, len(trained_hits)).proportion_ci(1 - level)
            assert high == pytest.approx(exact.high)


@pytest.mark.parametrize("events", [0, 3, 25, 57, 60])
def test_limits_of_a_rate_at_5_percent_are_those_of_its_estimate(events):
    happened = np.arange(60) < events
    trials = 1 + np.arange(60) % 3
    side = rate_side(happened * trials, trials, sign=1)
    estimate = rate_estimate(happened * trials, trials)
    assert side is not None
    assert rate_limits_at(side, 0.05) == pytest.approx((estimate.low, estimate.high))


def test_it_is_never_within_the_interval_of_95_percent_nor_narrower_for_more_tests():
    sides = [rate_side(np.arange(30) < 2, np.ones(30), sign=1)]
    bounds = [
        Bound(test="t", value=0.1, se=0.05, df=4),
        Bound(test="t", value=-0.1, se=0.05, direction=-1),
        Bound(test="hits", value=0, n=12, worst_value=12),
        Bound(
            test="exposure", value=1.6, no_effect=1.4, n=12, size=128, worst_value=7.0
        ),
        Bound(
            test="rates", value=2 / 30, rates=[s for s in sides if s], worst_value=1.0
        ),
    ]
    for bound in bounds:
        ends = [bound.direction * at_most(bound, 0.05 / tests) for tests in (1, 4, 38)]
        assert ends == sorted(ends)
        assert ends[0] < ends[-1]
        # Tests within the audit count as those of the report do.
        within = Bound(**{**vars(bound), "n_tests": 4.0})
        assert at_most(within, 0.05) == pytest.approx(at_most(bound, 0.05 / 4))


def test_it_stays_within_what_a_figure_can_be_and_hides_no_less_than_none():
    excess = Bound(test="t", value=0.3, se=0.2, df=9, worst_value=0.45)
    assert at_most(excess, 0.05 / 38) == 0.45
    turned = Bound(
        test="t", value=0.3, se=0.2, df=9, direction=-1, no_effect=0.5, worst_value=0
    )
    assert at_most(turned, 0.05 / 38) == 0.0
    away = Bound(test="t", value=0.4, se=0.05, df=40, direction=-1)
    assert at_most(away, 0.05) == 0.0
    assert at_most(Bound(test="hits", value=9, n=9, worst_value=9), 0.05) == 9
    first = Bound(
        test="exposure", value=7.0, no_effect=1.4, n=12, size=128, worst_value=7.0
    )
    assert at_most(first, 0.05) == 7.0
    # Sides that were unequally hard may hide as much memory as they differed by.
    unequal = Bound(test="t", value=-0.1, se=0.05, df=20, direction=-1, tolerance=0.2)
    plain = Bound(test="t", value=-0.1, se=0.05, df=20, direction=-1)
    assert at_most(unequal, 0.01) == pytest.approx(at_most(plain, 0.01) - 0.2)


def test_no_trial_excludes_no_share_of_hits():
    assert at_most(Bound(test="hits", value=0, n=0), 0.05) == 1.0
    assert at_most(Bound(test="hits", value=0, n=0, worst_value=0), 0.05) == 0.0


@pytest.mark.parametrize("test", ["exposure", "hits", "rates"])
def test_only_a_t_test_may_have_a_leak_below_no_effect(test):
    with pytest.raises(ValueError, match=test):
        Bound(test=test, value=0.0, direction=-1)


def test_without_an_interval_there_is_no_bound():
    assert t_bound(None, None, df=4) == []
    assert t_bound(0.1, None, df=4) == []
    assert t_bound(0.1, 0.1, df=4) == []
    assert rate_side(np.zeros(1), np.ones(1), sign=1) is None


@pytest.mark.parametrize("n", [1, 5, 12])
def test_exposures_above_it_are_rejected_by_the_exact_test_of_the_mean(n):
    """By brute force: the mean of n canaries drawn as that test supposes."""
    size = 32
    level = 0.02
    mean = 1.7
    bits = np.asarray(exposure_bits(np.arange(1, size + 1), size))
    end = exposure_at_most(mean, n, size, significance=level)
    rng = np.random.default_rng(0)
    tilts = np.linspace(0, 6, 601)
    odds = np.exp(tilts[:, None] * (bits - bits.max()))
    odds /= odds.sum(axis=1, keepdims=True)
    means = odds @ bits
    for shift, is_rejected in ((0.3, True), (-0.3, False)):
        if end + shift > means[-1]:
            continue
        own_exposures = odds[np.searchsorted(means, end + shift)]
        drawn = rng.choice(bits, (20000, n), p=own_exposures).mean(axis=1)
        share = np.mean(drawn <= mean)
        # A canary of few may be remembered whole: the limit can be that of mixtures.
        assert share < level or not is_rejected
    assert means[0] < end <= bits.max()


def test_what_chance_alone_rejects_is_claimed_and_lies_above_the_null():
    null = null_mean([128] * 12)
    bar = null.quantile(1 - 0.01)
    assert exposure_at_most(bar, 12, 128, significance=0.01) > bar


def test_of_the_same_audit_it_is_close_to_the_inversion_of_the_permutation_test():
    rng = np.random.default_rng(3)
    trained = np.arange(60) < 36
    sides = Sides(trained, np.ones(60), np.arange(60), np.zeros((60, 1), int))
    change = rng.normal(0, 0.5, 60)
    result = memory(change, sides)
    (bound,) = t_bound(
        result.difference.value, result.difference.low, df=result.freedom, direction=-1
    )
    end = at_most(bound, 0.05)
    assert end < 0
    # Effects beyond it are rejected by permutations, too, and lesser ones are not.
    for scale, is_rejected in ((1.3, True), (0.7, False)):
        p = permutation_p(change - scale * end * trained, sides, seed=0)
        assert p is not None
        assert (p < 0.05) is is_rejected


def test_the_benchmarks_many_excesses_are_those_of_the_audit(benchmark):
    n = 40
    score, texts = np.random.default_rng(0).normal(size=(2, 3, 2 * n))
    score[:, :n] += 0.9
    many = benchmark.above_texts(score, texts)
    design = Design.of(np.arange(2 * n) < n, np.arange(2 * n).astype(str), None)
    for index in range(3):
        excess, p = auc_difference(design, score[index], texts[index])
        own_auc, chance_p = auc_estimate(design, score[index])
        assert excess.value is not None
        assert own_auc.value is not None
        assert own_auc.high is not None
        assert many.value[index] == pytest.approx(
            min(excess.value, own_auc.value - 0.5)
        )
        assert many.high[index] == pytest.approx(min(excess.high, own_auc.high - 0.5))
        smaller = excess if excess.value <= own_auc.value - 0.5 else own_auc
        assert many.df[index] == pytest.approx(smaller.df)
        assert many.p[index] == pytest.approx(max(p, chance_p))


@pytest.mark.parametrize("tests", [1, 38])
@pytest.mark.parametrize(
    "name",
    [
        "matched, highest dose of 8 clusters",
        "canary, 12, some remembered whole",
        "twins, 30 clusters",
        "mia, dose of 40 rows a side",
        "series, 15 rows a side",
        "extract, 30 and 20, none guessed",
    ],
)
def test_of_audits_that_found_nothing_few_have_more_than_at_most(
    benchmark, name, tests
):
    """Few audits: the whole table stands in ``benchmarks/at_most.md``."""
    outcome = benchmark.outcome(name, tests=tests, audits=150)
    assert outcome.nothing[0] >= 130
    # Of hundreds of audits, with three standard errors of a share of 5%.
    assert outcome.share <= 0.05 + 3 * (0.05 * 0.95 / sum(outcome.nothing)) ** 0.5
    # It is no trivial bound either.
    assert outcome.ends < 3

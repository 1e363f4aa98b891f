"""Smallest effects are found in 80% of audits once all tests of the report count."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from spark_audit.audits.extract.rate_limits import hits_power
from spark_audit.audits.extract.rates import (
    exact_p,
    limits_p,
    split_difference,
)
from spark_audit.stats.canary_ranks import exposure_bits, null_mean
from spark_audit.stats.clustered_roc import Design, auc_difference
from spark_audit.stats.estimate import Power
from spark_audit.stats.memory_contrast import Sides, memory
from spark_audit.stats.multiple_tests import correlated
from spark_audit.stats.permutation import least_p, permutation_p
from spark_audit.stats.power import smallest
from spark_audit.stats.sign_flips import sign_flip

FAMILIES = (4, 24)


@pytest.mark.parametrize("tests", [1, *FAMILIES])
@pytest.mark.parametrize("clusters", [5, 12, 60])
def test_of_students_t_as_statsmodels_has_it(clusters, tests):
    level = 0.05 / tests
    effect = TTestPower().solve_power(nobs=clusters, alpha=level, power=0.8)
    power = Power(test="t", se=0.3, df=clusters - 1)
    expected = 0.3 * effect * clusters**0.5
    assert smallest(power, level) == pytest.approx(expected, rel=1e-4)
    # Tests of the audit itself, and what is no evidence, come on top.
    stricter = replace(power, n_tests=2.0, tolerance=0.1)
    assert smallest(stricter, 2 * level) == pytest.approx(expected + 0.1, rel=1e-4)
    normal = Power(test="t", se=1.0)
    z = stats.norm.isf(level / 2) + stats.norm.isf(0.2)
    assert smallest(normal, level) == pytest.approx(z)


def test_what_few_clusters_cannot_show_has_no_smallest_effect():
    def flip(clusters: int) -> Power:
        least = 2.0 ** (1 - clusters)
        return Power(
            test="sign-flip", se=1.0, df=clusters - 1, n=clusters, least_p=least
        )

    assert smallest(flip(6), 0.05 / 4) is None
    assert smallest(flip(9), 0.05 / 24) is None
    # Only where all eight point one way is p 1/128: each does in 0.8 ** (1 / 8).
    smallest_of_one_test = smallest(flip(8), 1 / 100)
    assert smallest_of_one_test == pytest.approx(
        8**0.5 * stats.norm.ppf(0.8 ** (1 / 8)), rel=0.03
    )
    # One canary of 512 that ranks first has p 1/512.
    power_of_one = Power(test="exposure", n=1, size=512)
    assert smallest(power_of_one, 1 / 600) is None
    assert (smallest(power_of_one, 1 / 500) or 0) <= 9 - exposure_bits(
        range(1, 513), 512
    ).mean()
    assert smallest(Power(test="hits", n=3, ps=[0.5, 0.1, 0.02]), 0.01) is None
    sides = Sides(np.arange(7) < 4, np.ones(7), np.arange(7), np.zeros((7, 1), int))
    assert least_p(sides) == pytest.approx(1 / 35)
    # An AUC beyond 1 is none.
    assert (
        smallest(Power(test="t", se=0.2, df=9, largest_effect=0.5), 0.05 / 24) is None
    )


def test_what_a_family_of_correlated_tests_is_worth():
    def worth(correlation):
        return correlated(np.full(len(correlation), 0.5), correlation)[1]

    assert worth(np.eye(5)) == pytest.approx(5, rel=0.1)
    assert worth(np.ones((5, 5))) == pytest.approx(1, rel=0.1)
    alike = 0.9 * np.ones((6, 6)) + 0.1 * np.eye(6)
    assert 1.5 < worth(alike) < 5
    (p, *_), _ = correlated([0.0125 / worth(alike), *[0.9] * 5], alike)
    assert p == pytest.approx(0.0125, rel=0.1)


def matched(rng: np.random.Generator, effect: float, level: float) -> Iterator[float]:
    """Identifiers of trained rows against held-out ones, by Student's t."""
    trained = np.arange(50) < 30
    sides = Sides(
        trained, rng.integers(2, 6, 50), np.arange(50), np.zeros((50, 1), int)
    )
    change = rng.normal(0, 0.5, 50) * sides.tokens
    memory_result = memory(change, sides)
    se = memory_result.difference.se
    yield smallest(Power(test="t", se=se, df=memory_result.freedom), level) or np.inf
    moved = memory(change - effect * sides.tokens * trained, sides)
    yield moved.t_p() or 0.0


def twins(rng: np.random.Generator, effect: float, level: float) -> Iterator[float]:
    """A rise by a sign flip, and beyond that of held-out ones by permutations.

    Each is found in 80% at its own smallest effect: where both are equally hard, as
    with 12 against 20, the two together are in 70%.
    """
    n = 18
    m = 12
    rise = rng.normal(0, 1.5, n + m)
    trained = np.arange(n + m) < n
    sides = Sides(trained, np.ones(n + m), np.arange(n + m), np.zeros((n + m, 1), int))
    rise_beyond = memory(rise, sides)
    se = float(rise[:n].std(ddof=1) / n**0.5)
    flip = Power(test="sign-flip", se=se, df=n - 1, n=n, least_p=2.0 ** (1 - n))
    least = least_p(sides)
    t_power = Power(
        test="t", se=rise_beyond.difference.se, df=rise_beyond.freedom, least_p=least
    )
    yield max(smallest(power, level) or np.inf for power in (flip, t_power))
    risen = rise + effect * trained
    ahead = permutation_p(risen, sides, seed=0)
    assert ahead is not None
    yield max(sign_flip(risen[:n], seed=0), ahead)


def canary(rng: np.random.Generator, effect: float, level: float) -> Iterator[float]:
    """Mean exposure against chance; memory favours ranks by a power of them."""
    n = 25
    size = 512
    bits = np.asarray(exposure_bits(np.arange(1, size + 1), size))
    yield smallest(Power(test="exposure", n=n, size=size), level) or np.inf
    tilts = np.linspace(0, 5, 2000)
    odds = np.exp(tilts[:, None] * bits)
    odds /= odds.sum(axis=1, keepdims=True)
    first_rejected = int(np.searchsorted(odds @ bits, bits.mean() + effect))
    drawn = rng.choice(bits, n, p=odds[min(first_rejected, 1999)])
    yield null_mean([size] * n).above(float(drawn.mean()))


def mia(rng: np.random.Generator, effect: float, level: float) -> Iterator[float]:
    """AUC beyond that of the texts alone, paired over rows."""
    n = 120
    design = Design.of(np.arange(2 * n) < n, np.arange(2 * n).astype(str), None)
    score, texts = rng.normal(size=(2, 2 * n))
    excess, _ = auc_difference(design, score, texts)
    yield (
        smallest(Power(test="t", se=excess.se, df=2 * n - 1, largest_effect=0.5), level)
        or np.inf
    )
    score[:n] += 2**0.5 * stats.norm.ppf(min(0.5 + effect, 0.999))
    yield auc_difference(design, score, texts)[1] or 0.0


def hits(trained: int, held: int, n: int = 60, m: int = 40) -> pd.DataFrame:
    split = np.repeat(["train", "test"], [n, m])
    sure = np.concatenate([np.arange(n) < trained, np.arange(m) < held])
    facts = {"checkpoint": "x", "origin": "injected", "type": "SSN"}
    rows = {"split": split, "cluster": np.arange(n + m), "greedy_sure": sure}
    return pd.DataFrame({**facts, **rows, "greedy": sure})


@cache
def none_of_few() -> Power:
    return hits_power(hits(0, 0))


def extract(rng: np.random.Generator, effect: float, level: float) -> Iterator[float]:
    """Identifiers that come back: both the interval and Fisher's test."""
    yield smallest(none_of_few(), level) or np.inf
    frame = hits(int(rng.binomial(60, min(effect / 100, 1.0))), 0)
    difference = split_difference(frame.assign(trials=1, weight=1.0))
    yield max(limits_p(difference), exact_p(frame))


@pytest.mark.parametrize(
    "draws", [40, pytest.param(2000, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("tests", FAMILIES)
@pytest.mark.parametrize("audit", [matched, twins, canary, mia, extract])
def test_found_in_four_of_five(audit, tests, draws):
    rng = np.random.default_rng(tests)
    level = 0.05 / tests
    named = [next(audit(rng, 0.0, level)) for _ in range(min(draws, 200))]
    effect = float(np.median(named))
    n_found = sum(list(audit(rng, effect, level))[1] < level for _ in range(draws))
    low, high = stats.binom.interval(0.999, draws, 0.8)
    # Smallest effects follow from estimated errors: about 80%.
    assert low - 0.03 * draws <= n_found <= high + 0.03 * draws, n_found / draws

"""The trend over doses, beside weighted least squares."""

import numpy as np
import pytest
import statsmodels.api as sm

from spark_audit.stats.dose_trend import dose_trend
from spark_audit.stats.memory_contrast import NONE_HELD_OUT, Sides


@pytest.fixture
def doses():
    """60 trained identifiers of three types, which rose by 0.3 nats a doubling."""
    rng = np.random.default_rng(5)
    dose = rng.choice([1, 2, 4, 16], 60)
    type_code = rng.integers(0, 3, 60)
    tokens = rng.integers(1, 6, 60).astype(float)
    mean_change = -0.3 * np.log2(dose) + type_code + rng.normal(0, 0.2, 60)
    return dose, type_code, tokens, mean_change


def with_held_out(type_code, tokens):
    """The 60 and 12 held-out ones, four of each type, in a cluster each."""
    return Sides(
        trained=np.concatenate([np.ones(60, bool), np.zeros(12, bool)]),
        tokens=np.concatenate([tokens, np.ones(12)]),
        clusters=np.arange(72),
        strata=np.concatenate([type_code, np.tile([0, 1, 2], 4)])[:, None],
    )


def test_the_trend_is_the_weighted_slope_with_strata_of_their_own_level(doses):
    dose, type_code, tokens, mean_change = doses
    sides = with_held_out(type_code, tokens)
    change = np.concatenate([mean_change * tokens, np.zeros(12)])

    trend = dose_trend(change, sides, np.concatenate([dose, np.zeros(12)]))

    design = np.column_stack([np.log2(dose), np.eye(3)[type_code]])
    slope = sm.WLS(mean_change, design, weights=tokens).fit().params[0]
    assert trend.value == pytest.approx(slope, abs=1e-12)
    assert trend.low < -0.3 < trend.high


def test_equal_doses_have_no_trend(doses):
    _, type_code, tokens, _ = doses
    sides = with_held_out(type_code, tokens)

    everywhere = dose_trend(np.ones(72), sides, np.ones(72))
    assert everywhere.note == "all identifiers stand in equally many trained rows"

    # Doses differ between the types only.
    by_type = dose_trend(np.ones(72), sides, 1.0 + sides.strata[:, 0])
    assert by_type.note == "identifiers of one kind stand in equally many rows"


def test_without_held_out_identifiers_there_is_no_trend(doses):
    dose, type_code, tokens, mean_change = doses
    sides = Sides(
        trained=np.ones(60, bool),
        tokens=tokens,
        clusters=np.arange(60),
        strata=type_code[:, None],
    )
    assert dose_trend(mean_change, sides, dose).note == NONE_HELD_OUT

"""The share of rows that was trained on: by hand, in simulation, and where none is."""

import numpy as np
import pytest
from scipy import stats

from spark_audit.stats.trained_share import trained_share

TASKS = 2


def draw(seed: int, *, trained_share: float, rise: float) -> dict[str, np.ndarray]:
    """120 rows to test in clusters of 1 or 3, and 90 held-out rows, of two tasks."""
    rng = np.random.default_rng(seed)
    size = rng.choice([1, 3], 120)
    cluster = np.repeat(np.arange(120), size)[:210]
    is_held_out = cluster >= cluster[120]
    is_trained = (rng.random(120) < trained_share)[cluster] & ~is_held_out
    shared = rng.normal(0, 0.6, 120)[cluster]
    scores = shared + rng.normal(0, 0.8, 210) + rise * is_trained
    task = cluster % TASKS
    return {
        "scores": scores + 10.0 * task,
        "held_out": is_held_out,
        "task": task,
        "cluster": cluster,
    }


def test_the_share_is_what_is_above_the_median_beyond_half():
    """By plain counts; each held-out cluster of a task counts once."""
    rows = draw(0, trained_share=0.5, rise=2.0)
    like_held_out = 0
    tested = np.flatnonzero(~rows["held_out"])
    for i in tested:
        is_compared = rows["held_out"] & (rows["task"] == rows["task"][i])
        below = []
        for cluster in set(rows["cluster"][is_compared]):
            of_cluster = is_compared & (rows["cluster"] == cluster)
            below.append(np.mean(rows["scores"][of_cluster] < rows["scores"][i]))
        like_held_out += np.mean(below) <= 0.5 + 1e-9
    expected = 1 - 2 * like_held_out / len(tested)
    share = trained_share(**rows)
    assert share.value == pytest.approx(expected)
    assert share.n == len(tested)


@pytest.mark.parametrize(("true_share", "rise"), [(0.0, 1.0), (0.4, 1.0), (0.9, 3.0)])
def test_its_interval_holds_the_expected_share_and_begins_below_the_true_one(
    true_share, rise
):
    # Of trained rows, those above the median beyond those below it.
    expected = true_share * (1 - 2 * stats.norm.cdf(-rise))
    draws = 60
    n_holding = 0
    n_too_high = 0
    for seed in range(draws):
        rows = draw(seed, trained_share=true_share, rise=rise)
        share = trained_share(**rows, replicates=99, seed=seed)
        n_holding += share.low <= expected <= share.high
        n_too_high += share.low > true_share
    assert n_holding >= stats.binom.ppf(0.001, draws, 0.95)
    assert n_too_high <= stats.binom.ppf(0.999, draws, 0.025)


def test_the_interval_is_the_same_again_and_within_0_and_1():
    rows = draw(1, trained_share=1.0, rise=9.0)
    share = trained_share(**rows)
    assert share == trained_share(**rows)
    assert 0.9 < share.low <= share.value <= share.high <= 1


def test_rows_without_a_score_are_left_out():
    rows = draw(2, trained_share=0.5, rise=2.0)
    is_missing = np.arange(210) % 7 == 0
    missing = rows | {"scores": np.where(is_missing, np.nan, rows["scores"])}
    without = {name: values[~is_missing] for name, values in rows.items()}
    assert trained_share(**missing).value == trained_share(**without).value


def test_there_is_no_share_without_rows_on_both_sides():
    for held_out in ([True, True], [False, False]):
        share = trained_share([1.0, 2.0], held_out, [0, 0], [0, 1])
        assert share.status == "not_estimable"
    assert trained_share([np.nan] * 2, [True, False], [0, 0], [0, 1]).value is None

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats as scipy_stats

from spark_audit.stats.accuracy import ACCURACY_METRICS, reason_against
from spark_audit.stats.accuracy_intervals import (
    Answers,
    accuracy_difference,
    accuracy_estimate,
    cluster_shares,
)
from spark_audit.stats.bootstrap import draw_in_strata
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.sign_flips import sign_flip

GAP = float("nan")

# SPARK, table "Complete accuracy matrix from the reproduced PeCL implementation".
PECL = [
    [0.843, GAP, GAP, GAP, GAP, GAP],
    [0.813, 0.013, GAP, GAP, GAP, GAP],
    [0.810, 0.027, 0.800, GAP, GAP, GAP],
    [0.827, 0.050, 0.807, 0.943, GAP, GAP],
    [0.830, 0.080, 0.837, 0.943, 0.660, GAP],
    [0.780, 0.460, 0.880, 0.937, 0.667, 0.227],
]


def made(
    counts: list[int],
    *,
    stages: int,
    seed: int = 0,
    p: float = 0.7,
    rows: int = 2,
) -> Answers:
    """``counts`` clusters a task, each with one to ``rows`` questions."""
    rng = np.random.default_rng(seed)
    tasks = []
    clusters = []
    correct = []
    for task, count in enumerate(counts):
        for _ in range(count):
            cluster = len(set(clusters))
            own_share = np.clip(p + rng.normal(0, 0.2), 0, 1)
            for _ in range(int(rng.integers(1, rows + 1))):
                tasks.append(task)
                clusters.append(cluster)
                correct.append(rng.random(stages) < own_share)
    return Answers.of_rows(
        np.array(correct, dtype=float),
        np.array(tasks),
        np.array(clusters),
        n_tasks=len(counts),
        n_clusters=sum(counts),
    )


def accuracy_metrics(matrix: ArrayLike) -> dict[str, float]:
    """All figures that a matrix of accuracies has."""
    stages, tasks = np.shape(matrix)
    return {
        name: float(metric(np.asarray(matrix)))
        for name, metric in ACCURACY_METRICS.items()
        if reason_against(name, stages=stages, tasks=tasks) is None
    }


# --- figures of a matrix --------------------------------------------------------------


def test_the_papers_pecl_matrix_gives_the_papers_figures():
    metrics = accuracy_metrics(PECL)
    assert round(metrics["last"], 4) == 0.6585
    assert round(metrics["avg"], 4) == 0.6312
    assert round(metrics["bwt"], 4) == 0.0930
    # By hand: 0.063 - 0.38 - 0.043 + 0.006 - 0.007, over five.
    assert metrics["forgetting"] == pytest.approx(
        (0.063 - 0.38 - 0.043 + 0.006 - 0.007) / 5
    )
    assert metrics["learning_accuracy"] == pytest.approx(
        (0.843 + 0.013 + 0.800 + 0.943 + 0.660 + 0.227) / 6
    )


@pytest.mark.parametrize(
    ("stages", "tasks", "names"),
    [
        (1, 3, {"last"}),
        (2, 3, {"last"}),
        (4, 3, {"last"}),
        (1, 1, {"last", "avg", "learning_accuracy"}),
        (3, 3, set(ACCURACY_METRICS)),
    ],
)
def test_a_matrix_has_only_the_figures_that_its_shape_allows(stages, tasks, names):
    assert set(accuracy_metrics(np.full((stages, tasks), 0.5))) == names
    for name in ACCURACY_METRICS:
        reason = reason_against(name, stages=stages, tasks=tasks)
        assert (reason is None) == (name in names)


# --- intervals ------------------------------------------------------------------------


@pytest.mark.parametrize("metric", list(ACCURACY_METRICS))
def test_the_stratified_jackknife_is_that_by_hand(metric):
    answers = made([9, 14, 11], stages=3, seed=1)
    estimate = accuracy_estimate(answers, metric)
    value = accuracy_metrics(answers.matrix())[metric]
    strata = answers.strata()
    variances = []
    counts = []
    for task in range(3):
        held = np.flatnonzero(strata == task)
        squares = []
        for cluster in held:
            rest = Answers(
                np.delete(answers.correct, cluster, axis=0),
                np.delete(answers.trials, cluster, axis=0),
            )
            squares.append((accuracy_metrics(rest.matrix())[metric] - value) ** 2)
        counts.append(len(held))
        variances.append((len(held) - 1) / len(held) * sum(squares))
    df = sum(variances) ** 2 / sum(
        v**2 / (c - 1) for v, c in zip(variances, counts, strict=True)
    )
    reach = scipy_stats.t.ppf(0.975, df) * np.sqrt(sum(variances))
    assert estimate.value == pytest.approx(value)
    assert estimate.interval == "jackknife-t"
    assert (estimate.low, estimate.high) == pytest.approx(
        (value - reach, value + reach)
    )
    assert estimate.clusters == 34
    assert estimate.n == answers.trials.sum()


def test_one_task_gives_the_interval_of_a_rate():
    """Without strata it is the clustered rate of ``rate_estimate``, rare ones too."""
    for p in (0.6, 0.98):
        answers = made([40], stages=1, p=p, seed=3)
        estimate = accuracy_estimate(answers, "last")
        rate = rate_estimate(answers.correct[:, 0, 0], answers.trials[:, 0])
        assert estimate.interval == rate.interval
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
            (rate.value, rate.low, rate.high)
        )


@pytest.mark.parametrize("right", [0.0, 1.0])
@pytest.mark.parametrize("metric", ["last", "avg", "learning_accuracy"])
def test_accuracies_without_spread_have_an_interval(metric, right):
    answers = made([10, 20], stages=2)
    same = Answers(
        np.repeat(answers.trials[:, None], 2, axis=1) * right, answers.trials
    )
    estimate = accuracy_estimate(same, metric)
    assert estimate.value == right
    assert estimate.interval == "korn-graubard"
    assert 0.08 < estimate.high - estimate.low < 0.3
    assert accuracy_estimate(same, "bwt").low is None
    assert accuracy_estimate(same, "bwt").note


def test_percentile_interval_keeps_the_tasks_apart():
    answers = made([12, 25, 3], stages=3, seed=5)
    strata = answers.strata()
    weights = draw_in_strata(strata, replicates=400, seed=0)
    weights_by_cluster = weights.drawn[:, weights.column]
    for stratum in np.unique(strata):
        held = strata == stratum
        assert (weights_by_cluster[:, held].sum(axis=1) == held.sum()).all()
    drawn = weights.totals(answers.sums)
    estimate = accuracy_estimate(answers, "avg", drawn=drawn)
    drawn = []
    for row in weights_by_cluster:
        copy = Answers(
            answers.correct * row[:, None, None], answers.trials * row[:, None]
        )
        drawn.append(accuracy_metrics(copy.matrix())["avg"])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (estimate.parity_low, estimate.parity_high) == pytest.approx((low, high))


def test_a_source_in_several_tasks_is_one_cluster():
    """Answers that agree within such a source widen the interval."""
    rng = np.random.default_rng(0)
    right = rng.random(30) < 0.6
    tasks = np.repeat([0, 1], 30)
    correct = np.concatenate([right, right])[:, None].astype(float)
    together = Answers.of_rows(
        correct, tasks, np.tile(np.arange(30), 2), n_tasks=2, n_clusters=30
    )
    separate = Answers.of_rows(correct, tasks, np.arange(60), n_tasks=2, n_clusters=60)
    estimate_together, two = (
        accuracy_estimate(a, "last") for a in (together, separate)
    )
    assert estimate_together.clusters == 30
    assert estimate_together.se == pytest.approx(np.sqrt(2) * two.se, rel=0.03)  # type: ignore[operator]


# --- paired ---------------------------------------------------------------------------


def test_forgetting_has_no_shares():
    with pytest.raises(ValueError, match="forgetting"):
        cluster_shares(made([5, 5], stages=2), "forgetting")


def test_a_difference_is_paired():
    answers = made([30, 30], stages=2, seed=4)
    worse = answers.correct.copy()
    right_clusters = np.flatnonzero(answers.correct[:, 1].sum(axis=1) > 0)[:6]
    worse[right_clusters, 1] = 0
    worse_answers = Answers(worse, answers.trials)
    estimate = accuracy_difference(answers, worse_answers, "last")
    gap = (
        accuracy_metrics(answers.matrix())["last"]
        - accuracy_metrics(worse_answers.matrix())["last"]
    )
    assert estimate.value == pytest.approx(gap)
    estimate_alone = accuracy_estimate(answers, "last")
    assert estimate.se < 0.8 * estimate_alone.se  # type: ignore[operator]
    share_differences = cluster_shares(answers, "last") - cluster_shares(
        worse_answers, "last"
    )
    assert sign_flip(share_differences, seed=0) == pytest.approx(2 / 2**6)


def test_other_questions_cannot_be_compared():
    with pytest.raises(ValueError, match="questions"):
        accuracy_difference(
            made([9, 9], stages=2), made([9, 9], stages=2, seed=9), "last"
        )

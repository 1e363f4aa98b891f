"""What audits could detect, against other libraries' power and plain sums."""

import math

import numpy as np
import pytest
import scipy
from statsmodels.stats.power import TTestIndPower, TTestPower

from spark_audit.audits.known import all_audits
from spark_audit.audits.matched.planned import MEMORY_SD
from spark_audit.audits.mia.score_tables import DECLARED_SCORES
from spark_audit.audits.planned_effects import (
    AuditSizes,
    PlannedEffect,
    RankedSizes,
    units_needed,
)
from spark_audit.manifest.overview import CLUSTER_SD
from spark_audit.planning.effects import planned_effects
from spark_audit.planning.epsilon import EpsilonPlan
from spark_audit.stats.clustered_roc import Design

LEVEL = 0.01


def design(n_members: int, n_others: int, n_tasks: int = 1) -> Design:
    """Rows of equal tasks, each a cluster of its own."""
    is_member = ([True] * n_members + [False] * n_others) * n_tasks
    tasks = np.repeat(np.arange(n_tasks), n_members + n_others)
    return Design.of(is_member, np.arange(len(is_member)), tasks)


def sizes(n_trained: int, n_held_out: int, rows: Design | None = None) -> AuditSizes:
    return AuditSizes(
        n_trained=n_trained,
        n_held_out=n_held_out,
        n_with_control=n_trained // 2,
        rows=rows or design(n_trained, n_held_out),
        n_candidates=512,
        canaries={
            "full": RankedSizes(n_trained=40, n_held_out=40, n_candidates=512),
            "ssn": RankedSizes(n_trained=30, n_held_out=40, n_candidates=512),
        },
        twins=RankedSizes(n_trained=150, n_held_out=50, n_candidates=32),
    )


def effects(of: AuditSizes, level: float = LEVEL) -> dict[str, PlannedEffect]:
    found = {}
    for audit in all_audits().values():
        for effect in audit.planned_effects(of, significance=level):
            found[effect.figure] = effect
    return found


@pytest.fixture(scope="module")
def planned() -> dict[str, PlannedEffect]:
    return effects(sizes(207, 102, design(80, 120, 2)))


def test_memory_is_the_power_of_two_samples(planned):
    d = TTestIndPower().solve_power(nobs1=207, ratio=102 / 207, alpha=LEVEL, power=0.8)
    assert planned["memory"].effect == pytest.approx(MEMORY_SD * d, rel=1e-4)


def test_the_units_needed_are_the_fewest_at_this_ratio(planned):
    n_trained, n_held_out = planned["memory"].needed
    d = planned["memory"].target / MEMORY_SD

    def power(trained: int, held_out: int) -> float:
        ratio = held_out / trained
        return TTestIndPower().power(d, nobs1=trained, alpha=LEVEL, ratio=ratio)

    assert power(n_trained, n_held_out) >= 0.8
    fewer = n_held_out - 1
    assert power(math.ceil(fewer * 207 / 102), fewer) < 0.8


def test_selectivity_is_the_power_of_one_sample(planned):
    d = TTestPower().solve_power(nobs=103, alpha=LEVEL, power=0.8)
    effect = planned["selectivity"]
    assert effect.effect == pytest.approx(CLUSTER_SD * d, rel=1e-4)
    assert effect.n_held_out is None
    needed = TTestPower().solve_power(
        effect_size=effect.target / CLUSTER_SD, alpha=LEVEL, power=0.8
    )
    assert effect.needed == (math.ceil(needed), None)


def test_twins_have_the_spread_of_uniform_ranks(planned):
    ranks = np.arange(1, 33)
    sd = np.log2(ranks).std()
    d = TTestIndPower().solve_power(nobs1=150, ratio=50 / 150, alpha=LEVEL, power=0.8)
    # The exposure of a rank is its logarithm, up to a constant.
    assert planned["rise"].effect == pytest.approx(sd * d, rel=1e-3)


def test_an_auc_has_the_error_of_the_rank_sum_test(planned):
    # Two tasks of 80 and 120 rows; the level is divided among the scores.
    n_members, n_others = 160, 240
    error = math.sqrt((n_members + n_others + 1) / (12 * n_members * n_others))
    z = scipy.stats.norm.isf(LEVEL / len(DECLARED_SCORES) / 2) + scipy.stats.norm.ppf(
        0.8
    )
    assert planned["auc"].effect == pytest.approx(z * error, rel=0.02)


def test_a_simulated_attack_of_the_planned_auc_is_found_in_eight_of_ten():
    found = effects(sizes(50, 50, design(150, 150)), 0.05)["auc"].effect
    # Normal scores whose means differ so that the AUC is 0.5 and the effect.
    shift = math.sqrt(2) * scipy.stats.norm.ppf(0.5 + found)
    rng = np.random.default_rng(0)
    members = rng.normal(shift, size=(600, 150))
    others = rng.normal(size=(600, 150))
    p = scipy.stats.mannwhitneyu(members, others, axis=1).pvalue
    share = (p < 0.05 / len(DECLARED_SCORES)).mean()
    assert 0.75 < share < 0.87


def test_rates_need_enough_held_out_groups_in_each_task(planned):
    # 120 in each of two tasks resolve 1% and not 0.1%.
    assert planned["tpr_at_fpr_1"].effect is not None
    assert planned["tpr_at_fpr_0.1"].effect is None
    assert planned["tpr_at_fpr_0.1"].needed[1] >= 2000
    few = effects(sizes(50, 50, design(200, 99)))
    assert few["tpr_at_fpr_1"].effect is None
    assert few["tpr_at_fpr_1"].needed[1] >= 100


def test_a_rate_is_found_beyond_those_of_random_scores(planned):
    # One of 120 non-members may be above the threshold of a task.
    rng = np.random.default_rng(0)
    hits = np.zeros(200_000)
    for _ in range(2):
        chance = rng.beta(2, 119, 200_000)
        hits += rng.binomial(80, chance)
    needed = next(h for h in range(161) if (hits >= h).mean() <= LEVEL)
    rate = planned["tpr_at_fpr_1"].effect / 100
    assert scipy.stats.binom.sf(needed - 1, 160, rate) == pytest.approx(0.8, abs=0.03)


def test_extraction_is_found_where_fishers_test_rejects(planned):
    effect = planned["reproduced"].effect / 100
    needed = next(
        hits
        for hits in range(1, 208)
        if scipy.stats.fisher_exact([[hits, 207 - hits], [0, 102]]).pvalue < LEVEL
    )
    rate_of_fisher = scipy.optimize.brentq(
        lambda rate: scipy.stats.binom.sf(needed - 1, 207, rate) - 0.8, 1e-6, 1
    )
    # The interval of the difference must agree, which may take a hit more.
    rate_of_next = scipy.optimize.brentq(
        lambda rate: scipy.stats.binom.sf(needed + 1, 207, rate) - 0.8, 1e-6, 1
    )
    assert rate_of_fisher - 1e-6 <= effect <= rate_of_next + 1e-6


def test_exposure_is_that_of_the_part_with_the_fewest_canaries(planned):
    effect = planned["exposure"]
    assert effect.n_trained == 30
    # Memory makes ranks likelier in proportion to a power of them.
    bits = 9 - np.log2(np.arange(1, 513))

    def chances(power: float) -> np.ndarray:
        weights = np.arange(1, 513) ** -power
        return weights / weights.sum()

    wanted = bits.mean() + effect.effect
    power = scipy.optimize.brentq(lambda s: chances(s) @ bits - wanted, 0, 5)
    rng = np.random.default_rng(0)
    by_chance = rng.choice(bits, (40_000, 30)).mean(axis=1)
    remembered = rng.choice(bits, (40_000, 30), p=chances(power)).mean(axis=1)
    # The level is that of one of two parts.
    critical = np.quantile(by_chance, 1 - LEVEL / 2)
    assert (remembered >= critical).mean() == pytest.approx(0.8, abs=0.02)


def test_the_level_is_divided_among_the_claims_of_a_report():
    of = sizes(207, 102)
    divided = {effect.figure: effect for effect in planned_effects(of)}
    # matched, canary, twins, mia and extract.
    assert divided["memory"].effect == effects(of, 0.05 / 5)["memory"].effect


@pytest.mark.parametrize(("n_trained", "n_held_out"), [(0, 0), (1, 40), (40, 0)])
def test_an_empty_side_detects_nothing_and_says_what_is_needed(n_trained, n_held_out):
    empty = AuditSizes(
        n_trained=n_trained,
        n_held_out=n_held_out,
        n_with_control=0,
        rows=Design.of([], []),
        n_candidates=512,
    )
    for effect in planned_effects(empty):
        assert effect.effect is None
        assert effect.needed is not None


def test_no_number_is_needed_where_the_target_is_reached():
    assert units_needed(lambda n, m: 1 / n, 10, 10, target=0.1) is None
    assert units_needed(lambda n, m: 1 / n, 10, 20, target=0.05) == (20, 40)
    assert units_needed(lambda n, m: 1.0, 10, 20, target=0.05) is None


def epsilon_of(n: int, n_rows: int = 1) -> list[EpsilonPlan]:
    from types import SimpleNamespace

    from spark_audit.planning.epsilon import epsilon_plans

    canaries = []
    for number in range(n):
        for held_out in (False, True):
            canaries.append(
                SimpleNamespace(
                    part="full",
                    candidates=["x"] * 64,
                    true_index=0,
                    contexts=[0],
                    held_out=held_out,
                    dose=0 if held_out else n_rows,
                    pair=f"p{number}",
                )
            )
    return epsilon_plans(
        SimpleNamespace(
            canaries=canaries,
            redacted_from=None,
            settings=SimpleNamespace(n_candidates=64),
            examples=range(1000),
        )
    )


def test_the_largest_epsilon_by_ranks_follows_from_clopper_and_pearson():
    # 20 of 20 first among 64: the lower limit of the rate is 0.05 ** (1 / 20).
    plan = epsilon_of(20)[1]
    limit = 0.05 ** (1 / 20)
    # Replacing a canary is removing one row and adding one.
    expected = (scipy.special.logit(limit) + math.log(63)) / 2
    assert plan.largest == pytest.approx(expected)
    assert epsilon_of(20, n_rows=4)[1].largest == pytest.approx(expected / 4)


def test_the_largest_epsilon_by_pairs_is_that_of_all_guesses_right():
    # 50 of 100 pairs are guessed, each right with a chance of expit(2 epsilon) at
    # most; with a delta a little less is refuted.
    plan = epsilon_of(100)[0]
    rate = 0.05 ** (1 / 50)
    without_delta = scipy.special.logit(rate) / 2
    assert 0.9 * without_delta < plan.largest <= without_delta


def test_as_many_pairs_as_are_needed_refute_a_claim():
    needed = epsilon_of(10)[0].needed
    assert needed == {0.5: 19, 1.0: 47, 2.0: 359}
    assert epsilon_of(47)[0].largest > 1 >= epsilon_of(46)[0].largest

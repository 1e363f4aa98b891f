"""What all stages of a run give away beyond the last: figures, claims, and reasons."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from spark_audit.audits import SeriesAttack
from spark_audit.audits.base import Context
from spark_audit.audits.series.staged_rows import NONE_SCORED_BY_ALL
from spark_audit.results import AuditResult, Finding, Row
from spark_audit.results.evidence import Evidence

TASKS = 4
CONTEXT = Context(replicates=200)


def evidence(
    seed: int,
    *,
    learned: float = 0.0,
    share_kept: float = 0.5,
    shift: float = 0.0,
    place: bool = True,
    stages: int = TASKS,
    held_out: int = 20,
) -> Evidence:
    """A series that learns each task's members at its stage and keeps a share.

    Parameters
    ----------
    learned
        Nats per token by which a member's NLL falls at its own stage, times 0 to 2.
    kept
        Share of it that is left after each later stage.
    shift
        Nats per token by which held-out rows become likelier than members, or less,
        and what a guess at the texts sees.
    """
    rng = np.random.default_rng(seed)
    member = np.tile(np.arange(30 + held_out) < 30, TASKS)
    task = np.repeat(np.arange(TASKS), 30 + held_out)
    n = len(member)
    units = pd.DataFrame(
        {
            "example": [f"row-{i}" for i in range(n)],
            "task": [f"t{k}" for k in task],
            "cluster": [f"c{i // 2}" for i in range(n)],
            "member": member,
            "dose": 0,
        }
    )
    base = rng.normal(3, 0.5, n)
    dose = learned * rng.uniform(0, 2, n) * member
    texts = rng.normal(size=n) + 3 * bool(shift) * member
    unknown = np.full(n, np.nan)

    def measured():
        yield "base", {"nll": base, "trained_at": unknown, "texts": texts}
        for stage in range(1, stages + 1):
            age = stage - 1 - task
            still_known = np.where(
                age >= 0, dose * share_kept ** np.maximum(age, 0), 0.0
            )
            drift = rng.normal(0.1 * stage, 0.2, n)
            nll = base - drift - still_known - shift * member
            stage_effect = (task + 1.0) * place
            yield (
                f"run@{stage}",
                {"nll": nll, "trained_at": stage_effect, "texts": unknown},
            )

    return Evidence.of(units, measured())


def concluded(series_evidence: Evidence) -> tuple[AuditResult, Finding]:
    result = SeriesAttack().conclude(series_evidence, CONTEXT)
    assert all(finding.sentence for finding in result.findings)
    return result, result.findings[0]


def pooled(result: AuditResult, metric: str, variant: str = "") -> Row:
    (row,) = (
        r
        for r in result.results
        if (r.metric, r.variant, r.group) == (metric, variant, "pooled")
    )
    return row


def test_the_score_is_the_largest_fall_since_the_own_stage():
    """By a plain computation, and scikit-learn's AUC averaged over tasks."""
    series_evidence = evidence(3, learned=0.5)
    result, _ = concluded(series_evidence)
    nll = series_evidence.values["nll"]
    task = series_evidence.units["task"].str[1:].astype(int).to_numpy()
    best = []
    last = []
    step = []
    for i, k in enumerate(task):
        falls = [nll[0, i] - nll[stage, i] for stage in range(1, TASKS + 1)]
        best.append(max(falls[k:]))
        last.append(falls[-1])
        step.append(falls[k] - (falls[k - 1] if k else 0.0))
    for of, score in (("series", best), ("last", last), ("step", step)):
        by_task = [
            roc_auc_score(
                series_evidence.units["member"][task == k], np.array(score)[task == k]
            )
            for k in range(TASKS)
        ]
        assert pooled(result, "auc", of).value == pytest.approx(np.mean(by_task))
    gain = pooled(result, "auc", "series").value - pooled(result, "auc", "last").value
    assert pooled(result, "auc_gain").value == pytest.approx(gain)


def test_what_was_forgotten_is_found_by_the_series():
    result, claims = concluded(evidence(1, learned=0.6, share_kept=0.3))
    assert claims.claim == "membership"
    assert claims.facts["adds"]
    rates = [pooled(result, "tpr_at_fpr_10", of).value for of in ("series", "last")]
    assert rates[0] > 1.3 * rates[1]
    assert pooled(result, "auc_gain").low > 0


def test_nothing_is_claimed_of_what_nobody_learned():
    claims = 0
    adds = 0
    for seed in range(10):
        _, claims_of_series = concluded(evidence(seed))
        claims += claims_of_series.claim == "membership"
        is_added = claims_of_series.says == "series.membership_added"
        assert is_added == (
            claims_of_series.claim == "membership"
            and bool(claims_of_series.facts["adds"])
        )
        adds += bool(claims_of_series.facts["adds"])
    # 10 tests at 5%: more than 3 have a probability of 0.1%.
    assert claims <= 3
    assert adds <= 3


def test_texts_that_differ_are_no_membership():
    """Held-out rows of another kind: everything is told apart, nothing is claimed."""
    for seed in range(4):
        _, claims = concluded(evidence(seed, shift=0.3))
        assert claims.claim in ("confounded", "nothing_shown")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"place": False}, "order"),
        ({"held_out": 4}, "fewer than 10"),
    ],
)
def test_why_a_series_cannot_be_tested(fields, why):
    result, claims = concluded(evidence(0, **fields))
    assert claims.claim == "not_tested"
    assert claims.says == "series.missing"
    assert why in claims.facts["reason"]
    (row,) = result.results
    assert row.value is None
    assert why in row.note


@pytest.mark.parametrize("unscored", ["base", "run@2"])
def test_a_series_that_shares_no_scored_row_is_not_said_to_have_few(unscored):
    """All tasks are large; a model that was scored on no row is why none is tested."""
    series_evidence = evidence(0, learned=0.5)
    scores = {
        name: {
            "nll": series_evidence.row(name, "nll")
            * (np.nan if name == unscored else 1.0),
            "trained_at": series_evidence.row(name, "trained_at"),
            "texts": series_evidence.row(name, "texts"),
        }
        for name in series_evidence.checkpoints
    }
    _, claims = concluded(Evidence.of(series_evidence.units, scores.items()))
    assert claims.says == "series.missing"
    assert NONE_SCORED_BY_ALL in claims.facts["reason"]


def test_the_table_goes_stage_by_stage():
    result, _ = concluded(evidence(5, learned=0.6, share_kept=0.3))
    table = result.tables["series_stages"]
    assert [line["stage"] for line in table] == [1, 2, 3, 4]
    assert table[0]["series_value"] == table[0]["last_value"]
    assert table[-1]["series_value"] == pooled(result, "auc", "series").value


def coin_evidence(
    seed: int, *, coins: int = 60, learned: float = 0.0, share_kept: float = 0.0
) -> Evidence:
    """Planted canaries and what could have been planted in their place, no rows.

    Which of both was planted is a coin; it is learned at its own stage, and a share of
    that is kept after each later one.
    """
    rng = np.random.default_rng(seed)
    task = np.arange(coins) % TASKS
    units = pd.DataFrame(
        {
            "example": [f"row-{i // 2}" for i in range(2 * coins)],
            "task": [f"t{k}" for k in np.repeat(task, 2)],
            "cluster": [f"c{i // 2}" for i in range(2 * coins)],
            "member": np.tile([True, False], coins),
            "dose": 1,
        }
    )
    base = rng.normal(3, 0.5, (coins, 2))
    unknown = np.full(2 * coins, np.nan)

    def measured():
        yield "base", {"nll": base.ravel(), "trained_at": unknown, "texts": unknown}
        for stage in range(1, TASKS + 1):
            age = stage - 1 - task
            nll = base - rng.normal(0.1 * stage, 0.2, base.shape)
            nll[:, 0] -= np.where(
                age >= 0, learned * share_kept ** np.maximum(age, 0), 0.0
            )
            own_stage = np.repeat(task + 1.0, 2)
            yield (
                f"run@{stage}",
                {"nll": nll.ravel(), "trained_at": own_stage, "texts": unknown},
            )

    return Evidence.of(units, measured())


def bounds_of(series_evidence: Evidence) -> dict[str, dict]:
    result, claims = concluded(series_evidence)
    assert claims.claim == "not_tested"  # a coin is no row
    return {record["variant"]: record for record in result.tables["series_epsilon"]}


def test_what_was_learned_and_forgotten_bounds_epsilon_by_the_series():
    bounds = bounds_of(coin_evidence(1, learned=1.0, share_kept=0.1))
    series = bounds["series"]
    last = bounds["last"]
    assert (series["pairs"], series["guesses"], series["rows_per_canary"]) == (
        60,
        30,
        1,
    )
    assert series["epsilon_per_record"] > last["epsilon_per_record"] + 0.5
    # 5 % over both bounds: odds of the limit of a binomial's rate.
    low = stats.beta.ppf(0.025, series["right_guesses"], 31 - series["right_guesses"])
    bound = np.log(low / (1 - low))
    assert series["epsilon_per_record"] == pytest.approx(bound, rel=1e-3)
    bounds_when_kept = bounds_of(coin_evidence(2, learned=1.0, share_kept=1.0))
    assert bounds_when_kept["last"]["epsilon_per_record"] > 0.5


def test_coins_that_nobody_learned_bound_nothing():
    """Half of the canaries' strings are likelier than the other by themselves."""
    above = 0
    for seed in range(80):
        bounds = bounds_of(coin_evidence(seed, coins=24))
        above += any(record["epsilon_per_record"] > 0 for record in bounds.values())
    assert above <= 4

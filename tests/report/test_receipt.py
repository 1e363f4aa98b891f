"""A claim of differential privacy: contradicted where it fails, and only there."""

import json
from typing import Any

import numpy as np
import pytest
import scipy
from made_reports import made_report

from spark_audit.cli.main import run
from spark_audit.errors import InputError
from spark_audit.files import write_text
from spark_audit.report.receipt import Claim, canaries_needed, receipts
from spark_audit.results import Report
from spark_audit.sentences import render
from spark_audit.stats.epsilon_bounds import declared_guesses


def report(**checkpoints: Any) -> Report:
    """Right guesses and hits of a checkpoint: 200 pairs, 200 canaries of 512."""
    guesses = declared_guesses(200)
    shared = {"part": "full", "dose": "all", "declared": True, "rows_per_canary": 1}
    shared |= {"epsilon_per_record": 0.0, "says": "a bound of 0 proves nothing"}
    coins = []
    places = []
    for name, (right, hits, more_fields) in checkpoints.items():
        record = {"checkpoint": name, **shared, **more_fields}
        coins.append(
            record | {"pairs": 200, "guesses": guesses, "right_guesses": right}
        )
        places.append(record | {"k": 1, "canaries": 200, "hits": hits})
    doses = [{"checkpoint": "base", "part": "full", "dose": 0, "exposure_most": 9.0}]
    tables = {"canary_one_run": coins, "canary_epsilon": places}
    return made_report(*checkpoints, tables={**tables, "canary_by_dose": doses})


@pytest.mark.parametrize(
    ("n_runs", "most"),
    [(50, 5), pytest.param(200, 16, marks=pytest.mark.slow)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("claim", [Claim(epsilon=0.5), Claim(epsilon=1, delta=1e-5)])
def test_what_is_private_is_contradicted_in_one_of_twenty(claim, n_runs, most):
    """Randomised response: the mechanism that gives most away under its epsilon."""
    rng = np.random.default_rng(3)
    doubled_epsilon = 2 * claim.epsilon
    coin = scipy.special.expit(doubled_epsilon)
    chance = np.exp(doubled_epsilon) / (np.exp(doubled_epsilon) + 511)
    contradicted = 0
    for _ in range(n_runs):
        right = rng.binomial(declared_guesses(200), coin)
        attacked = report(x=(int(right), int(rng.binomial(200, chance)), {}))
        (receipt,) = receipts(attacked, claim)
        assert receipt.state in ("contradicted", "consistent")
        contradicted += receipt.state == "contradicted"
    # One of twenty, and two standard errors.
    assert contradicted <= most


@pytest.mark.parametrize(
    "claim",
    [
        Claim(epsilon=1, delta=1e-5),
        Claim(epsilon=3, delta=1e-5, relation="replace"),
        Claim(epsilon=4),
        Claim(epsilon=8, relation="replace"),
    ],
)
def test_a_run_without_noise_is_contradicted_where_theory_allows_it(claim):
    rng = np.random.default_rng(4)
    seen = 0
    for _ in range(20):
        right = rng.binomial(declared_guesses(200), 0.999)
        attacked = report(x=(int(right), int(rng.binomial(200, 0.999)), {}))
        (receipt,) = receipts(attacked, claim)
        seen += receipt.state == "contradicted"
    assert seen >= 16


def test_what_cannot_be_contradicted_says_so_and_what_could():
    attacked = report(x=(100, 200, {}))
    (receipt,) = receipts(attacked, Claim(epsilon=2, delta=1e-5))
    assert (receipt.state, receipt.needed) == ("cannot_tell", 359)
    needed = render("epsilon.needed_coins", needed=359)
    assert needed in receipt.sentence(Claim(epsilon=2, delta=1e-5))
    (receipt,) = receipts(attacked, Claim(epsilon=8, delta=1e-5))
    assert (receipt.state, receipt.needed) == ("cannot_tell", None)
    withheld = report(x=(100, 200, {"epsilon_per_record": None, "says": "no control"}))
    (receipt,) = receipts(withheld, Claim(epsilon=1, delta=1e-5))
    assert (receipt.state, receipt.why) == ("cannot_tell", "no control")


def test_several_checkpoints_share_the_level_and_rows_their_group():
    claim = Claim(epsilon=1, delta=1e-5)
    bound_alone = receipts(report(x=(96, 0, {})), claim)[0].bound
    among = receipts(report(x=(96, 0, {}), y=(50, 0, {})), claim)[0].bound
    rows = receipts(report(x=(96, 0, {"rows_per_canary": 4})), claim)[0].bound
    assert rows < among < bound_alone
    claim_of_canary = Claim(epsilon=1, delta=1e-5, unit="canary")
    assert (
        receipts(report(x=(96, 0, {"rows_per_canary": 4})), claim_of_canary)[0].bound
        == bound_alone
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1, 1e-5), (2, 1e-6)])
def test_one_canary_fewer_than_needed_does_not_do(epsilon, delta):
    claim = Claim(epsilon=epsilon, delta=delta)
    needed = canaries_needed(claim)
    for count, enough in ((needed, True), (needed - 1, False)):
        guesses = declared_guesses(count)
        q = scipy.special.expit(2 * epsilon)
        p = q**guesses
        group = delta * (1 + np.exp(epsilon))
        tail = np.arange(1, guesses + 1)
        mass = scipy.stats.binom.pmf(guesses - tail, guesses, q)
        p += 2 * count * group * float((np.cumsum(mass) / tail).max())
        assert (p <= 0.05) == enough


def test_the_command_ends_by_whether_epsilon_is_contradicted(tmp_path, capsys):
    write_text(tmp_path / "report.json", report(x=(100, 3, {})).model_dump_json())
    call = ["epsilon", str(tmp_path), "--claims"]
    assert run([*call, "1", "--delta", "1e-5"]) == 1
    assert capsys.readouterr().out.startswith("x: CONTRADICTED: ")
    assert run([*call, "8", "--delta", "1e-5"]) == 0
    assert run([*call, "-1"]) == 2
    assert run([*call, "1", "--delta", "2"]) == 2
    empty = made_report("x").model_dump_json()
    write_text(tmp_path / "report.json", empty)
    capsys.readouterr()
    assert run([*call, "1"]) == 2
    assert "`spark-audit data inject`" in capsys.readouterr().err


def test_what_the_runs_accountant_states(tmp_path, capsys):
    write_text(tmp_path / "report.json", report(x=(50, 0, {})).model_dump_json())
    call = ["epsilon", str(tmp_path), "--claims", "1", "--run"]
    privacy: dict[str, Any] = {"epsilon": {"a": 0.5, "b": 2.5}, "delta": 1e-4}
    for facts, message in (
        (privacy | {"accountant": "prv"}, "2.500"),
        ({"no_epsilon": "of no method."}, "of no method."),
        ({}, "epsilon"),
    ):
        write_text(tmp_path / "run.json", json.dumps({"privacy": facts}))
        assert run([*call, str(tmp_path)]) == 0
        assert message in capsys.readouterr().out
    for content in ("{}", "[]", "x"):
        write_text(tmp_path / "run.json", content)
        assert run([*call, str(tmp_path)]) == 2
        assert f"error: {tmp_path}: " in capsys.readouterr().err


def test_a_claim_is_one_that_can_be():
    for epsilon, delta in ((-1, 0), (float("nan"), 0), (1, 1), (1, -0.1)):
        with pytest.raises(InputError):
            Claim(epsilon=epsilon, delta=delta)

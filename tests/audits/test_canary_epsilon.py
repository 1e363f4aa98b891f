"""The canary audit's lower bounds of epsilon: by guesses, and by coins of one run."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from audited import canary, evidence, said
from planted_canaries import PARTS, guard

from spark_audit.audits.canary.epsilon import one_run_table
from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.audits.canary.ranks import ranked
from spark_audit.sentences import render
from spark_audit.stats.epsilon_bounds import candidate_guess_bound, one_run_bound


def bound_sentence(key: str, record: dict[str, Any], assumed: str) -> str:
    """The sentence of a key on the bound of a record, by how canaries were chosen."""
    return render(
        f"canary.{key}",
        **record,
        epsilon=record["epsilon_per_record"],
        assumed=assumed,
    )


def test_epsilon_is_bounded_per_canary_and_per_record(plant_canaries):
    planted = plant_canaries(n=50, held=0, doses=(1, 6), size=512)
    result = canary(planted.tables(loud=9.0), planted.manifest)
    by_dose_and_k = {
        (r["dose"], r["k"]): r
        for r in result.tables["canary_epsilon"]
        if r["part"] == "full"
    }
    assert set(by_dose_and_k) == {(d, k) for d in ("all", "1", "6") for k in (1, 10)}
    all_doses = by_dose_and_k["all", 1]
    assert (all_doses["hits"], all_doses["rows_per_canary"]) == (50, 6)
    assert all_doses["epsilon_per_canary"] == pytest.approx(9.0211, abs=5e-5)
    assert all_doses["epsilon_per_record"] == pytest.approx(9.0211 / 6, abs=5e-5)
    assert all_doses["add_remove_per_record"] == pytest.approx(9.0211 / 12, abs=5e-5)
    # 3 parts x 3 doses x 2 k, less the declared one, hold together.
    for (dose, k), n in {("all", 10): 50, ("1", 1): 25, ("6", 10): 25}.items():
        bound = candidate_guess_bound(
            n, n, n_candidates=512, k=k, significance=0.05 / 17
        )
        assert by_dose_and_k[dose, k]["epsilon_per_canary"] == pytest.approx(
            bound.canary
        )
        assert by_dose_and_k[dose, k]["significance"] == pytest.approx(0.05 / 17)
        said_of_bound = by_dose_and_k[dose, k]["says"]
        expected = bound_sentence("bounded_other", by_dose_and_k[dose, k], "drawn")
        assert said_of_bound == expected
    assert [r["declared"] for r in by_dose_and_k.values()].count(True) == 1
    assert all_doses["declared"]
    once = by_dose_and_k["1", 1]
    assert once["epsilon_per_record"] == once["epsilon_per_canary"]
    assert all_doses["says"] == bound_sentence("bounded", all_doses, "drawn")
    drawn = render("canary.drawn")
    assert drawn in all_doses["says"]
    quiet = canary(planted.tables(loud=9.0, quiet=0.0), planted.manifest)
    nothing = [r for r in quiet.tables["canary_epsilon"] if r["checkpoint"] == "quiet"]
    assert {r["says"] for r in nothing} == {render("canary.bound_of_0")}
    assert drawn in said(quiet, "loud")
    # Two checkpoints share the 5 % of declared bounds, and of the others.
    for record in quiet.tables["canary_epsilon"]:
        n_bounds = 2 if record["declared"] else 34
        assert record["significance"] == pytest.approx(0.05 / n_bounds)
    # The base is none of them.
    tables = planted.tables(base=0.0, loud=9.0, quiet=0.0)
    result = canary(tables, planted.manifest)
    assert len(result.tables["canary_epsilon"]) == 36
    assert min(r["significance"] for r in result.tables["canary_epsilon"]) > 0.05 / 35
    assert said(quiet, "loud").count("eps < ") <= 2


def test_epsilon_from_the_coins_of_one_run(plant_canaries):
    planted = plant_canaries(n=50, held=50, doses=(1, 6), pairs=True)
    remembered = planted.tables(
        base=0.0, loud=lambda c: 0.0 if c["held_out"] else 9.0, quiet=0.0
    )
    result = canary(remembered, planted.manifest)
    table = {
        (r["checkpoint"], r["part"], r["dose"]): r
        for r in result.tables["canary_one_run"]
    }
    assert {key[1:] for key in table} == set(product(PARTS, ("all", "1", "6")))
    assert {name for name, _, _ in table} == {"loud", "quiet"}
    all_doses = table["loud", "full", "all"]
    assert (all_doses["pairs"], all_doses["guesses"], all_doses["right_guesses"]) == (
        50,
        25,
        25,
    )
    assert (all_doses["rows_per_canary"], all_doses["declared"]) == (6, True)
    assert sum(r["declared"] for r in table.values()) == 2
    # Two checkpoints share the 5 % of declared bounds, and of the others.
    assert all_doses["significance"] == pytest.approx(0.05 / 2)
    assert table["loud", "ssn", "1"]["significance"] == pytest.approx(0.05 / 16)
    bound = one_run_bound(25, 25, 50, rows=6, significance=0.05 / 2)
    assert all_doses["epsilon_per_canary"] == bound.canary > 1.5
    assert all_doses["epsilon_per_record"] == bound.record
    assert all_doses["add_remove_per_record"] == bound.record_add_remove
    assert 0 < all_doses["epsilon_per_record_at_delta"] <= bound.record
    assert all_doses["gaussian_mu_per_record"] > 0
    assert all_doses["says"] == bound_sentence("bounded", all_doses, "tossed")
    assert table["quiet", "full", "all"]["says"] == render("canary.bound_of_0")


def frame_of(tables: Any, manifest: Any) -> Any:
    return ranked(evidence("canary", tables, manifest).frame())


def test_guesses_do_not_know_how_the_coins_fell(plant_canaries):
    """With every coin turned, what was right is wrong: also where ranks are tied."""
    planted = plant_canaries(n=31, held=31, contexts=1, pairs=True)
    frame = frame_of(planted.tables(a=1.0), planted.manifest)
    frame["rank"] = 1 + frame["rank"] // 8
    frame["ties"] = 7
    turned_frame = frame.assign(
        held_out=~frame["held_out"], dose=np.where(frame["held_out"], 6, 0)
    )
    tables = [one_run_table(RankedCanaries(f)) for f in (frame, turned_frame)]
    for table, turned in zip(*tables, strict=True):
        assert table["pairs"] == 31
        assert table["guesses"] == 16
        assert table["right_guesses"] + turned["right_guesses"] == 16


def test_no_epsilon_is_claimed_without_the_positive_control(plant_canaries):
    """Canaries in one row are all found, those in most rows are not."""
    planted = plant_canaries(n=40, held=0, doses=(1, 6))
    result = canary(
        planted.tables(odd=lambda c: 9.0 if c["dose"] == 1 else 0.0), planted.manifest
    )
    assert guard(result, "positive control").passed is False
    for record in result.tables["canary_epsilon"]:
        assert record["says"] == render("canary.uncontrolled")
        assert record["epsilon_per_record"] is record["add_remove_per_canary"] is None
    assert any(r["hits"] for r in result.tables["canary_epsilon"])


def test_epsilon_needs_a_known_uniform_draw(plant_canaries):
    planted = plant_canaries(format="by hand")
    result = canary(planted.tables(loud=9.0), planted.manifest)
    assert "canary_epsilon" not in result.tables
    planted = plant_canaries()
    result = canary(planted.tables(base=0, loud=9.0), planted.manifest)
    names = {r["checkpoint"] for r in result.tables["canary_epsilon"]}
    assert names == {"loud"}

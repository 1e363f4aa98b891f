"""The canary audit on candidates whose ranks are known, and what it says of nothing."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from audited import canary, claims, plan, said, the_one
from planted_canaries import (
    CANDIDATES,
    PARTS,
    Planted,
    by_split,
    change,
    figure,
    guard,
    trained_only,
)
from short_sentences import check_sentences

from spark_audit.audits.canary.ranks import TIED
from spark_audit.audits.rate_contrasts import bounded
from spark_audit.manifest.content import seal
from spark_audit.manifest.encodings import key_of
from spark_audit.results import Contrast
from spark_audit.scoring.table import TokenTable
from spark_audit.sentences import render
from spark_audit.stats.canary_ranks import null_moments


def test_plan_takes_the_first_row_by_id_or_all(plant_canaries):
    planted = plant_canaries(n=3, held=1, contexts=3, unrankable=1)
    manifest = planted.manifest
    keys = plan("canary", manifest)[CANDIDATES]
    assert sorted(keys) == sorted(
        key_of("canary", name, part, f"e7-{i}")
        for i, name in ((1, "c001"), (2, "c002"), (3, "h003"))
        for part in PARTS
    )
    keys_of_all_rows = plan("canary", manifest, preset="paper")[CANDIDATES]
    assert len(keys_of_all_rows) == 3 * len(keys)
    assert set(keys) < set(keys_of_all_rows)


def naive_ranks(
    planted: Planted, table: TokenTable, wanted_part: str
) -> tuple[Any, Any]:
    """Ranks after averaging, and the ranks of every context, of trained canaries."""
    once = []
    often = []
    for planted_canary in planted.manifest.canaries:
        if planted_canary.part != wanted_part or planted_canary.held_out:
            continue
        nlls = []
        for context in planted_canary.contexts:
            key = key_of(
                "canary", planted_canary.canary_id, wanted_part, context.example
            )
            nll = table.columns["nll_mean"][table.rows(key)].astype(float)
            nlls.append(nll)
            often.append(1 + sum(nll < nll[planted_canary.true_index]))
        mean = sum(nlls) / len(nlls)
        once.append(1 + sum(mean < mean[planted_canary.true_index]))
    return np.array(once), np.array(often)


def test_figures_equal_a_loop_over_canaries(plant_canaries):
    planted = plant_canaries(contexts=3, preset="paper")
    tables = planted.tables(plain=1.5)
    result = canary(tables, planted.manifest)
    for part in PARTS:
        ranks_once_and_per_row = naive_ranks(planted, tables["plain"][CANDIDATES], part)
        assert not np.array_equal(
            np.repeat(ranks_once_and_per_row[0], 3), ranks_once_and_per_row[1]
        )
        for of, ranks in zip(
            (part, f"{part}/annotation"), ranks_once_and_per_row, strict=True
        ):
            expected = {
                "rank_mean": ranks.mean(),
                "exposure_mean": np.log2(64 / ranks).mean(),
                "top1_rate": np.mean(ranks == 1),
                "top10_rate": np.mean(ranks <= 10),
            }
            for metric, value in expected.items():
                row = figure(result, "plain", metric, variant=of)
                assert row.value == pytest.approx(value)
                assert row.clusters == 20
                assert row.n == len(ranks)


def test_remembered_canaries_are_found_and_nothing_else_is_claimed(plant_canaries):
    planted = plant_canaries()
    result = canary(
        planted.tables(base=0, loud=trained_only(2.5), quiet=0), planted.manifest
    )
    assert guard(result, "positive control").passed
    assert guard(result, "base ranks canaries by chance").passed
    claims = {finding.checkpoint: finding.claim for finding in result.findings}
    assert (claims["loud"], claims["quiet"]) == ("memory", "nothing_shown")
    assert {row.status for row in result.results} == {"ok"}


def test_without_a_positive_control_nothing_is_concluded(plant_canaries):
    planted = plant_canaries()
    result = canary(
        planted.tables(base=0, one=0, two=0), planted.manifest, baseline="one"
    )
    assert {row.status for row in result.results} == {"insensitive"}
    assert all(row.value is not None for row in result.results)
    assert guard(result, "positive control").passed is False
    assert {row.status for row in result.contrasts if row.metric != "nll"} == {
        "insensitive"
    }
    assert change(result, "two", "nll").status == "ok"
    assert len(result.verdict) == 3


def test_the_base_is_no_positive_control(plant_canaries):
    planted = plant_canaries()
    result = canary(planted.tables(base=3, tuned=0), planted.manifest)
    assert guard(result, "positive control").passed is False
    only = canary(planted.tables(base=0), planted.manifest)
    assert {row.status for row in only.results} == {"insensitive"}


def test_a_base_that_knows_the_canaries_leaves_only_changes(plant_canaries):
    planted = plant_canaries()
    known_table = planted.table(1.5, seed=1)
    tables = {
        "base": {CANDIDATES: known_table},
        "same": {CANDIDATES: known_table},
        "more": {CANDIDATES: planted.table(by_split(4.0, 1.5), seed=1)},
        "kind": {CANDIDATES: planted.table(4.0, seed=1)},
    }
    result = canary(tables, planted.manifest)
    assert {*claims(result, "kind")} == {"confounded"}
    by_chance = guard(result, "base ranks canaries by chance")
    assert by_chance.passed is False
    control = guard(result, "positive control")
    assert control.passed
    assert "canary_epsilon" not in result.tables
    without = canary({k: tables[k] for k in ("base", "same")}, planted.manifest)
    assert guard(without, "positive control").passed is False


def test_only_canaries_of_the_highest_dose_are_the_control(plant_canaries):
    planted = plant_canaries(n=60, doses=(1, 4, 64))
    shift: Mapping[int, float] = {0: 0.0, 1: 0.0, 4: 0.0, 64: 2.5}
    result = canary(planted.tables(tuned=lambda c: shift[c["dose"]]), planted.manifest)
    by_dose = {(r["part"], r["dose"]): r for r in result.tables["canary_by_dose"]}
    assert [dose for part, dose in by_dose if part == "full"] == [0, 1, 4, 64]
    loud = by_dose["full", 64]
    still = by_dose["full", 0]
    assert loud["p_remembered"] < 1e-6
    assert loud["exposure_mean"] > loud["chance_exposure_high"]
    assert still["held_out"]
    assert still["chance_exposure_low"] < still["exposure_mean"]
    assert still["exposure_mean"] < still["chance_exposure_high"]
    assert sum(r["canaries"] for (p, _), r in by_dose.items() if p == "full") == 80


def test_a_rise_is_bounded_by_the_canaries_that_it_is_tested_on(plant_canaries):
    """One canary of the highest dose can have no test, so those below are tested, too.

    With the base's ranks not uniform, signs decide: the smallest p of 16 is 2^-16.
    """
    planted = plant_canaries(n=16, doses=(64, *[4] * 15))
    tables = {
        "base": {CANDIDATES: planted.table(1.5, seed=1)},
        "risen": {CANDIDATES: planted.table(by_split(4.0, 1.5), seed=1)},
        "still": {CANDIDATES: planted.table(1.5, seed=2)},
    }
    result = canary(tables, planted.manifest)
    (not_risen,) = [f for f in result.findings if f.says == "canary.not_risen"]
    assert not_risen.checkpoint == "still"
    (power,) = not_risen.power
    assert power.n == 16
    assert power.least_p == 2.0**-15
    assert not_risen.mde is not None
    assert not_risen.at_most is not None


def test_a_difference_to_the_held_out_is_read_with_its_sign(plant_canaries):
    planted = plant_canaries()
    tables = planted.tables(
        ahead=trained_only(2.5),
        pushed=trained_only(-2.5),
        others=by_split(0.0, 1.5),
    )
    result = canary(tables, planted.manifest)
    assert {*claims(result, "ahead")} == {"memory"}
    assert {*claims(result, "pushed")} == {"nothing_shown", "betrays"}
    # Behind strings of their kind, yet as chance has it.
    assert {*claims(result, "others")} == {"nothing_shown", "confounded"}


def test_held_out_canaries_that_rank_high_withhold_what_rests_on_chance(plant_canaries):
    planted = plant_canaries()
    tables = planted.tables(
        base=0,
        kind=2.5,
        more=by_split(4.0, 1.2),
        memory=trained_only(2.5),
        sunk=-2.5,
    )
    result = canary(tables, planted.manifest)
    assert {*claims(result, "kind")} == {"confounded"}
    assert {*claims(result, "more")} == {"memory"}
    assert {*claims(result, "sunk")} == {"nothing_shown", "confounded"}
    has_bound = {
        finding.checkpoint
        for finding in result.findings
        if finding.says == "canary.epsilon"
    }
    assert has_bound == {"memory"}
    for record in result.tables["canary_epsilon"]:
        if record["checkpoint"] in ("kind", "more"):
            assert record["epsilon_per_record"] is None
            assert record["says"] == render("canary.ungrounded")


@pytest.mark.parametrize(("n", "is_found"), [(10, True), (4, False)])
def test_a_control_of_few_canaries_takes_the_next_dose(plant_canaries, n, is_found):
    """Five that all rise cannot be told from chance over three parts, ten can."""
    planted = plant_canaries(n=n, held=0, doses=(1, 6))
    known_tables = {CANDIDATES: planted.table(3.0, seed=1)}
    risen_tables = {CANDIDATES: planted.table(9.0, seed=1)}
    result = canary({"base": known_tables, "more": risen_tables}, planted.manifest)
    assert guard(result, "base ranks canaries by chance").passed is False
    control = guard(result, "positive control")
    assert (control.passed is not False, control.facts["exposure_mean"].n) == (
        is_found,
        n,
    )
    same = canary({"base": known_tables, "same": known_tables}, planted.manifest)
    assert guard(same, "positive control").passed is False


def test_parts_are_insensitive_one_by_one(plant_canaries):
    planted = plant_canaries()
    tables = planted.tables(
        base=0,
        loud=lambda c: 3.0 if c["part"] == "ssn" and not c["held_out"] else 0.0,
        quiet=0,
    )
    result = canary(tables, planted.manifest, baseline="quiet")
    for figure_of_part in (
        *result.results,
        *(c for c in result.contrasts if c.metric != "nll"),
    ):
        is_known = figure_of_part.variant.startswith("ssn")
        assert figure_of_part.status == ("ok" if is_known else "insensitive"), (
            figure_of_part.variant
        )
    control = guard(result, "positive control")
    assert control.passed is None
    for figure_of in ("(full", "(password"):
        assert figure_of not in said(result, "loud") + said(result, "quiet")
    claimed = {
        r["part"]
        for r in result.tables["canary_epsilon"]
        if r["epsilon_per_record"] is not None
    }
    assert claimed == {"ssn"}


def test_a_change_of_a_rate_is_bounded_and_needs_its_test():
    row = Contrast(
        audit="canary",
        checkpoint="a",
        baseline="b",
        metric="top10_rate",
        value=0.9,
        low=0.2,
        high=1.6,
        interval_method="jackknife-t",
        p=0.25,
    )
    (bounded_row,) = bounded([row], {"top10_rate"})
    assert (bounded_row.low, bounded_row.high) == (0.2, 1.0)
    assert not bounded_row.moved
    sure = row.model_copy(update={"p": 0.01})
    assert sure.moved
    assert bounded([sure], {"top10_rate"})[0].note == ""
    assert bounded([row], {"greedy_rate"}) == [row]


def altered(table: TokenTable, by: Callable[[np.ndarray], np.ndarray]) -> TokenTable:
    columns = {name: by(values) for name, values in table.columns.items()}
    return TokenTable(table.ids, table.offsets, table.position, columns)


def test_where_all_are_tied_nothing_is_resolvable(plant_canaries):
    """A collapsed model: everything is as on average over random orders."""
    planted = plant_canaries()
    flat = altered(planted.table(), lambda values: np.full_like(values, 3.0))
    tables = {**planted.tables(base=0, loud=trained_only(2.5)), "flat": {}}
    tables["flat"] = {CANDIDATES: flat}
    result = canary(tables, planted.manifest, baseline="flat")
    expected = {
        "rank_mean": 32.5,
        "exposure_mean": null_moments(64)[0],
        "top1_rate": 1 / 64,
        "top10_rate": 10 / 64,
    }
    for metric, value in expected.items():
        for of in ("full", "ssn", "full/annotation"):
            row = figure(result, "flat", metric, variant=of)
            assert row.value == pytest.approx(value)
            assert row.status == "not_resolvable"
            assert TIED in row.note
    assert figure(result, "flat", "nll").status == "ok"
    (line,) = (f for f in result.findings if f.checkpoint == "flat")
    assert (line.claim, line.status) == ("not_tested", "not_resolvable")
    assert TIED in line.sentence
    against = change(result, "loud", "exposure_mean")
    assert against.status == "not_resolvable"
    for record in result.tables["canary_by_dose"]:
        if record["checkpoint"] == "flat":
            assert record["tied"] == record["canaries"]
            assert record["status"] == "not_resolvable"
            for of in ("p_remembered", "p_suppressed"):
                assert record[of] is None
    flat_bounds = [
        r for r in result.tables["canary_epsilon"] if r["checkpoint"] == "flat"
    ]
    assert not any(r["hits"] for r in flat_bounds), "a tie is no sure guess"


def test_a_part_that_no_canary_has_candidates_for(plant_canaries):
    planted = plant_canaries(n=10, held=0)
    content = planted.manifest.model_dump(mode="json")
    for record in content["canaries"]:
        if record["part"] == "ssn":
            record |= {"candidates": [], "true_index": None, "reason": "too few"}
    without = Planted(seal(content), planted.size)
    result = canary(without.tables(loud=3.0), without.manifest)
    assert figure(result, "loud", "rank_mean", variant="ssn").status == "not_estimable"
    assert figure(result, "loud", "rank_mean", variant="full").status == "ok"


def test_one_canary_has_no_interval(plant_canaries):
    planted = plant_canaries(n=1, held=0)
    result = canary(planted.tables(loud=5.0), planted.manifest)
    assert {r.status for r in result.results} == {"not_estimable"}
    control = the_one(result.guards, name="positive control")
    assert control.says == "guard.control_found"
    assert control.facts["checkpoints"] == ["loud"]
    assert control.facts["exposure_mean"].n == 1
    assert control.detail


def test_a_change_without_an_interval_is_not_judged(plant_canaries):
    """Both checkpoints rank every canary first: no canary differs from another."""
    planted = plant_canaries()
    result = canary(
        planted.tables(loud=50.0, louder=60.0), planted.manifest, baseline="loud"
    )
    finding = the_one(result.findings, says="canary.change_no_interval")
    change = finding.facts["change"]
    assert finding.claim == "nothing_shown"
    assert (change.value, change.ends) == (0.0, None)
    assert finding.sentence


def test_all_that_is_said_of_canaries_is_short(plant_canaries):
    planted = plant_canaries()
    few_rows = plant_canaries(n=60, doses=(1, 4, 64))
    shift: Mapping[int, float] = {0: 0.0, 1: 0.0, 4: 0.0, 64: 1.2}
    known_tables = planted.tables(
        base=trained_only(1.0), tuned=trained_only(3.0), quiet=1.0
    )
    scenes = [
        planted.tables(
            base=0,
            kind=2.5,
            more=by_split(4.0, 1.2),
            memory=trained_only(2.5),
            sunk=-2.5,
            pushed=trained_only(-2.5),
            others=by_split(0.0, 1.5),
            quiet=0,
        ),
        known_tables,
        {**known_tables, "both": {CANDIDATES: planted.table(3.0, seed=9)}},
        planted.tables(loud=trained_only(2.5)),
        planted.tables(quiet=0),
    ]
    keys = set()
    for tables in scenes:
        result = canary(tables, planted.manifest, baseline=list(tables)[-1])
        keys |= check_sentences(result)
    tables = few_rows.tables(tuned=lambda c: shift[c["dose"]])
    keys |= check_sentences(canary(tables, few_rows.manifest))
    trained_alone = plant_canaries(held=0)
    keys |= check_sentences(
        canary(trained_alone.tables(quiet=0, loud=2.5), trained_alone.manifest)
    )

    said_keys = {key for key in keys if key.startswith("canary.")}
    assert said_keys >= {
        "canary.memory",
        "canary.nothing",
        "canary.lifted",
        "canary.sunk",
        "canary.behind_chance",
        "canary.ahead",
        "canary.behind",
        "canary.no_difference",
        "canary.no_held_out",
        "canary.base_knows",
        "canary.risen",
        "canary.insensitive",
        "canary.epsilon",
        "canary.epsilon_larger",
        "canary.first_by_chance",
    }

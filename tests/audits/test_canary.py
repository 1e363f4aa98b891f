"""The canary audit on candidates whose ranks are known, and what it says of nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import audited
import numpy as np
import pytest
from audited import canary, claims, evidence, plan, said, the_one
from short_sentences import check_sentences

from spark_audit.audits.canary.epsilon import one_run_table
from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.audits.canary.ranks import TIED, ranked
from spark_audit.audits.rate_contrasts import bounded
from spark_audit.manifest.content import seal
from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.canary_ranks import null_moments
from spark_audit.stats.epsilon_bounds import candidate_guess_bound, one_run_bound

INSENSITIVE = "the audit is insensitive here, and nothing can be concluded"
PARTS = ("full", "password", "ssn")
CANDIDATES = Pass("candidates")

Shift = Callable[[dict[str, Any]], float]
"""Standard deviations by which a canary's true string is likelier (below 0: less)."""


@dataclass(frozen=True)
class Planted:
    """A manifest with canaries, and tables whose true strings are shifted."""

    manifest: Manifest
    size: int

    def table(self, shift: float | Shift = 0.0, *, seed: int = 0) -> TokenTable:
        """Candidates' mean NLL is normal around 4 nats, 6 tokens each."""
        rng = np.random.default_rng(seed)
        items = []
        for one in self.manifest.canaries:
            if not one.candidates:
                continue
            by = shift(one.model_dump()) if callable(shift) else shift
            own = rng.normal(0, 0.5, self.size)
            assert one.true_index is not None
            own[one.true_index] -= 0.5 * by
            for context in one.contexts:
                key = key_of("canary", one.canary_id, one.part, context.example)
                mean = 4 + own + rng.normal(0, 0.1, self.size)
                columns = {"nll_mean": mean, "nll_sum": 6 * mean}
                where = np.arange(self.size, dtype=np.int32)
                items.append(
                    (key, where, {k: v.astype(np.float32) for k, v in columns.items()})
                )
        return TokenTable.from_items(items)

    def tables(self, **shifts: Any) -> dict[str, dict[Pass, TokenTable]]:
        return {
            name: {CANDIDATES: self.table(shift, seed=i)}
            for i, (name, shift) in enumerate(shifts.items())
        }


@pytest.fixture
def plant(make_case) -> Callable[..., Planted]:
    def make(
        *,
        n: int = 20,
        held: int = 20,
        doses: tuple[int, ...] = (6,),
        contexts: int = 2,
        size: int = 64,
        seed: int = 0,
        preset: str = "robust",
        unrankable: int = 0,
        format: str = "login",
        pairs: bool = False,
    ) -> Planted:
        rng = np.random.default_rng(seed)
        records = []
        for i in range(n + held):
            out = i >= n
            for part in PARTS:
                lost = i < unrankable
                records.append(
                    {
                        "canary_id": f"{'h' if out else 'c'}{i:03d}",
                        "part": part,
                        # Not in the order of their ids: the first is e0, not e9.
                        "contexts": [
                            {"example": f"e{9 - j}-{i}", "char_start": 0, "char_end": 9}
                            for j in range(contexts)
                        ],
                        "candidates": [] if lost else [f"s{j}" for j in range(size)],
                        "true_index": None if lost else int(rng.integers(size)),
                        "reason": "too few" if lost else None,
                        "n_tokens": 6,
                        "format": format,
                        "dose": 0 if out else doses[i % len(doses)],
                        "held_out": out,
                        "pair": f"p{i % n:03d}" if pairs else None,
                    }
                )
        content = make_case(sources=2, preset=preset).manifest.model_dump(mode="json")
        blank, used = content["examples"][0], set()
        for record in records:
            used |= {context["example"] for context in record["contexts"]}
        # The rows that canaries stand in; no figure of this audit needs their text.
        content["examples"] += [{**blank, "id": key} for key in sorted(used)]
        return Planted(seal(content | {"canaries": records}), size)

    return make


figure = partial(audited.figure, variant="full")
change = partial(audited.change, variant="full")


def guard(result: AuditResult, name: str) -> Any:
    return the_one(result.guards, name=name)


def test_plan_takes_the_first_row_by_id_or_all(plant):
    planted = plant(n=3, held=1, contexts=3, unrankable=1)
    manifest = planted.manifest
    keys = plan("canary", manifest)[CANDIDATES]
    assert sorted(keys) == sorted(
        key_of("canary", name, part, f"e7-{i}")
        for i, name in ((1, "c001"), (2, "c002"), (3, "h003"))
        for part in PARTS
    )
    every = plan("canary", manifest, preset="paper")[CANDIDATES]
    assert len(every) == 3 * len(keys)
    assert set(keys) < set(every)


def trained_only(shift: float) -> Shift:
    return lambda canary: 0.0 if canary["held_out"] else shift


def naive_ranks(planted: Planted, table: TokenTable, part: str) -> tuple[Any, Any]:
    """Ranks after averaging, and the ranks of every context, of trained canaries."""
    once, often = [], []
    for one in planted.manifest.canaries:
        if one.part != part or one.held_out:
            continue
        nlls = []
        for context in one.contexts:
            key = key_of("canary", one.canary_id, part, context.example)
            nll = table.columns["nll_mean"][table.rows(key)].astype(float)
            nlls.append(nll)
            often.append(1 + sum(nll < nll[one.true_index]))
        mean = sum(nlls) / len(nlls)
        once.append(1 + sum(mean < mean[one.true_index]))
    return np.array(once), np.array(often)


def test_figures_equal_a_loop_over_canaries(plant):
    planted = plant(contexts=3, preset="paper")
    tables = planted.tables(plain=1.5)
    result = canary(tables, planted.manifest)
    for part in PARTS:
        both = naive_ranks(planted, tables["plain"][CANDIDATES], part)
        assert not np.array_equal(np.repeat(both[0], 3), both[1])
        for of, ranks in zip((part, f"{part}/annotation"), both, strict=True):
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


def test_remembered_canaries_are_found_and_nothing_else_is_claimed(plant):
    planted = plant()
    result = canary(
        planted.tables(base=0, loud=trained_only(2.5), quiet=0), planted.manifest
    )
    assert guard(result, "positive control").passed
    assert guard(result, "base ranks canaries by chance").passed
    claims = {finding.checkpoint: finding.claim for finding in result.findings}
    assert (claims["loud"], claims["quiet"]) == ("memory", "nothing_shown")
    assert {row.status for row in result.results} == {"ok"}


def test_without_a_positive_control_nothing_is_concluded(plant):
    planted = plant()
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


def test_the_base_is_no_positive_control(plant):
    planted = plant()
    result = canary(planted.tables(base=3, tuned=0), planted.manifest)
    assert guard(result, "positive control").passed is False
    only = canary(planted.tables(base=0), planted.manifest)
    assert {row.status for row in only.results} == {"insensitive"}


def test_a_base_that_knows_the_canaries_leaves_only_changes(plant):
    planted = plant()
    known = planted.table(1.5, seed=1)
    tables = {
        "base": {CANDIDATES: known},
        "same": {CANDIDATES: known},
        "more": {CANDIDATES: planted.table(by_split(4.0, 1.5), seed=1)},
        "kind": {CANDIDATES: planted.table(4.0, seed=1)},
    }
    result = canary(tables, planted.manifest)
    assert {*claims(result, "kind")} == {"confounded"}
    found = guard(result, "base ranks canaries by chance")
    assert found.passed is False
    control = guard(result, "positive control")
    assert control.passed
    assert "canary_epsilon" not in result.tables
    without = canary({k: tables[k] for k in ("base", "same")}, planted.manifest)
    assert guard(without, "positive control").passed is False


def test_only_canaries_of_the_highest_dose_are_the_control(plant):
    planted = plant(n=60, doses=(1, 4, 64))
    shift: Mapping[int, float] = {0: 0.0, 1: 0.0, 4: 0.0, 64: 2.5}
    result = canary(planted.tables(tuned=lambda c: shift[c["dose"]]), planted.manifest)
    by_dose = {(r["part"], r["dose"]): r for r in result.tables["canary_by_dose"]}
    assert [dose for part, dose in by_dose if part == "full"] == [0, 1, 4, 64]
    loud, still = by_dose["full", 64], by_dose["full", 0]
    assert loud["p_remembered"] < 1e-6
    assert loud["exposure_mean"] > loud["chance_exposure_high"]
    assert still["held_out"]
    assert still["chance_exposure_low"] < still["exposure_mean"]
    assert still["exposure_mean"] < still["chance_exposure_high"]
    assert sum(r["canaries"] for (p, _), r in by_dose.items() if p == "full") == 80


def test_a_rise_is_bounded_by_the_canaries_that_it_is_tested_on(plant):
    """One canary of the highest dose can have no test, so those below are tested, too.

    With the base's ranks not uniform, signs decide: the smallest p of 16 is 2^-16.
    """
    planted = plant(n=16, doses=(64, *[4] * 15))
    tables = {
        "base": {CANDIDATES: planted.table(1.5, seed=1)},
        "risen": {CANDIDATES: planted.table(by_split(4.0, 1.5), seed=1)},
        "still": {CANDIDATES: planted.table(1.5, seed=2)},
    }
    result = canary(tables, planted.manifest)
    (said,) = [f for f in result.findings if f.says == "canary.not_risen"]
    assert said.checkpoint == "still"
    (power,) = said.power
    assert power.n == 16
    assert power.least_p == 2.0**-15
    assert said.mde is not None
    assert said.at_most is not None


def by_split(trained: float, held_out: float) -> Shift:
    return lambda canary: held_out if canary["held_out"] else trained


def test_a_difference_to_the_held_out_is_read_with_its_sign(plant):
    planted = plant()
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


def test_held_out_canaries_that_rank_high_withhold_what_rests_on_chance(plant):
    planted = plant()
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
            assert "held-out canaries" in record["says"]


def test_epsilon_is_bounded_per_canary_and_per_record(plant):
    planted = plant(n=50, held=0, doses=(1, 6), size=512)
    result = canary(planted.tables(loud=9.0), planted.manifest)
    found = {
        (r["dose"], r["k"]): r
        for r in result.tables["canary_epsilon"]
        if r["part"] == "full"
    }
    assert set(found) == {(d, k) for d in ("all", "1", "6") for k in (1, 10)}
    whole = found["all", 1]
    assert (whole["hits"], whole["rows_per_canary"]) == (50, 6)
    assert whole["epsilon_per_canary"] == pytest.approx(9.0211, abs=5e-5)
    assert whole["epsilon_per_record"] == pytest.approx(9.0211 / 6, abs=5e-5)
    assert whole["add_remove_per_record"] == pytest.approx(9.0211 / 12, abs=5e-5)
    # 3 parts x 3 doses x 2 k, less the declared one, hold together.
    for (dose, k), n in {("all", 10): 50, ("1", 1): 25, ("6", 10): 25}.items():
        bound = candidate_guess_bound(
            n, n, n_candidates=512, k=k, significance=0.05 / 17
        )
        assert found[dose, k]["epsilon_per_canary"] == pytest.approx(bound.canary)
        assert found[dose, k]["significance"] == pytest.approx(0.05 / 17)
        assert "(99.706% confidence" in found[dose, k]["says"]
    assert [r["declared"] for r in found.values()].count(True) == 1
    assert whole["declared"]
    once = found["1", 1]
    assert once["epsilon_per_record"] == once["epsilon_per_canary"]
    wording = (
        "the training run is not eps-DP for eps < 1.504 per record (95% confidence"
    )
    assert whole["says"].startswith(wording)
    drawn = "if each canary was drawn at random from its candidates"
    assert drawn in whole["says"]
    quiet = canary(planted.tables(loud=9.0, quiet=0.0), planted.manifest)
    nothing = [r for r in quiet.tables["canary_epsilon"] if r["checkpoint"] == "quiet"]
    assert {r["says"] for r in nothing} == {"a bound of 0 proves nothing"}
    assert drawn in said(quiet, "loud")
    # Two checkpoints share the 5 % of declared bounds, and of the others.
    for record in quiet.tables["canary_epsilon"]:
        of = 2 if record["declared"] else 34
        assert record["significance"] == pytest.approx(0.05 / of)
    # The base is none of them.
    tables = planted.tables(base=0.0, loud=9.0, quiet=0.0)
    result = canary(tables, planted.manifest)
    assert len(result.tables["canary_epsilon"]) == 36
    assert min(r["significance"] for r in result.tables["canary_epsilon"]) > 0.05 / 35
    assert said(quiet, "loud").count("eps < ") <= 2


def test_epsilon_from_the_coins_of_one_run(plant):
    planted = plant(n=50, held=50, doses=(1, 6), pairs=True)
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
    whole = table["loud", "full", "all"]
    assert (whole["pairs"], whole["guesses"], whole["right_guesses"]) == (50, 25, 25)
    assert (whole["rows_per_canary"], whole["declared"]) == (6, True)
    assert sum(r["declared"] for r in table.values()) == 2
    # Two checkpoints share the 5 % of declared bounds, and of the others.
    assert whole["significance"] == pytest.approx(0.05 / 2)
    assert table["loud", "ssn", "1"]["significance"] == pytest.approx(0.05 / 16)
    bound = one_run_bound(25, 25, 50, rows=6, significance=0.05 / 2)
    assert whole["epsilon_per_canary"] == bound.canary > 1.5
    assert whole["epsilon_per_record"] == bound.record
    assert whole["add_remove_per_record"] == bound.record_add_remove
    assert 0 < whole["epsilon_per_record_at_delta"] <= bound.record
    assert whole["gaussian_mu_per_record"] > 0
    assert "a coin decided which one of a pair was planted" in whole["says"]
    assert table["quiet", "full", "all"]["says"] == "a bound of 0 proves nothing"


def frame_of(tables: Any, manifest: Any) -> Any:
    return ranked(evidence("canary", tables, manifest).frame())


def test_guesses_do_not_know_how_the_coins_fell(plant):
    """With every coin turned, what was right is wrong: also where ranks are tied."""
    planted = plant(n=31, held=31, contexts=1, pairs=True)
    frame = frame_of(planted.tables(a=1.0), planted.manifest)
    frame["rank"] = 1 + frame["rank"] // 8
    frame["ties"] = 7
    other = frame.assign(
        held_out=~frame["held_out"], dose=np.where(frame["held_out"], 6, 0)
    )
    both = [one_run_table(RankedCanaries(f)) for f in (frame, other)]
    for one, turned in zip(*both, strict=True):
        assert one["pairs"] == 31
        assert one["guesses"] == 16
        assert one["right_guesses"] + turned["right_guesses"] == 16


@pytest.mark.parametrize(("n", "found"), [(10, True), (4, False)])
def test_a_control_of_few_canaries_takes_the_next_dose(plant, n, found):
    """Five that all rise cannot be told from chance over three parts, ten can."""
    planted = plant(n=n, held=0, doses=(1, 6))
    known = {CANDIDATES: planted.table(3.0, seed=1)}
    more = {CANDIDATES: planted.table(9.0, seed=1)}
    result = canary({"base": known, "more": more}, planted.manifest)
    assert guard(result, "base ranks canaries by chance").passed is False
    control = guard(result, "positive control")
    assert (control.passed is not False, control.facts["exposure_mean"].n) == (found, n)
    same = canary({"base": known, "same": known}, planted.manifest)
    assert guard(same, "positive control").passed is False


def test_no_epsilon_is_claimed_without_the_positive_control(plant):
    """Canaries in one row are all found, those in most rows are not."""
    planted = plant(n=40, held=0, doses=(1, 6))
    result = canary(
        planted.tables(odd=lambda c: 9.0 if c["dose"] == 1 else 0.0), planted.manifest
    )
    assert guard(result, "positive control").passed is False
    for record in result.tables["canary_epsilon"]:
        assert record["says"] == "no bound: the positive control was not detected"
        assert record["epsilon_per_record"] is record["add_remove_per_canary"] is None
    assert any(r["hits"] for r in result.tables["canary_epsilon"])


def test_parts_are_insensitive_one_by_one(plant):
    planted = plant()
    tables = planted.tables(
        base=0,
        loud=lambda c: 3.0 if c["part"] == "ssn" and not c["held_out"] else 0.0,
        quiet=0,
    )
    result = canary(tables, planted.manifest, baseline="quiet")
    for one in (*result.results, *(c for c in result.contrasts if c.metric != "nll")):
        known = one.variant.startswith("ssn")
        assert one.status == ("ok" if known else "insensitive"), one.variant
    found = guard(result, "positive control")
    assert found.passed is None
    for figure_of in ("(full", "(password"):
        assert figure_of not in said(result, "loud") + said(result, "quiet")
    claimed = {
        r["part"]
        for r in result.tables["canary_epsilon"]
        if r["epsilon_per_record"] is not None
    }
    assert claimed == {"ssn"}
    # Nothing of the full text is compared either.


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
    (found,) = bounded([row], {"top10_rate"})
    assert (found.low, found.high) == (0.2, 1.0)
    assert not found.moved
    sure = row.model_copy(update={"p": 0.01})
    assert sure.moved
    assert bounded([sure], {"top10_rate"})[0].note == ""
    assert bounded([row], {"greedy_rate"}) == [row]


def test_epsilon_needs_a_known_uniform_draw(plant):
    planted = plant(format="by hand")
    result = canary(planted.tables(loud=9.0), planted.manifest)
    assert "canary_epsilon" not in result.tables
    planted = plant()
    result = canary(planted.tables(base=0, loud=9.0), planted.manifest)
    names = {r["checkpoint"] for r in result.tables["canary_epsilon"]}
    assert names == {"loud"}


def altered(table: TokenTable, by: Callable[[np.ndarray], np.ndarray]) -> TokenTable:
    columns = {name: by(values) for name, values in table.columns.items()}
    return TokenTable(table.ids, table.offsets, table.position, columns)


def test_where_all_are_tied_nothing_is_resolvable(plant):
    """A collapsed model: everything is as on average over random orders."""
    planted = plant()
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


def test_a_part_that_no_canary_has_candidates_for(plant):
    planted = plant(n=10, held=0)
    content = planted.manifest.model_dump(mode="json")
    for one in content["canaries"]:
        if one["part"] == "ssn":
            one |= {"candidates": [], "true_index": None, "reason": "too few"}
    without = Planted(seal(content), planted.size)
    result = canary(without.tables(loud=3.0), without.manifest)
    assert figure(result, "loud", "rank_mean", variant="ssn").status == "not_estimable"
    assert figure(result, "loud", "rank_mean", variant="full").status == "ok"


def test_one_canary_has_no_interval(plant):
    planted = plant(n=1, held=0)
    result = canary(planted.tables(loud=5.0), planted.manifest)
    assert {r.status for r in result.results} == {"not_estimable"}
    control = the_one(result.guards, name="positive control")
    assert control.says == "guard.control_found"
    assert control.facts["checkpoints"] == ["loud"]
    assert control.facts["exposure_mean"].n == 1
    assert control.detail


def test_a_change_without_an_interval_is_not_judged(plant):
    """Both checkpoints rank every canary first: no canary differs from another."""
    planted = plant()
    result = canary(
        planted.tables(loud=50.0, louder=60.0), planted.manifest, baseline="loud"
    )
    finding = the_one(result.findings, says="canary.change_no_interval")
    change = finding.facts["change"]
    assert finding.claim == "nothing_shown"
    assert (change.value, change.ends) == (0.0, None)
    assert finding.sentence


def test_all_that_is_said_of_canaries_is_short(plant):
    planted = plant()
    few_rows = plant(n=60, doses=(1, 4, 64))
    shift: Mapping[int, float] = {0: 0.0, 1: 0.0, 4: 0.0, 64: 1.2}
    known = planted.tables(base=trained_only(1.0), tuned=trained_only(3.0), quiet=1.0)
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
        known,
        {**known, "both": {CANDIDATES: planted.table(3.0, seed=9)}},
        planted.tables(loud=trained_only(2.5)),
        planted.tables(quiet=0),
    ]
    keys = set()
    for tables in scenes:
        result = canary(tables, planted.manifest, baseline=list(tables)[-1])
        keys |= check_sentences(result)
    tables = few_rows.tables(tuned=lambda c: shift[c["dose"]])
    keys |= check_sentences(canary(tables, few_rows.manifest))
    alone = plant(held=0)
    keys |= check_sentences(canary(alone.tables(quiet=0, loud=2.5), alone.manifest))

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

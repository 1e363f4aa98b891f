"""The paper's claims: the plan, the rules, what follows from an interval, the pages."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claims import costs, search
from claims.auditing import (
    Audited,
    loss_figure,
    over_orders,
    unmet,
)
from claims.given import check_data, check_request, settings_of
from claims.plan import Run, runs, systems, task_orders
from claims.request import ClaimsRequest
from claims.rules import Claim, Figure, claims, decide, figure_of
from claims.study import LOCK, plan, planned_runs, study
from scipy import stats

from spark_audit.data.examples import Example, write_examples
from spark_audit.errors import InputError, SparkError
from spark_audit.files import alone
from spark_audit.report.folder import read_report
from spark_audit.results import Contrast, Row

PAPER = read_report(Path(__file__).parents[2] / "reports" / "paper")

CHANCE_EXPOSURE = 1.431
"""Bits of exposure of a canary that is ranked at random among 512 candidates."""


def a_claim(**rule: Any) -> Claim:
    """A claim on Last of spark, by default that it is above 0 by 0.1."""
    if not {"above", "below", "within"} & set(rule):
        rule |= {"above": 0.0, "least": 0.1}
    columns = {"id": "a", "says": "It is so", "table": "tab:x", "of": "spark"}
    return Claim(**columns, audit="utility", metric="last", **rule)


def test_every_claim_is_of_systems_that_are_trained():
    """In its own task order."""
    planned = systems(all_=True)
    trained = {system.name: system.orders for system in planned} | {"base": (1,)}
    for claim in claims():
        for name in claim.systems:
            orders = trained[name]
            if claim.order in ("average", "second"):
                assert len(orders) > 1, claim.id
            else:
                assert claim.order in orders, claim.id
    assert len({claim.id for claim in claims()}) == len(claims())


def test_only_multi_task_and_sweep_claims_need_all_systems():
    trained = {system.name for system in systems()} | {"base"}
    left_out = {claim.id for claim in claims() if not trained.issuperset(claim.systems)}
    assert left_out == {
        "mtl-dpsgd",
        "mtl-fn",
        "sweep-ul",
        "sweep-pii",
        "sweep-steps",
        "sweep-last",
    }


def contrary(claim: Claim) -> float:
    """A value as far on the other side of a claim's bound as the paper's is on its own.

    Of a bound of 0 that is the paper's value with the opposite sign.
    """
    assert claim.paper is not None
    if claim.within == "chance":
        assert claim.margin is not None
        return CHANCE_EXPOSURE + 2 * claim.margin
    if claim.within is not None:
        assert isinstance(claim.within, tuple)
        low, high = claim.within
        return high + (high - low)
    bound = claim.below if claim.above is None else claim.above
    assert bound is not None
    return 2 * bound - claim.paper


@pytest.mark.parametrize(
    "claim", [c for c in claims() if c.paper is not None], ids=lambda claim: claim.id
)
def test_the_papers_own_value_passes_every_rule_and_its_contrary_fails(claim):
    def verdict(value: float) -> str:
        near = Figure(value, value - 1e-4, value + 1e-4, chance=CHANCE_EXPOSURE)
        return decide(claim, near).verdict

    assert verdict(claim.paper) == "holds"
    assert verdict(contrary(claim)) == "fails"


def test_a_claim_about_a_trained_system_needs_that_something_was_learned():
    timed = {"time", "training"}
    unlearned = {c.id for c in claims() if "learned" not in c.needs}
    assert unlearned == {c.id for c in claims() if c.audit in timed}


def test_a_system_that_learned_nothing_holds_no_claim_about_identifiers():
    """A run with an accuracy of 0 has no selective suppression, and tells nothing."""
    claim = next(claim for claim in claims() if claim.id == "selective-dpsgd")

    def learned(name: str, value: float) -> Row:
        return a_row(
            Row,
            name,
            value,
            metric="learning_accuracy",
            interval_over="both",
            no_effect=0.4,
        )

    able: Any = _Report([learned("er", 0.8), learned("er-dpsgd", 0.8)], [])
    unable: Any = _Report([learned("er", 0.8), learned("er-dpsgd", 0.0)], [])
    nothing: Any = _Report([], [])
    assert unmet(claim, nothing, able) == ""
    assert "er-dpsgd has not learned" in unmet(claim, nothing, unable)


def test_what_correction_leaves_of_its_loss_is_read_from_the_runs(tmp_path):
    planned = [
        run
        for run in runs(systems(), {1: ("a", "b")}, seeds=2)
        if run.system.name == "spark"
    ]
    for run, share in zip(planned, (0.5, 0.7), strict=True):
        folder = tmp_path / run.place
        folder.mkdir(parents=True)
        steps = [
            {"stage": "1-a", "part": "priv", "step": 0, "loss": 10.0, "probe": True},
            {"stage": "1-a", "part": "priv", "step": 1, "loss": 99.0},
            {"stage": "1-a", "part": "priv", "step": 9, "loss": 4.0, "probe": True},
            {"stage": "2-b", "part": "priv", "step": 0, "loss": 5.0, "probe": True},
            {
                "stage": "2-b",
                "part": "priv",
                "step": 9,
                "loss": 5.0 * (2 * share - 0.4),
                "probe": True,
            },
        ]
        lines = "".join(json.dumps(step) + "\n" for step in steps)
        (folder / "metrics.jsonl").write_text(lines)
    audited = Audited(
        runs=planned,
        base="",
        manifest=tmp_path / "manifest.json",
        folder=tmp_path,
        trained=tmp_path,
        device="cpu",
        progress=None,
    )
    claim = next(claim for claim in claims() if claim.id == "correction-converges")
    kept = loss_figure(audited, claim)
    assert kept.by_seed == pytest.approx((0.5, 0.7))
    assert kept.value == pytest.approx(0.6)


@pytest.mark.parametrize(
    "claim",
    [
        claim
        for claim in claims()
        if claim.table.startswith(("tab:", "app:")) and claim.paper is not None
    ],
    ids=lambda claim: claim.id,
)
def test_the_papers_figure_is_what_its_table_prints(claim):
    """The difference of two cells where the claim has a baseline."""
    metric = {"did": "delta_sel"}.get(claim.metric, claim.metric)
    suffix = "-orders" if claim.order == "average" else ""
    part = {"last": "6"}.get(claim.part, claim.part)

    def printed(name: str) -> set[float]:
        names = {name + suffix, "not-named"}
        names |= {f"{name}-qwen"} if claim.order == "second" else set()
        return {
            row.value
            for row in PAPER.results
            if row.value is not None
            and row.checkpoint in names
            and claim.table in row.note
            and (row.audit, row.metric, row.variant) == (claim.audit, metric, part)
            and row.group == claim.group
        }

    assert claim.paper is not None
    less = printed(claim.than) if claim.than else {0.0}
    apart = {mine - other for mine in printed(claim.of) for other in less}
    assert any(math.isclose(one, claim.paper, abs_tol=6e-4) for one in apart), apart


@pytest.mark.parametrize(
    ("rule", "value", "low", "high", "verdict"),
    [
        ({}, 0.5, 0.2, 0.8, "holds"),
        ({}, 0.05, -0.02, 0.09, "fails"),
        ({}, -0.5, -0.8, -0.2, "fails"),
        ({}, 0.05, -0.2, 0.3, "not detectable here"),
        ({"below": 0.0, "least": 0.1}, -0.5, -0.8, -0.2, "holds"),
        ({"below": 0.0, "least": 0.1}, 0.5, 0.2, 0.8, "fails"),
        ({"below": 0.0, "least": 0.1}, -0.05, -0.3, 0.2, "not detectable here"),
        ({"above": -0.016, "least": 0.0}, 0.0, -0.01, 0.02, "holds"),
        ({"above": -0.016, "least": 0.0}, -0.1, -0.2, -0.02, "fails"),
        ({"above": -0.016, "least": 0.0}, 0.0, -0.05, 0.05, "not detectable here"),
        ({"within": (-1, 1)}, 0.0, -0.5, 0.5, "holds"),
        ({"within": (-1, 1)}, 3.0, 2.0, 4.0, "fails"),
        ({"within": (-1, 1)}, 0.9, 0.5, 1.3, "not detectable here"),
        ({"within": "chance", "margin": 0.5}, 1.5, 1.1, 1.9, "holds"),
        ({"within": "chance", "margin": 0.5}, 3.5, 3.1, 3.9, "fails"),
        ({"within": "chance", "margin": 0.5}, 0.2, 0.1, 0.3, "holds"),
    ],
)
def test_what_follows_from_an_interval(rule, value, low, high, verdict):
    figure = Figure(value, low, high, chance=1.44)
    assert decide(a_claim(**rule), figure).verdict == verdict


@pytest.mark.parametrize(
    ("figure", "unmet"),
    [
        (Figure(None, missing="no run has it"), ""),
        (Figure(0.5), ""),
        (Figure(0.5, 0.4, 0.6, over="sources"), ""),
        (Figure(0.5, 0.4, 0.6), "er has not learned the tasks"),
    ],
)
def test_nothing_is_told_of_what_cannot_be_known(figure, unmet):
    decision = decide(a_claim(), figure, unmet=unmet)
    assert decision.verdict == "not detectable here"
    assert decision.why


def a_row(kind: type[Row], checkpoint: str, value: float, **more: Any) -> Row:
    columns = {"audit": "utility", "metric": "last", "interval_method": "jackknife-t"}
    columns |= {key: more.pop(key) for key in ("audit", "metric") if key in more}
    limits = {"low": value - 0.1, "high": value + 0.1, "mde": 0.14, "unit": ""}
    return kind.model_validate(
        {"checkpoint": checkpoint, "value": value, **columns, **limits, **more}
    )


def a_train_row(task: str) -> Example:
    return Example(
        id=task, task=task, prompt="a", response="b", split="train", source_id=task
    )


class _Report:
    """What is read of a report."""

    def __init__(self, results: list[Row], contrasts: list[Row]) -> None:
        self.results, self.contrasts = results, contrasts


def test_the_figure_of_a_system_is_the_one_over_sources_and_seeds():
    results = [
        a_row(Row, "spark[1]", 0.5),
        a_row(Row, "spark[2]", 0.7),
        a_row(Row, "spark", 0.6, interval_over="sources"),
        a_row(
            Row, "spark", 0.6, interval_over="both", no_effect=0.25, low=0.3, high=0.9
        ),
        a_row(Row, "spark-no-ul", 0.9),
        a_row(Row, "spark", 0.1, group_kind="task", group_value="yelp"),
    ]
    against = [
        a_row(Contrast, "spark[1]", -0.3, baseline="er[1]"),
        a_row(Contrast, "spark", -0.2, baseline="er", interval_over="seeds"),
        a_row(Contrast, "spark", -0.9, baseline="sd-replay", interval_over="both"),
    ]
    report: Any = _Report(results, against)
    own = figure_of(report, a_claim())
    assert (own.value, own.low, own.high, own.chance) == (0.6, 0.3, 0.9, 0.25)
    assert own.by_seed == (0.5, 0.7)
    assert own.over == "sources and seeds"
    beside = figure_of(report, a_claim(than="er"))
    assert (beside.value, beside.by_seed) == (-0.2, (-0.3,))
    lacking = figure_of(report, a_claim(than="pecl"))
    assert lacking.value is None
    assert lacking.missing


@pytest.mark.parametrize("status", ["invalid", "insensitive", "not_resolvable"])
def test_nothing_is_told_of_a_figure_that_its_audit_voids(status):
    row = a_row(
        Row, "spark", 0.6, interval_over="both", status=status, note="out of balance"
    )
    report: Any = _Report([row], [])
    decision = decide(a_claim(), figure_of(report, a_claim()))
    assert decision.verdict == "not detectable here"
    assert "out of balance" in decision.why


@pytest.mark.parametrize(("null", "met"), [(0.4, True), (0.55, False), (None, False)])
def test_a_control_is_found_only_beyond_a_chance_that_is_known(null, met):
    claim = a_claim(needs=("members",)).model_copy(update={"audit": "mia"})
    row = a_row(Row, "er-full", 0.6, interval_over="both", no_effect=null, audit="mia")
    report: Any = _Report([row], [])
    assert (unmet(claim, report, None) == "") is met


def test_tasks_are_learned_beyond_their_commonest_label():
    claim = a_claim(needs=("learned",))
    rows = [
        a_row(
            Row,
            "er",
            0.6,
            interval_over="both",
            no_effect=0.4,
            metric="learning_accuracy",
        )
    ]
    utility: Any = _Report(rows, [])
    assert unmet(claim, utility, utility) == ""
    assert "er has not learned" in unmet(claim, utility, None)
    # Of forgetting, what never learned tells nothing.
    forgets = claim.model_copy(update={"metric": "bwt"})
    assert "spark has not learned" in unmet(forgets, utility, utility)


def test_task_orders_are_averaged_over_sources_and_orders():
    figures = [Figure(v, v - 0.1, v + 0.1, 0.14) for v in (0.5, 0.6, 0.7)]
    found = over_orders(figures)
    spread = stats.t.ppf(0.975, 2) * stats.sem([0.5, 0.6, 0.7])
    assert found.value == pytest.approx(0.6)
    assert found.high == pytest.approx(0.6 + np.hypot(0.1, spread))
    assert over_orders(figures[:1]).value is None
    assert over_orders([*figures, Figure(0.5)]).value is None


def test_the_plan_has_whole_seeds_and_then_the_other_orders():
    rows = [a_train_row(task) for task in ("amazon", "fomc", "yelp")]
    orders = task_orders(rows)
    assert orders == {
        1: ("fomc", "yelp", "amazon"),
        2: ("amazon", "yelp", "fomc"),
        3: ("amazon", "fomc", "yelp"),
    }
    planned = list(runs(systems(), orders, seeds=2, second=True))
    assert len({run.place for run in planned}) == len(planned)
    assert [run.seed for run in planned if run.order == 1] == sorted(
        run.seed for run in planned if run.order == 1
    )
    assert {run.seed for run in planned if run.order in (2, 3)} == {0}
    assert {run.system.name for run in planned if run.order == "second"} == {
        "spark",
        "er",
        "pecl",
        "er-dpsgd",
    }
    with pytest.raises(InputError, match="^--data: "):
        task_orders(rows[:1])
    assert len(task_orders(rows[:2])) == 2


@pytest.mark.parametrize(
    ("rows", "batch", "correction"), [(2700, 32, 101), (90, 8, 25), (200, 16, 25)]
)
def test_settings_of_a_size_follow_the_rule(rows, batch, correction):
    found = search.of_size(rows)
    assert found["batch_size"] == batch
    assert found["ptpc.steps"] == correction


def test_what_is_not_judged_may_point_against_a_claim_and_never_for_it():
    for figure, against in (
        (Figure(-0.5, -0.8, -0.2, over="both"), True),
        (Figure(0.5, 0.2, 0.8, over="both"), False),  # nothing learned, none forgotten
        (Figure(-0.5, -0.8, -0.2, over="sources"), False),  # of one seed
        (Figure(0.1, -0.8, 0.9, over="both"), False),
    ):
        found = decide(a_claim(), figure, unmet="nothing was learned")
        assert found.verdict == "not detectable here"
        assert found.against == against
    assert not decide(a_claim(), Figure(-0.5, -0.8, -0.2)).against


def test_a_folder_is_of_one_process(tmp_path):
    with (
        alone(tmp_path / "study" / LOCK),
        pytest.raises(InputError, match="study: "),
    ):
        study(ClaimsRequest(output=tmp_path / "study", quick=True))
    with pytest.raises(InputError, match="^--base: "):
        study(ClaimsRequest(output=tmp_path / "study", base="there"))
    assert not (tmp_path / "study").exists()


def test_what_no_run_could_use_is_refused_at_once(tmp_path, tiny_base):
    rows = [a_train_row("a"), a_train_row("b")]
    for given, match in (
        ({"settings": ("ptcp.ul=off",)}, "no system has a setting 'ptcp.ul'"),
        ({"settings": ("lr=fast",)}, "lr"),
        ({"no_training": True}, "holds no finished run"),
    ):
        with pytest.raises(SparkError, match=match):
            study(ClaimsRequest(output=tmp_path, by="paper", **given))
    nowhere = ClaimsRequest(output=tmp_path, second_base="nowhere")
    with pytest.raises(SparkError, match="nowhere"):
        check_data(nowhere, rows, str(tiny_base))
    with pytest.raises(InputError, match="^--data: "):
        check_data(ClaimsRequest(output=tmp_path), rows[:1], str(tiny_base))
    assert not list(tmp_path.iterdir())
    request = ClaimsRequest(output=tmp_path, by="paper", settings=("lr=1e-3",))
    found, why = settings_of(request, rows, "base", lambda *_: None)
    assert (found, why) == ({"lr": "1e-3"}, "the paper's, and --set")


def test_core_systems_are_trained_only_where_a_claim_reads_them(tmp_path):
    rows = [a_train_row(task) for task in ("amazon", "fomc", "yelp")]
    request = ClaimsRequest(
        output=tmp_path, seeds=2, order_seeds=2, second_base="another"
    )
    planned = planned_runs(request, rows)
    in_other_orders = {run.system.name for run in planned if run.order in (2, 3)}
    assert in_other_orders == {"spark", "er", "pecl"}
    assert {run.seed for run in planned if run.order == 2} == {0, 1}
    assert {run.system.name for run in planned if run.order == "second"} == {
        "spark",
        "er",
        "pecl",
    }
    every = planned_runs(replace(request, systems="all"), rows)
    assert {run.place for run in planned} < {run.place for run in every}


def test_some_systems_and_the_first_order_alone_can_be_trained(tmp_path):
    rows = [a_train_row(task) for task in ("amazon", "fomc", "yelp")]
    request = ClaimsRequest(output=tmp_path, seeds=2, systems="er, sd-replay-mean")
    named = {run.system.name for run in planned_runs(request, rows)}
    assert named == {"er", "sd-replay-mean"}
    in_one_order = replace(request, systems="er,spark", first_order=True)
    places = {str(run.place) for run in planned_runs(in_one_order, rows)}
    assert places == {
        f"order1/seed{seed}/{name}" for seed in (0, 1) for name in ("er", "spark")
    }


@pytest.mark.parametrize(
    "options",
    [
        {"systems": "er,sparc"},
        {"systems": ","},
        {"first_order": True, "second_base": "another"},
    ],
)
def test_a_choice_of_runs_that_cannot_be_made_is_refused(options, tmp_path):
    with pytest.raises(InputError, match="^--(systems|first-order): "):
        check_request(ClaimsRequest(output=tmp_path, **options))


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"seeds": 0}, "--seeds"),
        ({"order_seeds": 0}, "--order-seeds"),
        ({"processes": 0}, "--processes"),
        ({"candidates": 1}, "--candidates"),
        ({"rows": 0}, "--rows"),
        ({"rows": 9, "data": (Path("rows.jsonl"),)}, "--rows"),
        ({"hour_price": 2.0}, "--hour-price"),
        ({"hour_price": math.nan, "plan": True}, "--hour-price"),
        ({"data": (Path("rows.jsonl"),)}, "--data"),
        ({"base": "model"}, "--base"),
        ({"base": "model", "plan": True}, "--base"),
        ({"plan": True}, "--plan"),
        ({"settings": ("lr",)}, "--set"),
        ({"settings": ("no.such=1",)}, "--set"),
    ],
    ids=str,
)
def test_an_error_names_the_one_option_that_was_typed(options, option, tmp_path):
    with pytest.raises(InputError) as error:
        check_request(ClaimsRequest(output=tmp_path, **options))
    assert error.value.where == option
    assert error.value.fix


@pytest.mark.parametrize(
    ("systems_chosen", "second_base", "n_runs", "n_claims"),
    [
        ("core", None, 63, 56),
        ("all", None, 117, 62),
        ("core", "another", 72, 60),
        ("all", "another", 129, 66),
    ],
)
def test_a_study_of_six_tasks_has_as_many_runs_and_claims_as_is_written(
    systems_chosen, second_base, n_runs, n_claims, tmp_path
):
    """``reports/README.md`` has these figures, with three seeds in all task orders."""
    tasks = ("fomc", "yelp", "agnews", "amazon", "mentill", "yahoo")
    request = ClaimsRequest(
        output=tmp_path,
        systems=systems_chosen,
        second_base=second_base,
        seeds=3,
        order_seeds=3,
    )
    planned = planned_runs(request, [a_train_row(task) for task in tasks])
    assert len(planned) == n_runs

    trained = {(run.system.name, run.order) for run in planned}
    able = []
    for claim in claims():
        orders = (1, 2, 3) if claim.order == "average" else (claim.order,)
        needed = {
            (name, order)
            for name in claim.systems
            for order in orders
            if name != "base"
        }
        able.append(needed <= trained)
    assert sum(able) == n_claims


def test_a_plan_tells_the_second_base_from_task_orders():
    planned = [
        costs.PlannedCost(system="er", order=order, n_runs=3, hours=1.5)
        for order in ("1", "second")
    ]
    first, second, *_ = costs.lines(planned, hour_price=None)
    assert "order 1" in first
    assert "second base" in second
    assert "order" not in second


def test_hours_are_those_of_the_parts_of_a_run():
    """Three tasks of 10 rows, two epochs, five steps of correction, four answers."""
    rows = [
        replace(a_train_row(task), id=f"{task}-{i}", split=split)
        for task in "abc"
        for i, split in enumerate(["train"] * 10 + ["test"] * 4)
    ]
    spark = next(system for system in systems() if system.name == "spark")
    run = Run(spark, 1, 0, ("a", "b", "c"))
    rates = costs.Rates(first=1.0, later=2.0, correction=3.0, answer=0.5)
    settings = {"epochs": "2", "ptpc.steps": "5"}
    seconds = costs.run_seconds(run, rates, rows=rows, settings=settings)
    learning = 2 * (10 * 1.0 + 20 * 2.0)
    correction = 3 * 5 * 3.0
    answers = (4 + 8 + 12) * 0.5
    assert seconds == learning + correction + answers


def test_a_plan_measures_each_method_and_keeps_nothing(
    tiny_base, tmp_path, monkeypatch
):
    few = [system for system in systems() if system.name in ("er", "spark")]
    monkeypatch.setattr("claims.study.systems", lambda all_: few)
    rows = [
        replace(
            a_train_row(task),
            id=f"{task}-{i}",
            source_id=f"{task}-{i}",
            response=f"{task} {i}",
            split=split,
        )
        for task in "ab"
        for i, split in enumerate(("train", "train", "test"))
    ]
    data = tmp_path / "rows.jsonl"
    write_examples(data, rows)
    request = ClaimsRequest(
        output=tmp_path / "study",
        data=(data,),
        base=str(tiny_base),
        settings=("batch_size=2",),
        seeds=2,
        plan=True,
        hour_price=2.5,
    )
    printed = plan(request)
    systems_and_orders = [line.split()[:3] for line in printed[:-2]]
    assert ["spark", "order", "1"] in systems_and_orders
    assert "6 runs" in printed[-2]
    assert not (tmp_path / "study").exists()
    with pytest.raises(InputError, match="^--plan: .*--data .*--base"):
        plan(replace(request, data=(), base=None))


def test_a_study_trains_audits_and_judges(tiny_base, tmp_path, monkeypatch):
    """Two systems of the 18 runs of the shortest study, which takes a minute."""
    few = [system for system in systems() if system.name in ("er", "spark")]
    judged = [one for one in claims() if {*one.systems} <= {"er", "spark"}]
    monkeypatch.setattr("claims.study.systems", lambda all_: few)
    monkeypatch.setattr("claims.judging.claims", lambda: judged[:3])
    rows = []
    for task in "ab":
        row = a_train_row(task)
        for i, split in enumerate(("train", "train", "test")):
            name = f"{task}-{i}"
            # Held-out rows have texts of their own.
            response = f"{row.response} {name}"
            rows.append(
                replace(row, id=name, source_id=name, split=split, response=response)
            )
    data = tmp_path / "rows.jsonl"
    write_examples(data, rows)
    request = ClaimsRequest(
        output=tmp_path / "study",
        data=(data,),
        base=str(tiny_base),
        by="paper",
        settings=("epochs=1", "ptpc.steps=1"),
        candidates=8,
        quick=True,
    )
    made = study(request)
    assert len(made.decisions) == 3
    assert (made.folder / "claims.html").exists()
    assert {one.verdict for one in made.decisions} == {"not detectable here"}

"""Verdicts of erasure in reports: the word, the first screen, states and the gate."""

from typing import Any

import pytest
from made_reports import figure, made_report

from spark_audit import sentences
from spark_audit.audits.claims import corrected
from spark_audit.errors import InputError
from spark_audit.report.advice import advice
from spark_audit.report.checkpoint_states import checkpoint_states
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import DEFAULT_RULES, parse_rule
from spark_audit.report.matrix import matrix_of
from spark_audit.results import Finding, Report
from spark_audit.results.findings import UNBOUNDED

CLAIMS = {
    "before": ("memory", "before_remembers"),
    "retrained": ("nothing_shown", "retrained_nothing"),
    "kept": ("memory", "remembered"),
    "hidden": ("suppressed", "suppressed"),
    "pushed": ("betrays", "betrays"),
    "gone": ("erased", "erased"),
    "unclear": ("nothing_shown", "cannot_tell"),
}
"""Checkpoint -> claim and key of its finding."""


def remaining(name: str, value: float = -0.2, **columns: Any) -> Any:
    place = "erasure|remaining|row"
    return figure(name, place, value, unit="nats", no_effect=0.0, **columns)


def finding(name: str, claim: Any, says: str, p: float = 0.0001) -> Finding:
    row = remaining(name)
    margin = figure("before", "erasure|margin", 0.3, unit="nats", low=None, high=None)
    facts = {
        "remaining": row,
        "before": remaining("before", -1.2),
        "margin": margin,
        "copy": f"{name}+relearn",
        "returned": remaining(f"{name}+relearn", -0.9),
    }
    if says != "suppressed":
        del facts["copy"], facts["returned"]
    return Finding.on(row, claim, f"erasure.{says}", facts=facts, p=p)


def broken(name: str = "broken") -> Finding:
    return Finding.not_tested("erasure", "erasure.broken", checkpoint=name)


def report(*findings: Finding, **columns: Any) -> Report:
    names = ["base", *dict.fromkeys(f.checkpoint for f in findings)]
    rows = [
        figure("before", "erasure|margin", 0.3, unit="nats", low=None, high=None),
        *(remaining(name) for name in names[1:]),
        *(figure(name, "erasure|cost|retained", 0.1, unit="nats") for name in names),
    ]
    tables = {
        "erasure_rows": [
            {"side": "forget", "request": "ids", "rows": 60, "clusters": 40},
            {"side": "held_out", "request": "", "rows": 90, "clusters": 80},
        ]
    }
    facts = {"results": rows, "tables": tables, "origins": {"erasure_rows": "erasure"}}
    findings_once_corrected = corrected(findings)
    return made_report(*names, findings=findings_once_corrected, **{**facts, **columns})


@pytest.fixture(scope="module")
def of_all_kinds() -> Report:
    findings = [finding(name, *claim) for name, claim in CLAIMS.items()]
    return report(*findings, broken())


def test_each_claim_has_its_verdict_and_models_to_compare_with_have_none(of_all_kinds):
    verdicts = {f.checkpoint: f.verdict for f in of_all_kinds.findings}
    assert verdicts == {
        "before": "",
        "retrained": "",
        "kept": "REMEMBERED",
        "hidden": "SUPPRESSED",
        "pushed": "BETRAYS",
        "gone": "ERASED",
        "unclear": "CANNOT TELL",
        "broken": "BROKEN",
    }


@pytest.mark.parametrize("claim", ["memory", "suppressed", "betrays", "erased"])
def test_a_verdict_that_the_correction_takes_away_cannot_be_told(claim):
    (says,) = [key for name, key in CLAIMS.values() if name == claim and "_" not in key]
    alone = finding("after", claim, says, p=0.03)
    many = [finding(f"m{k}", "nothing_shown", "cannot_tell", 0.4) for k in range(5)]
    (kept,) = report(alone).findings
    assert kept.claim == claim
    lost = next(f for f in report(alone, *many).findings if f.checkpoint == "after")
    assert (lost.claim, lost.alone) == ("nothing_shown", claim)
    assert lost.verdict == "CANNOT TELL"


@pytest.mark.parametrize("says", ["before", "copy", "retrained"])
def test_memory_of_a_model_to_compare_with_may_be_taken_away(says):
    weak = finding("weak", "memory", f"{says}_remembers", p=0.03)
    many = [finding(f"m{k}", "nothing_shown", "cannot_tell", 0.4) for k in range(5)]
    lost = report(weak, *many).findings[0]
    assert (lost.claim, lost.verdict) == ("nothing_shown", "")
    assert lost.sentence


def test_a_model_after_erasure_has_a_state_and_one_before_has_none(of_all_kinds):
    states = {each.name: each.state for each in checkpoint_states(of_all_kinds)}
    assert states == {
        "kept": "LEAKS",
        "hidden": "DETECTABLE",
        "pushed": "DETECTABLE",
        "gone": "NO LEAK FOUND",
        "unclear": "NO LEAK FOUND",
        "broken": "NOT TESTED",
    }


def test_a_model_before_erasure_has_no_state_whatever_else_is_found_on_it():
    """Nobody means to release it, and it should remember what is to be forgotten."""
    leak = finding("before", "memory", "before_remembers")
    other = figure("before", "matched|memory", -1.0, unit="nats", no_effect=0.0)
    claim = Finding.on(
        other,
        "memory",
        "matched.memory",
        facts={"memory": other, "trained": other, "held_out": other},
        p=0.001,
    )
    kept = finding("kept", "memory", "remembered")
    both = report(leak, claim, kept, results=[other])
    assert [state.name for state in checkpoint_states(both)] == ["kept"]
    assert states(both, DEFAULT_RULES[0])["before"] == "left_out"


def test_where_nothing_bounds_what_remains_nothing_was_tested():
    few = Finding.not_tested(
        "erasure",
        "erasure.cannot_tell_few",
        checkpoint="after",
        reason="fewer than 5 independent groups on one of the sides",
    )
    untested = report(finding("before", "memory", "before_remembers"), few)
    assert [f.verdict for f in untested.findings] == ["", "CANNOT TELL"]
    (state,) = checkpoint_states(untested)
    assert state.state == "NOT TESTED"
    assert states(untested, DEFAULT_RULES[0])["after"] == "tripped"


def test_memory_of_few_rows_that_the_correction_takes_away_was_no_test():
    """Few rows may show memory, and never that there is none."""
    few = finding("after", "memory", "remembered_membership", p=0.03)
    few = few.model_copy(update={"facts": {**few.facts, UNBOUNDED: "few groups"}})
    others = [finding(f"m{k}", "nothing_shown", "cannot_tell", 0.4) for k in range(5)]
    lost = report(few, *others)
    (after,) = [f for f in lost.findings if f.checkpoint == "after"]
    assert (after.claim, after.verdict) == ("not_tested", "CANNOT TELL")
    assert after.sentence
    state_by_name = {state.name: state.state for state in checkpoint_states(lost)}
    assert state_by_name["after"] == "NOT TESTED"
    assert states(lost, DEFAULT_RULES[0])["after"] == "tripped"


@pytest.mark.parametrize(
    "reason", ["missing_swapped", "missing_retrained_read", "missing_not_trained"]
)
def test_the_next_step_after_a_mistake_of_the_setup_is_its_own(reason):
    mistaken = Finding.not_tested(
        "erasure",
        f"erasure.{reason}",
        checkpoint="after",
        before="before",
        retrained="again",
    )
    untested = report(finding("before", "nothing_shown", "before_nothing"), mistaken)
    next_step = advice(checkpoint_states(untested))["NOT TESTED"]
    assert next_step == sentences.render(f"advice.erasure.{reason}")


def test_the_column_of_erasure_shows_verdicts(of_all_kinds):
    matrix = matrix_of(checkpoint_states(of_all_kinds))
    column = [each.audit for each in matrix.columns].index("erasure")
    cells = {row.name: row.cells[column] for row in matrix.rows}
    assert {name: cell.effect for name, cell in cells.items()} == {
        f.checkpoint: f.verdict for f in of_all_kinds.findings if f.verdict
    }
    assert {name: cell.kind for name, cell in cells.items()} == {
        "kept": "found",
        "hidden": "found",
        "pushed": "less",
        "gone": "nothing",
        "unclear": "nothing",
        "broken": "void",
    }


def test_the_first_screen_says_what_was_to_be_forgotten_and_what_is_left(of_all_kinds):
    answers = of_all_kinds.glance.answers
    assert {"60", "40", "0.300"} <= set(answers[0].text.replace(";", "").split())
    shown = [answer for answer in answers if answer.verdict]
    assert {answer.label for answer in shown} <= set(CLAIMS) - {"before", "retrained"}
    for answer in shown:
        assert answer.is_drawn
        assert (answer.value, answer.band) == (-0.2, 0.3)


def test_an_audit_that_was_not_run_answers_nothing():
    other = figure("er", "matched|memory", 0.0, unit="nats")
    claim = Finding.on(
        other,
        "nothing_shown",
        "matched.memory",
        facts={"memory": other, "trained": other, "held_out": other},
        p=0.9,
    )
    without = made_report("er", results=[other], findings=[claim])
    assert without.glance.answers == ()


def states(report: Report, rule: str, **options: Any) -> dict[str, str]:
    outcomes = check(report, [parse_rule(rule)], **options)
    return {outcome.checkpoint: outcome.state for outcome in outcomes}


def test_a_rule_on_a_verdict_trips_where_it_is_given(of_all_kinds):
    outcomes = states(of_all_kinds, "erasure = REMEMBERED")
    assert [name for name, state in outcomes.items() if state == "tripped"] == ["kept"]
    left_out = {name for name, state in outcomes.items() if state == "left_out"}
    assert left_out == {"base", "before", "retrained"}
    assert states(of_all_kinds, "erasure == CANNOT TELL")["unclear"] == "tripped"

    strict = states(of_all_kinds, "erasure != ERASED except unclear")
    passing = {name for name, state in strict.items() if state == "ok"}
    assert passing == {"gone"}
    assert strict["unclear"] == "left_out"


def test_without_a_verdict_a_rule_does_not_pass():
    mistaken = Finding.not_tested(
        "erasure",
        "erasure.missing_not_trained",
        checkpoint="after",
        before="before",
        retrained="",
    )
    without = report(finding("before", "nothing_shown", "before_nothing"), mistaken)
    assert states(without, "erasure = REMEMBERED")["after"] == "tripped"
    allowed = states(without, "erasure = REMEMBERED", allow_missing=True)
    assert allowed["after"] == "missing"


def test_the_usual_rule_leaves_out_a_model_that_others_are_compared_with(of_all_kinds):
    (rule,) = DEFAULT_RULES
    outcomes = states(of_all_kinds, rule)
    assert outcomes["before"] == "left_out"
    tripped = {name for name, state in outcomes.items() if state == "tripped"}
    assert {"kept", "hidden"} <= tripped
    assert outcomes["gone"] == "ok"


@pytest.mark.parametrize(
    "rule", ["erasure = FORGOTTEN", "erasures = ERASED", "matched = ERASED"]
)
def test_a_rule_on_no_verdict_names_those_that_there_are(rule):
    with pytest.raises(InputError):
        parse_rule(rule)

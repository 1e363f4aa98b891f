"""Rules on what an attacker sees: how they are read, and what they judge."""

from typing import Any

import pytest
from made_reports import figure, made_report

from spark_audit.audits.doors.accesses import DOOR_NAMES, NAME_BY_LETTER
from spark_audit.errors import InputError
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import parse_rule
from spark_audit.results import Report

NOT_THERE = {"low": None, "high": None, "status": "not_estimable"}


def row(name: str, door: str, value: float | None, **columns: Any) -> Any:
    columns = {"no_effect": 0.5, "unit": "", "clusters": 200, "n": 200, **columns}
    if value is None:
        columns |= {**NOT_THERE, "note": "no ranks"}
        return figure(name, f"doors|auc|{door}", None, **columns)
    limits = {"low": value - 0.05, "high": value + 0.05}
    return figure(name, f"doors|auc|{door}", value, **{**limits, **columns})


@pytest.fixture(scope="module")
def report() -> Report:
    """``open`` leaks with log-probabilities, ``shut`` nowhere."""
    of_open = {"answers": 0.52, "top20": 0.58, "logprobs": 0.66, "weights": 0.8}
    of_shut = {"answers": 0.5, "top20": 0.51, "logprobs": 0.52, "weights": 0.51}
    rows = [row("base", "logprobs", 0.5), row("base", "weights", None)]
    for name, values in (("open", of_open), ("shut", of_shut)):
        rows += [row(name, door, value) for door, value in values.items()]
        rows.append(row(name, "all_stages", None))
    return made_report("base", "open", "shut", results=rows)


def states(report: Report, rule: str, **options: Any) -> dict[str, str]:
    outcomes = check(report, [parse_rule(rule)], **options)
    return {outcome.checkpoint: outcome.state for outcome in outcomes}


@pytest.mark.parametrize(
    "rule",
    [
        "membership[access=c] > 0.6",
        "membership[access=logprobs] > 0.6",
        "membership[access=logprobs].value > 0.6",
        "membership[access= c ].low>0.6",
        "doors.auc[access=c].value > 0.6",
        "doors.auc.logprobs.value > 0.6",
    ],
)
def test_an_access_is_judged_by_letter_or_word(rule, report):
    assert states(report, rule) == {"base": "ok", "open": "tripped", "shut": "ok"}


def test_every_access_has_two_names():
    for letter, name in NAME_BY_LETTER.items():
        for word in (letter, name):
            rule = parse_rule(f"membership[access={word}].high >= 0.7 for mine")
            assert (rule.audit, rule.metric, rule.variant) == ("doors", "auc", name)
            assert (rule.field, rule.checkpoint) == ("high", "mine")
            assert rule.group == "pooled"
    assert set(NAME_BY_LETTER.values()) == set(DOOR_NAMES)


def test_who_sees_less_is_judged_apart(report):
    rule = "membership[access=answers] > 0.6"
    assert states(report, rule) == {"base": "left_out", "open": "ok", "shut": "ok"}


def test_all_accesses_are_those_that_have_a_figure(report):
    rule = "membership[access=*] > 0.7"
    assert states(report, rule) == {"base": "ok", "open": "tripped", "shut": "ok"}


def test_an_access_that_cannot_be_computed_violates_its_rule(report):
    rule = "membership[access=all_stages] > 0.7"
    assert states(report, rule)["open"] == "tripped"
    assert states(report, rule, allow_missing=True)["open"] == "missing"


def test_without_any_figure_all_accesses_violate_the_rule():
    nothing = made_report("mine", results=[row("mine", "all_stages", None)])
    assert states(nothing, "membership[access=*] > 0.7")["mine"] == "tripped"


def test_withheld_figures_are_judged_and_not_printed():
    """Of few clusters: the exact figure decides, logs do not tell it."""
    few = made_report("mine", results=[row("mine", "answers", 0.91, clusters=3)])
    (outcome,) = check(few, [parse_rule("membership[access=*] > 0.7")])
    assert outcome.state == "tripped"
    assert "0.9" not in outcome.detail


@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        ("membership[access=logits] > 0.6", "logprobs"),
        ("membership[acces=c] > 0.6", "access"),
        ("membership > 0.6", "access"),
        ("membership[access=z] > 0.6", "answers"),
        ("doors.auc[access=z].value > 0.6", "answers"),
        ("doors.auc.z.value > 0.6", "answers"),
        ("doors.tpr[access=c].value > 0.6", "auc"),
        ("membership[access=c].mean > 0.6", "value"),
    ],
)
def test_names_that_do_not_exist_are_answered_with_those_that_do(rule, advice):
    with pytest.raises(InputError) as error:
        parse_rule(rule)
    assert advice in str(error.value)
    assert "\n" not in str(error.value)


def test_other_audits_take_no_accesses():
    """Their brackets name groups of rows, as before."""
    rule = parse_rule("mia.auc.loss[access=c].value > 0.6")
    assert (rule.variant, rule.group) == ("loss", "access:c")


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("membership[access=c] rose by 0.05", "tripped"),
        ("membership[access=answers] rose by 0.05", "ok"),
        ("membership[access=*] rose by 0.05", "tripped"),
        ("membership[access=c] fell by 0.05", "ok"),
    ],
)
def test_a_rule_may_be_of_the_change_since_an_earlier_report(rule, state):
    place = {"baseline": "mine (earlier)", "no_effect": 0.0, "unit": "", "mde": 0.04}
    changes = [
        figure("mine", f"doors|auc|{door}", value, low=low, high=low + 0.08, **place)
        for door, value, low in (("answers", 0.0, -0.04), ("logprobs", 0.1, 0.06))
    ]
    rows = [row("mine", "answers", 0.5), row("mine", "logprobs", 0.6)]
    changed = made_report("mine", results=rows, contrasts=changes)
    assert states(changed, rule, changed=changed)["mine"] == state

"""Rules of the gate on groups of rows: one of them, or each."""

from typing import Any

import pytest
from made_reports import figure, made_report

from spark_audit.errors import InputError
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import parse_rule
from spark_audit.results import Report

PLACES = {
    "memory": "matched|memory|",
    "membership": "mia|auc|combined",
    "extraction": "extract|greedy_beyond|",
}
VALUES = {"de": 0.6, "fr": 0.8, "other groups": 0.5}


@pytest.fixture(scope="module")
def report() -> Report:
    rows = [
        figure("mine", f"{place}|group:{group}", value)
        for place in PLACES.values()
        for group, value in VALUES.items()
    ]
    pooled = [figure("mine", place, 0.99) for place in PLACES.values()]
    return made_report("mine", results=[*rows, *pooled])


def states(report: Report, rule: str, **options: Any) -> dict[str, str]:
    outcomes = check(report, [parse_rule(rule)], **options)
    return {outcome.checkpoint: outcome.state for outcome in outcomes}


@pytest.mark.parametrize("word", PLACES)
@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("[group=de] > 0.7", "ok"),
        ("[group=fr] > 0.7", "tripped"),
        ("[group=*] > 0.7", "tripped"),
        ("[group=*] > 0.9", "ok"),
        ("[group=other groups] > 0.4", "tripped"),
        ("[group=de].high > 0.7", "tripped"),
        ("[group=de].low > 0.5 for mine", "ok"),
    ],
)
def test_a_word_stands_for_the_figure_by_group(report, word, rule, state):
    assert states(report, f"{word}{rule}")["mine"] == state


def test_the_long_form_is_the_same(report):
    for word, place in PLACES.items():
        audit, metric, variant = place.split("|")
        long = ".".join(part for part in (audit, metric, variant) if part)
        short_rule = parse_rule(f"{word}[group=de].high > 0.5")
        long_rule = parse_rule(f"{long}[group=de].high > 0.5")
        for name in ("audit", "metric", "variant", "field", "group", "bound"):
            assert getattr(short_rule, name) == getattr(long_rule, name)


def test_a_group_without_a_figure_violates_its_rule(report):
    assert states(report, "memory[group=it] > 5")["mine"] == "tripped"
    assert states(report, "memory[group=it] > 5", allow_missing=True) == {
        "mine": "missing"
    }
    nothing = made_report("mine", results=[figure("mine", "matched|memory|", 0.1)])
    assert states(nothing, "memory[group=*] > 5")["mine"] == "tripped"


@pytest.mark.parametrize("group", ["de", "*"])
def test_a_report_without_groups_says_how_to_have_them(group):
    whole = made_report("mine", results=[figure("mine", "matched|memory|", 0.1)])
    (outcome,) = check(whole, [parse_rule(f"memory[group={group}] > 5")])
    assert "--by" in outcome.detail


def test_a_wrong_name_is_told_apart_and_no_name_is_listed(report):
    (outcome,) = check(report, [parse_rule("memory[group=it] > 5")])
    assert "--by" not in outcome.detail
    assert "name" in outcome.detail
    assert not any(group in outcome.detail.split() for group in ("de", "fr"))


def test_of_few_clusters_logs_do_not_tell_the_figure():
    few = made_report(
        "mine", results=[figure("mine", "mia|auc|combined|group:de", 0.91, clusters=3)]
    )
    (outcome,) = check(few, [parse_rule("membership[group=*] > 0.7")])
    assert outcome.state == "tripped"
    assert "0.9" not in outcome.detail


def test_a_word_alone_says_what_stands_in_its_brackets():
    with pytest.raises(InputError) as error:
        parse_rule("membership[grp=de] > 0.6")
    assert "group" in str(error.value)

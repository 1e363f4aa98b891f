"""What the first screen says of groups of rows."""

from typing import Any

import pytest
from made_reports import figure, made_report, said

from spark_audit.audits import about
from spark_audit.audits.groups.answers import MAX_CHECKPOINTS_NAMED, answers_by_group
from spark_audit.results import Finding


def on_groups(name: str, claim: str, group: str = "north", **columns: Any) -> Finding:
    """A finding on the group of rows of a checkpoint that leaks most."""
    worst = figure(name, f"mia|auc|combined|group:{group}", 0.8)
    facts = {"worst": worst, "group": group, "field": "region", "groups": 4}
    return said("mia", name, claim, facts=facts, **columns)


def text_of(*findings: Finding) -> str:
    report = made_report(
        *[finding.checkpoint for finding in findings], findings=[*findings]
    )
    (answer,) = answers_by_group(report, "mia")
    assert "region" in answer.label
    return answer.text


def test_without_groups_nothing_is_said():
    report = made_report("mine", findings=[said("mia", "mine", "membership")])
    assert answers_by_group(report, "mia") == []


def test_groups_of_another_audit_are_not_answered():
    report = made_report("mine", findings=[on_groups("mine", "membership")])
    assert answers_by_group(report, "extract") == []
    assert len(about("mia").answers(report)) == 1


def test_the_group_that_leaks_is_named_with_its_checkpoint():
    text = text_of(on_groups("mine", "membership"), on_groups("other", "nothing_shown"))
    assert "mine" in text
    assert "north" in text
    assert "other" not in text.replace("the other", "")


@pytest.mark.parametrize("claim", ["nothing_shown", "confounded"])
def test_no_group_is_named_where_none_is_claimed(claim):
    text = text_of(on_groups("mine", claim))
    assert "north" not in text


@pytest.mark.parametrize("status", ["void", "invalid"])
@pytest.mark.parametrize("claim", ["nothing_shown", "membership"])
def test_a_void_comparison_is_neither_found_nor_not_found(claim, status):
    void = on_groups("mine", claim, status=status)
    report = made_report("mine", findings=[void])
    assert answers_by_group(report, "mia") == []
    text = text_of(void, on_groups("other", "membership", group="south"))
    assert "south" in text
    assert "north" not in text
    assert "single group" not in text


def test_only_a_group_that_stands_out_is_said_to_leak_more_than_others():
    alike = text_of(on_groups("mine", "membership", further=["groups.not_apart"]))
    apart = text_of(on_groups("mine", "membership", further=["groups.stands_out"]))
    assert "more than" in apart
    assert "more than" not in alike


def test_of_many_checkpoints_some_are_named_and_all_are_counted():
    n_leaking = MAX_CHECKPOINTS_NAMED + 5
    leaking = [on_groups(f"leaks{i}", "membership") for i in range(n_leaking)]
    quiet = [on_groups(f"quiet{i}", "nothing_shown") for i in range(7)]
    text = text_of(*leaking, *quiet)
    assert text.count("leaks") == MAX_CHECKPOINTS_NAMED
    assert "5 more" in text
    assert "7 others" in text

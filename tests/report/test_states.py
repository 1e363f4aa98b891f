"""Where checkpoints stand: states from typed findings, the worst first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_reports import figure, guard, made_report, said

from spark_audit import sentences
from spark_audit.audits.setup_guards import REMAINS, faults
from spark_audit.cli.show import show_report
from spark_audit.report.advice import advice
from spark_audit.report.assemble import assemble
from spark_audit.report.attacks import attacks
from spark_audit.report.checkpoint_states import SHAPES, checkpoint_states
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.first_screen import (
    answer,
    checks,
    gate,
    headline,
    meanings,
    urgent_remarks,
)
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import DEFAULT_RULES, parse_rule
from spark_audit.report.writers import markdown as markdown_writer
from spark_audit.report.writers import pages
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import (
    AuditResult,
    Claim,
    Finding,
    Guard,
    Hits,
    Report,
)

FAMILY = {"p": 0.01, "family": "primary"}


def finding(audit: str, name: str, claim: Claim, **more: Any) -> Finding:
    family = {} if claim in ("not_tested", "moved", "confounded") else FAMILY
    return said(audit, name, claim, f"{audit} {claim}.", **{**family, **more})


def report(*findings: Finding, names: tuple[str, ...] = ("base", "a", "b")) -> Report:
    bare: dict[str, Any] = {"low": None, "high": None, "interval_method": "none"}
    rows = [figure(name, "matched|memory", 0.0, **bare) for name in names]
    rows += [
        figure("a", f"extract|greedy_rate||{group}", 0.0, **bare)
        for group in ("pooled", "type:NAME", "type:SSN")
    ]
    return made_report(*names, results=rows, findings=list(findings))


def test_a_count_is_rounded_to_no_more_than_there_are():
    one = finding("extract", "a", "verbatim")
    counts = {"all": Hits(count=15, of=15), "some": Hits(count=5, of=15)}
    one = one.model_copy(update={"facts": {**one.facts, **counts}})
    (shown,) = disclosed(report(one)).findings
    assert shown.facts["all"] == Hits(count=15, of=15, rounded=True)
    assert shown.facts["some"] == Hits(count=5, of=15, rounded=True)


@pytest.mark.parametrize(
    ("clusters", "words"), [(60, "for about 5 of 93"), (2, "for some of 93")]
)
def test_a_count_of_few_clusters_is_not_shown_as_half_of_all(clusters, words):
    lost = Guard(
        name="x",
        says="guard.have_twins",
        facts={"lost": Hits(count=4, of=93)},
        passed=None,
    )
    made = report()
    few = made.manifest.model_copy(update={"n_clusters": clusters})
    made = made.model_copy(update={"guards": [lost], "manifest": few})
    assert words in disclosed(made).guards[0].detail


def test_what_a_metric_has_beyond_another_is_withheld_with_its_row():
    row = figure("a", "mia|auc|loss", 0.9, clusters=3)
    claimed = finding(
        "mia",
        "a",
        "membership",
        metric="auc_excess",
        variant="loss",
        value=0.4,
        low=0.3,
        high=0.5,
        no_effect=0.0,
        unit="AUC",
    )
    (shown,) = disclosed(made_report("a", results=[row], findings=[claimed])).findings
    assert (shown.value, shown.low, shown.high) == (None, None, None)
    assert shown.claim == "membership"


def test_what_was_tested_is_counted_as_the_sentence_counts_it():
    """Rounded as a figure it would be 99 on the same page."""
    back = Hits(count=53, of=100)
    every = finding("extract", "a", "moved")
    every = every.model_copy(update={"facts": {"back": Hits(count=60, of=120)}})
    one = finding("extract", "a", "nothing_shown")
    one = one.model_copy(update={"facts": {"back": back}})
    row = figure("a", "extract|greedy_rate", 0.5, n=100, clusters=35)
    given = made_report("a", results=[row], findings=[every, one])
    shown = disclosed(given)
    assert shown.results[0].n != 100
    (told,) = [
        each["on"]
        for each in attacks(shown, checkpoint_states(shown))
        if each["audit"] == "extract"
    ]
    assert told.startswith("100 trained")


@pytest.mark.parametrize("family", ["primary", "exploratory"])
def test_canaries_that_come_back_do_not_hide_how_many_identifiers_were_asked(family):
    """Findings on canaries have a plain count under the same name."""
    canaries = finding("extract", "a", "nothing_shown")
    canaries = canaries.model_copy(update={"facts": {"back": 1}, "family": family})
    row = figure("a", "extract|greedy_rate", 0.5, n=100, clusters=35)
    made = made_report("a", results=[row], findings=[canaries])
    (tried,) = [
        each["on"]
        for each in attacks(made, checkpoint_states(made))
        if each["audit"] == "extract"
    ]
    assert tried.startswith("100 trained")


@pytest.mark.parametrize("mde", [0.0301, 0.045, 0.0518, 0.3])
def test_no_smaller_effect_is_shown_to_be_detectable(mde):
    row = figure("a", "matched|memory", 0.01, low=-0.016, high=0.037, mde=mde)
    shown = disclosed(made_report("a", results=[row])).results[0].mde
    assert mde <= shown <= mde + 0.2  # the step of so few clusters


@pytest.mark.parametrize(
    ("claims", "state"),
    [
        ([("extract", "verbatim")], "LEAKS"),
        ([("mia", "membership"), ("canary", "memory")], "LEAKS"),
        ([("mia", "membership")], "DETECTABLE"),
        ([("matched", "betrays")], "DETECTABLE"),
        ([("matched", "nothing_shown"), ("mia", "confounded")], "NO LEAK FOUND"),
        ([("twins", "nothing_shown")], "NO LEAK FOUND"),
        ([("mia", "nothing_shown")], "NOT TESTED"),
        ([("twins", "confounded")], "NOT TESTED"),
        ([("matched", "moved"), ("rank", "moved")], "NOT TESTED"),
        ([], "NOT TESTED"),
    ],
)
def test_states(claims, state):
    told = [finding(audit, "a", claim) for audit, claim in claims]
    found = {one.name: one for one in checkpoint_states(report(*told))}
    assert found["a"].state == state
    assert found["b"].state == "NOT TESTED"
    assert "base" not in found
    assert set(SHAPES) == set(meanings())


@pytest.mark.parametrize(
    ("alone", "leads"), [("nothing_shown", "pooled"), ("memory", "dose:16+")]
)
def test_all_identifiers_lead_unless_a_part_of_them_claims_alone(alone, leads):
    """A dose of few groups has the smaller p by chance, and can see nothing."""
    whole = finding("matched", "a", "nothing_shown", p=0.6, metric="memory")
    part = finding(
        "matched",
        "a",
        "nothing_shown",
        p=0.02,
        metric="memory",
        group="dose:16+",
        alone=alone,
    )
    for told in ((whole, part), (part, whole)):
        (one, _) = sorted(checkpoint_states(report(*told)), key=lambda one: one.name)
        assert one.state == "NO LEAK FOUND"
        assert one.led_by.group == leads


def test_the_worst_stands_first_and_every_detection_in_it():
    loud = [finding(k, "b", "memory") for k in ("matched", "twins", "canary")]
    one, two = checkpoint_states(
        report(
            finding("matched", "a", "nothing_shown"),
            *loud,
            finding("mia", "b", "membership"),
        )
    )
    assert (one.name, one.state, len(one.detections)) == ("b", "LEAKS", 4)
    assert one.reason == "Matched memory."
    assert [tried.audit for tried in one.tally["FOUND"]] == [
        "matched",
        "canary",
        "twins",
        "mia",
    ]
    assert (two.name, two.led_by.audit, two.reason) == (
        "a",
        "matched",
        "Matched nothing_shown.",
    )
    leaks = "1 LEAKS (b; 4 of 5 attacks tested)"
    clean = "NO LEAK FOUND ({}1 of 5 attacks tested)"
    both = f"Of 2 checkpoints: {leaks}, 1 {clean.format('a; ')}"
    assert answer([one, two]) == both
    assert answer([two]) == f"a: {clean.format('')}"
    whole = [replace(tried, outcome="not shown") for tried in two.tried]
    assert answer([replace(two, tried=tuple(whole))]) == "a: NO LEAK FOUND"


def test_what_says_nothing_is_void_and_what_was_left_out_not_tested():
    told = [
        finding("matched", "a", "nothing_shown"),
        finding("canary", "a", "nothing_shown", status="insensitive"),
        finding("mia", "a", "confounded"),
        finding("extract", "a", "not_tested"),
    ]
    (one, _) = checkpoint_states(report(*told))
    assert {k: [t.audit for t in v] for k, v in one.tally.items()} == {
        "confounded": ["mia"],
        "void": ["canary", "extract"],
        "not tested": ["twins"],
        "not shown": ["matched"],
    }


FAULT = {name: f"Reason of {name}." for name in REMAINS}


def with_fault(name: str, *told: Finding, of: str = "a", **more: Any) -> Report:
    """A report whose setup guard failed, assembled as every report is."""
    given = report(*told, **more)
    failed = guard(name, FAULT[name], of=of)
    kept = ("status", "command", "manifest", "checkpoints")
    result = AuditResult(results=given.results, findings=given.findings)
    facts = {field: getattr(given, field) for field in kept}
    return assemble({"matched": result}, guards=[failed], **facts)


@pytest.mark.parametrize(
    ("audit", "claim", "leaks"),
    [
        ("extract", "verbatim", (*REMAINS,)),
        ("canary", "memory", (*REMAINS,)),
        ("matched", "memory", ("held_out_back",)),
        ("twins", "memory", ("held_out_back",)),
        ("mia", "membership", ()),
        ("matched", "betrays", ()),
        ("twins", "betrays", ()),
        ("matched", "nothing_shown", ()),
    ],
)
@pytest.mark.parametrize("fault", REMAINS)
def test_a_mistaken_setup_is_not_tested_or_leaks(fault, audit, claim, leaks):
    """No claim that the fault could cause stands, and no gate opens."""
    given = with_fault(fault, finding(audit, "a", claim, p=1e-6), names=("base", "a"))
    (one,) = checkpoint_states(given)
    assert one.state == ("LEAKS" if fault in leaks else "NOT TESTED")
    assert FAULT[fault] in one.reason
    assert not one.ships
    if fault not in leaks:
        assert one.reason == FAULT[fault]
        assert not one.detections
        assert audit in [tried.audit for tried in one.tally["void"]]
        assert not {"FOUND", "not shown"} & {*one.tally}
        next_steps = advice([one])["NOT TESTED"]
        assert sentences.render(f"advice.{fault}", relearned=False) in next_steps
    (judged,) = (
        v for v in check(given, [parse_rule(DEFAULT_RULES[0])]) if v.checkpoint == "a"
    )
    assert judged.state == "tripped"
    assert FAULT[fault] in judged.detail
    # A rule on a figure opens no gate either, and the base is no suspect.
    rule = parse_rule("matched.memory.value > 5")
    states = {v.checkpoint: v.state for v in check(given, [rule])}
    assert states["a"] == "tripped"
    assert ("a (NOT TESTED)" in gate([one])) == (one.state == "NOT TESTED")
    _, *told, _ = checks(given, [one])
    follows = sentences.render("failed_check.follows")
    assert [follows in line for line in told] == [not one.detections]
    # Assembled once more, as when another audit is added, nothing changes.
    again = with_fault(fault, *given.findings, names=("base", "a"))
    assert checkpoint_states(again) == [one]


def test_a_fault_is_of_its_checkpoint_its_seeds_and_everybodys_base():
    told = [finding("matched", name, "nothing_shown") for name in ("a", "b")]
    of_a = checkpoint_states(with_fault("broken_model", *told))
    assert {one.name: one.state for one in of_a} == {
        "a": "NOT TESTED",
        "b": "NO LEAK FOUND",
    }
    of_base = checkpoint_states(with_fault("base_read_rows", *told, of="base"))
    assert {one.state for one in of_base} == {"NOT TESTED"}
    for of, name in (("a[2]", "a"), ("a@3", "a"), ("a", "a+int8")):
        guards = with_fault("broken_model", *told, of=of).guards
        assert [guard.name for guard in faults(guards, name)] == ["broken_model"]
        assert faults(guards, "b") == faults(guards, "base") == []


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        ("nothing_shown", "NO LEAK FOUND"),
        ("not_tested", "NOT TESTED"),
        ("memory", "LEAKS"),
    ],
)
def test_rows_that_do_not_fit_are_asked_for_first_and_void_nothing(claim, state):
    """No claim is void, the gate without rules does not ask, and a leak answers."""
    question = "Were these the rows?"
    asked = guard("trained_rows_fit", question, passed=None, of="a")
    found = [finding("matched", name, claim) for name in ("a", "b")]
    given = assemble(
        {"matched": AuditResult(results=report().results, findings=found)},
        guards=[asked],
        status="complete",
        command=[],
        manifest=report().manifest,
        checkpoints=report().checkpoints,
    )
    by_name = {one.name: one for one in checkpoint_states(given)}
    own, other = by_name["a"], by_name["b"]
    assert (own.state, other.state) == (state, state)
    assert own.ships == other.ships
    assert own.reason.startswith(question) == (state != "LEAKS")
    assert own.reason.removeprefix(f"{question} ") == other.reason
    assert not own.faults
    assert all(one.status == "ok" for one in given.findings)
    assert bool(given.guards) == (state != "LEAKS")


def test_the_question_stands_on_the_first_screen_and_among_the_checks():
    question = "Were these the rows?"
    asked = guard("trained_rows_fit", question, passed=None, of="a")
    found = [finding("matched", name, "nothing_shown") for name in ("a", "b")]
    given = report(*found).model_copy(update={"guards": [asked]})
    stand = checkpoint_states(given)
    assert checks(given, stand)[1] == f"a: {question}"
    (remark,) = urgent_remarks(given, stand)
    assert "a" in remark

    page, markdown = first_pages(given)
    head = page[: page.index('id="verdict"')]
    assert remark in head
    assert markdown.index(remark) < markdown.index("## ")
    without = given.model_copy(update={"guards": []})
    assert urgent_remarks(without, checkpoint_states(without)) == []
    assert checks(without, checkpoint_states(without))[1:] == []


def test_a_base_that_was_not_given_is_said_in_the_headline_of_every_format():
    found = finding("matched", "a", "nothing_shown")
    settings = {"reference": "tiny-base"}
    without = report(found, names=("a",)).model_copy(update={"settings": settings})
    told = headline(without, checkpoint_states(without))
    assert told.startswith(answer(checkpoint_states(without)))
    assert told != answer(checkpoint_states(without))
    for text in first_pages(without):
        assert told in text
        assert "--base" in text

    given = report(found, names=("base", "a")).model_copy(update={"settings": settings})
    assert headline(given, checkpoint_states(given)) == answer(checkpoint_states(given))
    # A manifest without a base model names none that could be given.
    unnamed = report(found, names=("a",))
    assert headline(unnamed, checkpoint_states(unnamed)) == answer(
        checkpoint_states(unnamed)
    )


def first_pages(given: Report) -> list[str]:
    """report.html and report.md of a report."""
    how = WriterInput()
    writers = (pages.write_page, markdown_writer.write)
    return [str(file.content) for w in writers for file in w(given, Path(), how)]


def test_a_base_that_gives_something_away_is_told_of_too():
    found = checkpoint_states(report(finding("extract", "base", "verbatim")))
    assert [one.name for one in found] == ["base", "a", "b"]


def test_the_gate_of_no_rules_agrees():
    rule = parse_rule(DEFAULT_RULES[0])
    told = [
        finding("matched", "a", "memory"),
        finding("mia", "b", "membership"),
        finding("matched", "c", "betrays"),
        finding("matched", "d", "nothing_shown"),
    ]
    given = report(*told, names=("base", "a", "b", "c", "d", "e"))
    stand = checkpoint_states(given)
    assert gate(stand).startswith("stops a, b, e (NOT TESTED); passes c (DETECTABLE ")
    (passed,) = (one for one in check(given, [rule]) if one.checkpoint == "c")
    assert "detected" in passed.detail
    assert "'claim >= betrays'" in passed.detail
    verdicts = check(given, [*map(parse_rule, DEFAULT_RULES)])
    tripped = {one.checkpoint for one in verdicts if one.state == "tripped"}
    assert tripped == {one.name for one in stand if not one.ships}


def test_the_terminal_withholds_nothing_from_its_owner(capsys):
    row = figure("a", "matched|memory", 0.123, unit="nats", clusters=2)
    facts = {"delta_sel": row, "seeds": False}
    few = Finding.on(row, "nothing_shown", "matched.reference", facts=facts)
    few = few.model_copy(update=FAMILY)
    made = report(few)
    rows = [one for one in made.results if one.checkpoint != "a"]
    made = made.model_copy(update={"results": [row, *rows]})
    leads = {one.name: one.reason for one in checkpoint_states(disclosed(made))}
    assert "withheld" in leads["a"].lower()
    show_report(made, verbose=True)
    out = capsys.readouterr().out
    assert "0.123" in out
    assert "withheld" not in out.lower()


def test_the_terminal_shows_one_figure_once(capsys):
    row = figure("a", "matched|memory", 0.5791, unit="nats", clusters=12)
    moved = Finding.on(row, "nothing_shown", "matched.reference", facts={"x": row})
    facts = {"delta_sel": row, "seeds": False}
    moved = moved.model_copy(update=FAMILY | {"facts": facts})
    show_report(made_report("a", results=[row], findings=[moved]), verbose=True)
    out = capsys.readouterr().out
    assert "0.600" in out
    assert "0.579" not in out


def test_what_was_tested_of_nobody_is_the_reason_of_each():
    lacking = Finding.not_tested("matched", "said", text="it has no identifier")
    (one,) = checkpoint_states(made_report("base", "mine", findings=[lacking]))
    assert (one.name, one.state) == ("mine", "NOT TESTED")
    assert "it has no identifier" in one.reason.lower()


@pytest.mark.parametrize(
    ("unit", "least"),
    [("bits", ""), ("ranks", ", in b; none can be stated for a")],
)
def test_the_smallest_effect_is_that_of_any_test_in_its_unit(unit, least):
    silent = finding("canary", "a", "nothing_shown", p=0.2)
    other = finding("canary", "a", "nothing_shown", p=0.4, mde=2.0, unit=unit)
    clear = finding("canary", "b", "nothing_shown", p=0.3, mde=2.0, unit="bits")
    made = report(silent, other, clear)
    tried = {
        one["name"]: one["least"] for one in attacks(made, checkpoint_states(made))
    }
    assert tried["canaries"].endswith(f"(2.00 bits){least}")

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
from spark_audit.report.prepared import PreparedReport
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
    counted = finding("extract", "a", "verbatim")
    counts = {"all": Hits(count=15, of=15), "some": Hits(count=5, of=15)}
    counted = counted.model_copy(update={"facts": {**counted.facts, **counts}})
    (shared_finding,) = disclosed(report(counted)).findings
    assert shared_finding.facts["all"] == Hits(count=15, of=15, rounded=True)
    assert shared_finding.facts["some"] == Hits(count=5, of=15, rounded=True)


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
    report_of_few = report()
    few = report_of_few.manifest.model_copy(update={"n_clusters": clusters})
    report_of_few = report_of_few.model_copy(update={"guards": [lost], "manifest": few})
    assert words in disclosed(report_of_few).guards[0].detail


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
    (shared_finding,) = disclosed(
        made_report("a", results=[row], findings=[claimed])
    ).findings
    assert (shared_finding.value, shared_finding.low, shared_finding.high) == (
        None,
        None,
        None,
    )
    assert shared_finding.claim == "membership"


def test_what_was_tested_is_counted_as_the_sentence_counts_it():
    """Rounded as a figure it would be 99 on the same page."""
    hits = Hits(count=53, of=100)
    finding_of_all = finding("extract", "a", "moved")
    finding_of_all = finding_of_all.model_copy(
        update={"facts": {"back": Hits(count=60, of=120)}}
    )
    finding_of_some = finding("extract", "a", "nothing_shown")
    finding_of_some = finding_of_some.model_copy(update={"facts": {"back": hits}})
    row = figure("a", "extract|greedy_rate", 0.5, n=100, clusters=35)
    full_report = made_report(
        "a", results=[row], findings=[finding_of_all, finding_of_some]
    )
    shared_report = disclosed(full_report)
    assert shared_report.results[0].n != 100
    (tested_on,) = [
        attack["on"]
        for attack in attacks(shared_report, checkpoint_states(shared_report))
        if attack["audit"] == "extract"
    ]
    assert tested_on.startswith("100 trained")


@pytest.mark.parametrize("family", ["primary", "exploratory"])
def test_canaries_that_come_back_do_not_hide_how_many_identifiers_were_asked(family):
    """Findings on canaries have a plain count under the same name."""
    canaries = finding("extract", "a", "nothing_shown")
    canaries = canaries.model_copy(update={"facts": {"back": 1}, "family": family})
    row = figure("a", "extract|greedy_rate", 0.5, n=100, clusters=35)
    report_of_canaries = made_report("a", results=[row], findings=[canaries])
    (tried,) = [
        attack["on"]
        for attack in attacks(report_of_canaries, checkpoint_states(report_of_canaries))
        if attack["audit"] == "extract"
    ]
    assert tried.startswith("100 trained")


@pytest.mark.parametrize("mde", [0.0301, 0.045, 0.0518, 0.3])
def test_no_smaller_effect_is_shown_to_be_detectable(mde):
    row = figure("a", "matched|memory", 0.01, low=-0.016, high=0.037, mde=mde)
    shared_mde = disclosed(made_report("a", results=[row])).results[0].mde
    assert mde <= shared_mde <= mde + 0.2  # the step of so few clusters


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
def test_the_state_follows_from_the_claims(claims, state):
    findings = [finding(audit, "a", claim) for audit, claim in claims]
    states_by_name = {
        state.name: state for state in checkpoint_states(report(*findings))
    }
    assert states_by_name["a"].state == state
    assert states_by_name["b"].state == "NOT TESTED"
    assert "base" not in states_by_name
    assert set(SHAPES) == set(meanings())


@pytest.mark.parametrize(
    ("alone", "leads"), [("nothing_shown", "pooled"), ("memory", "dose:16+")]
)
def test_all_identifiers_lead_unless_a_part_of_them_claims_alone(alone, leads):
    """A dose of few groups has the smaller p by chance, and can see nothing."""
    finding_of_all = finding("matched", "a", "nothing_shown", p=0.6, metric="memory")
    finding_of_group = finding(
        "matched",
        "a",
        "nothing_shown",
        p=0.02,
        metric="memory",
        group="dose:16+",
        alone=alone,
    )
    for findings in (
        (finding_of_all, finding_of_group),
        (finding_of_group, finding_of_all),
    ):
        (first_state, _) = sorted(
            checkpoint_states(report(*findings)),
            key=lambda first_state: first_state.name,
        )
        assert first_state.state == "NO LEAK FOUND"
        assert first_state.led_by.group == leads


def test_the_worst_stands_first_and_every_detection_in_it():
    loud = [finding(k, "b", "memory") for k in ("matched", "twins", "canary")]
    worst, two = checkpoint_states(
        report(
            finding("matched", "a", "nothing_shown"),
            *loud,
            finding("mia", "b", "membership"),
        )
    )
    assert (worst.name, worst.state, len(worst.detections)) == ("b", "LEAKS", 4)
    assert worst.reason == "Matched memory."
    assert [tried.audit for tried in worst.tally["FOUND"]] == [
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
    both_leak = f"Of 2 checkpoints: {leaks}, 1 {clean.format('a; ')}"
    assert answer([worst, two]) == both_leak
    assert answer([two]) == f"a: {clean.format('')}"
    tried_all = [replace(tried, outcome="not shown") for tried in two.tried]
    assert answer([replace(two, tried=tuple(tried_all))]) == "a: NO LEAK FOUND"


def test_what_says_nothing_is_void_and_what_was_left_out_not_tested():
    findings = [
        finding("matched", "a", "nothing_shown"),
        finding("canary", "a", "nothing_shown", status="insensitive"),
        finding("mia", "a", "confounded"),
        finding("extract", "a", "not_tested"),
    ]
    (first_state, _) = checkpoint_states(report(*findings))
    assert {k: [t.audit for t in v] for k, v in first_state.tally.items()} == {
        "confounded": ["mia"],
        "void": ["canary", "extract"],
        "not tested": ["twins"],
        "not shown": ["matched"],
    }


FAULT = {name: f"Reason of {name}." for name in REMAINS}


def with_fault(name: str, *told: Finding, of: str = "a", **more: Any) -> Report:
    """A report whose setup guard failed, assembled as every report is."""
    report_given = report(*told, **more)
    failed = guard(name, FAULT[name], of=of)
    kept_fields = ("status", "command", "manifest", "checkpoints")
    result = AuditResult(results=report_given.results, findings=report_given.findings)
    facts = {field: getattr(report_given, field) for field in kept_fields}
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
    faulty = with_fault(fault, finding(audit, "a", claim, p=1e-6), names=("base", "a"))
    (state,) = checkpoint_states(faulty)
    assert state.state == ("LEAKS" if fault in leaks else "NOT TESTED")
    assert FAULT[fault] in state.reason
    assert not state.ships
    if fault not in leaks:
        assert state.reason == FAULT[fault]
        assert not state.detections
        assert audit in [tried.audit for tried in state.tally["void"]]
        assert not {"FOUND", "not shown"} & {*state.tally}
        next_steps = advice([state])["NOT TESTED"]
        assert sentences.render(f"advice.{fault}", relearned=False) in next_steps
    (judged,) = (
        v for v in check(faulty, [parse_rule(DEFAULT_RULES[0])]) if v.checkpoint == "a"
    )
    assert judged.state == "tripped"
    assert FAULT[fault] in judged.detail
    # A rule on a figure opens no gate either, and the base is no suspect.
    rule = parse_rule("matched.memory.value > 5")
    states = {v.checkpoint: v.state for v in check(faulty, [rule])}
    assert states["a"] == "tripped"
    assert ("a (NOT TESTED)" in gate([state])) == (state.state == "NOT TESTED")
    _, *checks_told, _ = checks(faulty, [state])
    follows = sentences.render("failed_check.follows")
    assert [follows in line for line in checks_told] == [not state.detections]
    # Assembled once more, as when another audit is added, nothing changes.
    again = with_fault(fault, *faulty.findings, names=("base", "a"))
    assert checkpoint_states(again) == [state]


def test_a_fault_is_of_its_checkpoint_its_seeds_and_everybodys_base():
    findings = [finding("matched", name, "nothing_shown") for name in ("a", "b")]
    of_a = checkpoint_states(with_fault("broken_model", *findings))
    assert {state.name: state.state for state in of_a} == {
        "a": "NOT TESTED",
        "b": "NO LEAK FOUND",
    }
    of_base = checkpoint_states(with_fault("base_read_rows", *findings, of="base"))
    assert {state.state for state in of_base} == {"NOT TESTED"}
    for of, name in (("a[2]", "a"), ("a@3", "a"), ("a", "a+int8")):
        guards = with_fault("broken_model", *findings, of=of).guards
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
    question_guard = guard("trained_rows_fit", question, passed=None, of="a")
    findings = [finding("matched", name, claim) for name in ("a", "b")]
    asked_report = assemble(
        {"matched": AuditResult(results=report().results, findings=findings)},
        guards=[question_guard],
        status="complete",
        command=[],
        manifest=report().manifest,
        checkpoints=report().checkpoints,
    )
    by_name = {state.name: state for state in checkpoint_states(asked_report)}
    own_state = by_name["a"]
    other_state = by_name["b"]
    assert (own_state.state, other_state.state) == (state, state)
    assert own_state.ships == other_state.ships
    assert own_state.reason.startswith(question) == (state != "LEAKS")
    assert own_state.reason.removeprefix(f"{question} ") == other_state.reason
    assert not own_state.faults
    assert all(finding.status == "ok" for finding in asked_report.findings)
    assert bool(asked_report.guards) == (state != "LEAKS")


def test_the_question_stands_on_the_first_screen_and_among_the_checks():
    question = "Were these the rows?"
    question_guard = guard("trained_rows_fit", question, passed=None, of="a")
    findings = [finding("matched", name, "nothing_shown") for name in ("a", "b")]
    asked_report = report(*findings).model_copy(update={"guards": [question_guard]})
    stand = checkpoint_states(asked_report)
    assert checks(asked_report, stand)[1] == f"a: {question}"
    (remark,) = urgent_remarks(asked_report, stand)
    assert "a" in remark

    page, markdown = first_pages(asked_report)
    head = page[: page.index('id="verdict"')]
    assert remark in head
    assert markdown.index(remark) < markdown.index("## ")
    without = asked_report.model_copy(update={"guards": []})
    assert urgent_remarks(without, checkpoint_states(without)) == []
    assert checks(without, checkpoint_states(without))[1:] == []


def test_a_base_that_was_not_given_is_said_in_the_headline_of_every_format():
    found_nothing = finding("matched", "a", "nothing_shown")
    settings = {"reference": "tiny-base"}
    without = report(found_nothing, names=("a",)).model_copy(
        update={"settings": settings}
    )
    first_line = headline(without, checkpoint_states(without))
    assert first_line.startswith(answer(checkpoint_states(without)))
    assert first_line != answer(checkpoint_states(without))
    for text in first_pages(without):
        assert first_line in text
        assert "--base" in text

    report_with_base = report(found_nothing, names=("base", "a")).model_copy(
        update={"settings": settings}
    )
    assert headline(report_with_base, checkpoint_states(report_with_base)) == answer(
        checkpoint_states(report_with_base)
    )
    # A manifest without a base model names none that could be given.
    unnamed = report(found_nothing, names=("a",))
    assert headline(unnamed, checkpoint_states(unnamed)) == answer(
        checkpoint_states(unnamed)
    )


def first_pages(given: Report) -> list[str]:
    """report.html and report.md of a report."""
    how = WriterInput()
    prepared = PreparedReport(given)
    writers = (pages.write_page, markdown_writer.write)
    return [str(file.content) for w in writers for file in w(prepared, Path(), how)]


def test_a_base_that_gives_something_away_is_told_of_too():
    states_found = checkpoint_states(report(finding("extract", "base", "verbatim")))
    assert [state.name for state in states_found] == ["base", "a", "b"]
    # The gate judges no base, and so says the first screen.
    assert "base" not in gate(states_found)


def test_the_gate_of_no_rules_agrees():
    rule = parse_rule(DEFAULT_RULES[0])
    findings = [
        finding("matched", "a", "memory"),
        finding("mia", "b", "membership"),
        finding("matched", "c", "betrays"),
        finding("matched", "d", "nothing_shown"),
    ]
    full_report = report(*findings, names=("base", "a", "b", "c", "d", "e"))
    stand = checkpoint_states(full_report)
    assert gate(stand).startswith("stops a, b, e (NOT TESTED); passes c (DETECTABLE ")
    (passed,) = (
        outcome for outcome in check(full_report, [rule]) if outcome.checkpoint == "c"
    )
    assert "detected" in passed.detail
    assert "'claim >= betrays'" in passed.detail
    verdicts = check(full_report, [*map(parse_rule, DEFAULT_RULES)])
    tripped = {verdict.checkpoint for verdict in verdicts if verdict.state == "tripped"}
    assert tripped == {state.name for state in stand if not state.ships}


def test_the_terminal_withholds_nothing_from_its_owner(capsys):
    row = figure("a", "matched|memory", 0.123, unit="nats", clusters=2)
    facts = {"delta_sel": row, "seeds": False}
    few = Finding.on(row, "nothing_shown", "matched.reference", facts=facts)
    few = few.model_copy(update=FAMILY)
    report_of_few = report(few)
    rows = [
        row_given for row_given in report_of_few.results if row_given.checkpoint != "a"
    ]
    report_of_few = report_of_few.model_copy(update={"results": [row, *rows]})
    leads = {
        state.name: state.reason
        for state in checkpoint_states(disclosed(report_of_few))
    }
    assert "withheld" in leads["a"].lower()
    show_report(report_of_few, verbose=True)
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
    (state,) = checkpoint_states(made_report("base", "mine", findings=[lacking]))
    assert (state.name, state.state) == ("mine", "NOT TESTED")
    assert "it has no identifier" in state.reason.lower()


@pytest.mark.parametrize(
    ("unit", "least"),
    [("bits", ""), ("ranks", ", in b; none can be stated for a")],
)
def test_the_smallest_effect_is_that_of_any_test_in_its_unit(unit, least):
    silent = finding("canary", "a", "nothing_shown", p=0.2)
    other_finding = finding("canary", "a", "nothing_shown", p=0.4, mde=2.0, unit=unit)
    clear = finding("canary", "b", "nothing_shown", p=0.3, mde=2.0, unit="bits")
    report_of_three = report(silent, other_finding, clear)
    tried = {
        attack["name"]: attack["least"]
        for attack in attacks(report_of_three, checkpoint_states(report_of_three))
    }
    assert tried["canaries"].endswith(f"(2.00 bits){least}")

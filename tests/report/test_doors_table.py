"""The table of accesses as readers get it: by checkpoint, in words, with outcomes."""

import pytest
from made_reports import TEST, figure, made_report, said

from spark_audit.audits.doors.accesses import DOOR_NAMES
from spark_audit.audits.doors.findings import door_finding, first_screen_answers
from spark_audit.audits.doors.outcomes import DoorOutcome
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.tables import further_tables, tables
from spark_audit.results import Report, Row
from spark_audit.sentences import render

OUTCOMES = "doors_outcomes"
UNKNOWN = {"low": None, "high": None, "status": "not_estimable"}
WRITES_OUT = {"metric": "greedy_rate_excess", **TEST}


def auc(name: str, door: str, value: float | None = 0.6, **columns: object) -> Row:
    fields = {"no_effect": 0.5, "unit": "", "clusters": 100, "n": 100, **columns}
    if value is None:
        fields |= {**UNKNOWN, "note": "no ranks"}
    row: Row = figure(name, f"doors|auc|{door}", value, **fields)
    return row


def outcomes_of(name: str, first_shown: str, missing: str = "") -> list[DoorOutcome]:
    """Shown from one door on."""
    outcomes = []
    is_shown = False
    for door in DOOR_NAMES:
        is_shown |= door == first_shown
        row = auc(name, door, None if door == missing else 0.6)
        says = "shown" if is_shown else "not shown"
        if door == missing:
            says = "not estimable: no ranks"
        outcomes.append(DoorOutcome(row, says))
    return outcomes


def shown_only_at(name: str, *doors: str) -> list[DoorOutcome]:
    """Shown at these doors, whatever is seen at others."""
    return [
        DoorOutcome(auc(name, door), "shown" if door in doors else "not shown")
        for door in DOOR_NAMES
    ]


@pytest.fixture(scope="module")
def report() -> Report:
    all_outcomes = [*outcomes_of("open", "logprobs"), *outcomes_of("shut", "none")]
    records = [
        {"checkpoint": o.row.checkpoint, "variant": o.row.variant, "says": o.says}
        for o in all_outcomes
    ]
    by_name = {
        name: [o for o in all_outcomes if o.row.checkpoint == name]
        for name in ("open", "shut")
    }
    return made_report(
        *("base", "open", "shut"),
        results=[o.row for o in all_outcomes],
        tables={OUTCOMES: records},
        origins={OUTCOMES: "doors"},
        findings=[
            *(door_finding(of_checkpoint) for of_checkpoint in by_name.values()),
            said("extract", "open", "verbatim", "It writes.", **WRITES_OUT),
        ],
    )


def test_a_line_has_words_and_its_outcome_and_stands_with_its_checkpoint(report):
    (table,) = [table for table in tables(report) if table.section == "doors"]
    assert table.header[:2] == ("checkpoint", "access")
    assert table.header[-1] == render("table.outcome")
    assert [line.checkpoint for line in table.rows] == ["open"] * 10 + ["shut"] * 10
    words = [line.texts[1] for line in table.rows[:10]]
    assert words == [render(f"variant.doors.{door}") for door in DOOR_NAMES]
    assert [line.texts[-1] for line in table.rows[:5]] == ["not shown"] * 4 + ["shown"]
    # It is no table of its own for readers.
    assert not any(OUTCOMES.endswith(t.key) for t in further_tables(report) if t.key)


@pytest.mark.parametrize(
    ("first_shown", "missing", "says", "further"),
    [
        ("answers", "", "doors.answers_shown", []),
        ("logprobs", "", "doors.answers_not_shown", ["doors.first_door"]),
        ("none", "", "doors.answers_not_shown", ["doors.no_door"]),
        ("logprobs", "answers", "doors.answers_missing", ["doors.first_door"]),
    ],
)
def test_the_answer_begins_with_who_sees_least(first_shown, missing, says, further):
    finding = door_finding(outcomes_of("mine", first_shown, missing))
    assert (finding.says, finding.further) == (says, further)
    assert not finding.detected, "the claim is that of another audit"
    assert finding.family == "exploratory"
    assert finding.sentence


@pytest.mark.parametrize(
    ("doors", "first"),
    [
        (("top20", "top20_0.1"), "top20"),
        # Rounding may move an AUC up, too.
        (("top20_0.1", "logprobs"), "top20_0.1"),
        (("logprobs_0.01",), "logprobs_0.01"),
    ],
)
def test_an_access_that_is_shown_only_if_rounded_is_no_access_less(doors, first):
    finding = door_finding(shown_only_at("mine", *doors))
    assert finding.further == ["doors.first_door"]
    assert finding.claim == "moved"
    first_row = finding.facts["first"]
    assert isinstance(first_row, Row)
    assert first_row.variant == first
    # Tables say "the same, rounded"; alone it is said of what.
    words = render(f"variant.doors.{first.partition('_')[0]}").partition(": ")[2]
    assert str(finding.facts["door"]).startswith(words)


def test_without_any_figure_it_was_not_tested():
    outcomes = [
        DoorOutcome(auc("mine", door, None), "not estimable: no ranks")
        for door in DOOR_NAMES
    ]
    assert door_finding(outcomes).claim == "not_tested"


def test_the_first_screen_names_what_is_written_out_beside(report):
    of_open, of_shut = first_screen_answers(report)
    assert "open" in of_open.label
    assert "shut" in of_shut.label
    (verbatim,) = [f for f in report.findings if f.audit == "extract"]
    assert verbatim.text in of_open.text
    assert verbatim.text not in of_shut.text


def test_identifiers_that_come_out_less_often_are_not_written_out():
    fewer = said("extract", "open", "betrays", "Fewer.", **WRITES_OUT)
    found = made_report(
        "open", findings=[door_finding(outcomes_of("open", "none")), fewer]
    )
    (answer,) = first_screen_answers(found)
    assert fewer.text not in answer.text


def test_of_few_clusters_shared_files_hold_neither_figure_nor_outcome():
    few = made_report(
        "mine",
        results=[auc("mine", door, clusters=3) for door in DOOR_NAMES],
        tables={
            OUTCOMES: [
                {"checkpoint": "mine", "variant": door, "says": "shown"}
                for door in DOOR_NAMES
            ]
        },
        origins={OUTCOMES: "doors"},
    )
    shared = disclosed(few)
    assert all(row.value is None and row.withheld for row in shared.results)
    assert not shared.tables.get(OUTCOMES)


def test_figures_lose_digits_that_ten_together_would_give_away():
    """Steps of six over the clusters, as one row moves several of them."""
    rows = [auc("mine", door, 0.6 + k / 1000) for k, door in enumerate(DOOR_NAMES)]
    shared = disclosed(made_report("mine", results=rows))
    values = {round((row.value - 0.5) / 0.1, 9) for row in shared.results}
    assert values == {1.0}

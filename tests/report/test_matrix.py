"""The matrix of checkpoints and attacks, and the line of figures of a finding."""

import math
from typing import Any

import pytest
from made_reports import figure, made_report, said

from spark_audit.report.checkpoint_states import checkpoint_states
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.figures_line import figures_line
from spark_audit.report.matrix import CELL_MARKS, MatrixCell, matrix_of
from spark_audit.results import Finding, Report
from spark_audit.sentences.effects import signed_effect

TEST = {"p": 0.0001, "family": "primary", "p_adjusted": 0.003}


def memory(name: str, claim: Any, value: float, **columns: Any) -> Finding:
    fields = {"metric": "memory", "unit": "nats", "no_effect": 0.0, "value": value}
    return said("matched", name, claim, "memory.", **{**fields, **TEST, **columns})


def report(*findings: Finding) -> Report:
    names = ["base", *dict.fromkeys(finding.checkpoint for finding in findings)]
    rows = [figure(name, "matched|memory", 0.0, unit="nats") for name in names]
    return made_report(*names, results=rows, findings=list(findings))


def cell(finding: Finding) -> MatrixCell:
    """The cell of identifiers of the one checkpoint."""
    matrix = matrix_of(checkpoint_states(report(finding)))
    (row,) = matrix.rows
    audits = [column.audit for column in matrix.columns]
    return row.cells[audits.index("matched")]


@pytest.mark.parametrize(
    ("size", "unit", "text"),
    [
        (math.log(1.12), "nats", "+12%"),
        (math.log(7.0), "nats", "×7.0"),
        (math.log(0.54), "nats", "−46%"),
        (math.log(1.002), "nats", "+0.2%"),
        (0.0, "nats", "0%"),
        (math.log(5000), "nats", "> ×1000"),
        (math.log2(25.3), "bits", "×25"),
        (0.0, "bits", "×1.0"),
        (0.2747, "AUC", "+27"),
        (-0.081, "AUC", "−8"),
        (60.0, "points", "+60"),
        (0.5, "", "0.500"),
        (5.428, "clusters", "5.4 clusters"),
    ],
)
def test_an_effect_is_said_on_the_scale_of_its_attack(size, unit, text):
    assert signed_effect(size, unit) == text


def test_what_was_found_has_its_effect_and_its_strength():
    memory_cell = cell(memory("a", "memory", -math.log(1.12)))
    assert (memory_cell.kind, memory_cell.text, memory_cell.strength) == (
        "found",
        "● +12%",
        1,
    )
    assert cell(memory("a", "memory", -math.log(1.5))).strength == 2
    assert cell(memory("a", "memory", -math.log(7))).strength == 3


def test_what_became_less_likely_has_a_mark_of_its_own():
    memory_cell = cell(memory("a", "betrays", math.log(1.5)))
    assert (memory_cell.kind, memory_cell.text) == ("less", "▽ −33%")


def test_where_nothing_was_found_stands_how_much_could_still_be_there():
    memory_cell = cell(memory("a", "nothing_shown", 0.01, at_most=-math.log(1.09)))
    assert (memory_cell.kind, memory_cell.text, memory_cell.strength) == (
        "nothing",
        "○ ≤9%",
        0,
    )


def test_without_a_limit_nothing_is_said_of_what_could_be_there():
    memory_cell = cell(memory("a", "nothing_shown", 0.01))
    assert (memory_cell.kind, memory_cell.text) == ("nothing", "○")


def test_what_is_void_shows_no_effect():
    memory_cell = cell(memory("a", "memory", -2.0, status="void", at_most=-3.0))
    assert (memory_cell.kind, memory_cell.text, memory_cell.strength) == (
        "void",
        "! void",
        0,
    )


def test_an_attack_that_was_not_run_has_a_column_and_a_reason():
    matrix = matrix_of(checkpoint_states(report(memory("a", "memory", -1.0))))
    columns = {column.audit: index for index, column in enumerate(matrix.columns)}
    lacking = matrix.rows[0].cells[columns["canary"]]
    assert (lacking.kind, lacking.effect) == ("not tested", "")
    assert lacking.reason


def test_marks_differ_without_colour():
    assert len(set(CELL_MARKS.values())) == len(CELL_MARKS)


def test_the_legend_explains_the_marks_that_there_are_and_no_others():
    leaking = memory("a", "memory", -1.0)
    clean = memory("b", "nothing_shown", 0.0)
    marks = [
        mark for mark, _ in matrix_of(checkpoint_states(report(leaking, clean))).legend
    ]
    assert marks == ["●", "○", "·"]
    marks = [mark for mark, _ in matrix_of(checkpoint_states(report(clean))).legend]
    assert marks == ["○", "·"]


def test_the_worst_checkpoint_stands_first():
    clean = memory("a", "nothing_shown", 0.0)
    leaking = memory("b", "memory", -1.0)
    rows = matrix_of(checkpoint_states(report(clean, leaking))).rows
    assert [row.name for row in rows] == ["b", "a"]


def test_the_figures_of_a_finding_stand_in_one_line_on_its_scale():
    sides = {
        "trained": figure("a", "matched|pii_change", -0.1, clusters=207),
        "held_out": figure("a", "matched|pii_change", 0.1, clusters=102),
    }
    finding = memory(
        "a",
        "memory",
        -math.log(1.12),
        low=-math.log(1.16),
        high=-math.log(1.08),
    )
    facts = {**finding.facts, **sides}
    line = figures_line(finding.model_copy(update={"facts": facts}))
    assert line == (
        "+12% [+8%, +16%] per token · without a leak 0% · "
        "p 0.0001, corrected 0.003 · 207 trained, 102 held out"
    )


def test_at_most_stands_in_the_line_where_nothing_was_found_alone():
    at_most = -math.log(1.09)
    clean = memory("a", "nothing_shown", 0.0, at_most=at_most)
    assert figures_line(clean).endswith("at most 9%")
    leaking = memory("a", "memory", -1.0, at_most=at_most)
    assert "at most" not in figures_line(leaking)


def test_a_finding_without_figures_has_an_empty_line():
    assert figures_line(said("matched", "a", "not_tested")) == ""


def test_the_last_digit_of_a_sum_takes_no_null_from_a_shared_finding():
    """A null that is lost would be read as 0, and a limit of ×13 as ×35."""
    row = figure("a", "canary|exposure_mean|ssn", 2.735299945852379, unit="bits")
    row = row.model_copy(update={"no_effect": 1.405, "low": 1.41, "high": 4.06})
    finding = Finding.on(
        row, "nothing_shown", "said", facts={"text": "x.", "otherwise": "y."}, p=0.1
    )
    changed = {"value": 2.7352999458523786, "at_most": 5.122}
    finding = finding.model_copy(update=changed)
    assert finding.value != row.value
    leaking_report = made_report("base", "a", results=[row], findings=[finding])
    (shared_finding,) = disclosed(leaking_report).findings
    assert shared_finding.no_effect == pytest.approx(1.4, abs=0.05)
    assert (shared_finding.low, shared_finding.high) != (None, None)


def test_without_a_null_there_is_no_limit():
    finding = memory("a", "nothing_shown", 0.01, at_most=-0.1, no_effect=None)
    assert cell(finding).text == "○"

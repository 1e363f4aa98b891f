"""A report at a glance: one answer for terminal, page, Markdown and notebook."""

import math
import re
from typing import Any

import pytest
from made_reports import (
    TEST,
    attacked_report,
    figure,
    guard,
    made_report,
    many_clean,
    memory,
    mixed_cells,
    said,
)

from spark_audit.cli.glance import show_glance
from spark_audit.report.audit_report import AuditReport
from spark_audit.report.consequences import consequence_sentence
from spark_audit.report.matrix import few_names
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import markdown, pages
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import Report
from spark_audit.sentences import render

MAX_WORDS = 25
MAX_LINES = 30
MAX_WORDS_IN_TERMINAL = 200


def n_words(text: str) -> int:
    """Return how many words a text has: what has a letter or a digit."""
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def printed(report: Report, capsys, *, verbose: bool = False) -> str:
    glance = PreparedReport(report).answer
    assert glance is not None
    show_glance(glance, verbose=verbose)
    return str(capsys.readouterr().out)


def test_all_formats_say_the_same(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "500")
    report = many_clean(3)
    glance = PreparedReport(report).answer
    assert glance is not None
    (page,) = pages.write_page(PreparedReport(report), tmp_path, WriterInput())
    shown_text = re.sub(r"<[^>]+>", "", str(page.content))
    markdown_text = markdown.render(PreparedReport(report))
    for text in (printed(report, capsys), markdown_text, shown_text):
        assert glance.headline in text
        assert glance.gate in text
        for consequence in glance.consequences:
            assert consequence.sentence in text
        for row in glance.matrix.rows:
            for cell in row.cells:
                assert cell.words in text
                assert cell.mark in text


def test_a_report_without_an_attack_has_no_answer():
    report = made_report("base", results=[figure("base", "rank|top1_rate|pii")])
    assert PreparedReport(report).answer is None
    in_notebook = AuditReport.of(report)
    assert in_notebook.glance is None
    assert in_notebook._repr_html_().startswith("<pre>AuditReport(")


def test_a_notebook_shows_the_answer():
    html = AuditReport.of(many_clean(3))._repr_html_()
    glance = AuditReport.of(many_clean(3)).glance
    assert glance is not None
    assert html.count("<tr") == 1 + len(glance.matrix.rows)
    assert glance.headline in html
    assert "#guards" not in html


@pytest.mark.parametrize("scene", [many_clean, mixed_cells])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_terminal_shows_at_most_thirty_lines_and_200_words(
    scene, count, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    text = printed(scene(count), capsys)
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= 100
    assert n_words(text) <= MAX_WORDS_IN_TERMINAL


@pytest.mark.parametrize("scene", [many_clean, mixed_cells])
@pytest.mark.parametrize("columns", [50, 60, 80, 100, 200])
def test_a_narrow_terminal_cuts_no_name_and_no_effect_of_the_matrix(
    scene, columns, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    report = scene(5)
    text = printed(report, capsys, verbose=True)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text

    glance = PreparedReport(report).answer
    assert glance is not None
    for column in glance.matrix.columns:
        assert column.attack in text
    for row in glance.matrix.rows:
        assert f" {row.name} " in text
        for cell in row.cells:
            assert cell.text in text


def test_all_rows_of_many_checkpoints_stand_behind_verbose(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    report = many_clean(40)
    assert "clean-17" not in printed(report, capsys)
    assert re.search(r"\b36\b", printed(report, capsys))

    lines = printed(report, capsys, verbose=True).splitlines()
    assert sum(" clean-17 " in line for line in lines) == 1


def test_of_many_checkpoints_markdown_and_page_have_each_row(tmp_path):
    report = many_clean(40)
    (page,) = pages.write_page(PreparedReport(report), tmp_path, WriterInput())
    markdown_text = markdown.render(PreparedReport(report))
    assert markdown_text.count("| ○ NO LEAK FOUND clean-17 |") == 1
    assert str(page.content).count("</span> clean-17</th>") == 1


def test_equal_results_are_said_once_with_how_much_could_be_there():
    glance = PreparedReport(many_clean(4)).answer
    assert glance is not None
    leak, clean = glance.consequences
    assert leak.names == ("leak",)
    assert clean.names == ("clean-1", "clean-2", "clean-3")
    # 1.005% and 3.05% are rounded up: what is not excluded is not left out.
    for words in ("2%", "clean-1", "4%", "clean-3"):
        assert words in clean.sentence


def test_a_check_that_voids_is_told_before_anything_else(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    void = memory("a", "memory", -1.0, status="void")
    broken = guard("broken_model", "is broken.", of="a")
    out = printed(attacked_report(void, guards=[broken]), capsys)
    assert out.index(render("failed_check.follows")) < out.index("identifiers")


@pytest.mark.parametrize(
    "name",
    [
        "trained_rows_fit",
        "identifiers have twins",
        "canaries rankable",
        "base reproduces both sides equally",
    ],
)
def test_a_check_that_warned_is_not_named_as_if_it_had_held(name):
    warned = guard(name, "is not so.", passed=None, of="a")
    clean = memory("a", "nothing_shown", 0.01, at_most=-0.1)
    glance = PreparedReport(attacked_report(clean, guards=[warned])).answer
    assert glance is not None
    assert warned.title not in glance.checks


def test_a_sentence_has_at_most_25_words():
    claims = {
        "matched": ("memory", "betrays"),
        "canary": ("memory",),
        "twins": ("memory",),
        "mia": ("membership",),
        "series": ("membership",),
        "extract": ("verbatim",),
    }
    units = {"matched": "nats", "canary": "bits", "twins": "bits", "extract": "points"}
    for audit, of_audit in claims.items():
        for claim in of_audit:
            finding = said(
                audit,
                "a",
                claim,
                metric="x",
                value=-0.3 if audit == "matched" else 0.3,
                no_effect=0.0,
                unit=units.get(audit, "AUC"),
                **TEST,
            )
            sentence = consequence_sentence(finding)
            assert sentence != finding.text
            assert len(sentence.split()) <= MAX_WORDS, sentence


def test_of_many_names_some_stand_with_how_many_more_there_are():
    assert few_names(["a", "b"]) == "a and b"
    assert few_names([f"n{k}" for k in range(9)]) == "n0, n1 and 7 more"


def test_the_kinds_that_are_most_exposed_are_bars_of_one_scale():
    rows = [
        figure(
            "a",
            f"matched|memory||type:{type_name}",
            -value,
            low=-1.5 * value,
            high=-0.5 * value,
            no_effect=0.0,
            unit="nats",
        )
        for type_name, value in (("NAME", 0.4), ("EMAIL", 0.2))
    ]
    report = attacked_report(memory("a", "memory", -0.3))
    report = report.model_copy(update={"results": [*report.results, *rows]})
    glance = PreparedReport(report).answer
    assert glance is not None
    assert [bar.kind for bar in glance.exposed] == ["NAME", "EMAIL"]
    name, email = glance.exposed
    assert (name.low, name.value, name.high) == pytest.approx((1 / 3, 2 / 3, 1.0))
    assert email.value == pytest.approx(name.value / 2)
    assert name.effect == f"+{round(100 * math.expm1(0.4))}%"


def test_what_a_finding_is_held_against_is_said_of_it():
    """Without a base twins are held against held-out ones, not against a base."""
    fields: dict[str, Any] = {"value": 1.0, "no_effect": 0.0, "unit": "bits", **TEST}
    since = consequence_sentence(said("twins", "a", "memory", metric="rise", **fields))
    beside = consequence_sentence(said("twins", "a", "memory", metric="x", **fields))
    assert render("audit.twins.than.base") in since
    assert render("audit.twins.than.held_out") in beside


def test_a_finding_of_one_seed_is_said_of_that_seed():
    finding = memory("ours[2]", "memory", -0.5)
    report = attacked_report(finding)
    glance = PreparedReport(report).answer
    assert glance is not None
    assert glance.consequences[0].names == ("ours[2]",)


def test_who_could_hide_as_much_as_a_leak_is_named():
    leaking = memory("leak", "memory", -math.log(1.12))
    near = memory("near", "nothing_shown", 0.0, at_most=-math.log(1.119))
    far = memory("far", "nothing_shown", 0.0, at_most=-math.log(1.05))
    silent = memory("silent", "nothing_shown", 0.0)
    glance = PreparedReport(attacked_report(leaking, near, far, silent)).answer
    assert glance is not None
    sentence = glance.consequences[-1].sentence
    assert render("glance.could_hide", names="near", leaking="leak") in sentence
    assert render("glance.not_known", names="silent") in sentence


def test_kinds_that_became_less_likely_are_not_called_exposed():
    row = figure(
        "a",
        "matched|memory||type:NAME",
        0.4,
        low=0.2,
        high=0.6,
        no_effect=0.0,
        no_effect_high=0.0,
        unit="nats",
    )
    report = attacked_report(memory("a", "betrays", 0.3))
    report = report.model_copy(update={"results": [*report.results, row]})
    glance = PreparedReport(report).answer
    assert glance is not None
    assert glance.exposed_label == "Less likely"
    assert glance.whose_kinds == "a, exploratory:"

"""The last line of a notebook's cell: a short repr, and a table that loads nothing."""

import copy
import pickle

import numpy as np
import pytest
import torch
from made_reports import figure, guard, made_report, many_clean, mixed_cells

from spark_audit.cells_html import MAX_REPR, MAX_ROWS_OF_CELL, cell_html, short_repr
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.errors import InputError
from spark_audit.integrations.history import LookCost, summary_of
from spark_audit.integrations.look import AuditLook
from spark_audit.report.audit_report import AuditReport
from spark_audit.report.disclosure.shared import rounded_for_owner
from spark_audit.results import AuditResult, Report
from spark_audit.scoring.score import Scores
from spark_audit.scoring.table import Pass, TokenTable

LISTS = ("states", "findings", "guards", "results", "contrasts", "checkpoints")

EVIL = "<img src=https://example.org/x onerror=alert(1)>"


def checkpoint(name: str) -> Checkpoint:
    return Checkpoint(
        name=name,
        source=name,
        format="hf-folder",
        model=torch.nn.Module(),
        tokenizer=None,
        architecture="GPT2LMHeadModel",
        usable=np.ones(3, bool),
        max_positions=64,
        dtype="float32",
        device="cpu",
        weights_sha256="ab" * 32,
        tokenizer_sha256="cd" * 32,
        model_id="ef" * 32,
        parameters=12_345,
        notes=("a remark " * 50, EVIL),
    )


def scores(name: str) -> Scores:
    table = TokenTable.from_items([("a", np.arange(2, dtype=np.int32), {})])
    return Scores({Pass(): table}, checkpoint=name, model_id="m", notes=[EVIL])


def objects(name: str) -> list[object]:
    report = AuditReport.of(many_clean(3))
    return [
        report,
        AuditResult(results=report.results, findings=report.findings),
        checkpoint(name),
        scores(name),
        *(getattr(report, of) for of in LISTS if getattr(report, of)),
        report.findings[0],
        report.states[0],
    ]


@pytest.mark.parametrize("name", ["full", EVIL, "n" * 900])
def test_everything_is_short_as_text_and_loads_nothing_as_html(name):
    for cell_object in objects(name):
        assert len(repr(cell_object)) <= MAX_REPR, type(cell_object)
        html = cell_object._repr_html_()
        assert "<table" in html
        assert "<img" not in html
        assert "src=" not in html.replace("&lt;img src=", "")
        assert "<script" not in html


def test_rows_of_a_report_are_short_as_text():
    report = many_clean(3)
    for record in (*report.results, *report.guards, *report.checkpoints):
        assert len(repr(record)) <= MAX_REPR
        assert len(str(record)) <= MAX_REPR


def test_the_manifest_of_a_report_hides_what_texts_could_be_tried_out_with():
    facts = many_clean(3).manifest.model_copy(update={"key": "5" * 32})
    for text in (repr(facts), str(facts), f"{facts}"):
        assert facts.name in text
        assert facts.digest[:8] not in text
        assert facts.key[:8] not in text


@pytest.mark.parametrize("scene", [many_clean, mixed_cells])
def test_lists_of_a_report_are_lists_in_all_else(scene):
    plain: Report = scene(3)
    report = AuditReport.of(plain)
    assert report == plain
    assert report.findings == plain.findings
    assert isinstance(report.findings, list)
    assert report.model_dump_json() == plain.model_dump_json()
    for again in (
        pickle.loads(pickle.dumps(report)),
        copy.deepcopy(report),
        AuditReport.model_validate(report.model_dump()),
    ):
        assert again == report
        assert again.findings._repr_html_() == report.findings._repr_html_()


def test_a_list_of_findings_has_the_rounded_figures_of_the_pages():
    report = AuditReport.of(many_clean(30))
    html = report.findings._repr_html_()
    rounded = rounded_for_owner(report).findings
    assert html.count("<tr") == 1 + min(len(rounded), MAX_ROWS_OF_CELL)
    assert f"... and {len(rounded) - MAX_ROWS_OF_CELL} more" in html
    for finding in rounded[:MAX_ROWS_OF_CELL]:
        assert finding.figures in html


def test_a_list_of_figures_says_what_is_void_as_frames_do():
    row = figure("a", "matched|memory")
    failed = guard("broken_model", "It failed.", of="a")
    report = made_report("a", results=[row], guards=[failed])
    assert report.results[0].status == "ok"
    assert report.to_frame()["status"].to_list() == ["void"]
    html = report.results._repr_html_()
    assert ">void<" in html
    assert ">ok<" not in html


def test_states_say_each_checkpoint_with_its_state():
    report = AuditReport.of(many_clean(3))
    html = report.states._repr_html_()
    for checkpoint_state in report.states:
        assert f">{checkpoint_state.name}<" in html
        assert checkpoint_state.state in html


def test_a_finding_or_result_alone_shows_no_figure():
    report = AuditReport.of(many_clean(3))
    finding = report.findings[0]
    assert finding.value is not None
    for cell_object in (finding, report.states[0], AuditResult(findings=[finding])):
        html = cell_object._repr_html_()
        assert finding.text not in html
        assert f"{finding.value:.3g}" not in html + repr(cell_object)


def test_text_of_a_cell_is_escaped_and_its_numbers_are_readable():
    html = cell_html(EVIL, ["a<b"], [[EVIL, 12345, 0.123456, None, "\x1b[1m"]])
    assert "<img" not in html
    assert "a&lt;b" in html
    assert ">12,345<" in html
    assert ">0.1235<" in html
    assert "\x1b" not in html


def test_a_repr_cuts_what_is_long():
    text = short_repr([], "x" * 900, base=None, **{f"f{i}": i for i in range(100)})
    assert text.startswith("list('xxx")
    assert len(text) == MAX_REPR
    assert "base" not in text


def test_an_unknown_figure_is_answered_with_what_this_report_has():
    report = AuditReport.of(many_clean(3))
    assert report.plots
    for name, title in report.plots.items():
        assert report.plot(name).title == title
    missing = next(name for name in ("noise", "rank") if name not in report.plots)
    with pytest.raises(InputError) as caught:
        report.plot(missing)
    assert all(name in str(caught.value) for name in report.plots)
    with pytest.raises(InputError, match="'memory'") as caught:
        report.plot("memroy")
    assert missing not in str(caught.value)


def test_a_plot_is_a_picture_of_the_width_of_the_page(tmp_path):
    plotted = AuditReport.of(many_clean(3)).plot("memory")
    png, metadata = plotted._repr_png_()
    assert png.startswith(b"\x89PNG")
    # Width and height of a PNG stand in its first block.
    width, height = (int.from_bytes(png[size : size + 4], "big") for size in (16, 20))
    assert width == pytest.approx(2 * metadata["width"], abs=2)
    assert height == pytest.approx(2 * metadata["height"], abs=2)
    assert metadata["width"] >= 360
    assert metadata["alt"].startswith(plotted.title)
    plotted.save(tmp_path / "memory.svg")
    assert (tmp_path / "memory.svg").stat().st_size > 1000


def test_one_is_told_in_the_singular():
    table = TokenTable.from_items([("a", np.zeros(1, np.int32), {})])
    of_one = Scores({Pass(): table}, checkpoint="mine", model_id="m")
    assert "1 text, 1 token'" in repr(of_one)
    assert "(1 item, 1 row, " in repr(table)

    (row, *_) = many_clean(3).results
    assert "1 figure, 0 differences" in AuditResult(results=[row])._repr_html_()
    look = AuditLook(step=0, name="base", report=many_clean(1))
    cost = LookCost(seconds=1.0, share_of_time=0.1)
    assert summary_of([look], [cost]).startswith("1 look, ")
    assert summary_of([look, look], [cost]).startswith("2 looks, ")

"""Rows of a checkpoint whose setup is at fault: void in every frame and file."""

import csv
import io

import pandas as pd
import pytest
from made_reports import figure, guard, made_report, said

from spark_audit.audits.setup_guards import REMAINS
from spark_audit.report.assemble import assemble, results_of
from spark_audit.report.folder import write_report
from spark_audit.results import AuditResult, Report

FAMILY = {"p": 0.01, "family": "primary"}
FIGURES = ("matched|memory", "matched|memory||type:EMAIL", "extract|greedy_rate")


def made(fault: str = "", *findings, of: str = "a") -> Report:
    """``a`` and ``b`` with figures of three audits, and a guard that failed for one."""
    names = ("base", "a", "b")
    rows = [figure(name, column, 0.5) for name in names for column in FIGURES]
    rows += [figure(name, "utility|last", 0.5) for name in names]
    rows.append(figure("a", "matched|memory||dose:1", None))
    did = [
        figure(name, "matched|did", -0.9, baseline="base", p=0.0002, p_adjusted=0.0002)
        for name in ("a", "b")
    ]
    findings_given = list(findings) or [
        said("matched", name, "nothing_shown", "s", **FAMILY) for name in ("a", "b")
    ]
    records = [{"checkpoint": name, "share": 0.5, "clusters": 9} for name in names]
    result = AuditResult(
        results=rows,
        contrasts=did,
        findings=findings_given,
        tables={"matched_shares": records},
    )
    bare = made_report(*names)
    facts = {k: getattr(bare, k) for k in ("status", "command", "manifest")}
    guards = [guard(fault, "It failed.", of=of)] if fault else []
    return assemble(
        {"matched": result}, guards=guards, checkpoints=bare.checkpoints, **facts
    )


@pytest.mark.parametrize("fault", REMAINS)
def test_every_figure_of_a_faulty_setup_is_void_and_names_the_guard(fault):
    report = made(fault)
    for row in (*report.results, *report.contrasts):
        is_void = row.checkpoint == "a" and row.audit != "utility"
        assert row.voided_by == (fault if is_void else "")
        if row.value is None:
            assert row.status == "not_estimable"
        else:
            assert row.status == ("void" if is_void else "ok")
        states = {"base": "", "a": "NOT TESTED", "b": "NO LEAK FOUND"}
        assert row.state == states[row.checkpoint]
    of_a = [finding for finding in report.findings if finding.checkpoint == "a"]
    assert {finding.voided_by for finding in of_a if finding.claim != "not_tested"} == {
        fault
    }


def test_a_detection_that_the_fault_cannot_cause_keeps_its_figures():
    report = made("base_read_rows", said("extract", "a", "verbatim", "s", **FAMILY))
    status = {(r.checkpoint, r.audit): r.status for r in report.results}
    assert status["a", "extract"] == "ok"
    rows = [r for r in report.results if (r.checkpoint, r.audit) == ("a", "matched")]
    assert {r.voided_by for r in rows} == {"base_read_rows"}
    assert {r.state for r in report.results if r.checkpoint == "a"} == {"LEAKS"}


def test_without_a_fault_nothing_is_void():
    report = made()
    assert {row.status for row in report.results} == {"ok", "not_estimable"}
    assert not any(row.voided_by for row in report.results)


def test_a_report_made_again_over_other_guards_is_marked_anew():
    """As when an audit is added to a folder, or checkpoints are compared."""
    faulty = made("broken_model")
    facts = {k: getattr(faulty, k) for k in ("status", "command", "manifest")}
    own_results = results_of(faulty, ["matched", "extract"])
    again = assemble(own_results, checkpoints=faulty.checkpoints, **facts)
    assert {row.status for row in again.results} == {"ok", "not_estimable"}
    assert {row.voided_by for row in again.results} == {""}


@pytest.mark.parametrize(
    "name", ["results", "contrasts", "findings", "guards", "checkpoints"]
)
def test_every_frame_has_the_state_and_what_voids_it(name):
    frame = made("broken_model").to_frame(name)
    assert {"state", "voided_by"} <= {*frame}
    column = "name" if name == "checkpoints" else "checkpoint"
    assert {*frame.loc[frame[column] == "a", "state"]} == {"NOT TESTED"}


def test_records_and_files_have_them_too(tmp_path):
    report = made("broken_model")
    frame = report.to_frame("matched_shares")
    assert dict(zip(frame["checkpoint"], frame["voided_by"], strict=True)) == {
        "base": "",
        "a": "broken_model",
        "b": "",
    }
    staged = report.model_copy(
        update={"tables": {"x": [{"checkpoint": "a", "state": "kept"}]}}
    )
    assert staged.to_frame("x").iloc[0].to_dict() == {
        "checkpoint": "a",
        "state": "kept",
        "checkpoint_state": "NOT TESTED",
        "voided_by": "",
        "status": "ok",
    }
    write_report(report, tmp_path)
    tables = [*(tmp_path / "tables").glob("*.csv")]
    assert len(tables) >= 4
    for path in tables:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        for row in rows:
            if row.get("checkpoint") == "a":
                assert row["state"] == "NOT TESTED", path.name
                assert "voided_by" in row
    results = pd.read_csv(tmp_path / "tables" / "results.csv")
    of_a = results[(results["checkpoint"] == "a") & (results["audit"] == "matched")]
    assert "ok" not in {*of_a["status"]}

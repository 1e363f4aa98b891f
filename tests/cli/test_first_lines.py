"""What is read first of a report whose training did not see all that it lists."""

import pytest
from made_reports import figure, made_report, said

from spark_audit.audits.supervision_guards import supervision_warnings
from spark_audit.cli.main import run
from spark_audit.cli.show import show_report
from spark_audit.files import write_text
from spark_audit.report.checkpoint_states import checkpoint_states
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.results import Hits, Report
from spark_audit.results.guards import guard

CUT_OFF = {"cut_off": Hits(count=16, of=48)}
CANARIES = {"without_loss": Hits(count=12, of=40), "n_cut_off": 0}
CASES = {
    "cut_off": ("cut_off", CUT_OFF, "16 of 48"),
    "canary masked": ("canary_without_loss", CANARIES, "12 of 40"),
    "canary cut off": (
        "canary_without_loss",
        {**CANARIES, "n_cut_off": 7},
        "12 of 40",
    ),
}


def report_with(name: str, facts: dict[str, Hits | int]) -> Report:
    rows = [
        figure(name, column, 0.0)
        for name in ("base", "mine")
        for column in ("matched|memory", "canary|exposure_mean|full")
    ]
    nothing = said(
        "matched", "mine", "nothing_shown", "nothing.", p=0.5, family="primary"
    )
    return made_report(
        "base",
        "mine",
        results=rows,
        findings=[nothing],
        guards=[guard(name, name, facts, passed=False)],
    )


@pytest.mark.parametrize("case", CASES)
def test_the_screen_begins_with_what_training_did_not_see(case, capsys, monkeypatch):
    """It stands before any state: none of them is about what is named there."""
    monkeypatch.setenv("COLUMNS", "400")
    name, facts, counted = CASES[case]
    report = report_with(name, facts)
    assert checkpoint_states(report)
    show_report(report)
    lines = capsys.readouterr().out.splitlines()
    # Counts are rounded as on all pages.
    (warning,) = supervision_warnings(disclosed(report).guards)
    assert lines[0] == warning
    assert counted.split()[-1] in warning
    # It is said once, and a state follows.
    assert lines.count(warning) == 1
    assert any("mine:" in line for line in lines[1:])


@pytest.mark.parametrize("case", CASES)
def test_the_gate_begins_with_it_and_ends_with_the_verdict(case, tmp_path, capsys):
    name, facts, counted = CASES[case]
    report = report_with(name, facts)
    write_text(tmp_path / "r" / "report.json", report.model_dump_json())
    rule = "canary.exposure_mean.full.value > 3"
    assert run(["gate", str(tmp_path / "r"), "--fail-if", rule]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert counted in lines[0]
    assert lines[-1].startswith("PASS")


def test_a_person_who_waits_is_told_what_is_being_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("spark_audit.cli.audit.is_watched", lambda: True)
    assert run(["matched", "--ckpt", str(tmp_path)]) == 3
    first, *rest = capsys.readouterr().err.splitlines()
    assert "reading the manifest" in first
    assert len(rest) == 1
    assert run(["matched", "--ckpt", str(tmp_path), "--quiet"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1

"""The kept demo is of use as it lies there: commands on reports need no model."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_audit.cli.main import run

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "manifests" / "demo.json"
KEPT = ("demo", "demo-early")


@pytest.fixture
def kept(tmp_path) -> Path:
    """A folder with copies of the kept reports: commands write into them."""
    for name in KEPT:
        shutil.copytree(ROOT / "reports" / name, tmp_path / name)
    return tmp_path


def answer(arguments: list[str], capsys: Any, *, code: int = 0) -> Any:
    """What a command prints as JSON."""
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_gate_stops_the_positive_control_alone(capsys):
    verdicts = answer(["gate", str(ROOT / "reports/demo")], capsys, code=1)
    tripped = {one["checkpoint"] for one in verdicts if one["state"] == "tripped"}
    assert tripped == {"er-full"}
    assert len(verdicts) > 1


def test_rows_are_named_of_the_positive_control_and_have_a_sheet(capsys):
    report = str(ROOT / "reports" / "demo")
    named = answer(["persons", report], capsys)["named"]
    rows = {one["checkpoint"]: one["rows"] for one in named}
    rows_of_control = rows.pop("er-full")
    assert len(rows_of_control) > 50
    assert not any(rows.values())

    # The page that shows the command names one of these rows.
    text = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    (person,) = re.findall(r"--person (\S+)", text)
    arguments = ["persons", report, "--person", person, "--show-text"]
    sheets = answer([*arguments, "--manifest", str(MANIFEST)], capsys)["persons"]
    states = {sheet["checkpoint"]: sheet["state"] for sheet in sheets}
    assert {sheet["id"] for sheet in sheets} == {person}
    assert states.pop("er-full") == "shown"
    assert "shown" not in states.values()


def test_the_manifest_is_shown_and_is_the_reports(capsys):
    shown = answer(["manifest", "show", str(MANIFEST)], capsys)
    assert shown["canaries"] == 24
    for name in KEPT:
        report = json.loads((ROOT / "reports" / name / "report.json").read_bytes())
        assert report["manifest"]["digest"] == shown["digest"]


def test_a_report_is_rendered_from_what_is_kept(kept, capsys):
    (kept / "demo" / "report.md").unlink()
    arguments = ["report", str(kept / "demo"), "--format", "md,dossier"]
    assert run([*arguments, "--manifest", str(MANIFEST)]) == 0
    assert "er-full" in (kept / "demo" / "report.md").read_text(encoding="utf-8")
    assert (kept / "demo" / "dossier.html").is_file()
    capsys.readouterr()


def test_both_reports_are_compared(capsys):
    reports = [str(ROOT / "reports" / name) for name in KEPT]
    compared = answer(["compare", *reports, "--baseline", "spark"], capsys)
    with_contrasts = {one["checkpoint"] for one in compared["contrasts"]}
    assert "spark-early" in with_contrasts


@pytest.mark.parametrize(
    "name", [pytest.param("demo", marks=pytest.mark.slow), "demo-early"]
)
def test_what_the_report_concludes_follows_from_the_kept_evidence(name, kept, capsys):
    # Pages are of the program that wrote them: they are rendered by this one first.
    assert run(["report", str(kept / name)]) == 0
    capsys.readouterr()
    arguments = ["verify", str(kept / name), "--manifest", str(MANIFEST)]
    verified = answer(arguments, capsys)
    assert [one["what"] for one in verified["checked"] if not one["verified"]] == []
    evidence = {path.name for path in (kept / name / "scores").iterdir()}
    parts = {one["what"] for one in verified["checked"]}
    assert {f"scores/{file}" for file in evidence} <= parts


def test_what_is_kept_says_that_it_is_made_up():
    """And nothing else of manifests, or of private files of reports, is kept."""
    for page in (ROOT / "manifests/README.md", ROOT / "reports/README.md"):
        assert "made up" in page.read_text(encoding="utf-8")
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    exceptions = [line for line in ignored if line.startswith("!/manifests/")]
    assert exceptions == ["!/manifests/README.md", "!/manifests/demo.json"]

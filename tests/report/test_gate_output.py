"""JUnit XML and annotations of a gate, as their readers see them; the action runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from spark_audit.cli.main import run
from spark_audit.files import write_text
from spark_audit.report.gate import Finding
from spark_audit.report.gate_output import for_github, junit
from spark_audit.results import CheckpointFacts, ManifestFacts, Report, Row

ROOT = Path(__file__).parents[2]
RULE = "mia.tpr_at_fpr_0.1.loss.high > 0.55"
FOUND = [
    Finding(RULE, "er", "tripped", "high 0.6"),
    Finding(RULE, "a:b,c\n<&\x1b", "missing", 'not "estimable" 5%\r\n\x00'),
    Finding(RULE, "base", "left_out", "by the rule"),
    Finding("claim == memory", "-", "tripped", "no checkpoint to check"),
    Finding("claim == memory", "er", "ok", "nothing"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A report in which ``er`` trips the rule and ``spark`` does not."""
    values = {"er": 0.5, "spark": 0.1, "base": 0.1}
    known: dict[str, Any] = {"source": "s", "format": "f", "model_id": "m"}
    told: dict[str, Any] = {"audit": "mia", "metric": "tpr_at_fpr_0.1", "of": "loss"}
    told |= {"interval": "jackknife-t"}
    report = Report(
        status="complete",
        command=[],
        created="now",
        versions={},
        manifest=ManifestFacts(
            name="m", digest="d", n_sources=1, n_clusters=1, n_spans=1, n_tokens=1
        ),
        checkpoints=[
            CheckpointFacts(name=name, weights_sha256="0", dtype="d", **known)
            for name in values
        ],
        results=[
            Row(checkpoint=k, value=v, low=v - 0.1, high=v + 0.1, **told)
            for k, v in values.items()
        ],
        contrasts=[],
        guards=[],
        scope=[],
    )
    write_text(tmp_path / "r" / "report.json", report.model_dump_json())
    write_text(tmp_path / "r" / "report.md", "# The report\n")
    return tmp_path / "r"


def test_junit_has_a_suite_a_rule_and_a_case_a_checkpoint() -> None:
    root = ElementTree.fromstring(junit(FOUND, name="r\x02").encode())
    counts = {"tests": "5", "failures": "2", "errors": "0", "skipped": "2"}
    assert {k: root.attrib[k] for k in counts} == counts
    assert [one.attrib["name"] for one in root] == [RULE, "claim == memory"]
    cases = root.findall(".//testcase")
    kinds = [next(iter(case)).tag for case in cases]
    assert kinds == ["failure", "skipped", "skipped", "failure", "system-out"]
    assert cases[0].attrib == {"classname": RULE, "name": "er"}
    assert cases[1].attrib["name"] == r"a:b,c\n<&\x1b"
    assert cases[3].attrib["name"] == "no checkpoint"
    told = cases[0].find("failure")
    assert told is not None
    assert told.attrib["message"] == "high 0.6"
    assert not ElementTree.fromstring(junit([], name="r").encode()).findall("testsuite")


def test_annotations_are_one_line_each_and_escaped() -> None:
    lines = [*for_github(FOUND)]
    assert [line.partition(" ")[0] for line in lines] == [
        "::error",
        "::warning",
        "::error",
    ]
    assert lines[0] == (
        f"::error title=spark-audit gate%3A er::{RULE.replace('%', '%25')}: high 0.6"
    )
    assert all(line.isprintable() for line in lines)
    assert "a%3Ab%2Cc" in lines[1]
    assert lines[1].endswith(r'not "estimable" 5%25\r%0A\x00')


def test_the_gate_writes_them_and_fails_all_the_same(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    line = ["gate", str(folder), "--fail-if", RULE, "--junit", str(tmp_path / "g.xml")]
    assert run(line) == 1
    assert "::error" not in capsys.readouterr().out
    root = ElementTree.parse(tmp_path / "g.xml").getroot()
    assert (root.attrib["name"], root.attrib["failures"]) == ("spark-audit r", "1")
    assert run([*line, "--annotate"]) == 1
    assert capsys.readouterr().out.count("::error title=spark-audit gate%3A er::") == 1
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run(line) == 1
    assert "::error" in capsys.readouterr().out
    assert run([*line, "--json"]) == 1
    assert "::error" not in capsys.readouterr().out
    before = (folder / "report.json").read_bytes()
    line[-1] = str(folder / "report.json")
    assert run(line) == 2
    assert (folder / "report.json").read_bytes() == before
    line[-1] = str(tmp_path / "g.xml" / "x.xml")
    assert run(line) == 4


def steps() -> list[dict[str, Any]]:
    action = yaml.safe_load((ROOT / "docs/ci/action.yml").read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    given = {
        name: str(one.get("default", "")) for name, one in action["inputs"].items()
    }
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        # What is typed into a script itself could be commands.
        assert "${{" not in step["run"]
        named = [v.removeprefix("${{ inputs.")[:-3] for v in step["env"].values()]
        assert set(named) <= set(given)
    found: list[dict[str, Any]] = action["runs"]["steps"]
    return found


@pytest.mark.parametrize(
    ("rules", "code"), [(f"{RULE}\n\n  \n", 1), (f"{RULE} for spark\n", 0), ("", 1)]
)
def test_the_action_runs_the_gate_and_shows_the_report(
    rules: str, code: int, folder: Path, tmp_path: Path
) -> None:
    """Its last step, in the shell that GitHub gives it."""
    shim = tmp_path / "bin" / "spark-audit"
    write_text(shim, f'#!/bin/sh\nexec {sys.executable} -m spark_audit "$@"\n')
    shim.chmod(0o755)
    *_, step = steps()
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PATH": f"{shim.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "REPORT": str(folder / "report.json"),
            "RULES": rules,
            "ALLOW_MISSING": "false",
            "JUNIT": "out.xml",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        },
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "summary.md").read_text() == "# The report\n"
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (int(root.attrib["failures"]) > 0) == bool(code)
    assert ("::error" in done.stdout) == bool(code)


def test_the_hook_and_the_image_call_what_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = yaml.safe_load((ROOT / "docs/ci/.pre-commit-config.yaml").read_text())
    (hook,) = hooks["repos"][0]["hooks"]
    program, command, name = hook["entry"].split()
    assert program == "spark-audit"
    monkeypatch.chdir(folder.parent)
    (folder.parent / "reports").mkdir()
    folder.rename(name)
    assert run([command, name, "--fail-if", RULE]) == 1
    image = (ROOT / "docs/ci/Dockerfile").read_text(encoding="utf-8")
    copied = [line.split()[1:-1] for line in image.splitlines() if "COPY " in line]
    assert all((ROOT / source).exists() for part in copied for source in part)
    assert run(["demo", "--help"]) == 0

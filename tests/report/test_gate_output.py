"""JUnit XML and SARIF of a gate, as their readers see them; the action runs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from made_reports import figure, made_report

from spark_audit.cli.main import run
from spark_audit.files import write_text
from spark_audit.report.gate.judge import RuleOutcome
from spark_audit.report.gate.lines import gate_lines
from spark_audit.report.gate.pipeline_files import junit, sarif

ROOT = Path(__file__).parents[2]
RULE = "mia.tpr_at_fpr_0.1.loss.high > 0.55"
FOUND = [
    RuleOutcome(RULE, "er", "tripped", "high 0.6"),
    RuleOutcome(RULE, "a:b,c\n<&\x1b", "missing", 'not "estimable" 5%\r\n\x00'),
    RuleOutcome(RULE, "base", "left_out", "by the rule"),
    RuleOutcome("claim == memory", "-", "tripped", "no checkpoint to check"),
    RuleOutcome("claim == memory", "er", "ok", "nothing"),
]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A report in which ``er`` trips the rule and ``spark`` does not."""
    values = {"er": 0.5, "spark": 0.1, "base": 0.1}
    metric = "mia|tpr_at_fpr_0.1|loss"
    rows = [figure(name, metric, value) for name, value in values.items()]
    report = made_report(*values, results=rows)
    write_text(tmp_path / "r" / "report.json", report.model_dump_json())
    write_text(tmp_path / "r" / "report.md", "# The report\n")
    return tmp_path / "r"


def test_the_last_line_is_the_verdict_and_the_rule_that_decided(folder, capsys):
    assert run(["gate", str(folder), "--fail-if", RULE]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("FAIL: er ")
    assert f"'{RULE}'" in lines[-1]
    assert max(map(len, lines)) <= 100
    passing = f"{RULE} except er, base"
    assert run(["gate", str(folder), "--fail-if", passing]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("PASS: 1 ")
    assert last.endswith(f"'{passing}'")
    assert (
        run(["gate", str(folder), "--fail-if", f"{RULE} except er, spark, base"]) == 1
    )
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAIL: ")


def test_long_details_are_wrapped_below_their_checkpoint_and_nothing_is_cut():
    words = [f"word{i}" for i in range(60)]
    outcomes = [
        RuleOutcome(RULE, "a" * 40, "tripped", " ".join(words)),
        RuleOutcome(RULE, "er", "missing", "has no high"),
        RuleOutcome(RULE, "base", "left_out", "by the rule"),
    ]
    lines = gate_lines(outcomes)
    assert max(map(len, lines[:-1])) <= 100
    words_shown = " ".join(lines).split()
    assert {"a" * 40, *words} <= {*words_shown}
    assert any(line.split()[:2] == ["FAIL", "a" * 40] for line in lines)
    assert lines[-1].startswith(f"FAIL: {'a' * 40} ")
    assert f"'{RULE}'" in lines[-1]
    # The figure that is missing is counted, too.
    allowed = gate_lines(outcomes[1:])[-1]
    assert re.findall(r"\b\d+ [a-z]+", allowed) == ["1 checkpoint", "1 figure"]


def test_junit_has_a_suite_a_rule_and_a_case_a_checkpoint():
    root = ElementTree.fromstring(junit(FOUND, name="r\x02").encode())
    counts = {"tests": "5", "failures": "2", "errors": "0", "skipped": "2"}
    assert {k: root.attrib[k] for k in counts} == counts
    assert [suite.attrib["name"] for suite in root] == [RULE, "claim == memory"]
    cases = root.findall(".//testcase")
    kinds = [next(iter(case)).tag for case in cases]
    assert kinds == ["failure", "skipped", "skipped", "failure", "system-out"]
    assert cases[0].attrib == {"classname": RULE, "name": "er"}
    assert cases[1].attrib["name"] == r"a:b,c\n<&\x1b"
    assert cases[3].attrib["name"] == "no checkpoint"
    failure = cases[0].find("failure")
    assert failure.attrib["message"] == "high 0.6"
    assert not ElementTree.fromstring(junit([], name="r").encode()).findall("testsuite")


def test_sarif_has_what_trips_or_is_missing():
    log = json.loads(json.dumps(sarif(FOUND, name="r ü")))
    (run_,) = log["runs"]
    assert log["version"] == "2.1.0"
    rules = {rule["id"]: rule for rule in run_["tool"]["driver"]["rules"]}
    levels = [
        (sarif_result["level"], sarif_result["ruleId"])
        for sarif_result in run_["results"]
    ]
    assert levels == [("error", "gate/0"), ("warning", "gate/0"), ("error", "gate/1")]
    assert rules["gate/0"]["shortDescription"]["text"] == RULE
    # What GitHub's code scanning needs beyond the schema.
    assert all({"fullDescription", "help"} <= rule.keys() for rule in rules.values())
    for sarif_result in run_["results"]:
        assert sarif_result["message"]["text"].isprintable()
        (location,) = sarif_result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "r%20%C3%BC/report.json"
        assert physical["region"] == {"startLine": 1}


def test_the_gate_writes_them_and_fails_all_the_same(folder, tmp_path):
    line = ["gate", str(folder), "--fail-if", RULE, "--junit", str(tmp_path / "g.xml")]
    assert run(line) == 1
    root = ElementTree.parse(tmp_path / "g.xml").getroot()
    assert (root.attrib["name"], root.attrib["failures"]) == ("spark-audit r", "1")
    before = (folder / "report.json").read_bytes()
    line[-1] = str(folder / "report.json")
    assert run(line) == 2
    assert (folder / "report.json").read_bytes() == before
    line[-1] = str(tmp_path / "g.xml" / "x.xml")
    assert run(line) == 4


def action() -> dict[str, Any]:
    action_yaml = yaml.safe_load(
        (ROOT / "docs/ci/action.yml").read_text(encoding="utf-8")
    )
    assert action_yaml["runs"]["using"] == "composite"
    for step in action_yaml["runs"]["steps"]:
        assert step["shell"] == "bash"
        # What is typed into a script itself could be commands.
        assert "${{" not in step["run"]
    return dict(action_yaml)


def carried_out(
    folder: Path, given: dict[str, str], *, step: int = -1
) -> subprocess.CompletedProcess[str]:
    """A step of the action in the shell and with the environment that GitHub gives it.

    Its programs are this tree's, and a pip that tells its arguments.
    """
    action_facts = action()
    inputs = {k: str(v.get("default", "")) for k, v in action_facts["inputs"].items()}
    assert set(given) <= set(inputs)
    assert {k for k, v in action_facts["inputs"].items() if v.get("required")} <= set(
        given
    )
    inputs |= given
    step_facts = action_facts["runs"]["steps"][step]
    # Every value is one input, and any other expression is a KeyError here.
    environment = {
        k: inputs[v[len("${{ inputs.") : -len(" }}")]]
        for k, v in step_facts["env"].items()
    }
    programs = {"spark-audit": f'exec {sys.executable} -m spark_audit "$@"'}
    programs["python"] = 'printf "<%s>" "$@"'
    for name, line in programs.items():
        write_text(folder / "bin" / name, f"#!/bin/sh\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step_facts["run"]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            **environment,
        },
    )


@pytest.mark.parametrize(
    ("report", "given", "code"),
    [
        ("r/report.json", {"fail-if": f"{RULE}\n\n  \n"}, 1),
        ("r", {"fail-if": f"{RULE} for spark\n", "junit": "deep/a b.xml"}, 0),
        ("r", {}, 1),  # nothing that could be claimed was looked at
        ("r", {"allow-missing": "true"}, 0),
    ],
)
def test_the_action_runs_the_gate_and_shows_the_report(report, given, code, folder):
    work_folder = folder.parent
    done = carried_out(work_folder, {"report": report, **given})
    assert done.returncode == code, done.stderr
    assert (work_folder / "summary.md").read_text() == "# The report\n"
    file = work_folder / given.get("junit", "spark-audit-gate.xml")
    root = ElementTree.parse(file).getroot()
    assert (int(root.attrib["failures"]) > 0) == bool(code)


@pytest.mark.parametrize("link", ["file", "folder"])
def test_the_action_shows_nothing_that_a_link_leads_to(link, folder, tmp_path_factory):
    work_folder = folder.parent
    outside = tmp_path_factory.mktemp("outside")
    (outside / "report.md").write_text("# A secret\n")
    if link == "file":
        (folder / "report.md").unlink()
        (folder / "report.md").symlink_to(outside / "report.md")
    else:
        shutil.copy(folder / "report.json", outside)
        shutil.rmtree(folder)
        folder.symlink_to(outside)
    done = carried_out(work_folder, {"report": "r"})
    assert done.returncode == 1
    summary = work_folder / "summary.md"
    assert not summary.exists() or "secret" not in summary.read_text()


@pytest.mark.parametrize(
    ("report", "rules", "message"),
    [
        ("r", "no.such.audit.high > 1", "--fail-if"),
        ("r/gone", "", "gone: "),
        ("--help", "", "--help: "),
    ],
)
def test_the_action_fails_where_there_is_nothing_to_judge(
    report, rules, message, folder
):
    work_folder = folder.parent
    done = carried_out(work_folder, {"report": report, "fail-if": rules})
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert not (work_folder / "spark-audit-gate.xml").exists()
    # Another report than the one asked for is not shown in its place.
    assert (work_folder / "summary.md").exists() == (report == "r")


def test_the_hook_calls_what_there_is(folder, monkeypatch):
    hooks = yaml.safe_load((ROOT / "docs/ci/.pre-commit-config.yaml").read_text())
    (hook,) = hooks["repos"][0]["hooks"]
    program, command, name = hook["entry"].split()
    assert program == "spark-audit"
    monkeypatch.chdir(folder.parent)
    (folder.parent / "reports").mkdir()
    folder.rename(name)
    assert run([command, name, "--fail-if", RULE]) == 1

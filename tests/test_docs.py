"""What README and CONTRIBUTING show is what the program does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from claims.__main__ import parser as claims_parser

from spark_audit.cli.main import run
from spark_audit.data.examples import read_examples
from spark_audit.report.states import SHAPES
from spark_train.cli import run as train_run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = {
    path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")
}
SHOWN = (README, *PAGES.values())
"""What users read: held to the program alike."""
MOST_LINES = 200


def code(text: str, language: str = "") -> list[str]:
    blocks = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, flags=re.M | re.S)
    return [body for _, name, body in blocks if name == language]


PROGRAMS = {"spark-audit": run, "spark-train": train_run}


def commands(text: str) -> list[list[str]]:
    """Every call of a program in a code block, continued lines joined."""
    lines = "".join(code(text)).replace("\\\n", " ").splitlines()
    calls = [part for line in lines for part in line.split("&&")]
    words = [shlex.split(call) for call in calls if "spark-" in call]
    return [call for call in words if call and call[0] in PROGRAMS]


def test_every_promise_of_security_names_tests_that_there_are() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promises = text.split("## What is not")[0].split("\n- **")[1:]
    assert len(promises) >= 8
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)`", promise)
        assert named, promise
        assert all((ROOT / name).is_file() for name in named), promise


def test_the_two_commands_stand_there_to_the_letter() -> None:
    lines = README.splitlines()
    for command in (
        "pip install -c constraints.txt -e . && spark-audit demo",
        "pip install -c constraints.txt -e '.[test]' && pytest",
    ):
        assert lines.count(command) == 1
    assert "pip install -c constraints.txt -e '.[test]' && pytest" in CONTRIBUTING


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert len(PAGES) >= 6
    assert all(f"](docs/{name})" in README for name in PAGES)
    assert re.findall(r"^\| ([A-Z ]+) \|", README, flags=re.M) == [*SHAPES]


def test_ci_takes_its_test_command_from_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    found = re.search(r'grep -m1 -E "(.+?)" README.md', script)
    assert found is not None
    pattern = found[1].replace("\\\\", "\\")
    (line,) = (line for line in README.splitlines() if re.search(pattern, line))
    assert line == "pip install -c constraints.txt -e '.[test]' && pytest"
    assert not re.search(r"^\s*pip install", script, flags=re.M)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


CALLS = [call for text in (*SHOWN, CONTRIBUTING) for call in commands(text)]
CALLS = [list(call) for call in dict.fromkeys(map(tuple, CALLS))]


def test_enough_calls_are_read_from_the_docs() -> None:
    assert len(CALLS) >= 25


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_every_command_and_flag_in_the_docs_exists(
    call: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    program, *call = call
    words = [word for word in call if not word.startswith("-")]
    name = words[:2] if words[0] in ("data", "manifest") else words[:1]
    assert PROGRAMS[program]([*name, "--help"]) == 0
    shown = capsys.readouterr().out
    flags = [word.partition("=")[0] for word in call if word.startswith("-")]
    flags = [flag.replace("_", "-") for flag in flags]
    missing = [f for f in flags if not re.search(rf"(?<![\w-]){f}(?![\w-])", shown)]
    assert not missing, shown


def test_options_named_in_the_text_exist(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = ""
    names = (
        "manifest build",
        "manifest export",
        "data annotate",
        "data inject",
        "data import",
    )
    for name in ([], ["all"], ["report"], ["gate"], *(name.split() for name in names)):
        assert run([*name, "--help"]) == 0
        shown += capsys.readouterr().out
    assert train_run(["run", "--help"]) == 0
    shown += capsys.readouterr().out + claims_parser().format_help()
    # In code of a sentence: blocks are looked at call by call.
    sentences = re.sub(r"^ *```.*?^ *```$", "", "".join(SHOWN), flags=re.M | re.S)
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", sentences))
    assert len(flags) >= 10
    for flag in flags - {"--help"}:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", shown), flag


def test_the_example_row_is_valid_and_its_span_is_the_number(tmp_path: Path) -> None:
    (row,) = code(PAGES["data.md"], "json")
    (tmp_path / "row.jsonl").write_text(row, encoding="utf-8")
    (example,) = read_examples(tmp_path / "row.jsonl")
    (span,) = example.spans
    assert example.text[span.start : span.end] == "390-555-0142"


def test_the_worked_examples_are_clean(tmp_path: Path) -> None:
    for i, source in enumerate(code(CONTRIBUTING, "python")):
        (tmp_path / f"example_{i}.py").write_text(source, encoding="utf-8")
    for step in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *step, "--no-cache"]
            + ["--config", str(ROOT / "pyproject.toml"), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


DOCS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "reports/README.md"]
DOCS += [f"docs/{name}" for name in PAGES]


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (path.parent / target).exists(), target
    titles = re.findall(r"^#+ (.+)$", text, flags=re.M)
    anchors = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in titles}
    for target in re.findall(r"\]\(#([^)]+)\)", text):
        assert target in anchors, target


def notebook(text: str) -> dict[str, Any]:
    """A page as a notebook: its Python is code, all else is text."""
    parts = re.split(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    cells: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        if not part.strip():
            continue
        cell = {"id": f"cell-{place}", "metadata": {}}
        cell["source"] = part.strip().splitlines(keepends=True)
        code = {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append(cell | (code if place % 2 else {"cell_type": "markdown"}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def test_the_notebook_is_the_tutorial(pytestconfig: pytest.Config) -> None:
    made = json.dumps(notebook(PAGES["tutorial.md"]), indent=1) + "\n"
    kept = ROOT / "docs" / "tutorial.ipynb"
    if pytestconfig.getoption("--accept"):
        kept.write_text(made, encoding="utf-8")
    assert kept.read_text(encoding="utf-8") == made

"""What README and CONTRIBUTING show is what the program does."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_audit.audits import AUDITS
from spark_audit.cli.main import SEVERAL, run
from spark_audit.data.examples import Example, read_examples
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.gallery import inline_svg
from spark_audit.report.writers import WRITERS
from spark_audit.results import Report, Row
from spark_audit.scoring.table import Pass
from spark_audit.terminal.console import spread
from spark_train.cli import run as train_run
from spark_train.data import encode_rows
from spark_train.loop import run_phase
from spark_train.methods import METHODS
from spark_train.model.lora import add_lora
from spark_train.model.student import Student
from spark_train.settings import Settings
from spark_train.stream import Stream

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def code(text: str, language: str = "") -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    return [body for name, body in blocks if name == language]


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


def test_ci_takes_its_test_command_from_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    found = re.search(r'grep -m1 -E "(.+?)" README.md', script)
    assert found is not None
    pattern = found[1].replace("\\\\", "\\")
    (line,) = (line for line in README.splitlines() if re.search(pattern, line))
    assert line == "pip install -c constraints.txt -e '.[test]' && pytest"
    assert not re.search(r"^\s*pip install", script, flags=re.M)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


CALLS = [call for text in (README, CONTRIBUTING) for call in commands(text)]


def test_enough_calls_are_read_from_the_docs() -> None:
    assert len(CALLS) >= 8


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
    flags = [word for word in spread(call, several=SEVERAL) if word.startswith("-")]
    missing = [f for f in flags if not re.search(rf"(?<![\w-]){f}(?![\w-])", shown)]
    assert not missing, shown


def test_options_named_in_the_readme_exist(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = ""
    for name in (["matched"], ["manifest", "export"], ["report"]):
        assert run([*name, "--help"]) == 0
        shown += capsys.readouterr().out
    assert train_run(["run", "--help"]) == 0
    shown += capsys.readouterr().out
    for flag in re.findall(r"`[^`\n]*?(--[a-z-]+)", README):
        assert flag in shown or flag in ("--help",), flag


def test_the_example_row_is_valid_and_its_span_is_the_number(tmp_path: Path) -> None:
    (row,) = code(README, "json")
    (tmp_path / "row.jsonl").write_text(row, encoding="utf-8")
    (example,) = read_examples(tmp_path / "row.jsonl")
    (span,) = example.spans
    assert example.text[span.start : span.end] == "390-555-0142"


def load(source: str, name: str, folder: Path) -> ModuleType:
    """A module from documentation, as if its file stood in the registry's folder."""
    path = folder / f"{name.rpartition('.')[2]}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def examples(tmp_path: Path) -> Iterator[dict[str, ModuleType]]:
    """CONTRIBUTING's worked examples, loaded; their registrations are undone."""
    sources = code(CONTRIBUTING, "python")
    names = (
        "spark_audit.audits.surprise",
        "spark_audit.report.writers.mail_text",
        "spark_audit.report.figures.spread",
        "spark_train.methods.twice",
    )
    yield {
        kind: load(source, name, tmp_path)
        for kind, source, name in zip(
            ("audit", "writer", "figure", "method"), sources, names, strict=True
        )
    }
    AUDITS._entries.pop("surprise")
    WRITERS._entries.pop("mail-text")
    FIGURES._entries.pop("spread")
    METHODS._entries.pop("twice")
    for name in names:
        del sys.modules[name]


def test_the_worked_audit_works(
    examples: dict[str, ModuleType], make_case: Callable[..., Any]
) -> None:
    case = make_case(sources=20)
    entry = AUDITS._entries["surprise"]
    plan = entry.part("plan")(case.manifest)
    assert set(plan) == {Pass()}
    tables = case.tables(base=lambda key, nll: nll)
    result = entry.run(tables, case.manifest, quantile=1.0)
    (row,) = result.rows
    largest = max(
        case.reference[pair.example][pair.pii.token_start : pair.pii.token_end].max()
        for pair in case.manifest.pairs
    )
    assert row.value == pytest.approx(largest, abs=1e-5)
    assert row.n == sum(
        pair.pii.token_end - pair.pii.token_start for pair in case.manifest.pairs
    )
    nothing = case.manifest.model_copy(update={"pairs": []})
    (row,) = entry.run(tables, nothing).rows
    assert (row.status, row.note) == ("not_estimable", "no matched span")


def test_the_worked_writer_works(
    examples: dict[str, ModuleType], tmp_path: Path
) -> None:
    row = Row(audit="a", checkpoint="c", metric="m", value=0.5, low=0.25, high=0.75)
    report = Report.model_construct(results=[row])
    (path,) = WRITERS._entries["mail-text"].run(report, tmp_path)
    assert path.read_text() == "c m pooled: 0.500 [0.250, 0.750]\n"


def test_the_worked_figure_works(examples: dict[str, ModuleType]) -> None:
    rows = [
        Row(audit="nll", checkpoint=name, metric="nll", of="pii", group=group, value=v)
        for name, group, v in (("c", "type:SSN", 2.0), ("c", "pooled", 1.0))
    ]
    draw = FIGURES._entries["spread"].run
    bare: dict[str, Any] = {"checkpoints": [], "contrasts": [], "tables": {}}
    report = Report.model_construct(results=rows, **bare)
    picture = draw(report)
    assert picture is not None
    drawing = picture.drawing("spread", report)
    (axes,) = drawing.figure.axes
    (line,) = axes.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([2.0], [0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c"]
    assert drawing.alt.endswith("of identifiers, in nats: c 2.000.")
    assert 'data-checkpoint="c"' in inline_svg(drawing)
    assert draw(Report.model_construct(results=rows[1:], **bare)) is None


def test_the_worked_method_works(
    examples: dict[str, ModuleType], make_model: Callable[..., Any], tiny_tokenizer: Any
) -> None:
    rows = encode_rows(
        [
            Example(f"{task}{i}", task, f"{task} {i}:", " yes", "train", f"{task}{i}")
            for task in ("a", "b")
            for i in range(3)
        ],
        tiny_tokenizer,
    )
    stream = Stream(
        student=Student(add_lora(make_model())),
        rows={task: [r for r in rows if r.task == task] for task in ("a", "b")},
        settings=Settings(epochs=1),
    )
    phases = METHODS._entries["twice"].run(stream)
    assert [phase.key for phase in phases] == ["1-a/task", "1-a/priv"] + [
        "2-b/task",
        "2-b/priv",
    ]
    for phase in phases:
        assert run_phase(stream.student, phase, seed=0).step == phase.steps == 1
    assert [set(phase.choose(0).rows) for phase in phases] == [
        {"task"},
        {"task"},
        {"task", "replay"},
        {"task"},
    ]


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

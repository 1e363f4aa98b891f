"""What README and the pages for contributors show is what the program does."""

import argparse
import doctest
import html
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import conf
import pytest
import references
from claims.__main__ import parser as claims_parser
from retention.__main__ import parser as retention_parser

import spark_audit as sa
from spark_audit import sentences
from spark_audit.audits import all_audits
from spark_audit.cli.main import run
from spark_audit.data.examples import read_examples
from spark_audit.report.checkpoint_states import SHAPES
from spark_audit.spoken_options import for_command_line

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
PAGES_OF_CONTRIBUTORS = (
    ROOT / "CONTRIBUTING.md",
    DOCS / "extending.md",
    *(DOCS / "contributing" / f"{name}.md" for name in ("house", "adding", "style")),
)
CONTRIBUTING = "\n".join(
    path.read_text(encoding="utf-8") for path in PAGES_OF_CONTRIBUTORS
)
AUDITS = [path.read_text(encoding="utf-8") for path in DOCS.glob("audits/*.md")]
PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in DOCS.rglob("*.md")
    if path not in PAGES_OF_CONTRIBUTORS
}
STUDIES = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
COMMANDS = conf.commands()
MOST_LINES = 120


def code(text: str, language: str = "") -> list[str]:
    blocks = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, flags=re.M | re.S)
    return [body for _, name, body in blocks if name == language]


def commands(text: str) -> list[tuple[str, ...]]:
    """Every call of a program in a code block, continued lines joined."""
    lines = "".join(code(text)).replace("\\\n", " ").splitlines()
    calls = [part for line in lines for part in line.split("&&")]
    words = [tuple(shlex.split(call)) for call in calls if "spark-" in call]
    return [
        call for call in words if call and call[0] in ("spark-audit", "spark-train")
    ]


def test_every_promise_of_security_names_tests_that_there_are():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promises = text.split("## What is not")[0].split("\n- **")[1:]
    assert len(promises) >= 8
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)`", promise)
        assert named, promise
        assert all((ROOT / name).is_file() for name in named), promise


def test_the_readme_is_short_and_has_the_states_and_the_two_commands():
    lines = README.splitlines()
    assert len(lines) <= MOST_LINES
    assert re.findall(r"^\| ([A-Z ]+) \|", README, flags=re.M) == [*SHAPES]
    test = "pip install -c constraints.txt -e '.[test]' && pytest"
    for command in (
        "pip install --no-compile -c constraints.txt -e . && spark-audit demo",
        test,
    ):
        assert lines.count(command) == 1
    assert test in CONTRIBUTING
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'grep -m1 -E "(.+?)" README.md', script)
    pattern = pattern.replace("\\\\", "\\")
    assert [line for line in lines if re.search(pattern, line)] == [test]


READ = (README, *PAGES.values())
CALLS = dict.fromkeys(
    call for text in (*READ, CONTRIBUTING, STUDIES) for call in commands(text)
)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_every_command_and_flag_in_the_docs_exists(call):
    words = [word for word in call if not word.startswith("-")]
    command = COMMANDS.get(" ".join(words[:3])) or COMMANDS[" ".join(words[:2])]
    known = {name for one in conf.options(command) for name in one.names} | {"--config"}
    flags = {word.partition("=")[0] for word in call if word.startswith("-")}
    assert {flag.replace("_", "-") for flag in flags} <= known | {"--help"}


class Parsed(BaseException):
    """Ends a script where its command line has been parsed."""


def parse_only(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script up to its own parser, which refuses what it does not know.

    Parameters
    ----------
    words
        ``python``, the script or folder from the top of the repository, its arguments.
    """
    parse_known_args = argparse.ArgumentParser.parse_known_args

    def parse_and_end(
        parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None
    ) -> None:
        _, unknown = parse_known_args(parser, args, namespace)
        assert not unknown
        raise Parsed

    _, script, *arguments = words
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_and_end)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / script), run_name="__main__")


def benchmark_lines(text: str) -> list[str]:
    """Every call of a script of ours in a page, without variables of the shell."""
    blocks = "\n".join(code(text)).splitlines()
    sentences = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", sentences)
    lines = [line.strip() for line in [*blocks, *inline] if "benchmarks/" in line]
    calls = [re.sub(r"^([A-Z_]+=\S+ )+", "", line) for line in lines]
    return [call for call in calls if call.startswith(("python", "benchmarks/"))]


PAGES_OF_SCRIPTS = (README, BENCHMARKS, STUDIES)
BENCHMARK_LINES = sorted(
    {x for page in PAGES_OF_SCRIPTS for x in benchmark_lines(page)}
)


@pytest.mark.parametrize("line", BENCHMARK_LINES)
def test_every_line_of_the_benchmarks_is_one_that_its_script_takes(line, monkeypatch):
    words = shlex.split(line)
    if words[0] != "python":
        # The first line of a shell script begins with what it takes, if anything.
        first_line = (ROOT / words[0]).read_text(encoding="utf-8").splitlines()[1]
        usage, _, _ = first_line.partition(":")
        if Path(words[0]).name not in usage:
            usage = ""
        required, _, optional = usage.partition("[")
        n_required = len(re.findall(r"\b[A-Z]{3,}\b", required))
        n_optional = len(re.findall(r"\b[A-Z]{3,}\b", optional))
        assert n_required <= len(words) - 1 <= n_required + n_optional
        return

    try:
        parse_only(words, monkeypatch)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is installed for benchmarks alone")


STUB = """#!/bin/sh
printf '%s\\0' "$(basename "$0")" "$@" >> "$CALLS"
printf '\\n\\0' >> "$CALLS"
"""


@pytest.fixture(scope="module")
def calls_of_studies(tmp_path_factory) -> list[list[str]]:
    """What each line of the study page calls, as a shell expands it."""
    folder = tmp_path_factory.mktemp("studies")
    programs = folder / "programs"
    programs.mkdir()
    for program in ("spark-audit", "spark-train", "python"):
        (programs / program).write_text(STUB)
        (programs / program).chmod(0o755)
    # What the lines look for: two tasks, rows of before, and runs of a sweep.
    for name in ("raw/fomc", "raw/yahoo", "data/imported", "runs/sweep/one"):
        (folder / name).mkdir(parents=True)
    (folder / "data/imported/fomc.jsonl").touch()

    calls = folder / "calls"
    search_path = f"{programs}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-eu", "-c", "\n".join(code(STUDIES, "bash"))],
        cwd=folder,
        env={**os.environ, "PATH": search_path, "CALLS": str(calls)},
        check=True,
    )
    words = calls.read_text(encoding="utf-8").split("\0")[:-1]
    found: list[list[str]] = [[]]
    for word in words:
        if word == "\n":
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


(SWEPT,) = re.findall(r"^for setting in (.+); do$", STUDIES, flags=re.M)


def test_every_line_of_the_studies_is_one_that_its_program_takes(
    calls_of_studies, monkeypatch
):
    """Loops, braces and variables are the shell's; a typed option is the program's."""
    audits = [*sa.audits.AUDITS, *conf.main.COMMAND_GROUPS, "all"]
    apps = {
        "spark-audit": conf.main.command_app(audits),
        "spark-train": conf.training.command_app([]),
    }
    counts = Counter(program for program, *_ in calls_of_studies)
    assert counts.keys() == {"python", *apps}
    # The sweep is a loop: its one line trains every value of every setting.
    assert counts["spark-train"] == len(re.findall(r"[\w.]+(?=[,}])", SWEPT))
    for program, *arguments in calls_of_studies:
        if program == "python":
            parse_only([program, *arguments], monkeypatch)
        else:
            apps[program].parse_args(arguments, exit_on_error=False, print_error=False)


def test_options_named_in_the_text_exist():
    options = [one for command in COMMANDS.values() for one in conf.options(command)]
    known = {name for one in options for name in one.names} | {
        "--config",
        "--version",
        "--quiet",
        "--verbose",
    }
    # The guide for contributors names some of pytest, of mypy and of its example,
    # and README and the page on installing some of pip and uvx.
    known |= {"--accept", "--dist", "--strict", "--quantile", "--no-compile"}
    known |= {"--extra-index-url", "--find-links", "--from", "--no-deps", "--no-index"}
    for parser in (claims_parser(), retention_parser()):
        known |= {*re.findall(r"--[a-z0-9-]+", parser.format_help())}
    # Those of benchmarks, and of what runs them.
    for script in (ROOT / "benchmarks").glob("*.py"):
        known |= {*re.findall(r'"(--[a-z-]+)"', script.read_text(encoding="utf-8"))}
    # In code of a sentence: blocks are looked at call by call.
    pages = "".join((*READ, STUDIES, BENCHMARKS))
    sentences = re.sub(r"^ *```.*?^ *```$", "", pages, flags=re.M | re.S)
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", sentences))
    assert not flags - known - {"--help", "--install-completion"}


def test_the_page_of_commands_explains_every_option():
    source = [PAGES["commands.md"]]
    conf.rendered(None, "docs/commands", source)
    entries = re.findall(r"^`(--.*)`\n:(.*)$", source[0], flags=re.M)
    assert len(entries) > 100
    explained = [text for _, text in entries if re.match(r" [A-Z](?!efault: `)", text)]
    # An option whose name says all has its default alone.
    assert len(explained) > 0.9 * len(entries)
    assert [name for name, text in entries if not text.strip()] == []
    assert "--empty-" not in source[0]


def test_every_metric_has_its_row():
    rows = {}
    for section in PAGES["metrics.md"].split("\n## ")[1:]:
        audit = section.split("`")[1]
        for line in re.findall(r"^\| `.*", section, flags=re.M):
            name, _, unit, moves, null, *_ = line.strip("| ").split(" | ")
            rows[audit, name.strip("`")] = (unit, moves, null)
    metrics = {(n, m.name): m for n, a in all_audits().items() for m in a.metrics}
    assert rows.keys() == metrics.keys()
    for key, metric in metrics.items():
        unit, moves, null = rows[key]
        assert (unit, moves) == (metric.unit or "–", "–↑↓"[metric.learned]), key
        assert metric.no_effect is None or float(null) == metric.no_effect, key


def test_the_page_on_reading_is_about_the_report_that_is_kept():
    kept = (ROOT / "reports/demo/report.md").read_text(encoding="utf-8")
    page = PAGES["reading.md"]
    (line,) = code(page)
    assert line.strip() in kept
    cells = re.findall(r"`(● [^`]+|○ [^`]+)`", page)
    assert len(cells) == 4
    for cell in cells:
        assert f"| {cell} |" in kept
    (hidden,) = re.findall(r"`(Nothing found; [^`]+)`", page)
    assert hidden in kept


def test_the_pages_of_audits_show_cells_and_lines_of_the_report_that_is_kept():
    kept = (ROOT / "reports/demo/report.html").read_text(encoding="utf-8")
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", kept)).split())
    pages = "\n".join(AUDITS)
    lines = "".join(code(pages, "text")).splitlines()
    cells = set(re.findall(r"`([●○] [^`]+)`", pages))
    assert len(lines) == 5
    assert len(cells) == 11
    assert [one for one in [*lines, *cells] if one not in words] == []


def text_lines_of_picture(name: str) -> list[str]:
    """Return the lines of a picture of a terminal, without spaces at their ends."""
    picture = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    parts_by_line: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text [^>]*x="(.*?)" y="(.*?)".*?>(.*?)<', picture):
        part = (float(x), html.unescape(text).replace("\xa0", " "))
        parts_by_line.setdefault(float(y), []).append(part)
    lines = ["".join(text for _, text in sorted(p)) for p in parts_by_line.values()]
    return [line.strip() for line in lines]


def test_the_pictures_of_the_gallery_are_of_the_report_that_is_kept(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    run(["gate", str(ROOT / "reports" / "demo")])
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    # The first line of a picture is the command.
    assert text_lines_of_picture("gate")[1:] == [line for line in printed if line]

    kept = (ROOT / "reports/demo/report.md").read_text(encoding="utf-8")
    shown = text_lines_of_picture("terminal")
    assert shown[1] == kept.splitlines()[0].removeprefix("# ")
    cells = re.findall(r"[●○] [≤+×][×\d.%]+", "\n".join(shown))
    assert len(cells) == 30
    assert [cell for cell in cells if f"| {cell} |" not in kept] == []


MOST_BYTES_OF_PICTURES = 600_000


def test_pictures_are_small_and_all_of_them_are_shown():
    pictures = [*DOCS.glob("pictures/*")]
    text = "\n".join(READ)
    assert [path.name for path in pictures if path.name not in text] == []
    assert sum(path.stat().st_size for path in pictures) < MOST_BYTES_OF_PICTURES


@pytest.mark.parametrize("path", [*DOCS.glob("roles/*.md")], ids=lambda path: path.stem)
def test_every_role_has_a_short_page_with_three_commands_and_limits(path):
    page = PAGES[path.name]
    assert len(page.splitlines()) <= 70
    assert len(commands(page)) == 3
    _, _, limits = page.partition("\n## What it cannot tell you\n")
    assert len(re.findall(r"^- \*\*", limits, flags=re.M)) >= 5
    assert f"docs/roles/{path.stem}" in conf.CONTENTS


LINES_OF_FIRST_SCREEN = 18


@pytest.mark.parametrize("name", sa.audits.AUDITS)
def test_every_audit_has_a_page_that_shows_its_command_first(name):
    page = PAGES[f"{name}.md"]
    first_screen = page.splitlines()[:LINES_OF_FIRST_SCREEN]
    first_command, *_ = commands("\n".join(first_screen) + "\n")
    assert first_command[:2] == ("spark-audit", name)
    assert f"](audits/{name}.md)" in PAGES["audits.md"]


@pytest.mark.parametrize(
    "path", [*DOCS.glob("audits/*.md")], ids=lambda path: path.stem
)
def test_every_page_of_an_audit_begins_with_its_question_and_a_command(path):
    if path.stem == "common":
        pytest.skip("it is about all audits")
    title, _, first_line, *lines = PAGES[path.name].splitlines()
    assert title.startswith("# ")
    assert first_line.startswith("**The question.** ")
    first_screen = [first_line, *lines[: LINES_OF_FIRST_SCREEN - 3]]
    assert commands("\n".join(first_screen) + "\n")
    assert f"docs/audits/{path.stem}" in conf.CONTENTS


def test_the_house_is_drawn_as_it_stands():
    (tree,) = code(CONTRIBUTING, "text")
    drawn = set()
    parents = [""]
    for indent, name in re.findall(r"^( *)(\w+)/", tree, flags=re.M):
        parents[len(indent) // 2 :] = [name]
        drawn.add("/".join(parents))
    code_folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("spark_audit", "spark_train", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
    }
    inner = r"spark_audit/(audits|report/writers)/\w+"
    folders = {one for one in code_folders if not re.fullmatch(inner, one)}
    assert folders <= drawn
    assert all((ROOT / one).is_dir() for one in drawn)
    for name in re.findall(r"`((?:spark_\w+|docs|tests)/[\w/.-]+\.\w+)`", CONTRIBUTING):
        assert (ROOT / name).is_file(), name
    for name, place in re.findall(r"`([A-Z]+)` in `(\w+/[\w/]+)\.py`", CONTRIBUTING):
        assert hasattr(import_module(place.replace("/", ".")), name), name


NO_NAMES = {
    *("None", "default_rng", "Generator"),
    *("NAME", "EXTENSION", "nll_quantile", "Surprise"),
    *("is_trained", "tokens_by_cluster", "nothing_shown"),
}
"""Names of other projects, of keys, claims and files, and of how to name."""

FILE_ENDINGS = {"cff", "json", "md", "py", "pyi", "toml", "txt", "yaml"}


def test_contributing_names_what_exists():
    sentences = re.sub(r"^ *```.*?^ *```$", "", CONTRIBUTING, flags=re.M | re.S)
    words = re.findall(r"`((?:\w+\.)*\w+)(?:\([^`]*\))?`", sentences)
    words = [word for word in words if word.split(".")[-1] not in FILE_ENDINGS]
    # What has a capital or an underscore in it is a name in code; so are calls.
    names = {word.rpartition(".")[2] for word in words if re.search("[A-Z_]", word)}
    names |= set(re.findall(r"`(?:\w+\.)*(\w+)\([^`]*\)`", sentences))
    assert len(names) > 50
    assert not names - references.all_names() - NO_NAMES


EXAMPLES = [
    module
    for module, source in references.sources().items()
    if re.search(r"^ *>>> ", source, flags=re.M)
]


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_in_docstrings_give_what_they_show(module, request, monkeypatch):
    names: dict[str, Any] = {}
    # Examples of what `sa` exports are lines of a user's notebook.
    if re.search(r"^ *(>>>|\.\.\.) .*\bsa\.", references.sources()[module], flags=re.M):
        names = dict(request.getfixturevalue("scene_of_examples"))
        monkeypatch.chdir(names["folder"])
    # Examples are written in Python, and so are the errors that they show.
    with for_command_line(is_running=False):
        done = doctest.testmod(import_module(module), extraglobs=names)
    assert done.attempted
    assert not done.failed


@pytest.mark.parametrize("name", sa.__all__)
def test_every_exported_name_has_an_example_that_uses_it(name):
    exported = getattr(sa, name)
    parser = doctest.DocTestParser()
    shown = "".join(one.source for one in parser.get_examples(exported.__doc__ or ""))
    # A checkpoint is opened, never made by its class.
    is_used = f"sa.{name}" in shown or name == "Checkpoint"
    assert shown
    assert is_used


@pytest.mark.parametrize("name", sa.stats.__all__)
def test_every_exported_statistic_has_an_example_that_uses_it(name):
    parser = doctest.DocTestParser()
    examples = parser.get_examples(getattr(sa.stats, name).__doc__ or "")
    assert any(re.search(rf"\b{name}\b", one.source) for one in examples)


def test_docstrings_refer_to_what_exists():
    missing = [
        f"{module}: {name}"
        for module, source in references.sources().items()
        for name in references.ROLE.findall(source)
        if not references.exists(name, module)
    ]
    assert not missing


def test_the_example_row_is_valid_and_its_span_is_the_number(tmp_path):
    (row,) = code(PAGES["data.md"], "json")
    (tmp_path / "row.jsonl").write_text(row, encoding="utf-8")
    (example,) = read_examples(tmp_path / "row.jsonl")
    (span,) = example.spans
    assert example.text[span.start : span.end] == "390-555-0142"


def test_the_worked_examples_are_clean(tmp_path):
    for i, source in enumerate(code(CONTRIBUTING, "python")):
        if not source.startswith('"""'):
            # A cell that is run after others has no docstring, and uses their names.
            source = f"# ruff: noqa: D100, F821\n{source}"
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


@pytest.mark.parametrize("page", ["tutorial", "unlearning"])
def test_a_notebook_is_its_page(page, pytestconfig):
    made = json.dumps(notebook(PAGES[f"{page}.md"]), indent=1) + "\n"
    kept = ROOT / "docs" / f"{page}.ipynb"
    if pytestconfig.getoption("--accept"):
        kept.write_text(made, encoding="utf-8")
    assert kept.read_text(encoding="utf-8") == made


def test_the_glossary_in_the_repository_holds_the_words_of_reports():
    """Whoever opens the file reads terms, each as the dossier explains it."""
    page = (ROOT / "docs" / "glossary.md").read_text()
    entries = [f"{term}\n  {text}\n" for term, text in sentences.terms("glossary")]
    assert len(entries) > 10
    _, _, shown = page.partition("```{glossary}\n")
    assert shown == "\n".join(entries) + "```\n"

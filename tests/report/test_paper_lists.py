"""The lists of ``reports/README.md`` are commands that exist.

The blocks go through bash with stand-ins for the two programs, which write down what
they were called with.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from claims.__main__ import parser as claims_parser
from claims.plan import systems
from cyclopts import UNSET
from retention.__main__ import parser as retention_parser

import spark_audit.cli.main
import spark_train.cli
from spark_audit.report.folder import read_report
from spark_train.privacy import groups as privacy_groups
from spark_train.training_methods import groups
from spark_train.training_settings import TrainingSettings, parse

LISTS = Path(__file__).parents[2] / "reports" / "README.md"
TEXT = LISTS.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, flags=re.M | re.S)

STAND_IN = """#!{python}
import json, pathlib, sys
call = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
with open("{log}", "a") as log:
    print(json.dumps(call), file=log)
if "-o" in call:
    out = pathlib.Path(call[call.index("-o") + 1])
    (out.parent if out.suffix else out).mkdir(parents=True, exist_ok=True)
    if out.suffix:
        out.touch()
"""


def walk(folder: Path, stand_in: str, *, shell: str = "bash", **names: str) -> None:
    """Run all lists in ``folder``, where ``raw/`` is, with stand-ins on the path."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("spark-audit", "spark-train", "python"):
        path = programs / name
        path.write_text(stand_in.format(python=sys.executable, **names))
        path.chmod(0o755)
    done = subprocess.run(
        [shell, "-euo", "pipefail", "-c", "".join(BLOCKS)],
        cwd=folder,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


PARSERS = {
    "benchmarks/claims": claims_parser,
    "benchmarks/retention": retention_parser,
}


def called(folder: Path, *, shell: str) -> list[list[str]]:
    for task in ("fomc", "yelp", "agnews", "amazon", "mentill", "yahoo"):
        (folder / "raw" / task).mkdir(parents=True)
    log = folder / "calls.jsonl"
    walk(folder, STAND_IN, shell=shell, log=str(log))
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def calls(tmp_path_factory) -> list[list[str]]:
    """Every call that the lists make, in their order."""
    return called(tmp_path_factory.mktemp("lists"), shell="bash")


def test_no_list_of_seeds_is_left_to_the_shell():
    """Brackets are a pattern there, and zsh stops where no file fits it."""
    page = LISTS.parents[1] / "docs" / "checkpoints.md"
    text = page.read_text(encoding="utf-8")
    assert "=[" in text
    assert not re.search(r"--ckpt [^'`\n]*=\[", text)


def parsed(call: list[str]) -> dict[str, Any]:
    """What the command line makes of a call; cyclopts raises where it is wrong."""
    program, *argv = call
    if program == "python":
        folder, *options = argv
        return vars(PARSERS[folder]().parse_args(options))
    train = program == "spark-train"
    app = (
        spark_train.cli.command_app(argv)
        if train
        else spark_audit.cli.main.command_app(argv)
    )
    parsed_runs: list[Any] = []
    app.config = lambda app, commands, arguments: parsed_runs.extend(arguments)
    app.parse_args(argv)
    names = (
        (word.name.strip("-").replace("-", "_").lower(), word) for word in parsed_runs
    )
    return {
        name: None if value.value is UNSET else value.value for name, value in names
    }


def settings_of(call: dict[str, Any]) -> TrainingSettings:
    reads = [*groups(call["method"]), *privacy_groups(call["dp"])]
    return parse(call["set"] or (), groups=reads, method=call["method"])


def trained(calls: list[list[str]]) -> dict[str, dict[str, Any]]:
    """The training runs by folder."""
    runs = [parsed(call) for call in calls if call[:2] == ["spark-train", "run"]]
    runs_by_output = {str(run["output"]): run for run in runs}
    assert len(runs_by_output) == len(runs), "two runs would share a folder"
    return runs_by_output


def test_every_call_is_one_that_the_programs_take(calls):
    assert len(calls) > 20
    for call in calls:
        assert parsed(call), call
    for run in trained(calls).values():
        assert settings_of(run)


def test_each_system_of_the_papers_main_table_is_trained_for_the_claims():
    paper = read_report(LISTS.parent / "paper")
    printed = {row.checkpoint for row in paper.results if "tab:main_cl" in row.note}
    assert len(printed) == 20
    by_name = {system.name: system for system in systems(all_=True)}
    # PeCL as its own paper prints it is the same system.
    assert printed - {"pecl-as-cited"} <= set(by_name)
    for name in printed & set(by_name):
        method, _, dp = name.partition("-")
        system = by_name[name]
        assert (system.method, system.dp, system.settings) == (method, dp or "none", {})
        assert 1 in system.orders

"""The lists of ``reports/README.md`` are commands that exist, and they run.

The blocks go through bash with stand-ins for the two programs, which write down what
they were called with. The slow test lets them through to the programs, on tiny models.
"""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from claims.__main__ import parser
from claims.plan import systems
from claims.rules import VERDICTS
from cyclopts import UNSET

import spark_audit.cli.main
import spark_train.cli
from spark_audit.report.folder import read_report
from spark_train.methods import groups
from spark_train.privacy import groups as privacy_groups
from spark_train.training_settings import Settings, parse

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

LETS_THROUGH = """#!{python}
import pathlib, sys
program, *call = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
if program == "python":
    small = ["epochs=1", "batch_size=8", "lora.r=2", "ptpc.steps=2", "gem.memory=2"]
    call[call.index("--seeds") + 1] = "1"
    call += ["--set", *small, "--candidates", "4", "--quiet"]
elif call[0] == "run":
    small = ["epochs=1", "batch_size=8", "lora.r=2", "micro_tokens=4096"]
    method = call[call.index("--method") + 1]
    if method in ("spark", "er-ptpc") and not any("ptpc.steps" in a for a in call):
        small += ["ptpc.steps=2"]
    if method == "gem":
        small += ["gem.memory=2"]
    call += ["--set", *small, "--quiet"]
elif call[:2] == ["data", "inject"]:
    call += ["--canaries", "4", "--doses", "1,2"]
elif call[0] == "all":
    call += ["--placebo-draws", "5", "--blind-permutations", "20", "--quiet"]
if program != "python" and call[0] not in ("run", "data"):
    call += ["--format", "csv"] if "--against" not in call else []
if program == "python":
    sys.path.insert(0, {benchmarks!r})
    from claims.__main__ import main
    sys.exit(main(call[1:]))
if program == "spark-audit":
    from spark_audit.cli.main import run
else:
    from spark_train.cli import run
sys.exit(run(call))
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
        assert argv[0] == "benchmarks/claims"
        return vars(parser().parse_args(argv[1:]))
    train = program == "spark-train"
    app = spark_train.cli._app(argv) if train else spark_audit.cli.main._app(argv)
    found: list[Any] = []
    app.config = lambda app, commands, arguments: found.extend(arguments)
    app.parse_args(argv)
    names = ((one.name.strip("-").replace("-", "_").lower(), one) for one in found)
    return {name: None if one.value is UNSET else one.value for name, one in names}


def settings_of(call: dict[str, Any]) -> Settings:
    reads = [*groups(call["method"]), *privacy_groups(call["dp"])]
    return parse(call["set"] or (), groups=reads, method=call["method"])


def trained(calls: list[list[str]]) -> dict[str, dict[str, Any]]:
    """The training runs by folder."""
    runs = [parsed(call) for call in calls if call[:2] == ["spark-train", "run"]]
    found = {str(run["output"]): run for run in runs}
    assert len(found) == len(runs), "two runs would share a folder"
    return found


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
    by_name = {one.name: one for one in systems(all_=True)}
    # PeCL as its own paper prints it is the same system.
    assert printed - {"pecl-as-cited"} <= set(by_name)
    for name in printed & set(by_name):
        method, _, dp = name.partition("-")
        one = by_name[name]
        assert (one.method, one.dp, one.settings) == (method, dp or "none", {})
        assert 1 in one.orders


@pytest.mark.slow
def test_the_lists_run(tmp_path, tiny_base, make_model, make_tokenizer):
    rng = random.Random(0)
    words = "service food cold good fine rate raised basis points news read".split()
    for task in ("fomc", "agnews", "mentill"):
        for split, rows in (("train", 40), ("test", 24)):
            path = tmp_path / "raw" / task / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            texts = (
                f"{task} {split} {i} {' '.join(rng.choices(words, k=12))}"
                for i in range(rows)
            )
            lines = (
                json.dumps({"text": text, "label": rng.choice(["good", "bad"])})
                for text in texts
            )
            path.write_text("\n".join(lines))
    models = tmp_path / "models"
    models.mkdir()
    (models / "llama-2-7b").symlink_to(tiny_base)
    make_model("qwen2").save_pretrained(models / "qwen2.5-1.5b")
    make_tokenizer(bos=False).save_pretrained(models / "qwen2.5-1.5b")
    walk(tmp_path, LETS_THROUGH, benchmarks=str(LISTS.parents[1] / "benchmarks"))
    for report in ("eight", "sweep"):
        assert (tmp_path / "reports" / report / "report.json").exists(), report
    found = json.loads((tmp_path / "reports" / "ppcl" / "claims.json").read_text())
    assert {one["verdict"] for one in found["claims"]} <= set(VERDICTS) - {"not run"}
    systems_there = {one["system"] for one in found["systems"]}
    assert {"seqft", "er-dpsgd", "gem-fn", "olora-fn", "pecl", "spark"} <= systems_there

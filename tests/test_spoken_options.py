"""Errors name options as their caller writes them: in Python, or in a shell."""

import ast
import pickle
import re
from pathlib import Path

import pytest

import spark_audit as sa
from spark_audit.cli.main import run
from spark_audit.errors import CheckpointError, InputError
from spark_audit.spoken_options import ARGUMENTS, as_called, for_command_line

ROOT = Path(sa.__file__).parents[1]
PACKAGES = (ROOT / "spark_audit", ROOT / "spark_train")

OPTIONS_OF_OTHERS = {
    # Of commands of ours that are named whole, and of files of style.
    *("attest", "dry-run", "help", "json"),
    # Of `spark-train relearn`, which has no function of Python.
    "lr",
    *("alarm", "grid", "ink", "muted", "paper", "rwrap", "warn"),
    # Of other programs.
    *("adapter-path", "backend", "dequantize", "head", "input_dir", "local_dir"),
    *("lora", "merge", "object-store-memory", "output_dir", "save-path", "target_dir"),
}


@pytest.fixture
def in_python():
    with for_command_line(is_running=False):
        yield


def texts_of_the_library() -> list[str]:
    """Every string in the code, without docstrings and the command line."""
    texts = []
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    for path in paths:
        folders = {"cli", "cli.py", "terminal"}
        if folders & set(path.parts) or path.stem == "spoken_options":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                docstrings.add(node.value)
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and node not in docstrings:
                texts.append(node.value)
    return texts


def test_every_option_that_an_error_names_has_an_argument_in_python():
    options = set()
    for text in texts_of_the_library():
        options.update(re.findall(r"(?<![\w/.-])--([a-z][a-z0-9_-]+)", text))
    assert options - OPTIONS_OF_OTHERS == set(ARGUMENTS)


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        ("give --base MODEL", "give base=MODEL"),
        ("give another -o, or remove it", "give another output=, or remove it"),
        ("add --format dossier", "add formats='dossier'"),
        ("add --trust-remote-code", "add trust_remote_code=True"),
        ("one name: --ckpt NAME=PATH", "one name: checkpoints={NAME: PATH}"),
        ("leave --quantize and --relearn out", "leave quantize= and relearn= out"),
        ("give `--empty drop`", "give `empty='drop'`"),
        ("`--map prompt=COLUMN`", "`columns={'prompt': COLUMN}`"),
        ("--ckpt http://H:1/v1, and a key", "checkpoints='http://H:1/v1', and a key"),
        *[
            (text, text)
            for text in (
                "make one by `spark-audit data import --map id=`",
                "mlx_lm.fuse --model BASE --adapter-path FOLDER",
                "llama-export-lora -m BASE.gguf --lora FILE.gguf -o OUT.gguf, and",
                "models--org--name/--base/x",
            )
        ],
    ],
)
def test_a_message_names_arguments_in_python(in_python, typed, called):
    assert as_called(typed) == called
    with for_command_line():
        assert as_called(typed) == typed


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("--baseline", "baseline: no"),
        ("option --rate", "rate: no"),
        ("--ckpt runs/a", "checkpoints='runs/a': no"),
        ("--fail-if 'claim'", "rules='claim': no"),
        ("data.jsonl, line 3", "data.jsonl, line 3: no"),
    ],
)
def test_the_place_of_an_error_is_an_argument(in_python, where, shown):
    assert str(InputError("no", where=where)) == shown


def test_an_error_of_another_process_is_shown_as_its_reader_calls():
    sent = pickle.dumps(CheckpointError("no", where="x", fix="give --base MODEL"))
    assert str(pickle.loads(sent)) == "x: no; give --base MODEL"
    with for_command_line(is_running=False):
        assert str(pickle.loads(sent)) == "x: no; give base=MODEL"


def test_one_mistake_is_told_in_the_words_of_python_and_of_the_shell(
    in_python, tmp_path, capsys
):
    mine = str(tmp_path)
    with pytest.raises(InputError) as error:
        sa.audit({"mine": mine}, baseline="nope", output=tmp_path / "r")
    assert str(error.value).startswith("baseline: 'nope'")
    assert "--" not in str(error.value)

    call = ["matched", "--ckpt", f"mine={mine}", "--baseline", "nope"]
    assert run([*call, "-o", str(tmp_path / "r")]) == 2
    assert "error: --baseline: 'nope'" in capsys.readouterr().err

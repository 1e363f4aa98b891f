"""The same command again: answered at once, and never where anything has changed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from named import examples

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.cli import again
from spark_audit.cli.again import show_again
from spark_audit.cli.main import run
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline import inputs_record

WORDS = (
    "nll --ckpt ours=lora --base base --manifest m.json --scores kept --format md"
    " -o report"
).split()
"""A report without a page in HTML, whose figures take longest."""

ONLY_LIGHT = """
import sys
from spark_audit.cli.main import run
assert run(sys.argv[1:]) == 0
heavy = {"torch", "transformers", "pandas", "scipy", "pyarrow"} & sys.modules.keys()
print(sorted(heavy), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_base, make_adapter) -> Path:
    """A folder with a base, an adapter of it and a manifest."""
    folder = tmp_path_factory.mktemp("again")
    shutil.copytree(tiny_base, folder / "base")
    make_adapter(folder / "lora")
    loaded = open_checkpoint(folder / "base", name="base")
    manifest = build_manifest(examples(), loaded, name="m", caliper=2.0)
    write_manifest(manifest, folder / "m.json")
    return folder


@pytest.fixture
def finished(folder, monkeypatch, capsys) -> Path:
    """The folder, with a report of :data:`WORDS` that is up to date.

    What is printed goes to the stream of ``capsys`` from here on.
    """
    monkeypatch.chdir(folder)
    # pytest names the part of a test that runs in this variable.
    ignored = (*again.VARIABLES_OF_SHELL, "PYTEST_CURRENT_TEST")
    monkeypatch.setattr(again, "VARIABLES_OF_SHELL", ignored)
    # The first run imports libraries, which change the environment.
    for _ in range(2):
        assert run(WORDS) == 0
    return folder


def with_last_byte_changed(path: Path) -> None:
    """Change a file, but neither its size nor the time of its content."""
    stat = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_the_same_command_prints_the_same_and_runs_nothing(
    finished, capsys, monkeypatch
):
    capsys.readouterr()
    with monkeypatch.context() as disabled:
        disabled.setattr("spark_audit.cli.main.command_app", None)
        assert run(WORDS) == 0
    shown = capsys.readouterr()

    # What the ordinary way prints, from the same report.
    record = finished / "report" / inputs_record.INPUTS_FILE
    content = json.loads(record.read_text())
    del content["shown"]
    record.write_text(json.dumps(content))
    assert run(WORDS) == 0
    usual = capsys.readouterr()
    assert usual.out
    assert shown == usual
    assert record.stat().st_mode & 0o777 == 0o600


def test_another_process_answers_without_what_audits_import(finished):
    def printed() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", ONLY_LIGHT, *WORDS],
            capture_output=True,
            text=True,
            check=True,
        )

    # The first has another environment than this process, and runs as usual.
    usual, repeated = printed(), printed()
    assert usual.stdout == repeated.stdout
    assert usual.stderr.splitlines()[:-1] == repeated.stderr.splitlines()[:-1]
    assert repeated.stderr.splitlines()[-1] == "[]"
    assert usual.stderr.splitlines()[-1] != "[]"


def delete_score_part(folder: Path) -> None:
    next((folder / "kept").glob("*.parquet")).unlink()


def touch_weights(folder: Path) -> None:
    os.utime(folder / "lora" / "adapter_model.safetensors")


def replace_manifest(folder: Path) -> None:
    content = (folder / "m.json").read_bytes()
    (folder / "m.json").unlink()
    (folder / "m.json").write_bytes(content)


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights touched": touch_weights,
    "configuration of equal size": lambda folder: with_last_byte_changed(
        folder / "lora" / "README.md"
    ),
    "a file beside the base": lambda folder: (folder / "base" / "new.txt").touch(),
    "manifest": replace_manifest,
    "score part": delete_score_part,
    "page": lambda folder: (folder / "report" / "report.md").unlink(),
    "evidence": lambda folder: (folder / "report/scores/nll.parquet").unlink(),
    "report": lambda folder: with_last_byte_changed(folder / "report/report.md"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_of_files_the_command_runs(change, finished, capsys):
    (finished / "lora" / "README.md").touch()
    (finished / "lora" / "README.md").write_text("of the adapter")
    assert run(WORDS) == 0
    assert show_again(WORDS)
    CHANGES[change](finished)
    capsys.readouterr()
    assert not show_again(WORDS)
    assert capsys.readouterr() == ("", "")

    # The report is whole again, and up to date.
    assert run(WORDS) == 0
    assert (finished / "report" / "report.md").exists()
    assert (finished / "report" / "scores" / "nll.parquet").exists()
    assert show_again(WORDS)


def test_the_usual_formats_are_whole_again_too(finished):
    words = [word for word in WORDS if word not in ("--format", "md")]
    assert run(words) == 0
    assert show_again(words)
    page = finished / "report" / "report.html"
    page.unlink()
    assert not show_again(words)
    assert run(words) == 0
    assert page.exists()
    assert show_again(words)


@pytest.mark.parametrize(
    "words",
    [
        [*WORDS, "--seed", "1"],
        [*WORDS, "--verbose"],
        [*WORDS, "--json"],
        ["rank", *WORDS[1:]],
        WORDS[:-2],
        [*WORDS[:-1], "elsewhere"],
        ["report", "report"],
    ],
    ids=" ".join,
)
def test_other_words_are_another_command(words, finished):
    assert show_again(WORDS)
    assert not show_again(words)


def test_another_environment_or_program_is_another_command(finished, monkeypatch):
    assert show_again(WORDS)
    for name in ("COLUMNS", "SPARK_AUDIT_SEED", "CUDA_VISIBLE_DEVICES"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "77")
            assert not show_again(WORDS), name
    with monkeypatch.context() as changed:
        changed.setattr(inputs_record, "versions", lambda: {"torch": "another"})
        assert not show_again(WORDS)
    with monkeypatch.context() as changed:
        changed.chdir(finished / "lora")
        assert not show_again([*WORDS[:-1], "../report"])
    assert show_again(WORDS)


def test_a_file_of_options_is_always_read(finished):
    (finished / "options.toml").write_text("seed = 0\n")
    words = [*WORDS, "--config", "options.toml"]
    assert run(words) == 0
    assert not show_again(words)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record["shown"].update(text=3),
        lambda record: record["shown"].update(messages=[None]),
        lambda record: record["shown"].pop("typed"),
        lambda record: record.update(shown="text"),
        lambda record: record.update(inputs=[]),
        lambda record: record["outputs"].update({"\0": []}),
        lambda record: record.pop("scores"),
        lambda record: record["inputs"].update({"/nowhere": [1, 2, 3, 4]}),
    ],
)
def test_a_damaged_record_answers_nothing(damage, finished):
    path = finished / "report" / inputs_record.INPUTS_FILE
    record = json.loads(path.read_text())
    damage(record)
    path.write_text(json.dumps(record))
    assert not show_again(WORDS)
    path.write_text("{")
    assert not show_again(WORDS)


def test_what_another_request_left_is_not_added_to(finished, monkeypatch):
    """A run that keeps no record of its own must not write into an earlier one."""
    path = finished / "report" / inputs_record.INPUTS_FILE
    kept = path.read_bytes()
    monkeypatch.setattr("spark_audit.pipeline.up_to_date.MAX_FILES", 1)
    assert run([*WORDS, "--seed", "3"]) == 0
    assert path.read_bytes() == kept
    assert not show_again([*WORDS, "--seed", "3"])
    assert not show_again(WORDS)


def test_a_command_runs_in_a_working_directory_that_is_gone(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert not show_again(WORDS)
    assert run(["--version"]) == 0
    assert "spark-audit" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--ckpt", "~no-such-user/x", "--base", "base", "--manifest", "m.json"],
        ["--ckpt", "lora", "--base", "~no-such-user/x", "--manifest", "m.json"],
        ["--ckpt", "lora", "--base", "base", "--manifest", "~no-such-user/x"],
    ],
    ids=["checkpoint", "base", "manifest"],
)
def test_the_home_of_an_unknown_user_is_a_path_that_is_missing(
    words, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    assert run(["nll", *words, "-o", "elsewhere"]) == 2
    assert "~no-such-user/x" in capsys.readouterr().err

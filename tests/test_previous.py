"""No command replaces a file that holds something else without keeping it."""

import json
import os
import shlex

import pytest
from made_reports import made_report

from spark_audit.cli.main import run
from spark_audit.errors import OutputError
from spark_audit.previous import keeping_previous
from spark_audit.report.folder import write_report

ROW = {"id": "1", "task": "t", "prompt": "Who?", "response": " I", "split": "train"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working directory, with data and a report."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("text,label\na,b\n")
    (tmp_path / "d.jsonl").write_text(json.dumps(ROW) + "\n")
    write_report(made_report("er"), tmp_path / "report", formats=("json",))
    return tmp_path


COMMANDS = {
    "data import t.csv --task t --split train -o OUT.jsonl": "OUT.jsonl",
    "data annotate d.jsonl -o OUT.jsonl": "OUT.jsonl",
    "data inject d.jsonl -o OUT --canaries 0": "OUT/t.jsonl",
    "gate report --junit OUT.xml": "OUT.xml",
    "gate report --sarif OUT.sarif": "OUT.sarif",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_replaces_is_kept_and_told(command, place, capsys):
    output = place / COMMANDS[command]
    output.parent.mkdir(exist_ok=True)
    output.write_text("made by hand")
    os.utime(output, (1e9, 1e9))
    assert run(shlex.split(command)) in (0, 1)

    assert output.read_text() != "made by hand"
    (kept,) = (output.parent / "previous").iterdir()
    assert kept.read_text() == "made by hand"
    assert kept.name.startswith(f"{output.stem}-2001-09-09-")
    assert kept.suffix == output.suffix
    said = capsys.readouterr().err
    assert f"previous/{kept.name}" in said

    # The same again is no replacement.
    assert run(shlex.split(command)) in (0, 1)
    assert [*(output.parent / "previous").iterdir()] == [kept]
    assert not [*output.parent.glob(".spark-*")]


def test_a_command_that_fails_leaves_the_file_as_it_is(place):
    (place / "out.jsonl").write_text("made by hand")
    call = "data import t.csv --task t --split train --map prompt=none -o out.jsonl"
    assert run(shlex.split(call)) == 2
    assert (place / "out.jsonl").read_text() == "made by hand"
    assert not (place / "previous").exists()
    assert not [*place.glob(".spark-*")]


def test_files_that_are_kept_are_no_data_of_the_folder(place):
    call = ["data", "import", "t.csv", "--task", "t", "--split", "train"]
    call += ["-o", "data/t.jsonl", "--map", "response=label", "--template"]
    for template in ("A: {text}", "B: {text}"):
        assert run([*call, template]) == 0
    assert len([*(place / "data" / "previous").iterdir()]) == 1
    assert run(["data", "inject", "data", "-o", "out", "--canaries", "0"]) == 0
    rows = (place / "out" / "t.jsonl").read_text().splitlines()
    assert [json.loads(row)["prompt"] for row in rows] == ["B: a"]


def test_two_files_of_one_second_are_both_kept(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("one", "two", "three"):
        with keeping_previous([path]):
            new = tmp_path / "new"
            new.write_text(text)
            os.utime(new, (1e9, 1e9))
            new.replace(path)
    kept = sorted((tmp_path / "previous").iterdir())
    assert {one.read_text() for one in kept} == {"one", "two"}


def test_where_nothing_can_be_kept_nothing_is_written(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("one")

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("shutil.copy2", refuse)
    with pytest.raises(OutputError), keeping_previous([path]):
        path.write_text("two")
    assert path.read_text() == "one"

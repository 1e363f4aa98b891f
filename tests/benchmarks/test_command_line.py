"""Mistakes on the command line of a benchmark are one line with an exit code."""

import ast
import importlib
from pathlib import Path

import pytest
from command_line import (
    benchmark_parser,
    check_files,
    check_folder,
    check_model,
    exit_code_of,
    positive_number,
    regular_expression,
    seed_list,
)
from finished_lines import read

from spark_audit.errors import CheckpointError, InputError


@pytest.mark.parametrize(
    ("text", "seeds"), [("2:5", [2, 3, 4]), ("7,", [7]), ("1,4", [1, 4]), ("3", [3])]
)
def test_seeds_are_a_range_or_a_list(text, seeds):
    assert seed_list(text) == seeds


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "0-20"],
        ["--seeds", "5:5"],
        ["--seeds", "-1:3"],
        ["--runs", "0"],
        ["--runs", "x"],
        ["--runs", "1.5"],
        ["--pattern", "("],
        ["--runs"],
        ["--rnus", "3"],
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_one_line_that_names_it_and_exits_with_2(words, capsys):
    parser = benchmark_parser("Measure something.", file="benchmarks/some.py")
    parser.add_argument("--seeds", type=seed_list)
    parser.add_argument("--runs", type=positive_number)
    parser.add_argument("--pattern", type=regular_expression)

    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(words)

    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words[0] in line


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (InputError("is wrong", where="--base"), 2),
        (CheckpointError("is broken"), 3),
        (FileNotFoundError(2, "No such file", "here"), 2),
        (PermissionError(13, "Permission denied", "here"), 4),
        (ModuleNotFoundError("No module named 'names'", name="names"), 2),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_a_user_can_cause_is_one_line(error, exit_code, capsys):
    def fail() -> None:
        raise error

    assert exit_code_of(fail) == exit_code
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("check", [check_files, check_folder, check_model])
def test_a_path_that_is_not_there_is_refused_with_its_option(check, tmp_path):
    with pytest.raises(InputError) as error:
        check("--report", tmp_path / "nowhere")
    assert (error.value.where or "").startswith("--report ")
    assert error.value.fix


def test_lines_of_another_benchmark_are_refused_and_a_cut_one_is_made_again(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert read(path, "seed") == []
    path.write_text('{"seed": 1, "case": "a"}\n{"seed": 2, "ca')
    assert read(path, "seed", "case") == [{"seed": 1, "case": "a"}]
    with pytest.raises(InputError):
        read(path, "seed", "scenario")
    path.write_text("# A page\n")
    with pytest.raises(InputError):
        read(path, "seed")


def test_a_defect_keeps_its_traceback():
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_code_of(fail)


def test_options_are_named_as_they_were_typed(capsys):
    def fail() -> None:
        raise InputError("is missing", where="--base", fix="give --data and --base")

    exit_code_of(fail)
    assert "--data and --base" in capsys.readouterr().err


def test_every_benchmark_reads_its_options_by_this_parser():
    """A parser of its own would print the whole usage for each mistake."""
    folder = Path(__file__).parents[2] / "benchmarks"
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/__main__.py")]):
        names = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Attribute)
        }
        is_parser = path.name == "command_line.py"
        assert is_parser or "ArgumentParser" not in names, path.name


@pytest.mark.parametrize("study", ["claims", "retention"])
@pytest.mark.parametrize("words", [[], ["--seeds", "x"], ["--no-such-option"]], ids=str)
def test_a_study_says_a_wrong_option_in_one_line(study, words, capsys):
    main = importlib.import_module(f"{study}.__main__").main
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1

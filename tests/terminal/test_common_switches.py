"""Switches of every command, which are typed or stand in a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from cyclopts import App, Parameter

from spark_audit.options import NO_OPTION, Quiet, Verbose
from spark_audit.terminal import flags
from spark_audit.terminal.console import run_command


@dataclass(frozen=True, kw_only=True)
class WithNoColour(flags.CommonSwitches):
    """The switches of every command, and a further one of two words."""

    no_colour: Annotated[bool, Parameter(help="Plain letters.")] = False


@pytest.fixture
def received(monkeypatch) -> list[tuple[bool, bool, bool]]:
    """Make a program with ``--no-colour``; the list is what its command was given."""
    monkeypatch.setattr(flags, "CommonSwitches", WithNoColour)
    return []


def program_of(
    received: list[tuple[bool, bool, bool]],
) -> Callable[[Sequence[str]], App]:
    """A program with a command ``do``, and with ``less``, which takes no switch."""

    def do(
        *,
        quiet: Quiet = False,
        verbose: Verbose = False,
        no_colour: Annotated[bool, NO_OPTION] = False,
    ) -> None:
        received.append((quiet, verbose, no_colour))

    def less(*, seed: int = 0) -> None:
        received.append((False, False, False))

    def app(words: Sequence[str]) -> App:
        program = flags.program("try", words, help="Try.")
        flags.add(program, "do", do)
        flags.add(program, "less", less)
        return program

    return app


@pytest.mark.parametrize(
    ("typed", "file", "expected"),
    [
        ("", "", (False, False, False)),
        ("--no-colour", "", (False, False, True)),
        ("--no_colour --quiet", "", (True, False, True)),
        ("", "no-colour = true", (False, False, True)),
        ("", "no_colour = true\nverbose = true", (False, True, True)),
        ("--quiet", "no-colour = true", (True, False, True)),
        ("--no-colour", "no-colour = false", (False, False, True)),
    ],
)
def test_a_further_switch_of_two_words_is_typed_or_stands_in_a_file(
    typed, file, expected, received, tmp_path
):
    path = tmp_path / "options.toml"
    path.write_text(file)
    words = ["do", *typed.split(), "--config", str(path)]

    code = run_command(words, program="try", app=program_of(received))
    assert (code, received) == (0, [expected])


@pytest.mark.parametrize("line", ["quiet = true", "no-colour = true"])
def test_a_command_without_the_switch_accepts_it_in_a_file(
    line, received, tmp_path: Path
):
    path = tmp_path / "options.toml"
    path.write_text(line)

    words = ["less", "--config", str(path)]
    assert run_command(words, program="try", app=program_of(received)) == 0
    assert received == [(False, False, False)]


@pytest.mark.parametrize("line", ["quiet = 1", "no-colour = 'yes'"])
def test_a_switch_of_a_file_is_true_or_false(line, received, tmp_path, capsys):
    path = tmp_path / "options.toml"
    path.write_text(line)

    words = ["do", "--config", str(path)]
    assert run_command(words, program="try", app=program_of(received)) == 2
    assert received == []
    switch = line.split(" ")[0]
    error_output = capsys.readouterr().err
    assert f" {switch} " in error_output
    assert str(path) in error_output

"""Run command lines and show output, for both console scripts.

Results go to stdout, and messages go to stderr. This module imports nothing slow, so
that ``--help`` answers at once.

Exit codes of errors stand at their classes in ``spark_audit/errors.py``;
:func:`run_command` adds those of typing mistakes, of interrupts and of defects.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from spark_audit import errors
from spark_audit.errors import out_of_memory, visible
from spark_audit.messages import say
from spark_audit.spoken_options import for_command_line
from spark_audit.terminal.interrupts import (
    KeepsNothing,
    how_to_continue,
    interrupted,
    one_interrupt,
    say_interrupted,
    verb_of,
)

if TYPE_CHECKING:
    from rich.console import Console

STREAM_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}
"""Standard streams, and the mode in which a closed one is opened."""

DEFECT_EXIT_CODE = 70
"""Exit code of an error that the user did not cause (EX_SOFTWARE of sysexits.h)."""

USAGE_EXIT_CODE = 2
"""Exit code of a mistake on the command line, as in ``errors.InputError``."""

PIPED_COLUMNS = 200
"""Columns of output that does not go to a terminal."""


@dataclass(frozen=True)
class _Failure:
    """The printed line of an error, and the exit code."""

    line: str
    exit_code: int


def run_command(
    arguments: Sequence[str],
    *,
    program: str,
    app: Callable[[Sequence[str]], App],
    keeps_nothing: KeepsNothing | None = None,
    answered: Callable[[Sequence[str]], bool] | None = None,
) -> int:
    """Run one command line and return its exit code (never raises).

    Parameters
    ----------
    arguments
        Words that were typed after the program's name.
    program
        Name of the program, for messages and log files.
    app
        Makes the application for the typed words (``terminal/flags.py``).
    keeps_nothing
        Tells which commands keep nothing of interrupted work; default: all resume.
    answered
        Answers words without the application, and returns whether it did.
    """
    _open_closed_streams()
    verb = verb_of(arguments, keeps_nothing)
    exit_code = 0

    with one_interrupt(), for_command_line():
        try:
            try:
                if answered is None or not answered(arguments):
                    app(arguments).meta(list(arguments))
            except SystemExit as request_to_exit:
                # A command such as `gate` exits with 1 after its last line. This code
                # stands, even if the flush below fails.
                code = request_to_exit.code
                exit_code = code if isinstance(code, int) else 1

            sys.stdout.flush()
            return exit_code
        except KeyboardInterrupt:
            return say_interrupted(program, arguments, verb=verb)
        except BrokenPipeError:
            # The reader of our output has ended, as `head` does.
            _drop_output()
            return exit_code
        except BaseException as error:
            if not isinstance(error, Exception) and not errors.is_rust_panic(error):
                raise
            # A library may have turned an interrupt into another error.
            if interrupted():
                return say_interrupted(program, arguments, verb=verb)

            failure = _failure_of(error, program)
            line = failure.line
            if failure.exit_code == errors.IncompleteError.exit_code:
                line += f"\n{how_to_continue(program, arguments, verb=verb)}"
            say(f"{program}: {line}")
            _flush_or_drop_output()
            # Only a failed flush comes after an exit code of the command.
            return exit_code or failure.exit_code


def _open_closed_streams() -> None:
    """Open closed standard streams on the null device.

    Otherwise the next file to be opened would get the number of such a stream, and
    would receive its output.
    """
    for stream, mode in STREAM_MODES.items():
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, mode))


def _failure_of(error: BaseException, program: str) -> _Failure:
    """Return the line and the exit code of an error.

    The first match decides: memory ran out; an error of ours; a mistake on the command
    line; a file that cannot be read or written; otherwise a defect.
    """
    if not isinstance(error, errors.IncompleteError) and out_of_memory(error):
        error = errors.IncompleteError(
            "out of memory",
            where=getattr(error, "where", None),
            fix="end other programs, or use another device or a larger machine",
        )
    if isinstance(error, errors.IncompleteError):
        return _Failure(str(error), error.exit_code)
    if isinstance(error, errors.SparkError):
        return _Failure(f"error: {error}", error.exit_code)

    if isinstance(error, CycloptsError):
        command = " ".join((program, *(error.command_chain or ())))
        line = f"error: {_usage_mistake(error)} see {command} --help"
        return _Failure(line, USAGE_EXIT_CODE)

    # A missing template of Jinja is an OSError and a LookupError: a defect of ours, and
    # no problem of a file.
    if isinstance(error, OSError) and not isinstance(error, LookupError):
        exit_code = errors.OutputError.exit_code
        if isinstance(error, FileNotFoundError):
            exit_code = errors.InputError.exit_code
        line = f"error: {error.filename or 'I/O'}: {error.strerror}"
        return _Failure(line, exit_code)

    error_type = type(error).__name__
    details = _details_of_defect(error, program)
    return _Failure(f"a defect of ours ({error_type}); {details}", DEFECT_EXIT_CODE)


def _usage_mistake(error: CycloptsError) -> str:
    """Return the mistake on a command line, in one line.

    The caller adds ``see ... --help``, so each line ends with ``;`` or ``?``.
    """
    if isinstance(error, UnusedCliTokensError):
        first_token = (error.unused_tokens or [""])[0]
        return (
            f"unexpected {first_token!r}: a value stands behind its option, as --ckpt "
            "PATH;"
        )
    if isinstance(error, RepeatArgumentError):
        option = error.token.keyword
        return f"{option} is given twice, and takes one value: leave one out;"
    if isinstance(error, MissingArgumentError):
        return _missing_argument(error)
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        value = _value_without_option(option, _names_of_command(error))
        if value:
            return f"Unknown option: {option}. {value} stands without an option;"

    # The library's own sentence is used, without the lists that --help shows.
    sentence = str(error).partition(" Available commands: ")[0]
    sentence = " ".join(sentence.split())
    sentence = re.sub(r'^Command "[^"]*" parameter ', "", sentence)

    if sentence.endswith("?"):
        return sentence
    return sentence.rstrip(".") + ";"


def _missing_argument(error: MissingArgumentError) -> str:
    """Return what is missing; a misspelt option is reported as unknown instead.

    The library first reports that an option is missing. If the user typed it without a
    value, or any option with a wrong name, the unused tokens contain it.
    """
    assert error.argument is not None
    names = _names_of_command(error)
    for token in error.unused_tokens or ():
        typed_option = token.partition("=")[0]
        option = typed_option.replace("_", "-")

        if option in error.argument.names:
            return f"the value of {option} is missing;"

        if option.startswith("--") and option not in names:
            nearest = get_close_matches(option, names, n=1)
            if nearest:
                return f"Unknown option: {typed_option}. Did you mean {nearest[0]}?"
            return f"Unknown option: {typed_option};"

    return f"{error.argument.name} is missing;"


def _names_of_command(error: CycloptsError) -> list[str]:
    """Return the names of a command's options, and of its values without an option.

    A value without an option has its name in capitals: ``FOLDER``.
    """
    assert error.app is not None
    names: list[str] = []
    for argument in error.app.assemble_argument_collection().filter_by(parse=True):
        names.extend(argument.names)
    return names


def _value_without_option(option: str, names: Sequence[str]) -> str:
    """Return the value that a wrong option means, if it takes no option; else nothing.

    An option that is more similar counts as the one that was meant.
    """
    by_typed_name = {}
    for name in names:
        is_value = name.isupper() and not name.startswith("-")
        by_typed_name[f"--{name.lower()}" if is_value else name] = name

    nearest = get_close_matches(option, by_typed_name, n=1)
    if not nearest:
        return ""
    name = by_typed_name[nearest[0]]
    return "" if name.startswith("-") else name


def _flush_or_drop_output() -> None:
    """Flush stdout; on failure, discard its output."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Discard the remaining output, so that Python does not complain at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _details_of_defect(error: BaseException, program: str) -> str:
    """Write the place of a defect to a log file, and return the file's path.

    Messages of the error are left out, because they may quote data.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"{program}-", suffix=".log", delete=False
        ) as file:
            file.write("\n".join([type(error).__name__, *lines]) + "\n")
    except OSError:
        # Without a log file, the innermost line of the code must be enough.
        return f"at {lines[-1]}" if lines else "no details"
    return f"details, without any data, are in {file.name}"


def keep_apart(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to overwrite inputs; called before anything is written.

    Raises
    ------
    InputError
        If an output is also an input, perhaps by another name or a link.
    """
    # `Path.resolve` raises an error for circular links.
    real_inputs = {os.path.realpath(path) for path in inputs}
    for output in outputs:
        if _is_among(output, real_inputs):
            raise errors.InputError(
                "would be written over, and it is an input",
                where=str(output),
                fix="give another -o",
            )


def _is_among(path: Path, real_paths: Collection[str]) -> bool:
    """Return whether a path is one of these files, by name or as the same file."""
    if os.path.realpath(path) in real_paths:
        return True
    if not path.exists():
        return False

    return any(
        path.samefile(real_path)
        for real_path in real_paths
        if os.path.exists(real_path)
    )


def tell(text: str = "") -> None:
    """Print one or more plain lines to stdout."""
    print(visible(text, keep="\n"))


def tell_json(content: object) -> None:
    """Print one line of ASCII JSON to stdout, which cannot steer a terminal."""
    tell(json.dumps(content))


def show_facts(facts: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print names and values, in columns or as one JSON object."""
    if as_json:
        tell_json(dict(facts))
        return

    name_width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        tell(f"{name:<{name_width}}  {text}")


def show_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    remarks: Sequence[str] = (),
    figures: bool = True,
) -> None:
    """Print a table after an empty line.

    Parameters
    ----------
    remarks
        Lines below the table.
    figures
        Whether all columns but the first hold figures, which are right-aligned.
    """
    from rich.table import Table

    table = Table(title=visible(title), title_justify="left", title_style="bold")
    for position, name in enumerate(header):
        justify: Literal["right", "left"] = "left"
        if figures and position > 0:
            justify = "right"
        table.add_column(visible(name), justify=justify, overflow="fold")

    for row in rows:
        cells = [visible(cell) for cell in row]
        table.add_row(*cells)

    console = stdout()
    console.print()
    console.print(table, markup=False)
    for remark in remarks:
        show_line(remark)


def stdout() -> Console:
    """Return the console for tables and text, without interpretation of markup."""
    from rich.console import Console

    # Piped output keeps whole lines, unless COLUMNS gives the width for its reader.
    is_width_given = os.environ.get("COLUMNS", "").isdecimal()
    width = None
    if not sys.stdout.isatty() and not is_width_given:
        width = PIPED_COLUMNS
    return Console(highlight=False, markup=False, width=width)


def show_line(text: str, *, style: str | None = None) -> None:
    """Print a line, wrapped to the width of the terminal."""
    stdout().print(visible(text), style=style, markup=False)

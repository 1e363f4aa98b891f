"""What the console scripts share: how a command line is read, leaves and shows things.

Results go to stdout; what is said on the side goes to stderr. Nothing heavy is
imported here, so that ``--help`` answers at once.
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
    UnusedCliTokensError,
)

from spark_audit import errors
from spark_audit.errors import out_of_memory, visible
from spark_audit.messages import say
from spark_audit.terminal.interrupts import (
    again,
    interrupted,
    one_interrupt,
    say_interrupted,
)

if TYPE_CHECKING:
    from rich.console import Console

STREAM_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}
"""Standard streams, and how each is opened where it is closed."""

DEFECT_EXIT_CODE = 70
"""Exit code of an error that is no user's fault (EX_SOFTWARE of sysexits.h)."""

USAGE_EXIT_CODE = 2

PIPED_COLUMNS = 200
"""Columns of output that goes to no terminal."""


@dataclass(frozen=True)
class _Failure:
    """The line that is printed of an error, and the exit code."""

    line: str
    exit_code: int


def run_command(
    arguments: Sequence[str],
    *,
    program: str,
    app: Callable[[Sequence[str]], App],
    anew: Collection[str] = (),
) -> int:
    """Run one command line and return its exit code (never raises).

    Parameters
    ----------
    arguments
        What was typed after the program's name.
    program
        Its name, for messages and log files.
    app
        Makes the application from what was typed.
    anew
        Commands that keep nothing of work that was interrupted.
    """
    _open_closed_streams()
    command = arguments[0] if arguments else ""
    verb = "start again" if command in anew else "resume"
    exit_code = 0

    with one_interrupt():
        try:
            try:
                app(arguments).meta(list(arguments))
            except SystemExit as request_to_exit:
                # What a command came to stands, also where its output is lost.
                code = request_to_exit.code
                exit_code = code if isinstance(code, int) else 1

            sys.stdout.flush()
            return exit_code
        except KeyboardInterrupt:
            return say_interrupted(program, arguments, verb=verb)
        except BrokenPipeError:
            # Whoever read our output has enough.
            _drop_output()
            return exit_code
        except BaseException as error:
            if not isinstance(error, Exception) and not errors.panicked(error):
                raise
            # A library may have made another error of an interrupt.
            if interrupted():
                return say_interrupted(program, arguments, verb=verb)

            failure = _failure_of(error, program)
            line = failure.line
            if failure.exit_code == errors.IncompleteError.exit_code:
                line += f"\n{again(program, arguments, verb=verb)}"
            say(f"{program}: {line}")
            _flush_or_drop_output()
            return exit_code or failure.exit_code


def _open_closed_streams() -> None:
    """Open standard streams that are closed, on nothing.

    The next file that is opened would have their number otherwise, and be written to.
    """
    for stream, mode in STREAM_MODES.items():
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, mode))


def _failure_of(error: BaseException, program: str) -> _Failure:
    """Return what is printed of an error, by the first of these that it is.

    Memory ran out; an error of ours; a mistake on the command line; a file that cannot
    be read or written; and else a defect.
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

    # A template that is missing is both, and no fault of a disk.
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
    """Return what is wrong with a command line, in one line."""
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

    # The library's own sentence, in one line, without the lists that --help has.
    sentence = str(error).partition(" Available commands: ")[0]
    sentence = " ".join(sentence.split())
    sentence = re.sub(r'^Command "[^"]*" parameter ', "", sentence)

    if sentence.endswith("?"):
        return sentence
    return sentence.rstrip(".") + ";"


def _missing_argument(error: MissingArgumentError) -> str:
    """Return what is missing; an option that is misspelt is named instead, as unknown.

    The library finds first that an option is missing. Where it was typed without its
    value, or with a wrong name, that is among the tokens that nothing has used.
    """
    assert error.argument is not None
    for token in error.unused_tokens or ():
        option = token.partition("=")[0]

        if option in error.argument.names:
            return f"the value of {option} is missing;"

        if option.startswith("--"):
            nearest = get_close_matches(option, error.argument.names, n=1)
            if nearest:
                return f"Unknown option: {option}. Did you mean {nearest[0]}?"

    return f"{error.argument.name} is missing;"


def _flush_or_drop_output() -> None:
    """Write what is left of the output; where that fails, write it nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Write what is left of the output nowhere: Python must not complain at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _details_of_defect(error: BaseException, program: str) -> str:
    """Write where a defect happened into a log file, and return where that is.

    Messages of the error are left out: they may quote data.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"{program}-", suffix=".log", delete=False
        ) as file:
            file.write("\n".join([type(error).__name__, *lines]) + "\n")
    except OSError:
        return f"at {lines[-1]}" if lines else "no details"
    return f"details, without any data, are in {file.name}"


def keep_apart(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read.

    Raises
    ------
    InputError
        If an output is an input, also by another name or by a link.
    """
    # Of links that lead round and round `Path.resolve` makes an error.
    real_inputs = {os.path.realpath(path) for path in inputs}
    for output in outputs:
        if _is_among(output, real_inputs):
            raise errors.InputError(
                "would be written over, and it is an input",
                where=str(output),
                fix="give another -o",
            )


def _is_among(path: Path, real_paths: Collection[str]) -> bool:
    """Whether a path is one of these, by its name or as the same file."""
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
    """Print one line of JSON to stdout, in ASCII: nothing in it steers a terminal."""
    tell(json.dumps(content))


def show_facts(facts: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print names and values, aligned, or as one JSON object."""
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
    """Print a table below an empty line.

    Parameters
    ----------
    remarks
        Lines under it.
    figures
        Whether all columns but the first are figures, which stand to the right.
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
    """Return where tables and text are drawn; nothing is read as markup."""
    from rich.console import Console

    # Piped output keeps whole lines, unless COLUMNS says how wide its reader is.
    is_width_given = os.environ.get("COLUMNS", "").isdecimal()
    width = None
    if not sys.stdout.isatty() and not is_width_given:
        width = PIPED_COLUMNS
    return Console(highlight=False, markup=False, width=width)


def show_line(text: str, *, style: str | None = None) -> None:
    """Print a line that is wrapped to the terminal."""
    stdout().print(visible(text), style=style, markup=False)

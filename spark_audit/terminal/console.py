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
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # or its number would be the next file's
            setattr(sys, stream, open(os.devnull, mode))
    name, code = next(iter(arguments), ""), 0
    verb = "start again" if name in anew else "resume"
    with one_interrupt():
        try:
            try:
                app(arguments).meta(list(arguments))
            except SystemExit as left:
                # What a command came to stands, also where nobody can be told.
                code = left.code if isinstance(left.code, int) else 1
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            return say_interrupted(program, arguments, verb=verb)
        except BrokenPipeError:
            # Whoever read our output has enough.
            _drop_output()
            return code
        except BaseException as error:
            if not isinstance(error, Exception) and not errors.panicked(error):
                raise
            if interrupted():  # and a library made something else of it
                return say_interrupted(program, arguments, verb=verb)
            text, failed = _told(error, program)
            if failed == errors.IncompleteError.exit_code:
                text += f"\n{again(program, arguments, verb=verb)}"
            say(f"{program}: {text}")
            try:
                sys.stdout.flush()
            except OSError:
                _drop_output()
            return code or failed


def _told(error: BaseException, program: str) -> tuple[str, int]:
    """What is said of an error, and the exit code."""
    if not isinstance(error, errors.IncompleteError) and out_of_memory(error):
        error = errors.IncompleteError(
            "out of memory",
            where=getattr(error, "where", None),
            fix="end other programs, or use another device or a larger machine",
        )
    if isinstance(error, errors.SparkError):
        head = "" if isinstance(error, errors.IncompleteError) else "error: "
        return f"{head}{error}", error.exit_code
    if isinstance(error, CycloptsError):
        place = " ".join((program, *(error.command_chain or ())))
        return f"error: {_usage(error)} see {place} --help", 2
    # A missing template is both, and no fault of a disk.
    if isinstance(error, OSError) and not isinstance(error, LookupError):
        missing = isinstance(error, FileNotFoundError)
        failed = errors.InputError if missing else errors.OutputError
        return f"error: {error.filename or 'I/O'}: {error.strerror}", failed.exit_code
    kind = type(error).__name__
    return f"a defect of ours ({kind}); {_log(error, program)}", 70


def _usage(error: CycloptsError) -> str:
    """What is wrong with a command line, in one line."""
    if isinstance(error, UnusedCliTokensError):
        first = (error.unused_tokens or [""])[0]
        return (
            f"unexpected {first!r}: a value stands behind its option, as --ckpt PATH;"
        )
    if isinstance(error, RepeatArgumentError):
        option = error.token.keyword
        return f"{option} is given twice, and takes one value: leave one out;"
    if isinstance(error, MissingArgumentError):
        return _missing(error)
    said = str(error).partition(" Available commands: ")[0]
    said = re.sub(r'^Command "[^"]*" parameter ', "", " ".join(said.split()))
    return said if said.endswith("?") else said.rstrip(".") + ";"


def _missing(error: MissingArgumentError) -> str:
    """What is missing; an option that is misspelt is named instead, as unknown."""
    assert error.argument is not None
    for token in error.unused_tokens or ():
        option = token.partition("=")[0]
        if option in error.argument.names:
            return f"the value of {option} is missing;"
        near = get_close_matches(option, error.argument.names, n=1)
        if option.startswith("--") and near:
            return f"Unknown option: {option}. Did you mean {near[0]}?"

    return f"{error.argument.name} is missing;"


def _drop_output() -> None:
    """Write what is left of the output nowhere: Python must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log(error: BaseException, program: str) -> str:
    """Write where a defect happened, without messages, which may quote data."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"{program}-", suffix=".log", delete=False
        ) as file:
            file.write("\n".join([type(error).__name__, *lines]) + "\n")
        return f"details, without any data, are in {file.name}"
    except OSError:
        return f"at {lines[-1]}" if lines else "no details"


def keep_apart(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read."""
    # Of links that lead round and round `Path.resolve` makes an error.
    real_inputs = {os.path.realpath(path) for path in inputs}
    for output in outputs:
        there = filter(os.path.exists, real_inputs if output.exists() else ())
        if os.path.realpath(output) in real_inputs or any(map(output.samefile, there)):
            raise errors.InputError(
                "would be written over, and it is an input",
                where=str(output),
                fix="give another -o",
            )


def tell(text: str = "") -> None:
    """One or more plain lines on stdout."""
    print(visible(text, keep="\n"))


def tell_json(content: object) -> None:
    """Print one line of JSON to stdout, in ASCII: nothing in it steers a terminal."""
    tell(json.dumps(content))


def show_facts(facts: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print names and values, aligned, or as one JSON object."""
    if as_json:
        tell_json(dict(facts))
        return
    width = max(map(len, facts), default=0)
    for key, value in facts.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        tell(f"{key:<{width}}  {shown}")


def show_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    remarks: Sequence[str] = (),
    figures: bool = True,
) -> None:
    """A table below an empty line.

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
        right = figures and position > 0
        way: Literal["right", "left"] = "right" if right else "left"
        table.add_column(visible(name), justify=way, overflow="fold")
    for row in rows:
        table.add_row(*map(visible, row))
    console = stdout()
    console.print()
    console.print(table, markup=False)
    for remark in remarks:
        show_line(remark)


def stdout() -> Console:
    """Where tables and text are drawn; nothing is read as markup."""
    from rich.console import Console

    # Piped output keeps whole lines, unless COLUMNS says how wide its reader is.
    fixed_width = os.environ.get("COLUMNS", "").isdecimal()
    width = None if sys.stdout.isatty() or fixed_width else 200
    return Console(highlight=False, markup=False, width=width)


def show_line(text: str, *, style: str | None = None) -> None:
    """A line that is wrapped to the terminal."""
    stdout().print(visible(text), style=style, markup=False)

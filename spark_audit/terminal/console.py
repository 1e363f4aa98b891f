"""What the console scripts share: how a command line is read, leaves and shows things.

Results go to stdout; what is said on the side goes to stderr. Nothing heavy is
imported here, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import typer.main

from spark_audit.errors import (
    IncompleteError,
    InputError,
    SparkError,
    masked,
    panicked,
    visible,
)
from spark_audit.memory import out_of_memory
from spark_audit.terminal.interrupts import (
    again,
    interrupted,
    one_interrupt,
    say_interrupted,
)

if TYPE_CHECKING:
    from rich.console import Console


def _version(context: typer.Context, value: bool) -> None:
    if value:
        from spark_audit.provenance import versions

        installed = versions()
        # Both programs are of one distribution: each begins with its own name.
        program = {
            str(context.info_name): installed.pop("spark-audit", "not installed")
        }
        tell("\n".join(f"{k} {v}" for k, v in {**program, **installed}.items()))
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Show versions."
        ),
    ] = False,
) -> None:
    """The options of a program without a command: ``app.callback()(root)``."""


# --- running a command ----------------------------------------------------------------


def run_command(
    arguments: Sequence[str],
    *,
    program: str,
    app: Callable[[Sequence[str]], typer.Typer],
    several: Collection[str],
    anew: Collection[str] = (),
    others: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run one command line and return its exit code (never raises).

    The context's object (``context.obj`` in a command) is what was typed.

    Parameters
    ----------
    arguments
        What was typed after the program's name.
    program
        Its name, for messages and log files.
    app
        Makes the application from the spread arguments.
    several
        Options that accept several values.
    anew
        Commands that keep nothing of work that was interrupted.
    others
        Commands that are called otherwise, or of another program, by what people type.
    """
    _open_streams()
    with one_interrupt():
        name = next(iter(arguments), "")
        if name in others:
            meant = f"did you mean `{others[name]}`?"
            say(f"{program}: error: No such command {name!r}; {meant}")
            return 2
        return _run(arguments, program=program, app=app, several=several, anew=anew)


def _run(
    arguments: Sequence[str],
    *,
    program: str,
    app: Callable[[Sequence[str]], typer.Typer],
    several: Collection[str],
    anew: Collection[str],
) -> int:
    code = 0
    verb = "start again" if {*arguments[:1]} & {*anew} else "resume"
    try:
        argv = spread(arguments, several=several)
        command = typer.main.get_command(app(argv))
        left = command.main(
            args=argv, prog_name=program, standalone_mode=False, obj=list(arguments)
        )
        # What a command came to stands, also where nobody can be told.
        code = left if isinstance(left, int) else 0
        sys.stdout.flush()
        if code == 130:
            # Typer turns an interrupt into this code; older ones into Abort.
            raise KeyboardInterrupt
        return code
    except (KeyboardInterrupt, typer.Abort):
        return say_interrupted(program, arguments, verb=verb)
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has enough (Typer leaves by SystemExit then, with
        # code 1, which is the gate's).
        _drop_output()
        return code
    except BaseException as error:
        if not isinstance(error, Exception) and not panicked(error):
            raise
        if interrupted():  # and a library made something else of it
            return say_interrupted(program, arguments, verb=verb)
        if not isinstance(error, IncompleteError) and out_of_memory(error):
            error = IncompleteError(
                "out of memory",
                where=getattr(error, "where", None),
                fix="end other programs, or use another device or a larger machine",
            )
        if isinstance(error, IncompleteError):
            say(f"{program}: {error}\n{again(program, arguments, verb=verb)}")
            return error.exit_code
        if isinstance(error, SparkError):
            say(f"{program}: error: {error}")
            return error.exit_code
        usage = getattr(error, "format_message", None)
        if usage is not None:
            # Without any command typer has nothing to say but the help it has shown.
            message = _suggested(error, usage() or "no command was given")
            place = getattr(getattr(error, "ctx", None), "command_path", program)
            message = f"{message.rstrip('.')}{'' if message.endswith('?') else ';'}"
            say(f"{program}: error: {message} see {place} --help")
            return 2
        if isinstance(error, OSError):
            say(f"{program}: error: {error.filename or 'I/O'}: {error.strerror}")
            try:
                sys.stdout.flush()
            except OSError:
                _drop_output()
            return code or 4
        kind = type(error).__name__
        say(f"{program}: a defect of ours ({kind}); {_log(error, program)}")
        return 70


def _suggested(error: BaseException, said: str) -> str:
    """What is wrong with a command line, in one line, with what was perhaps meant."""
    names = getattr(error, "possibilities", None) or ()
    option = getattr(error, "option_name", None)
    if names:
        # Of options the libraries name far ones too: --quiet for --audits.
        near = get_close_matches(option, names, n=1, cutoff=0.7) if option else names
        meant = f"; did you mean {near[0]}?" if near else ""
        said = f"{getattr(error, 'message', said)}{meant}"
    if "unexpected extra argument" in said:
        taken: Any = getattr(getattr(error, "ctx", None), "command", None)
        params = taken.params if taken else ()
        asked = [p.name for p in params if p.param_type_name == "argument"]
        first = f"give one {asked[0]} alone, and " if asked else ""
        said += f"; {first}a value behind its option, as in --ckpt PATH"
    return " ".join(said.split())


def _open_streams() -> None:
    """Have all three streams: a closed one's number would be the next file's."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))


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


# --- reading what was typed -----------------------------------------------------------


def spread(arguments: Sequence[str], *, several: Collection[str]) -> list[str]:
    """Allow snake case options, and several values after one option.

    With ``--ckpt`` among ``several``, ``--ckpt A B --batch_size 4`` becomes
    ``--ckpt A --ckpt B --batch-size 4``.
    """
    words: list[str] = []
    option: str | None = None
    fresh = False
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*words, *arguments[position:]]
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            name = name.replace("_", "-")
            option = name if name in several and not equals else None
            fresh = True
            words.append(f"{name}{equals}{value}")
        elif argument.startswith("-") and len(argument) > 1:
            option = None
            words.append(argument)
        else:
            if option is not None and not fresh:
                words.append(option)
            fresh = False
            words.append(argument)
    return words


def keep_apart(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read."""
    # Of links that lead round and round `Path.resolve` makes an error.
    real_inputs = {os.path.realpath(path) for path in inputs}
    for output in outputs:
        twice = output.exists() and any(
            os.path.exists(p) and output.samefile(p) for p in real_inputs
        )
        if twice or os.path.realpath(output) in real_inputs:
            raise InputError(
                "would be written over, and it is an input",
                where=str(output),
                fix="give another -o",
            )


# --- showing things -------------------------------------------------------------------


def say(text: str) -> None:
    """One or more plain lines on stderr, if anybody listens."""
    with contextlib.suppress(OSError):
        print(visible(masked(text), keep="\n"), file=sys.stderr, flush=True)


def tell(text: str = "") -> None:
    """One or more plain lines on stdout."""
    print(visible(text, keep="\n"))


def tell_json(content: Any) -> None:
    """One line of JSON on stdout, in ASCII: nothing in it steers a terminal."""
    tell(json.dumps(content))


def show_facts(facts: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Names and values, aligned, or as one JSON object."""
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

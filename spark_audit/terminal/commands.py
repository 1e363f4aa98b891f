"""A command of ours: its help, and its options from a file of settings.

    add(app, "matched", function, help="...", examples=("matched --ckpt runs/mine",))

What is typed wins over the file of ``--config``, the file over the environment.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from spark_audit.errors import InputError, OutputError, choose
from spark_audit.files import read_regular, write_text
from spark_audit.terminal.flags import KEYWORD, command, panel_of
from spark_audit.terminal.suggestions import elsewhere, expanded, nearest

PATHS = ("ckpt", "base", "tokenizer", "source")
"""Options that are paths, though they may be something else too."""
TYPED = ("trust_remote_code",)
"""Options that are read from no file: one that came with a checkpoint may be named by
a variable, and would run the checkpoint's code."""
UNKEPT = ("config", "dry_run", "json", "quiet", "verbose", "shard", "help", *TYPED)
"""Options that say nothing of what a command comes to."""


class Command(TyperCommand):
    """A command whose ``--help`` stands beside what is as seldom asked for."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option ``--help``, in a panel."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = panel_of("config")
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed, several values behind one option too."""
        return super().parse_args(ctx, spread(args, several=several(self)))

    def invoke(self, ctx: Any) -> Any:
        """Run it with paths as a shell would have made them of ``~`` and patterns.

        A path that is an address is refused: nothing is read or written there.
        """
        for one in self.get_params(ctx):
            value, where = ctx.params.get(one.name), max(one.opts, key=len)
            listed = isinstance(value, list | tuple)
            parts = [*value] if listed else [value]
            for part in parts:
                if fix := elsewhere(part):
                    raise InputError("is no path on this machine", where=where, fix=fix)
            if any(isinstance(p, Path) or (p and one.name in PATHS) for p in parts):
                parts = [path for part in parts for path in expanded(part)]
                if not listed and len(parts) > 1:
                    what = f"{value} is {len(parts)} files"
                    raise InputError(what, where=where, fix="give one")
                ctx.params[one.name] = parts if listed else parts[0]
        return super().invoke(ctx)


def add(
    app: typer.Typer,
    name: str,
    function: Callable[..., Any],
    *,
    program: str,
    help: str | None = None,
    examples: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Give an application a command, with ``--config``, and examples in its help."""
    lines = [f"  {program} {one}" for one in examples]
    shown = ["Examples", *lines] if lines else []
    epilog = "\n".join([*shown, *notes]).replace("[", "\\[") or None
    config = inspect.Parameter("config", KEYWORD, default=None, annotation=Config)
    app.command(name, cls=Command, help=help, epilog=epilog)(command(function, config))


def several(command: Any) -> set[str]:
    """Options that accept both ``--x A B`` and ``--x A --x B``."""
    params = (one for one in command.params if getattr(one, "multiple", False))
    return {name for one in params for name in one.opts}


def spread(arguments: Sequence[str], *, several: Collection[str]) -> list[str]:
    """Allow snake case options, and several values after one option.

    With ``--ckpt`` among ``several``, ``--ckpt A B --batch_size 4`` becomes
    ``--ckpt A --ckpt B --batch-size 4``.
    """
    words: list[str] = []
    option, values = "", 0
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*words, *arguments[position:]]
        if argument.startswith("-") and len(argument) > 1:
            name, equals, value = argument.partition("=")
            if name.startswith("--"):
                name = name.replace("_", "-")
            option, values = name if name in several and not equals else "", 0
            words.append(f"{name}{equals}{value}")
        else:
            words += [option] * (option != "" and values > 0) + [argument]
            values += 1
    return words


# --- options from a file --------------------------------------------------------------


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file for those that were not typed."""
    if path is None or context.resilient_parsing:
        return path
    options = {
        one.name: one
        for one in context.command.params
        if one.name and one.name not in UNKEPT
    }
    values: dict[str, Any] = {}
    for key, value in _content(path).items():
        name = key.replace("-", "_")
        if name in TYPED:
            what = f"{key} is taken from the command line only"
            fix = f"read the code, then type --{name.replace('_', '-')}"
            raise InputError(what, where=str(path), fix=fix)
        if name not in options:
            what = f"{key!r} is no option of `{context.command_path}`"
            raise InputError(what, where=str(path), fix=choose(name, sorted(options)))
        values[name] = _value(value, options[name], where=f"{path}: {key}")
        options[name].envvar = None
    context.default_map = values
    return path


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, follow=True).decode())
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise OutputError(what, where=str(path), fix=nearest(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        fix = "write lines like: base = 'models/base'"
        raise InputError(f"is no TOML ({error})", where=str(path), fix=fix) from error


def _value(value: Any, option: Any, *, where: str) -> Any:
    """The value as it would have been typed; Typer reads it like that."""
    listed = value if isinstance(value, list) else [value]
    if not listed or any(isinstance(one, (dict, list)) for one in listed):
        raise InputError("takes text, a number or a list", where=where)
    if getattr(option, "is_flag", False):
        if not isinstance(value, bool):
            raise InputError("takes true or false", where=where)
        return value
    if any(isinstance(one, bool) for one in listed):
        raise InputError("takes a value, not true or false", where=where)
    texts = [str(one) for one in listed]
    return texts if option.multiple else ",".join(texts)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="SPARK_AUDIT_CONFIG",
        help="TOML with options of this command: base = 'models/base'. Typed "
        "options override the file, the file overrides the environment.",
        is_eager=True,
        expose_value=False,
        callback=_read,
        rich_help_panel=panel_of("config"),
    ),
]
"""The annotation of a parameter that reads a file of options."""


def given(context: typer.Context) -> dict[str, Any]:
    """Options of a command that are not left to their defaults, wherever given."""
    return {
        name: value
        for name, value in context.params.items()
        if name not in UNKEPT
        and (source := context.get_parameter_source(name)) is not None
        and source.name != "DEFAULT"
    }


def write_config(path: Path, options: Mapping[str, Any], *, command: str) -> None:
    """Write a file of options that repeats a command.

    Paths in it are as they were given: it is read where the command was called.
    """
    lines = [f"# {command} --config {path}"]
    for name, value in sorted(options.items()):
        plain = value if isinstance(value, (bool, int, float, list)) else str(value)
        if isinstance(plain, list):
            plain = [str(one) for one in plain]
        # JSON's numbers, strings and lists are TOML's.
        text = json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
        lines.append(f"{name} = {text}")
    write_text(path, "\n".join(lines) + "\n", mode=0o600)

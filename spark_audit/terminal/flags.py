"""A program of commands, made of functions, with their options.

What is typed wins over the file of ``--config``, the file over the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias, get_args

from cyclopts import App, Argument, ArgumentCollection, Parameter
from cyclopts.argument import update_argument_collection

from spark_audit.errors import InputError, OutputError
from spark_audit.files import read_regular
from spark_audit.options import ADVANCED, HOW, OUTPUT, named_place, place_of
from spark_audit.wrong_paths import elsewhere, is_missing, no_such_path

_QUIET, _VERBOSE = "No progress.", "Print every sentence and table."


def pairs(texts: Sequence[str], *, where: str, form: str) -> dict[str, str]:
    """``NAME=VALUE`` of the command line; ``form`` is how it is to be written."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            what, fix = f"{text!r} is no pair", f"write it as {form}"
            raise InputError(what, where=where, fix=fix)
        found[name] = value
    return found


TRUST = "trust-remote-code"
"""An option that is read from no file: one that came with a checkpoint may be named by
a variable, and would run the checkpoint's code."""

HELP_FLAGS = ("--help", "-h")

Config: TypeAlias = Annotated[
    Path | None,
    Parameter(
        group=ADVANCED,
        metavar="FILE",
        env_var="SPARK_AUDIT_CONFIG",
        help="TOML with options of this command: base = 'models/base'. Typed options "
        "override the file, the file overrides the environment.",
    ),
]


@dataclass
class Typed:
    """What was typed, for a command with a parameter ``typed: Line``.

    Attributes
    ----------
    words
        All of it, the program's name first.
    arguments
        The command's options.
    """

    words: tuple[str, ...]
    arguments: ArgumentCollection = field(default_factory=ArgumentCollection)

    @property
    def given(self) -> dict[str, object]:
        """Values of options that are not left to their defaults, wherever given."""
        return {
            argument.name.strip("-").replace("-", "_"): argument.value
            for argument in self.arguments
            if argument.tokens
        }


Line: TypeAlias = Annotated[Typed, Parameter(parse=False)]


def program(
    name: str,
    words: Sequence[str],
    *,
    help: str,
    check: Callable[[ArgumentCollection], None] | None = None,
) -> App:
    """An application without commands yet, which runs what was typed by ``.meta``.

    An option that takes one value is refused when it is given twice.

    Parameters
    ----------
    check
        Refuses values that can be seen to be wrong before the command is called.
    """
    app = App(
        name=name,
        help=help,
        help_flags=HELP_FLAGS,
        help_format="rst",
        version=partial(_versions, name),
        version_format="plaintext",
        group_parameters=HOW,
        default_parameter=Parameter(
            negative=(),
            consume_multiple=1,
            show_default=_shown,
        ),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )

    app.register_install_completion_command()
    # Meta applications do not take this one over.
    app.meta.suppress_keyboard_interrupt = False

    @app.meta.default
    def launched(
        *rest: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Config = None,
        quiet: Annotated[bool, Parameter(group=OUTPUT, help=_QUIET)] = False,
        verbose: Annotated[bool, Parameter(group=OUTPUT, help=_VERBOSE)] = False,
    ) -> object:
        typed = Typed((name, *words))
        given = {"typed": typed, "quiet": quiet, "verbose": verbose}

        def read(app: App, commands: object, found: ArgumentCollection) -> None:
            # Fields that are no options are among them, of the same names.
            found = found.filter_by(parse=True)
            typed.arguments = found
            if config is not None:
                content = _content(config)
                for switch in {"quiet", "verbose"} & content.keys():
                    if not isinstance(said := content.pop(switch), bool):
                        what, fix = f"{switch} is a switch", "write true or false"
                        raise InputError(what, where=str(config), fix=fix)
                    given[switch] = given[switch] or said
                _from_file(found, content, path=config)
            for one in found:
                _check(one)

        app.config = read
        with _named_places(typed):
            command, bound, ignored = app.parse_args(rest)
            _check_paths(typed.arguments)
            if check is not None:
                check(typed.arguments)
            bound.arguments |= {n: value for n, value in given.items() if n in ignored}
            left = command(*bound.args, **bound.kwargs)
        if command.__name__ == "help_print" and not {*HELP_FLAGS} & {*words}:
            raise InputError("no command was given", fix=f"see {name} --help")
        return left

    return app


def add(
    app: App,
    name: str,
    function: Callable[..., object],
    *,
    help: str | None = None,
    examples: Sequence[str] = (),
) -> None:
    """Give an application its next command, with examples in its help."""
    below = "\n\n".join(["Examples", *examples]) if examples else ""
    place = len([*app])
    app.command(function, name=name, help=help, help_epilogue=below, sort_key=place)


def _shown(usual: object) -> str | None:
    """A default as the help shows it: none of what is off or empty."""
    return None if usual in (None, "", (), (0, 1)) or usual is False else str(usual)


def _versions(name: str) -> str:
    from spark_audit.provenance import versions

    installed = versions()
    # Both programs are of one distribution: each begins with its own name.
    own = {name: installed.pop("spark-audit", "not installed")}
    return "\n".join(f"{k} {v}" for k, v in {**own, **installed}.items())


OUTPUT_OPTIONS = ("--output", "--junit", "--sarif", "--attest", "--scores")
"""Options whose path need not exist; every other path is read."""


def _check(argument: Argument) -> None:
    """Read ``~`` as a shell would; refuse empty paths, other places and fractions.

    A variable of the environment that is empty counts as not set.
    """
    name = argument.name
    types = {argument.hint, *get_args(argument.hint)}
    if any(token.source == "env" and not token.value for token in argument.tokens):
        argument.tokens.clear()
    for token in argument.tokens:
        if Path in types and not token.value.strip():
            raise InputError("is empty", where=name, fix="give a path")
        path = Path(token.value) if Path in types else token.value
        if fix := elsewhere(path):
            raise InputError("is no path on this machine", where=name, fix=fix)
        # The library would round it.
        if int in types and float not in types and "." in token.value:
            raise InputError(f"{token.value!r} is no whole number", where=name)

    if Path in types:
        argument.tokens = [
            token.evolve(value=os.path.expanduser(token.value))
            for token in argument.tokens
        ]


def _check_paths(arguments: ArgumentCollection) -> None:
    """Refuse a path that is to be read and does not exist.

    Commands import libraries for seconds before they open their first file.

    Raises
    ------
    InputError
        With the nearest path that exists.
    """
    for argument in arguments:
        kinds = {argument.hint, *get_args(argument.hint)}
        if Path not in kinds or argument.name in OUTPUT_OPTIONS:
            continue
        for token in argument.tokens:
            with named_place(token):
                if is_missing(token.value):
                    raise no_such_path(token.value)


@contextmanager
def _named_places(typed: Typed) -> Iterator[None]:
    """Name the file or variable in an error about an option that was given there."""
    try:
        yield
    except InputError as error:
        option, blank, rest = (error.where or "").partition(" ")
        places = [
            place_of(token)
            for argument in typed.arguments
            if argument.name == option
            for token in argument.tokens
        ]
        if not any(places):
            raise
        where = f"{places[0]}{blank}{rest}"
        raise InputError(error.what, where=where, fix=error.fix) from error


def _from_file(
    arguments: ArgumentCollection, content: dict[str, object], *, path: Path
) -> None:
    """Take the options of a file for those that were not typed.

    Every key is an option of the command, or refused: also one that is the name of a
    command too, as ``data`` and ``manifest`` are.
    """
    if TRUST in content:
        what, fix = f"{TRUST} is taken from the command line only", "read the code"
        raise InputError(what, where=str(path), fix=f"{fix}, then type --{TRUST}")

    for one in arguments:
        if one.name[2:] in content and any(t.source == "env" for t in one.tokens):
            one.tokens.clear()

    update_argument_collection(
        content, str(path), arguments, root_keys=(), allow_unknown=False
    )


def _content(path: Path) -> dict[str, object]:
    """Return the settings of a file by the names of their options."""
    try:
        content = tomllib.loads(read_regular(path, follow=True).decode())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise no_such_path(path) from error
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise OutputError(what, where=str(path)) from error
    except ValueError as error:  # of its bytes, or of its form
        fix = "write lines like: base = 'models/base'"
        raise InputError(f"is no TOML ({error})", where=str(path), fix=fix) from error

    settings: dict[str, object] = {}
    for key, value in content.items():
        option = key.replace("_", "-")
        if option in settings:
            what = f"gives {option} twice, as {key} and as {option}"
            raise InputError(what, where=str(path), fix="leave one out")
        settings[option] = value
    return settings

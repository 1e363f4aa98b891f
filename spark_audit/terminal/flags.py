"""Build a program of commands from functions and their options.

Typed options win over the file of ``--config``, and the file wins over the environment.

:func:`program` makes the application and :func:`add` its commands. The application's
``.meta`` reads the options of every command (``--config`` and :class:`CommonSwitches`)
in :func:`program`, then the options of the called command.

A further switch of every command is a field of :class:`CommonSwitches`. Commands that
use it have a parameter of its name, whose type has ``NO_OPTION`` as that of ``quiet``
has (``options.py``).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias, get_args

from cyclopts import App, Argument, ArgumentCollection, Parameter
from cyclopts.argument import update_argument_collection

from spark_audit.errors import InputError, OutputError
from spark_audit.files import read_regular
from spark_audit.options import (
    ADVANCED,
    HOW,
    NO_OPTION,
    OUTPUT,
    fields_in,
    named_place,
    place_of,
)
from spark_audit.wrong_paths import elsewhere, is_missing, no_such_path

TRUST = "trust-remote-code"
"""Marks an option that no file may set. A variable can name a file that came with a
checkpoint, which would then run the checkpoint's code."""

HELP_FLAGS = ("--help", "-h")

OUTPUT_OPTIONS = ("--output", "--junit", "--sarif", "--attest", "--scores")
"""Options whose path need not exist; all other paths are read."""

DEFAULTS_NOT_SHOWN = (None, "", (), (0, 1), False)
"""Defaults that the help omits: false, empty, or everything."""

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


@dataclass(frozen=True, kw_only=True)
class CommonSwitches:
    """Switches of every command, which a file may set, too.

    A field ``no_colour`` is ``--no-colour`` on the command line and ``no-colour`` in a
    file.
    """

    quiet: Annotated[bool, Parameter(help="No progress.")] = False
    verbose: Annotated[bool, Parameter(help="Print every sentence and table.")] = False


@dataclass
class Typed:
    """The typed command line, for a command with a parameter ``typed: TypedLine``.

    Attributes
    ----------
    words
        All words, with the program's name first.
    arguments
        The command's options. An argument's tokens are its values as texts, each with
        its source (typed, file, environment); without tokens, the default stands.
    """

    words: tuple[str, ...]
    arguments: ArgumentCollection = field(default_factory=ArgumentCollection)

    @property
    def given(self) -> dict[str, object]:
        """Return name -> value of the options that were typed, in a file or variable.

        Names are those of parameters: ``show_text`` for ``--show-text``.
        """
        return {
            argument.name.strip("-").replace("-", "_"): argument.value
            for argument in self.arguments
            if argument.tokens
        }


TypedLine: TypeAlias = Annotated[Typed, NO_OPTION]
"""Type of a command's parameter ``typed``, which :func:`program` passes to it."""


def pairs(texts: Sequence[str], *, where: str, form: str) -> dict[str, str]:
    """Return the pairs that are written as ``NAME=VALUE``.

    Parameters
    ----------
    where
        The option, for errors.
    form
        The required form of a pair, for errors.

    Raises
    ------
    InputError
        If a text is not a pair.
    """
    values_by_name = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InputError(
                f"{text!r} is no pair", where=where, fix=f"write it as {form}"
            )
        values_by_name[name] = value
    return values_by_name


def program(
    name: str,
    words: Sequence[str],
    *,
    help: str,
    check: Callable[[ArgumentCollection], None] | None = None,
) -> App:
    """Return an application without commands, whose ``.meta`` runs the typed words.

    An option that takes one value is refused when it is given twice.

    Parameters
    ----------
    words
        Words that were typed after the program's name.
    check
        Refuses bad values before the command is called, by an ``InputError``.
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
            show_default=_default_in_help,
        ),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    app.register_install_completion_command()
    # A meta application does not inherit this setting.
    app.meta.suppress_keyboard_interrupt = False

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Config = None,
        common: Annotated[CommonSwitches, fields_in(OUTPUT)] = CommonSwitches(),
    ) -> object:
        """Read the options that every command has, then the command's, and call it.

        1. The library parses the options of the command, calls ``read_options`` with
           them, and converts their texts to values.
        2. Paths are checked, and values by ``check``.
        3. The command is called.
        """
        typed = Typed((name, *words))
        switches = asdict(common)  # name -> whether it is on; a file may add to it

        def read_options(
            app: App, commands: object, arguments: ArgumentCollection
        ) -> None:
            """Add the options of the file, before the library converts texts."""
            # Fields that are not options are also in this list, under the same names.
            typed.arguments = arguments.filter_by(parse=True)
            if config is not None:
                settings = _settings_of_file(config)
                for switch, is_on in _pop_switches(settings, config).items():
                    switches[switch] = switches[switch] or is_on
                _use_settings(typed.arguments, settings, path=config)
            for argument in typed.arguments:
                _clean_texts(argument)

        app.config = read_options
        with _named_places(typed):
            # 1. This calls `read_options`.
            command, bound, not_parsed = app.parse_args(tokens)

            # 2. All options have their values.
            _check_paths(typed.arguments)
            if check is not None:
                check(typed.arguments)

            # 3. These parameters of a command are not options of its own. A command
            # that does not declare one does not get it.
            for parameter, value in {"typed": typed, **switches}.items():
                if parameter in not_parsed:
                    bound.arguments[parameter] = value
            result = command(*bound.args, **bound.kwargs)

        # The library prints its help if nothing was typed.
        is_help_asked_for = any(flag in words for flag in HELP_FLAGS)
        if command.__name__ == "help_print" and not is_help_asked_for:
            raise InputError("no command was given", fix=f"see {name} --help")
        return result

    return app


def add(
    app: App,
    name: str,
    function: Callable[..., object],
    *,
    help: str | None = None,
    examples: Sequence[str] = (),
) -> None:
    """Add the next command to an application, with examples in its help.

    Parameters
    ----------
    help
        What the command does; default: the first line of the function's docstring.
    """
    epilogue = ""
    if examples:
        epilogue = "\n\n".join(["Examples", *examples])

    # The help lists commands in the order in which they were added. An application
    # iterates over the names of its commands.
    position = len([*app])
    app.command(
        function, name=name, help=help, help_epilogue=epilogue, sort_key=position
    )


def _default_in_help(default: object) -> str | None:
    """Return a default in the form for the help; None if it is omitted."""
    # The type is compared, too: 0 equals False, but is worth showing.
    for hidden in DEFAULTS_NOT_SHOWN:
        if type(default) is type(hidden) and default == hidden:
            return None
    return str(default)


def _versions(name: str) -> str:
    """Return the versions, one per line, with the program's own name first."""
    from spark_audit.provenance import versions

    installed = versions()
    # Both programs belong to one distribution.
    version = installed.pop("spark-audit", "not installed")
    lines = [f"{name} {version}"]
    for package, package_version in installed.items():
        lines.append(f"{package} {package_version}")
    return "\n".join(lines)


def _types_of(argument: Argument) -> set[object]:
    """Return the type of an option, and those inside it: ``Path`` of a list of them."""
    return {argument.hint, *get_args(argument.hint)}


def _clean_texts(argument: Argument) -> None:
    """Expand ``~``, drop empty variables; refuse addresses, fractions and empty paths.

    This changes the option's tokens. It runs before the library converts texts, so that
    errors quote what was typed.
    """
    types = _types_of(argument)
    is_path = Path in types
    is_whole_number = int in types and float not in types
    # An empty variable of the environment counts as not set.
    if any(token.source == "env" and not token.value for token in argument.tokens):
        argument.tokens.clear()

    for token in argument.tokens:
        if is_path and not token.value.strip():
            raise InputError("is empty", where=argument.name, fix="give a path")
        # An option of text may also take a place, such as hf:ORG/NAME, so `elsewhere`
        # refuses fewer addresses there.
        value = Path(token.value) if is_path else token.value
        advice_on_address = elsewhere(value)
        if advice_on_address:
            raise InputError(
                "is no path on this machine",
                where=argument.name,
                fix=advice_on_address,
            )

        # The library would round the number.
        if is_whole_number and "." in token.value:
            raise InputError(
                f"{token.value!r} is no whole number",
                where=argument.name,
                fix="give a number without a point",
            )

    if is_path:
        argument.tokens = [
            token.evolve(value=os.path.expanduser(token.value))
            for token in argument.tokens
        ]


def _check_paths(arguments: ArgumentCollection) -> None:
    """Refuse a path that must be read but does not exist.

    This check is early, because commands import libraries for seconds before they open
    their first file. Options of text that may be paths (``--ckpt``) are checked by
    ``checkpoints/typed_paths.py``.

    Raises
    ------
    InputError
        Suggests the nearest path that exists.
    """
    for argument in arguments:
        if Path not in _types_of(argument) or argument.name in OUTPUT_OPTIONS:
            continue

        for token in argument.tokens:
            with named_place(token):
                if is_missing(token.value):
                    raise no_such_path(token.value)


@contextmanager
def _named_places(typed: Typed) -> Iterator[None]:
    """Add the file or variable to an error about an option that was given there."""
    try:
        yield
    except InputError as error:
        # The place of an error begins with its option: `--map`, or `--scores runs/1`.
        option, blank, rest = (error.where or "").partition(" ")
        # The file or variable of each value; empty for a typed one, whose option is
        # itself the place. All values of an option come from one source.
        sources = []
        for argument in typed.arguments:
            if argument.name == option:
                sources += [place_of(token) for token in argument.tokens]
        if not any(sources):
            raise
        where = f"{sources[0]}{blank}{rest}"
        raise InputError(error.what, where=where, fix=error.fix) from error


def _pop_switches(settings: dict[str, object], path: Path) -> dict[str, bool]:
    """Return the switches of all commands that a file sets, by their fields' names.

    They are removed from ``settings``, because a command has no such options.

    Raises
    ------
    InputError
        If a switch is neither true nor false.
    """
    switches: dict[str, bool] = {}
    for switch in fields(CommonSwitches):
        key = switch.name.replace("_", "-")
        if key not in settings:
            continue

        value = settings.pop(key)
        if not isinstance(value, bool):
            raise InputError(
                f"{key} is a switch", where=str(path), fix="write true or false"
            )
        switches[switch.name] = value
    return switches


def _use_settings(
    arguments: ArgumentCollection, settings: dict[str, object], *, path: Path
) -> None:
    """Give options their values in a file, where none was typed.

    Every key must be an option of the command, even a key that is also the name of a
    command, such as ``data`` or ``manifest``.
    """
    if TRUST in settings:
        raise InputError(
            f"{TRUST} is taken from the command line only",
            where=str(path),
            fix=f"read the code, then type --{TRUST}",
        )

    # The file overrides the environment.
    for argument in arguments:
        key = argument.name.removeprefix("--")
        is_from_environment = any(token.source == "env" for token in argument.tokens)
        if key in settings and is_from_environment:
            argument.tokens.clear()

    # This sets only arguments without tokens, so typed values stay.
    update_argument_collection(
        settings, str(path), arguments, root_keys=(), allow_unknown=False
    )


def _settings_of_file(path: Path) -> dict[str, object]:
    """Return the settings of a file, by the names of their options: ``show-text``."""
    try:
        content = tomllib.loads(read_regular(path, follow=True).decode())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise no_such_path(path) from error
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot be read ({reason})", where=str(path)) from error
    except ValueError as error:  # bytes that are no UTF-8, or text that is no TOML
        raise InputError(
            f"is no TOML ({error})",
            where=str(path),
            fix="write lines like: base = 'models/base'",
        ) from error

    settings: dict[str, object] = {}
    for key, value in content.items():
        # Both spellings are accepted, as on the command line.
        option = key.replace("_", "-")
        if option in settings:
            raise InputError(
                f"gives {option} twice, as {key} and as {option}",
                where=str(path),
                fix="leave one out",
            )
        settings[option] = value
    return settings

"""Options that several commands share, and fields of dataclasses as options.

    @fields_in(WHERE)
    @dataclass(frozen=True, kw_only=True)
    class Loading:
        device: Annotated[str, Parameter(env_var="SPARK_AUDIT_DEVICE")] = "auto"

    def audit(*, loading: Loading = Loading(), seed: Seed = 0) -> None: ...

cyclopts reads ``--device`` and ``--seed``; the docstring says what they are for.

An option that several commands share is an alias here. One that a single command has
is a parameter of that command, and one of an audit a field of the audit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeAlias, get_args

from cyclopts import Group, Parameter, Token
from cyclopts.types import NonNegativeInt

from spark_audit.errors import InputError

# Panels of ``--help``. An option without a panel belongs to ``How``.
WHAT = Group("What", sort_key=0)
HOW = Group("How", sort_key=1)
WHERE = Group("Where", sort_key=2)
OUTPUT = Group("Output", sort_key=3)
ENDPOINT = Group("Servers that give only text", sort_key=4)
ADVANCED = Group("Advanced", sort_key=5)

NO_OPTION = Parameter(parse=False)
"""Marks a field that is not an option."""

BY_OPTION = "--by"
"""The option of audits that have figures by group of rows."""


def fields_in(group: Group) -> Parameter:
    """Return a decorator that makes a dataclass's fields options in a panel."""
    return Parameter(name="*", group=group)


def place_of(token: Token) -> str:
    """Return the source of a value; empty if it was typed.

    The source is a file with a key, or a variable of the environment.
    """
    if token.source == "cli":
        return ""
    if token.source == "env":
        return token.keyword or ""

    # For a file, the token's source is its path.
    key = (token.keyword or "").strip("[]")
    return f"{token.source}, {key}" if key else token.source


@contextmanager
def named_place(token: Token) -> Iterator[None]:
    """Add the file and key, or the variable, to an error about its value.

    Raises
    ------
    InputError
        The error of the block, with the source of the value.
    """
    try:
        yield
    except InputError as error:
        source = place_of(token)
        if not source:
            raise

        # The value was not typed as an option, so an option's name would not help.
        where = source
        if error.where and not error.where.startswith("--"):
            where = f"{source}: {error.where}"
        raise InputError(error.what, where=where, fix=error.fix) from error


def by_commas(kind: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
    """Return values that are separated by commas or blanks.

    cyclopts calls this as a converter, with one token for each typed word.

    Parameters
    ----------
    kind
        Type of the option, such as ``tuple[str, ...]``.

    Raises
    ------
    ValueError
        If a value has another type; cyclopts turns it into an error about the option.
    """
    element_type, *_ = get_args(kind)
    values = []
    for token in tokens:
        for text in token.value.split(","):
            try:
                values.append(element_type(text.strip()))
            except ValueError as error:
                # Python's own words name a function of its.
                raise ValueError(f"{text.strip()!r} is no whole number.") from error
    return tuple(values)


def auto_or_number(kind: Any, value: int | Literal["auto"]) -> None:
    """Refuse a number below 1; cyclopts calls this as a validator.

    Raises
    ------
    ValueError
        cyclopts turns it into an error about the option.
    """
    if value != "auto" and value < 1:
        raise ValueError("Give auto or N, a number from 1.")


LoraAlpha: TypeAlias = Annotated[
    float | None,
    Parameter(group=ADVANCED, help="Alpha of bare LoRA weights without a config."),
]

Seed: TypeAlias = Annotated[
    NonNegativeInt, Parameter(group=HOW, help="Seed of everything random.")
]

ShowText: TypeAlias = Annotated[
    bool, Parameter(group=OUTPUT, help="Show identifiers in the dossier.")
]


def text_in_dossier(formats: Collection[str], *, show_text: bool) -> None:
    """Refuse to show text without a dossier, because only a dossier shows text.

    Raises
    ------
    InputError
        If text is requested and the formats do not include a dossier.
    """
    if show_text and "dossier" not in formats:
        raise InputError(
            "only the dossier shows text",
            where="--show-text",
            fix="add --format dossier",
        )


def is_count(value: object) -> bool:
    """Return whether a value is a whole number of 1 or more."""
    # True is an int and would count as 1.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


Quiet: TypeAlias = Annotated[bool, NO_OPTION]

Verbose: TypeAlias = Annotated[bool, NO_OPTION]
"""Types of the parameters ``quiet`` and ``verbose`` of a command.

They are no options of its own: ``terminal/flags.py`` reads ``--quiet`` and
``--verbose`` for every command, and passes them to those that have the parameters.
"""

Json: TypeAlias = Annotated[bool, Parameter(group=OUTPUT, help="Print JSON to stdout.")]

Count: TypeAlias = Annotated[
    int | Literal["auto"],
    Parameter(
        group=WHERE, metavar="auto|N", show_choices=False, validator=auto_or_number
    ),
]
"""A number from 1, or ``auto``: the program chooses."""

BatchSize: TypeAlias = Annotated[
    Count,
    Parameter(
        env_var="SPARK_AUDIT_BATCH_SIZE", help="Rows scored at once; auto: by tokens."
    ),
]

Formats: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        "--format",
        group=OUTPUT,
        metavar="NAMES",
        converter=by_commas,
        help="Formats to write: html, md, csv, json, latex, figures, dossier, card, "
        "eee, named, with commas; default: the first four.",
    ),
]

Preset: TypeAlias = Annotated[
    str | None,
    Parameter(
        group=HOW, choices=("robust", "paper"), help="Default: that of the manifest."
    ),
]

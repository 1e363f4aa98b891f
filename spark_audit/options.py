"""Options that several commands share, and how fields become options.

    @fields_in(WHERE)
    @dataclass(frozen=True, kw_only=True)
    class Loading:
        device: Annotated[str, Parameter(env_var="SPARK_AUDIT_DEVICE")] = "auto"

    def audit(*, loading: Loading = Loading(), seed: Seed = 0) -> None: ...

cyclopts reads ``--device`` and ``--seed``, and what they are for in the docstring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeAlias, get_args

from cyclopts import Group, Parameter, Token
from cyclopts.types import NonNegativeInt

from spark_audit.errors import InputError

WHAT, HOW, WHERE, OUTPUT, ADVANCED = (
    Group(name, sort_key=place)
    for place, name in enumerate(("What", "How", "Where", "Output", "Advanced"))
)
"""The panels of ``--help``; what says nothing else is in ``How``."""


def fields_in(group: Group) -> Parameter:
    """What stands above a dataclass whose fields are options, in a panel."""
    return Parameter(name="*", group=group)


NO_OPTION = Parameter(parse=False)
"""Of a field that is none."""


def place_of(token: Token) -> str:
    """Return the file and key, or the variable, that a value is of; empty: typed."""
    if token.source == "cli":
        return ""
    if token.source == "env":
        return token.keyword or ""
    key = (token.keyword or "").strip("[]")
    return f"{token.source}, {key}" if key else token.source


@contextmanager
def named_place(token: Token) -> Iterator[None]:
    """Name the file and key, or the variable, in an error about a value of it."""
    try:
        yield
    except InputError as error:
        place = place_of(token)
        if not place:
            raise
        if error.where and not error.where.startswith("--"):
            place = f"{place}: {error.where}"
        raise InputError(error.what, where=place, fix=error.fix) from error


def by_commas(kind: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
    """Values of a tuple's kind with commas or blanks between them."""
    read = get_args(kind)[0]
    return tuple(read(part.strip()) for one in tokens for part in one.value.split(","))


def auto_or_number(kind: Any, value: int | Literal["auto"]) -> None:
    """Refuse a number below 1."""
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
    """Refuse to show text where no dossier is written, which alone has it."""
    if show_text and "dossier" not in formats:
        what = "shows text in the dossier alone"
        raise InputError(what, where="--show-text", fix="add --format dossier")


Quiet: TypeAlias = Annotated[bool, NO_OPTION]

Verbose: TypeAlias = Annotated[bool, NO_OPTION]
"""Every command takes ``--quiet`` and ``--verbose``; these parameters hear of it."""

Json: TypeAlias = Annotated[bool, Parameter(group=OUTPUT, help="Print JSON to stdout.")]

Count: TypeAlias = Annotated[
    int | Literal["auto"],
    Parameter(
        group=WHERE, metavar="auto|N", show_choices=False, validator=auto_or_number
    ),
]

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
        "named, with commas; default: the first four.",
    ),
]

Preset: TypeAlias = Annotated[
    str | None,
    Parameter(
        group=HOW, choices=("robust", "paper"), help="Default: that of the manifest."
    ),
]

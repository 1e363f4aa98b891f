"""Options that several commands share, and how fields become options.

    @fields_in(WHERE)
    @dataclass(frozen=True, kw_only=True)
    class Loading:
        device: Annotated[str, Parameter(env_var="SPARK_AUDIT_DEVICE")] = "auto"

    def audit(*, loading: Loading = Loading(), seed: Seed = 0) -> None: ...

cyclopts reads ``--device`` and ``--seed``, and what they are for in the docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, dataclass, fields, make_dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

from cyclopts import Group, Parameter, Token
from cyclopts.types import NonNegativeInt

from spark_audit.errors import InputError, choose
from spark_audit.sentences import LANGUAGES

T = TypeVar("T")

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


Quiet: TypeAlias = Annotated[bool, Parameter(group=OUTPUT, help="No progress.")]
Verbose: TypeAlias = Annotated[
    bool, Parameter(group=OUTPUT, help="Print every sentence and table.")
]
Json: TypeAlias = Annotated[bool, Parameter(group=OUTPUT, help="Print JSON to stdout.")]
BatchSize: TypeAlias = Annotated[
    int | Literal["auto"],
    Parameter(
        group=WHERE,
        metavar="auto|N",
        show_choices=False,
        validator=auto_or_number,
        env_var="SPARK_AUDIT_BATCH_SIZE",
        help="Rows scored at once; auto: by tokens.",
    ),
]
Formats: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        "--format",
        group=OUTPUT,
        metavar="NAMES",
        converter=by_commas,
        help="Formats to write: html, md, csv, latex, json, figures, dossier, card, "
        "named, with commas; default: all but the last four.",
    ),
]
Language: TypeAlias = Annotated[
    str,
    Parameter(
        group=OUTPUT,
        choices=LANGUAGES,
        help="Language of the first screen, advice and dossier; the rest is English.",
    ),
]
Preset: TypeAlias = Annotated[
    str | None,
    Parameter(
        group=HOW, choices=("robust", "paper"), help="Default: that of the manifest."
    ),
]


def hidden(*names: str) -> Callable[[type[T]], type[T]]:
    """Make a dataclass of a subclass in which these fields are no options.

    Of a field without a default the command that takes it gives the value.
    """

    def made(kind: type[T]) -> type[T]:
        inherited = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
        for name in names:
            kind.__annotations__[name] = Annotated[Any, NO_OPTION]
            usual = inherited[name].default
            setattr(kind, name, () if usual is MISSING else usual)
        whole = dataclass(frozen=True, kw_only=True)(kind)
        # Names in the types of inherited fields are those of another module.
        hints = get_type_hints(whole, include_extras=True)
        whole.__init__.__annotations__.update(hints)
        return whole

    return made


def options(*audits: Any, named: bool = False) -> Any:
    """A dataclass of the options of several audits; what several have is one option.

    They are the fields with a ``Parameter``, or with a sentence that is the help, which
    begins with the audit's name where it is ``named``.
    """
    found: dict[str, tuple[str, Any, Any]] = {}
    for audit in audits:
        hints = get_type_hints(audit, include_extras=True)
        for one in fields(audit):
            for note in getattr(hints[one.name], "__metadata__", ()):
                text = note.help if isinstance(note, Parameter) else note
                help = f"{audit.name}: {text}" if named else text
                # Only what is on can be switched off.
                off = (
                    f"--no-{one.name}".replace("_", "-") if one.default is True else ()
                )
                hint: Any = Annotated[
                    hints[one.name], Parameter(help=help, negative=off)
                ]
                found[one.name] = (one.name, hint, one.default)
    made = make_dataclass("Options", found.values(), kw_only=True, frozen=True)
    made.__module__ = __name__  # or the library takes it for a type of Python's own
    return fields_in(HOW)(made)


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


def one_of(value: Any, where: str, known: Collection[Any]) -> Any:
    """The value, if it is a known one."""
    if value not in known:
        fix = choose(str(value), (one for one in known if one is not None))
        raise InputError(f"{value!r} is unknown", where=where, fix=fix)
    return value

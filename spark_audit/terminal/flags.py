"""Options of a command line, spelled once: where a dataclass or a function has them.

    @dataclass(frozen=True, kw_only=True)
    class Loading:
        device: Annotated[str, Flag("Where to score.", metavar="auto|cpu")] = "auto"

    @command
    def audit(loading: Loading, *, seed: Seed = 0) -> None: ...

Typer sees ``--device`` and ``--seed``; the function gets the object. A field without a
:class:`Flag` (or a plain sentence in its place) is no option, and what a function's
parameters say to typer itself is left as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin
from typing import get_type_hints as hints_of

from spark_audit.errors import InputError, choose
from spark_audit.sentences import LANGUAGES

T = TypeVar("T")

KEYWORD, EMPTY = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
"""What stands for a value where its flag does not say."""
WIDE = 16
"""Characters of a value's name that a terminal of 80 columns does not break."""

PANELS: Mapping[str, Collection[str]] = {
    "What": "ckpt base baseline manifest data skip also limit task split source "
    "template map fail_if method order against named".split(),
    "How": (),
    "Where": "device device_map batch_size scores jobs shard engine "
    "address lora_targets".split(),
    "Output": "output format language show_text json quiet verbose dry_run "
    "redact".split(),
    "Advanced": "config tokenizer lora_alpha revision trust_remote_code "
    "gradient_checkpointing".split(),
}
"""Where ``--help`` shows an option, by its name; all others tell how it is done."""


@dataclass(frozen=True)
class Flag:
    """What a command line says of a field or parameter.

    Attributes
    ----------
    help, metavar
        As ``--help`` shows them.
    name, short
        ``format`` for ``--format`` where the field is called otherwise; ``-o``.
    env
        The environment variable that stands for it.
    min, max
        Bounds of a number.
    choices
        The only values there are.
    read
        Makes the value of the text that was typed, or of ``None``.
    positional
        It is typed without a name.
    field, kind, default
        Of the field or parameter, once it is known.
    """

    help: str | None = None
    metavar: str | None = None
    name: str = ""
    short: str = ""
    env: str | None = None
    min: float | None = None
    max: float | None = None
    choices: Collection[str] = ()
    read: Callable[[Any], Any] | None = None
    positional: bool = False
    field: str = ""
    kind: Any = None
    default: Any = EMPTY

    @property
    def typed(self) -> str:
        """What a user types."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def several(self) -> bool:
        """Whether it takes several values."""
        return self.read is None and get_origin(self.kind) is tuple

    def parameter(self) -> inspect.Parameter:
        """The parameter of a function that typer reads."""
        import typer

        kind, default, typed, text = self.kind, self.default, self.typed, self.help
        kinds = (kind, *get_args(kind))
        usual = next((METAVARS[one] for one in kinds if one in METAVARS), " ")
        metavar = self.metavar or "|".join(self.choices) or usual
        if self.choices and len(metavar) > WIDE:
            # A narrow column would break them in the middle of a name.
            text = f"{text or ''} One of: {', '.join(self.choices)}.".lstrip()
            metavar = self.name.upper()
        if self.several:
            kind = list[get_args(kind)[0]]  # type: ignore[misc]
            kind, default = (kind | None, None) if default == () else (kind, default)
        elif self.read is not None or self.choices:
            default = default if default is EMPTY or isinstance(default, str) else None
            kind = str | None if default is None else str
        elif default is True:
            typed = f"{typed}/--no-{typed[2:]}"
        make: Any = typer.Argument if self.positional else typer.Option
        option = make(
            *(() if self.positional else filter(None, (typed, self.short))),
            help=text,
            metavar=metavar,
            min=self.min,
            max=self.max,
            envvar=self.env,
            rich_help_panel=None if self.positional else panel_of(self.name),
            autocompletion=self._completed if self.choices else None,
        )
        return inspect.Parameter(
            self.name, KEYWORD, default=default, annotation=Annotated[kind, option]
        )

    def _completed(self, incomplete: str) -> list[str]:
        return [one for one in self.choices if one.startswith(incomplete)]

    def value(self, typed: Any) -> Any:
        """The field's value, of what was typed.

        Raises
        ------
        InputError
            If it is none of the choices.
        """
        if self.read is not None:
            return self.read(typed)
        for one in (typed or ()) if self.several else (typed,):
            if self.choices and one is not None:
                one_of(one, self.typed, self.choices)
        return tuple(typed or ()) if self.several else typed


@dataclass(frozen=True)
class Only:
    """The flags of a dataclass that a command takes: ``Annotated[Loading, Only(..)]``.

    The other fields keep their defaults. ``prefix`` stands before each help.
    """

    names: Collection[str] = ()
    prefix: str = ""


Tokenizer: TypeAlias = Annotated[
    str | None, Flag("Tokenizer, if not the checkpoint's own.", metavar="DIR")
]
LoraAlpha: TypeAlias = Annotated[
    float | None, Flag("Alpha of bare LoRA weights without a config.")
]
Revision: TypeAlias = Annotated[str | None, Flag("Revision of a model on the hub.")]
TrustRemoteCode: TypeAlias = Annotated[bool, Flag("Run code that a checkpoint brings.")]
Seed: TypeAlias = Annotated[int, Flag("Seed of everything random.", min=0)]
ShowText: TypeAlias = Annotated[bool, Flag("Show identifiers and their contexts.")]
Quiet: TypeAlias = Annotated[bool, Flag("No progress.")]
Verbose: TypeAlias = Annotated[bool, Flag("Print every sentence and table.")]
Json: TypeAlias = Annotated[bool, Flag("Print JSON to stdout.")]


def auto_or_number(text: str, *, flag: str = "--batch-size") -> int | Literal["auto"]:
    """``auto`` or a number from 1."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"cannot be {text!r}", where=flag, fix="give auto or N")
    return int(text)


def formats_of(text: str | None) -> tuple[str, ...]:
    """The value of ``--format``; nothing stands for all formats."""
    return () if text is None else tuple(part.strip() for part in text.split(","))


BatchSize: TypeAlias = Annotated[
    int | Literal["auto"],
    Flag(
        "Rows scored at once; auto: by tokens.",
        metavar="auto|N",
        read=auto_or_number,
        env="SPARK_AUDIT_BATCH_SIZE",
    ),
]
Formats: TypeAlias = Annotated[
    tuple[str, ...],
    Flag(
        "Formats to write: html, md, csv, latex, json, figures, dossier, "
        "card, named, with commas; default: all but the last four.",
        metavar="NAMES",
        name="format",
        read=formats_of,
    ),
]
Language: TypeAlias = Annotated[
    str,
    Flag(
        "Language of the first screen, advice and dossier; the rest is English.",
        choices=LANGUAGES,
    ),
]
Preset: TypeAlias = Annotated[
    str | None,
    Flag(
        "Default: that of the manifest.",
        metavar="robust|paper",
        choices=("robust", "paper"),
    ),
]


def options(kind: Any, only: Only = Only()) -> Iterator[Flag]:
    """The flags of a dataclass."""
    hints = hints_of(kind, include_extras=True)
    for one in fields(kind):
        default = EMPTY if one.default is MISSING else one.default
        flag = _flag(one.name, hints[one.name], default, only.prefix)
        if flag is not None and one.name in (only.names or hints):
            yield flag


def _flag(field: str, hint: Any, default: Any, prefix: str = "") -> Flag | None:
    """The flag of a field or parameter, if its annotation says that it is one."""
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Flag | str):
            flag = Flag(note) if isinstance(note, str) else note
            text = f"{prefix}{flag.help}" if prefix else flag.help
            here = {"kind": get_args(hint)[0], "default": default, "help": text}
            return replace(flag, field=field, name=flag.name or field, **here)
    return None


def command(function: Callable[..., T], *more: inspect.Parameter) -> Callable[..., T]:
    """The function as typer reads it: options in place of dataclasses and flags.

    Its annotations say what it takes. ``more`` are parameters that the function does
    not get. Of an option that several dataclasses have, the last one's help is shown.
    """
    shown: dict[str, inspect.Parameter] = {}
    made: dict[str, tuple[Callable[..., Any], list[Flag]]] = {}
    parameters = inspect.signature(function).parameters
    hints = hints_of(function, include_extras=True)
    hints.pop("return", None)
    for name, hint in hints.items():
        default = parameters[name].default if name in parameters else EMPTY
        kind, *notes = get_args(hint) or (hint,)
        if isinstance(kind, type) and is_dataclass(kind):
            only = next((note for note in notes if isinstance(note, Only)), Only())
            made[name] = kind, list(options(kind, only))
        elif one := _flag(name, hint, default):
            made[name] = lambda **value: [*value.values()][0], [one]
        else:
            shown[name] = inspect.Parameter(
                name, KEYWORD, default=default, annotation=hint
            )
        for one in made[name][1] if name in made else ():
            shown[one.name] = one.parameter()

    @wraps(function)
    def run(**typed: Any) -> T:
        values = {
            name: make(**{one.field: one.value(typed[one.name]) for one in flags})
            for name, (make, flags) in made.items()
        }
        return function(**{k: typed[k] for k in hints if k in typed} | values)

    signature = inspect.Signature(sorted([*shown.values(), *more], key=_place))
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {k: v.annotation for k, v in signature.parameters.items()}
    return run


def panel_of(name: str) -> str:
    """The panel of an option."""
    return next((panel for panel, names in PANELS.items() if name in names), "How")


def _place(parameter: inspect.Parameter) -> int:
    """Which panel a parameter is in."""
    notes = getattr(parameter.annotation, "__metadata__", (None,))
    panel = getattr(notes[0], "rich_help_panel", None)
    return [None, *PANELS].index(panel)


def one_of(value: Any, where: str, known: Collection[Any]) -> Any:
    """The value, if it is a known one."""
    if value not in known:
        fix = choose(str(value), (one for one in known if one is not None))
        if "," in str(value):
            fix = "separate names by spaces, without commas"
        raise InputError(f"{value!r} is unknown", where=where, fix=fix)
    return value

"""Options of a command line, spelled once: where a dataclass or a function has them.

    @dataclass(frozen=True, kw_only=True)
    class Loading:
        device: Annotated[str, Flag("Where to score.", metavar="auto|cpu")] = "auto"

    @command
    def audit(loading: Loading, *, output: Annotated[Path, Flag("...", short="-o")]):

Typer sees ``--device`` and ``--output``; the function gets the object. Fields and
parameters without a :class:`Flag` (or a plain sentence in its place) are none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from spark_audit.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """What a command line says of a field.

    Attributes
    ----------
    help, metavar, panel
        As ``--help`` shows them; a class names the panel of all its flags in
        ``PANEL``.
    name, short
        ``format`` for ``--format`` where the field is called otherwise; ``-o``.
    min, max
        Bounds of a number.
    choices
        The only values there are.
    read
        Makes the value of the text that was typed, or of ``None``.
    """

    help: str | None = None
    metavar: str | None = None
    panel: str | None = None
    name: str = ""
    short: str = ""
    min: float | None = None
    max: float | None = None
    choices: Collection[str] = ()
    read: Callable[[Any], Any] | None = None

    def value(self, typed: Any, *, many: bool, where: str) -> Any:
        """The field's value.

        Raises
        ------
        InputError
            If it is none of the choices.
        """
        if self.read is not None:
            return self.read(typed)
        if self.choices and typed is not None:
            one_of(typed, where, self.choices)
        return tuple(typed or ()) if many else typed


@dataclass(frozen=True)
class Only:
    """The flags of a dataclass that a command takes: ``Annotated[Loading, Only(..)]``.

    The other fields keep their defaults.
    """

    names: Collection[str]


@dataclass(frozen=True)
class Option:
    """A field or parameter that is a flag."""

    field: str
    kind: Any
    flag: Flag
    default: Any

    @property
    def name(self) -> str:
        """The parameter that typer sees."""
        return self.flag.name or self.field

    @property
    def typed(self) -> str:
        """What a user types."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def many(self) -> bool:
        """Whether the field is a tuple."""
        return get_origin(self.kind) is tuple

    def parameter(self, panel: str | None = None) -> inspect.Parameter:
        """The parameter of a function that typer reads."""
        import typer

        flag, kind, default = self.flag, self.kind, self.default
        if flag.read is not None:
            default = default if isinstance(default, str) else None
            kind = str if isinstance(default, str) else str | None
        elif self.many:
            kind = list[get_args(kind)[0]]  # type: ignore[misc]
            if default == ():
                kind, default = kind | None, None
        option = typer.Option(
            self.typed,
            *filter(None, [flag.short]),
            help=flag.help,
            metavar=flag.metavar,
            min=flag.min,
            max=flag.max,
            rich_help_panel=flag.panel or panel,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[kind, option],
        )

    def value(self, flags: dict[str, Any]) -> Any:
        """The field's value, taken out of what was typed."""
        typed = flags.pop(self.name)
        return self.flag.value(typed, many=self.many, where=self.typed)


def option(field: str, hint: Any, default: Any) -> Option | None:
    """The flag of a field or parameter, if its annotation says that it is one."""
    if get_origin(hint) is not Annotated:
        return None
    kind, *notes = get_args(hint)
    flag = next((note for note in notes if isinstance(note, Flag)), None)
    if flag is None and isinstance(notes[0], str):
        flag = Flag(notes[0])
    return None if flag is None else Option(field, kind, flag, default)


def options(kind: type, *, only: Collection[str] = ()) -> list[Option]:
    """The flags of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    found = (option(f.name, hints[f.name], f.default) for f in fields(kind))
    return [one for one in found if one and (not only or one.field in only)]


def parameters(kind: type, *, only: Collection[str] = ()) -> list[inspect.Parameter]:
    """The parameters that typer reads for a dataclass."""
    panel = getattr(kind, "PANEL", None)
    return [one.parameter(panel) for one in options(kind, only=only)]


def build(
    kind: type[T], flags: dict[str, Any], *, only: Collection[str] = (), **more: Any
) -> T:
    """The object of a dataclass; its values are taken out of ``flags``.

    ``more`` are fields that are no flags.
    """
    values = {one.field: one.value(flags) for one in options(kind, only=only)}
    return kind(**values, **more)


def command(function: Callable[..., T]) -> Callable[..., T]:
    """The function as typer reads it: flags in place of dataclasses of flags."""
    hints = get_type_hints(function, include_extras=True)
    shown: list[inspect.Parameter] = []
    objects: dict[str, tuple[type, Collection[str]]] = {}
    plain: list[Option] = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        empty = parameter.default is inspect.Parameter.empty
        one = option(name, hint, MISSING if empty else parameter.default)
        if is_dataclass(kind):
            assert isinstance(kind, type)
            only = next((n.names for n in notes if isinstance(n, Only)), ())
            objects[name] = (kind, only)
            shown += parameters(kind, only=only)
        elif one is not None:
            plain.append(one)
            shown.append(one.parameter())
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY
            shown.append(parameter.replace(kind=keyword, annotation=hint))

    @wraps(function)
    def run(**flags: Any) -> T:
        made: dict[str, Any] = {
            name: build(kind, flags, only=only)
            for name, (kind, only) in objects.items()
        }
        made |= {one.field: one.value(flags) for one in plain}
        return function(**made, **flags)

    return with_signature(run, shown)


def with_signature(
    function: Callable[..., T], shown: Collection[inspect.Parameter]
) -> Callable[..., T]:
    """The function with the parameters that typer is to read."""
    annotations: Mapping[str, Any] = {one.name: one.annotation for one in shown}
    function.__annotations__ = dict(annotations)
    function.__signature__ = inspect.Signature(list(shown))  # type: ignore[attr-defined]
    return function


def one_of(value: Any, where: str, known: Collection[Any]) -> Any:
    """The value, if it is a known one."""
    if value not in known:
        names = ", ".join(str(k) for k in known if k is not None)
        raise InputError(f"{value!r} is unknown", where=where, fix=f"give {names}")
    return value

"""Whether a value fits the type of an argument, and what the type is in words.

Types are annotations of functions. A type that only type checkers import, such as a
model of transformers, fits everything: whoever takes it looks at the value itself.
"""

from __future__ import annotations

import builtins
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

WORDS_OF_TYPES: Mapping[type, tuple[str, str]] = {
    bool: ("True or False", "True or False"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    Path: ("a path", "paths"),
}
"""Type -> one value of it, and several, as errors name them."""

LISTS = (list, Sequence, Collection)
"""Types of which a list, and any other collection that is no text, is one."""

ITERABLES = (Iterable, Callable)
"""Types of which the content is not looked at: looking would use it up."""


class MisfitError(Exception):
    """A value, or a part of it, does not fit a type.

    Attributes
    ----------
    place
        Where the part stands in the value, as ``[3]``; empty: it is the value.
    value, wanted
        The part, and the type that it does not fit.
    """

    def __init__(self, value: object, wanted: Any, place: str = "") -> None:
        super().__init__(place)
        self.place = place
        self.value = value
        self.wanted = wanted


class _NamesOfModule(dict[str, Any]):
    """The names of a module; a name that it imports for type checkers is any type."""

    def __missing__(self, name: str) -> Any:
        return Any


@cache
def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a function's arguments, by name, or of a class's own fields.

    With ``from __future__ import annotations`` they are texts, which are evaluated
    here. Names under ``TYPE_CHECKING`` do not exist when a program runs.
    """
    module = inspect.getmodule(function)
    names = _NamesOfModule(vars(builtins) | ({} if module is None else vars(module)))

    types: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(function).items():
        if isinstance(annotation, str):
            # The text is our own code, or that of a user's audit. One that cannot be
            # evaluated, as of a class inside a function, stands for any type.
            with suppress(AttributeError, TypeError):
                annotation = eval(annotation, {}, names)
        types[name] = Any if isinstance(annotation, str) else annotation
    return types


def fitted(value: object, wanted: Any) -> object:
    """Return a value as an argument of a type takes it.

    Values of NumPy become plain ones, a collection that is no sequence (an array, a
    column of a frame) a list, and a text a path where only paths are taken.

    Raises
    ------
    MisfitError
        If the value does not fit the type.

    Examples
    --------
    >>> fitted((2, 4), tuple[int, int])
    (2, 4)
    >>> fitted({"a", "a"}, Sequence[str])
    ['a']
    """
    origin = get_origin(wanted)
    if origin is Annotated:
        return fitted(value, get_args(wanted)[0])
    if isinstance(wanted, NewType):
        return fitted(value, wanted.__supertype__)
    is_unknown = isinstance(wanted, ForwardRef | TypeVar | str)
    if wanted is Any or is_unknown or is_protocol(wanted):
        return value
    if origin in (Union, UnionType):
        return _fitted_to_one_of(value, wanted)

    # Without types of its parts, as typing.List, it is looked at as a whole.
    has_parts = bool(get_args(wanted))
    if origin is tuple and has_parts:
        return _fitted_tuple(value, wanted)
    if origin in LISTS and has_parts:
        return _fitted_list(value, wanted)
    if origin is Mapping and has_parts:
        return _fitted_mapping(value, wanted)
    if not _can_be_checked(wanted, origin):
        return value

    if not _is_of_plain_type(value, wanted, origin):
        raise MisfitError(value, wanted)
    return _as_plain(value, wanted)


def is_protocol(wanted: Any) -> bool:
    """Return whether a type only says which members a value has."""
    return isinstance(wanted, type) and Protocol in wanted.__mro__


def is_list_of_objects(wanted: Any) -> bool:
    """Return whether a list of values of a class is wanted, such as examples.

    >>> is_list_of_objects(Sequence[MisfitError] | None)
    True
    >>> is_list_of_objects(Sequence[str])
    False
    """
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        return any(is_list_of_objects(option) for option in get_args(wanted))
    if origin not in (*LISTS, Iterable) or not get_args(wanted):
        return False
    item_type = get_args(wanted)[0]
    return isinstance(item_type, type) and item_type not in WORDS_OF_TYPES


def _can_be_checked(wanted: Any, origin: Any) -> bool:
    """Return whether Python can tell if a value is of a type without parts.

    It cannot for a ``TypedDict`` and for special forms such as ``Final[int]``.
    """
    if wanted is None or origin is Literal:
        return True
    whole_type = origin or wanted
    return isinstance(whole_type, type) and not is_typeddict(whole_type)


def _is_of_plain_type(value: object, wanted: Any, origin: Any) -> bool:
    """Return whether a value is of a type without parts, or one of the given values."""
    if origin is Literal:
        return any(_is_literal(value, literal) for literal in get_args(wanted))
    if origin is type and get_args(wanted):
        (parent,) = get_args(wanted)
        is_known = isinstance(parent, type)
        return isinstance(value, type) and (not is_known or issubclass(value, parent))
    if origin in ITERABLES:
        is_wanted = (
            callable(value) if origin is Callable else isinstance(value, Iterable)
        )
        return is_wanted and not isinstance(value, str | bytes)

    if wanted is bool:
        return isinstance(value, bool) or _is_bool_of_numpy(value)
    # True is an int to Python, but never what was meant.
    if wanted in (int, float) and isinstance(value, bool):
        return False
    if wanted is int:
        return isinstance(value, Integral)
    if wanted is float:
        return isinstance(value, Real)
    if wanted is Path:
        return isinstance(value, str | os.PathLike)
    return isinstance(value, NoneType if wanted is None else origin or wanted)


def _is_literal(value: object, literal: object) -> bool:
    """Return whether a value is one of the given ones; True is not the number 1."""
    return _is_of_plain_type(value, type(literal), None) and value == literal


def _is_bool_of_numpy(value: object) -> bool:
    """Return whether a value is an element of an array of truth values."""
    value_type = type(value)
    return value_type.__module__ == "numpy" and value_type.__name__ in ("bool", "bool_")


def _as_plain(value: Any, wanted: Any) -> object:
    """Return a value of a fitting type as the plain type that the code works with."""
    if get_origin(wanted) is Literal:
        return next(lit for lit in get_args(wanted) if _is_literal(value, lit))
    if wanted is bool or wanted is int:
        return wanted(value)
    # A whole number stays one.
    if wanted is float and type(value) is not int:
        return float(value)
    if wanted is Path:
        return Path(value)
    return value


def _fitted_to_one_of(value: object, wanted: Any) -> object:
    """Return a value as the first type of a union takes it that it fits."""
    misfit_of_part: MisfitError | None = None
    for option in get_args(wanted):
        try:
            return fitted(value, option)
        except MisfitError as misfit:
            if misfit.place:
                misfit_of_part = misfit

    # One element of a list says more than that the list is none of these.
    raise misfit_of_part or MisfitError(value, wanted)


def _fitted_list(value: Any, wanted: Any) -> object:
    """Return a collection whose items fit; it is the same if nothing was changed."""
    is_collection = isinstance(value, Iterable) and not isinstance(
        value, str | bytes | Mapping
    )
    if not is_collection:
        raise MisfitError(value, wanted)

    # An array of names is no sequence to Python, but serves as well.
    items = value if isinstance(value, Sequence) else list(value)
    (item_type,) = get_args(wanted)
    fitted_items = _fitted_items(items, [item_type] * len(items))
    is_changed = any(
        new is not old for new, old in zip(fitted_items, items, strict=True)
    )
    return fitted_items if is_changed else items


def _fitted_tuple(value: Any, wanted: Any) -> tuple[object, ...]:
    """Return a tuple whose items fit; a list is one, too."""
    types = get_args(wanted)
    if not isinstance(value, tuple | list):
        raise MisfitError(value, wanted)
    if types[-1] is Ellipsis:
        types = (types[0],) * len(value)
    if len(types) != len(value):
        raise MisfitError(value, wanted)
    return tuple(_fitted_items(value, types))


def _fitted_items(items: Sequence[object], types: Sequence[Any]) -> list[object]:
    """Return items as their types take them; an error names the first wrong one."""
    fitted_items = []
    for index, (item, item_type) in enumerate(zip(items, types, strict=True)):
        try:
            fitted_items.append(fitted(item, item_type))
        except MisfitError as misfit:
            place = f"[{index}]{misfit.place}"
            raise MisfitError(misfit.value, misfit.wanted, place) from misfit
    return fitted_items


def _fitted_mapping(value: Any, wanted: Any) -> object:
    """Return a mapping whose values fit; it is the same if nothing was changed."""
    if not isinstance(value, Mapping):
        raise MisfitError(value, wanted)

    _, value_type = get_args(wanted)
    fitted_values = {}
    for key, item in value.items():
        try:
            fitted_values[key] = fitted(item, value_type)
        except MisfitError as misfit:
            place = f"[{key!r}]{misfit.place}"
            raise MisfitError(misfit.value, misfit.wanted, place) from misfit
    is_changed = any(fitted_values[key] is not value[key] for key in fitted_values)
    return fitted_values if is_changed else value


def types_in_words(wanted: Any) -> list[str]:
    """Return what a value may be, in words, for each type of a union.

    None is left out: it stands for an argument that is not given.

    Examples
    --------
    >>> types_in_words(int | Literal["auto"] | None)
    ['a whole number', "'auto'"]
    >>> types_in_words(str | Path | Sequence[str | Path])
    ['a path', 'a list of paths']
    """
    words = []
    for option in _options(wanted):
        origin = get_origin(option)
        if origin is Literal:
            words += [repr(literal) for literal in get_args(option)]
        elif not get_args(option):
            words.append(_in_words(option))
        elif origin is tuple and get_args(option)[-1] is not Ellipsis:
            words.append(f"a pair of {_several_in_words(get_args(option)[0])}")
        elif origin in LISTS or origin is tuple or origin is Iterable:
            words.append(f"a list of {_several_in_words(get_args(option)[0])}")
        else:
            words.append(_in_words(option))

    # Where a path is taken, a text is one.
    if "a path" in words:
        words = [word for word in words if word != "a text"]
    return list(dict.fromkeys(words))


def literals_of(wanted: Any) -> list[str]:
    """Return the texts that an argument may be, if it may be nothing else."""
    literals: list[str] = []
    for option in _options(wanted):
        if get_origin(option) is not Literal:
            return []
        literals += get_args(option)
    return literals


def _options(wanted: Any) -> list[Any]:
    """Return the types of a union, or the only type, without None."""
    if get_origin(wanted) is Annotated:
        return _options(get_args(wanted)[0])
    if get_origin(wanted) not in (Union, UnionType):
        return [wanted]

    options = []
    for option in get_args(wanted):
        if option is not NoneType:
            options += _options(option)
    return options


def _in_words(wanted: Any) -> str:
    """Return what one value of a type is called."""
    origin = get_origin(wanted)
    if origin is Mapping:
        return "a dict"
    if origin is Callable:
        return "a function"
    if origin is type and get_args(wanted):
        return f"a class of {_several_in_words(get_args(wanted)[0])}"
    if wanted in WORDS_OF_TYPES:
        return WORDS_OF_TYPES[wanted][0]
    name = getattr(wanted, "__name__", str(wanted))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _several_in_words(wanted: Any) -> str:
    """Return what several values of a type are called."""
    words = []
    for option in _options(wanted):
        if option in WORDS_OF_TYPES:
            words.append(WORDS_OF_TYPES[option][1])
        elif get_origin(option) is type and get_args(option):
            words.append(f"classes of {_several_in_words(get_args(option)[0])}")
        else:
            words.append(getattr(option, "__name__", str(option)))
    if "paths" in words:
        words = [word for word in words if word != "texts"]
    return " or ".join(words)

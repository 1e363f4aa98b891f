"""Answer a call with a wrong argument in one line, before any work.

Functions that users call from Python have the decorator :func:`checked_call`. It knows
the names and types of arguments from the signature. Of a value of the right type that
is out of range, the function itself says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, get_origin

from spark_audit.argument_types import (
    MisfitError,
    annotations_of,
    fitted,
    is_list_of_objects,
    literals_of,
    types_in_words,
)
from spark_audit.errors import InputError, choose, shown

CallP = ParamSpec("CallP")
ResultT = TypeVar("ResultT")

MIN_SIMILARITY_OF_ARGUMENTS = 0.5
"""Similarity, from 0 to 1 (``difflib``), from which an argument is suggested."""

MAX_CHARACTERS_OF_VALUE = 60
"""Most characters of a wrong value that an error shows."""


class ArgumentError(InputError, TypeError):
    """A call from Python has an unknown argument, or a value of a wrong type."""


def checked_call(function: Callable[CallP, ResultT]) -> Callable[CallP, ResultT]:
    """Return the function with a check of the names and types of its arguments.

    Its signature stays as it is, for type checkers, completion and ``help``. Python
    itself names only a wrong argument, not the right one, and looks at no type.

    Raises
    ------
    ArgumentError
        By the returned function: names the wrong argument and the nearest one, or the
        wrong value and what is expected.

    Examples
    --------
    >>> @checked_call
    ... def audit(*, base: str, limit: int = 0) -> str:
    ...     return base
    >>> for arguments in ({"bas": "models/base"}, {"base": "b", "limit": "many"}):
    ...     try:
    ...         audit(**arguments)
    ...     except ArgumentError as error:
    ...         print(error)
    audit() has no argument 'bas'; did you mean 'base'?
    limit: 'many' is not a whole number
    """
    signature = inspect.signature(function)
    # A parameter that is positional only has no name for callers.
    names = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            names.append(name)

    @functools.wraps(function)
    def checked(*args: CallP.args, **kwargs: CallP.kwargs) -> ResultT:
        check_arguments(_name_for_callers(function), kwargs, names)
        call = None
        with suppress(TypeError):
            call = signature.bind(*args, **kwargs)
        if call is None:
            # Python itself says which argument is missing.
            return function(*args, **kwargs)

        # The types are looked up at a call: before, the module is not complete.
        types = annotations_of(function)
        for name, value in call.arguments.items():
            wanted = types.get(name, Any)
            if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                values = enumerate(value)
                call.arguments[name] = tuple(
                    checked_value(f"{name}[{i}]", item, wanted) for i, item in values
                )
                continue
            call.arguments[name] = checked_value(name, value, wanted)
        return function(*call.args, **call.kwargs)

    return checked


class CheckedFields:
    """Base class of dataclasses that users make, with their fields as arguments.

    What a call gives is checked as :func:`checked_call` checks it: names here, since
    the ``__init__`` of a dataclass is not written by hand, and types where a class
    calls :meth:`check_fields`.
    """

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuse a name that is no field, before ``__init__`` is called."""
        names = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]
        check_arguments(cls.__name__, kwargs, names)
        return super().__new__(cls)

    def check_fields(self) -> None:
        """Refuse a field whose value is of another type than it declares.

        Raises
        ------
        ArgumentError
            Names the field, its value and what is expected.
        """
        for owner in type(self).__mro__:
            for name, wanted in annotations_of(owner).items():
                if get_origin(wanted) is not ClassVar and name in vars(self):
                    value = checked_value(name, vars(self)[name], wanted)
                    # The dataclass may be frozen: object's method sets the field.
                    object.__setattr__(self, name, value)


def _name_for_callers(function: Callable[..., object]) -> str:
    """Return the name that callers write: for a method that makes one, its class."""
    if function.__name__ != "__init__":
        return function.__name__
    return function.__qualname__.split(".")[-2]


def check_arguments(function: str, given: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a name that is no argument of a function or class.

    Parameters
    ----------
    given
        Names of the arguments of a call.
    names
        All arguments that there are.

    Raises
    ------
    ArgumentError
        Names the wrong argument and the nearest one.
    """
    for name in given:
        if name not in names:
            raise ArgumentError(_wrong_argument(function, name, names))


def checked_value(name: str, value: object, wanted: Any) -> Any:
    """Return the value of an argument as its type takes it; refuse another type.

    Parameters
    ----------
    wanted
        The type, as an annotation has it.

    Raises
    ------
    ArgumentError
        Names the argument, its value and what is expected.

    Examples
    --------
    >>> checked_value("shard", "1/2", tuple[int, int])
    Traceback (most recent call last):
    ...
    spark_audit.arguments.ArgumentError: shard: '1/2' is not a pair of whole numbers
    """
    try:
        return fitted(value, wanted)
    except MisfitError as error:
        misfit = error
    if type(value).__name__ == "DataFrame" and is_list_of_objects(wanted):
        # A frame is a collection of its columns' names, so its first name misfits.
        raise ArgumentError(
            "a DataFrame is not a list of examples",
            where=name,
            fix="make one of each row: [sa.Example(**row) for row in "
            "frame.to_dict('records')]",
        )
    argument = f"{name}{misfit.place}"

    # A text that is none of several is perhaps misspelt.
    choices = literals_of(misfit.wanted)
    if isinstance(misfit.value, str) and choices:
        raise ArgumentError(
            f"{shown_value(misfit.value)} is unknown",
            where=argument,
            fix=choose(misfit.value, choices),
        )
    *others, last = types_in_words(misfit.wanted)
    expected = f"neither {', '.join(others)} nor {last}" if others else f"not {last}"
    # A text inside of a list, or instead of a list of examples, may be one of a row.
    may_be_of_row = argument.endswith("]") or is_list_of_objects(misfit.wanted)
    if isinstance(misfit.value, str) and may_be_of_row:
        raise ArgumentError(f"a text is {expected}", where=argument)
    raise wrong_value(argument, misfit.value, expected)


def wrong_value(argument: str, value: object, expected: str) -> ArgumentError:
    """Return the error for a value of a wrong type.

    Parameters
    ----------
    expected
        What it is not, as ``not a number``.
    """
    return ArgumentError(f"{shown_value(value)} is {expected}", where=argument)


def shown_value(value: object) -> str:
    """Return a value as an error shows it; of what may hold rows only the type."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    if not is_plain:
        return type(value).__name__
    return shown(repr(value), MAX_CHARACTERS_OF_VALUE)


def _wrong_argument(function: str, given: str, names: Sequence[str]) -> str:
    """Return the message for an argument that a function does not have."""
    problem = f"{function}() has no argument {given!r}"
    nearest = get_close_matches(given, names, n=1, cutoff=MIN_SIMILARITY_OF_ARGUMENTS)
    if nearest:
        return f"{problem}; did you mean {nearest[0]!r}?"
    return f"{problem}; it has: {', '.join(names)}"

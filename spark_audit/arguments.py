"""Answer a call with a wrong argument by the name of the nearest one.

Functions that users call from Python have the decorator :func:`checked_call`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

CallP = ParamSpec("CallP")
ResultT = TypeVar("ResultT")

MIN_SIMILARITY_OF_ARGUMENTS = 0.5
"""Similarity, from 0 to 1 (``difflib``), from which an argument is suggested."""


def checked_call(function: Callable[CallP, ResultT]) -> Callable[CallP, ResultT]:
    """Return the function with a check of the names of its arguments.

    Its signature stays as it is, for type checkers, completion and ``help``. Python
    itself names only the wrong argument, not the right one.

    Raises
    ------
    TypeError
        By the returned function: names the wrong argument and the nearest one.

    Examples
    --------
    >>> @checked_call
    ... def audit(*, base: str, limit: int = 0) -> str:
    ...     return base
    >>> audit(bas="models/base")
    Traceback (most recent call last):
    ...
    TypeError: audit() has no argument 'bas'; did you mean 'base'?
    """
    # A parameter that is positional only has no name for callers.
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            names.append(name)

    @functools.wraps(function)
    def checked(*args: CallP.args, **kwargs: CallP.kwargs) -> ResultT:
        check_arguments(function.__name__, kwargs, names)
        return function(*args, **kwargs)

    return checked


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
    TypeError
        Names the wrong argument and the nearest one.
    """
    for name in given:
        if name not in names:
            raise TypeError(_wrong_argument(function, name, names))


def _wrong_argument(function: str, given: str, names: Sequence[str]) -> str:
    """Return the message for an argument that a function does not have."""
    problem = f"{function}() has no argument {given!r}"
    nearest = get_close_matches(given, names, n=1, cutoff=MIN_SIMILARITY_OF_ARGUMENTS)
    if nearest:
        return f"{problem}; did you mean {nearest[0]!r}?"
    return f"{problem}; it has: {', '.join(names)}"

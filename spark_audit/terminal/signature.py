"""Set the signature of a command whose options are fields of dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., None])


def with_options(command: Command, options: Iterable[inspect.Parameter]) -> Command:
    """Give a command these options in place of its ``**keywords``, and return it.

    All audit commands share one function, but each has the options of its audits, which
    are fields of dataclasses, some from other packages. So the function cannot declare
    them. cyclopts reads a command's options from its signature, so this function sets
    the signature, as decorators do.

    Parameters
    ----------
    command
        A function with ``**keywords`` for all other options.
    options
        Keyword-only parameters with types and defaults.
    """
    # Postponed annotations are text, while cyclopts needs types.
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    own_parameters = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    new_signature = signature.replace(parameters=[*own_parameters, *options])
    command.__signature__ = new_signature  # type: ignore[attr-defined]
    return command

"""The signature of a command whose options are fields of dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., None])


def with_options(command: Command, options: Iterable[inspect.Parameter]) -> Command:
    """Give a command these options in place of its ``**keywords``.

    Commands of audits share one function, and each has the options of its audits:
    fields of dataclasses, some of them of other packages. They cannot be written at
    the function, and cyclopts reads from a function's signature what its command
    takes. So the signature is made, as decorators make theirs.

    Parameters
    ----------
    command
        A function that takes whatever else is typed as ``**keywords``.
    options
        Keyword-only parameters with their types and defaults.
    """
    # Annotations are text in a module that postpones them, and cyclopts reads types.
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    written_parameters = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    new_signature = signature.replace(parameters=[*written_parameters, *options])
    command.__signature__ = new_signature  # type: ignore[attr-defined]
    return command

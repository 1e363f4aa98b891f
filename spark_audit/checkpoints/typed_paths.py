"""Check typed paths of checkpoints before any library is imported.

To open the first checkpoint imports PyTorch and Transformers, which takes seconds. A
mistyped path is refused before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from cyclopts import ArgumentCollection

from spark_audit import options
from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.specs import is_server, parse_specs, split_stage
from spark_audit.errors import InputError
from spark_audit.wrong_paths import is_missing

CHECKPOINTS = ("--ckpt",)
"""Options whose values have names and stages: ``NAME=[PATH@K,PATH@K]``."""
MODEL_OPTIONS = ("CKPT", "--base", "--tokenizer", "--agree")
"""Arguments of a single checkpoint: ``PATH`` or ``PATH@K``."""


def check_typed_paths(arguments: ArgumentCollection) -> None:
    """Refuse a checkpoint whose path is empty or does not exist.

    Other mistakes, such as a repeated name, are found when the checkpoints are opened.

    Raises
    ------
    InputError
        Suggests the nearest path that exists.
    """
    for argument in arguments:
        if argument.name in CHECKPOINTS:
            paths_of = _paths_of_specs
        elif argument.name in MODEL_OPTIONS:
            paths_of = _paths_of_models
        else:
            continue

        # A token is a value with its source: a file, a variable, or the command line.
        for token in argument.tokens:
            with options.named_place(token):
                for path in paths_of(token.value):
                    _check_exists(path, name=argument.name)


def _check_exists(path: str, *, name: str) -> None:
    """Refuse an empty path, or a local path that does not exist."""
    if not path.strip():
        raise InputError("is empty", where=name, fix="give a path")
    if not _is_remote(path) and is_missing(untrusted.expanded(path)):
        raise untrusted.missing(path)


def _paths_of_specs(value: str) -> Iterator[str]:
    """Yield the paths of ``NAME=[PATH@K,PATH@K]``; none of an unreadable text."""
    with suppress(InputError):
        for spec in parse_specs([value]):
            yield from spec.paths


def _paths_of_models(value: str) -> Iterator[str]:
    """Yield the path of ``PATH@K``; none of an unreadable text."""
    with suppress(InputError):
        yield split_stage(value)[0]


def _is_remote(path: str) -> bool:
    """Return whether a path belongs to the hub or to a server."""
    return path.startswith(untrusted.HUB) or is_server(path)

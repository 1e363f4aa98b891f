"""Paths of checkpoints on a command line, looked at before a library is imported.

Opening the first checkpoint imports PyTorch and Transformers, which takes seconds: a
path with a typing mistake is refused before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from cyclopts import ArgumentCollection

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.specs import is_server, parse_specs, split_stage
from spark_audit.errors import InputError
from spark_audit.files import is_missing

CHECKPOINTS = ("--ckpt",)
"""Options of checkpoints with names and stages: ``NAME=[PATH@K,PATH@K]``."""
MODEL_OPTIONS = ("CKPT", "--base", "--tokenizer", "--agree")
"""Arguments of a single checkpoint: ``PATH`` or ``PATH@K``."""


def check_typed_paths(arguments: ArgumentCollection) -> None:
    """Refuse a checkpoint whose path does not exist.

    Other mistakes, such as a name that is given twice, are left to whoever opens the
    checkpoints.

    Raises
    ------
    InputError
        With the nearest path that exists.
    """
    for argument in arguments:
        values = [token.value for token in argument.tokens]
        if argument.name in CHECKPOINTS:
            paths = _paths_of_specs(values)
        elif argument.name in MODEL_OPTIONS:
            paths = _paths_of_models(values)
        else:
            continue

        for path in paths:
            if path and not _is_remote(path) and is_missing(untrusted.expanded(path)):
                raise untrusted.missing(path)


def _paths_of_specs(values: list[str]) -> Iterator[str]:
    with suppress(InputError):
        for spec in parse_specs(values):
            yield from spec.paths


def _paths_of_models(values: Iterable[str]) -> Iterator[str]:
    with suppress(InputError):
        for value in values:
            yield split_stage(value)[0]


def _is_remote(path: str) -> bool:
    return path.startswith(untrusted.HUB) or is_server(path)

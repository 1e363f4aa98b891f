"""Open checkpoints and models in memory, given to a request from Python.

:func:`split_open` takes them out of what was given, before the rest is read as paths.
:func:`opened_checkpoints` makes checkpoints of them once the manifest is known, with
the bases that they bring along. An option that would open a checkpoint again from its
files is refused in :func:`check_options`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_audit.arguments import ArgumentError, wrong_value
from spark_audit.checkpoints.given import (
    IN_MEMORY,
    NO_GIVEN_CHECKPOINT,
    check_open,
    default_model_name,
    is_model,
    is_open,
)
from spark_audit.errors import InputError
from spark_audit.manifest.grown_vocabulary import over_reference_tokens
from spark_audit.manifest.reference_distance import check_is_reference, is_reference
from spark_audit.names import BASE, seeds_of

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.manifest.schema import Manifest
    from spark_audit.pipeline.request import Request


class NamedOpen(NamedTuple):
    """An open checkpoint or a model in memory, and its name in the report."""

    name: str
    given: Any


class SplitCheckpoints(NamedTuple):
    """What a function was given as checkpoints: paths, and what is open already.

    Attributes
    ----------
    paths
        Paths in the form in which they were given: one, several, or ``{name: path}``.
    opened
        The others, with their names.
    """

    paths: Any
    opened: tuple[NamedOpen, ...]


def split_open(checkpoints: Any) -> SplitCheckpoints:
    """Split what was given as checkpoints into paths and what is open already.

    Raises
    ------
    InputError
        If two open checkpoints have one name, or a name has no checkpoint.
    ArgumentError
        If a value is no checkpoint, a name is not a text, or the seeds of one method
        are open in part.
    """
    if _is_open_input(checkpoints):
        return SplitCheckpoints((), (_with_own_name(checkpoints),))
    if isinstance(checkpoints, str | Path):
        return SplitCheckpoints(checkpoints, ())
    if isinstance(checkpoints, Mapping):
        return _split_by_name(checkpoints)

    values = _checked_values(checkpoints, where="checkpoints")
    opened = [_with_own_name(value) for value in values if _is_open_input(value)]
    _check_distinct(opened)
    paths = [value for value in values if not _is_open_input(value)]
    return SplitCheckpoints(paths, tuple(opened))


def _split_by_name(checkpoints: Mapping[str, Any]) -> SplitCheckpoints:
    """Split ``{name: checkpoint}``; a list under a name holds the seeds of a method."""
    paths: dict[str, Any] = {}
    opened: list[NamedOpen] = []
    for name, given in checkpoints.items():
        if not isinstance(name, str):
            raise ArgumentError(f"the name {name!r} is not a text", where="checkpoints")
        is_single = _is_single(given)
        where = f"checkpoints[{name!r}]"
        seeds = [given] if is_single else _checked_values(given, where=where)
        if not seeds:
            raise InputError(
                "holds no checkpoint",
                where=where,
                fix="give one, or leave the name out",
            )
        open_seeds = [seed for seed in seeds if _is_open_input(seed)]
        if not open_seeds:
            paths[name] = given
            continue
        if len(open_seeds) < len(seeds):
            raise ArgumentError(
                f"the seeds of {name!r} are paths in part",
                where="checkpoints",
                fix="give all of them open, or all as paths",
            )
        for seed_name, seed in zip(seeds_of(name, len(seeds)), seeds, strict=True):
            opened.append(NamedOpen(seed_name, seed))
    return SplitCheckpoints(paths, tuple(opened))


def _checked_values(checkpoints: Any, *, where: str) -> list[Any]:
    """Return several checkpoints as a list; refuse what is none.

    Parameters
    ----------
    where
        The argument, for errors.

    Raises
    ------
    ArgumentError
        If it is neither a checkpoint nor several.
    """
    is_iterable = isinstance(checkpoints, Iterable)
    values = [*checkpoints] if is_iterable else [checkpoints]
    for value in values:
        if not _is_single(value):
            raise wrong_value(where, value, NO_GIVEN_CHECKPOINT)
    return values


def _is_single(given: object) -> bool:
    """Return whether something is one checkpoint: a path, open, or a model."""
    return isinstance(given, str | Path) or _is_open_input(given)


def split_base(
    base: Any, opened: tuple[NamedOpen, ...]
) -> tuple[str | None, tuple[NamedOpen, ...]]:
    """Return the path of the base, and what is open, the base first if it is open.

    The path is ``None`` if there is no base, or it is open.

    Raises
    ------
    ArgumentError
        If the base is neither a path nor open.
    """
    if base is None:
        return None, opened
    if isinstance(base, str | Path):
        return str(base), opened
    check_open(base, "base")
    return None, (NamedOpen(BASE, base), *opened)


@contextmanager
def python_random_kept() -> Iterator[None]:
    """Restore Python's random numbers afterwards.

    Scoring leaves all random numbers as they were, see ``undisturbed``. But libraries
    may draw some of Python's around it, as rich does when it is first imported.
    """
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def _is_open_input(given: object) -> bool:
    """Return whether something is an open checkpoint or a model in memory."""
    return is_model(given) or is_open(given)


def _with_own_name(given: Any) -> NamedOpen:
    """Name an open checkpoint as it is named, and a model by its folder."""
    name = default_model_name(given) if is_model(given) else given.name
    return NamedOpen(name, given)


def _check_distinct(opened: list[NamedOpen]) -> None:
    """Refuse two open checkpoints of one name."""
    names = [named.name for named in opened]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two open checkpoints have the name {name!r}",
                where="checkpoints",
                fix="give them as {name: checkpoint}",
            )


def check_options(request: Request) -> None:
    """Refuse options that would open a checkpoint again, where it is open already."""
    if not request.opened:
        return

    # Option -> whether it is given.
    is_given = {
        "--relearn": bool(request.relearn),
        "--quantize": bool(request.loading.quantize),
        "--engine ray": request.engine == "ray",
        "--shard": request.shard[1] > 1,
    }
    for option, is_option_given in is_given.items():
        if is_option_given:
            raise InputError(
                "opens checkpoints again from their files, and one is given open",
                where=option,
                fix="give its path",
            )


def opened_checkpoints(request: Request, manifest: Manifest | None) -> list[Checkpoint]:
    """Return what was given open as checkpoints, with the base that they bring along.

    The base of an adapter is the same module with the adapter off. A base in memory
    names no files: it must give the texts the scores that the manifest records.

    Parameters
    ----------
    manifest
        ``None``: not given, and to be found by the first checkpoint.

    Raises
    ------
    CheckpointError
        If a tokenizer is not known, or the base in memory is not the manifest's.
    InputError
        If the manifest is needed and not given.
    """
    from spark_audit.checkpoints.in_memory import from_memory

    tokenizer_sha256 = None
    if manifest is not None:
        tokenizer_sha256 = manifest.reference.tokenizer_sha256
    elif any(is_model(named.given) for named in request.opened):
        raise InputError(
            "is needed for a model in memory",
            where="--manifest",
            fix="give the one that was built with its base",
        )

    checkpoints: list[Checkpoint] = []
    for named in request.opened:
        checkpoint = from_memory(
            named.given,
            name=named.name,
            tokenizer=request.loading.tokenizer,
            tokenizer_sha256=tokenizer_sha256,
        )
        if manifest is not None:
            checkpoint = over_reference_tokens(manifest, checkpoint)
        is_given_base = checkpoint.name == BASE and checkpoint.format == IN_MEMORY
        if is_given_base and manifest is not None:
            check_is_reference(manifest, checkpoint)
        checkpoints.append(checkpoint)

    has_base = request.base is not None or any(
        checkpoint.name == BASE for checkpoint in checkpoints
    )
    # Checkpoints that are given as paths bring a base of their own.
    if has_base or request.checkpoints:
        return checkpoints
    return _with_base(checkpoints, manifest)


def _with_base(
    checkpoints: list[Checkpoint], manifest: Manifest | None
) -> list[Checkpoint]:
    """Put the base of the first adapter in front, if its module can show it."""
    for index, checkpoint in enumerate(checkpoints):
        base = checkpoint.on_base
        if base is None:
            continue
        if base.format != IN_MEMORY:
            return [base, *checkpoints]
        # With its adapter off a model may be another one than the manifest's base.
        if manifest is not None and is_reference(manifest, base):
            with_base_name = replace(checkpoint, base=manifest.reference.name)
            return [
                base,
                *checkpoints[:index],
                with_base_name,
                *checkpoints[index + 1 :],
            ]
    return checkpoints

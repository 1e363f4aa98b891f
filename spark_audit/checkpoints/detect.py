"""What a path is: its format decided by content, and how it is put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_audit.checkpoints import task_series
from spark_audit.checkpoints.checkpoint import Checkpoint, Stage
from spark_audit.checkpoints.formats import bare_weights, hf_folder, peft_adapter
from spark_audit.checkpoints.gguf_file import gguf_file
from spark_audit.checkpoints.locate import (
    HUB,
    WEIGHT_SUFFIXES,
    check_inside,
    locate,
    printable,
    readable,
)
from spark_audit.checkpoints.sidecar import NOISE, written_down
from spark_audit.checkpoints.specs import Loading, Spec, is_server, split_stage
from spark_audit.checkpoints.weight_files import CONFIGURATIONS, has_weights, lone_file
from spark_audit.errors import CheckpointError, InputError, at, shown
from spark_audit.names import BASE, CheckpointName, seeds_of
from spark_audit.terminal.suggestions import instead


def read_headers(source: str, loading: Loading) -> Checkpoint:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, number = split_stage(source)
    path = loading.locate(text)
    with at(source), readable():
        places = formats_of(path)
        if len(places) != 1:
            raise _no_checkpoint(path, [*places])
        ((name, place),) = places.items()
        if name == SERIES:
            stage, stages, notes = task_series.choose(path, number)
            made = read_headers(str(stage), loading)
            return replace(
                made,
                source=printable(text) + (f"@{number}" if number else ""),
                where=source,
                stages=stages,
                notes=(*notes, *made.notes),
            )
        if number is not None:
            what = f"is one checkpoint, not a series: @{number} does not apply"
            raise CheckpointError(what)
        if place != path:
            check_inside(place)
        made = READERS[name](place, loading)
        # The file of an adapter's folder is what the folder is.
        trained_on, noise_sha256 = written_down(made.folder, made.files)
    given: Any = {"loading": loading, "base": loading.base or made.base}
    given |= {"source": printable(source), "where": source, "format": name}
    return replace(
        made,
        **given,
        host=made.host and replace(made.host, **given),
        trained_on=trained_on,
        noise_sha256=noise_sha256,
    )


def _no_checkpoint(path: Path, formats: list[str]) -> CheckpointError:
    what = f"reads as {' and as '.join(formats)}" if formats else "is no checkpoint"
    children = sorted(path.iterdir()) if path.is_dir() else []
    inside = [one.name for one in children if one.is_dir() and formats_of(one)]
    if inside:
        what += f" (these folders in it are: {', '.join(inside[:5])})"
    otherwise = (
        "give a folder with config.json or adapter_config.json, or a weights file"
    )
    fix = instead(path, wanted="checkpoint", otherwise=otherwise)
    return CheckpointError(what, fix=fix)


SERIES = "task-series"
READERS: Mapping[str, Callable[[Path, Loading], Checkpoint]] = {
    "bare-weights": bare_weights,
    "gguf-file": gguf_file,
    "hf-folder": hf_folder,
    "peft-adapter": peft_adapter,
}
"""By the format's name: how a path of it is put together."""


def formats_of(path: Path) -> dict[str, Path]:
    """The formats that a path is of, by its content, each with what is read for it."""
    model, adapter = ((path / name).exists() for name in CONFIGURATIONS)
    full = has_weights(path)
    places = {
        "bare-weights": lone_file(path, WEIGHT_SUFFIXES, CONFIGURATIONS),
        "gguf-file": lone_file(path, (".gguf",), CONFIGURATIONS[:1]),
        "hf-folder": path if model and (full or not adapter) else None,
        "peft-adapter": path if adapter and not full else None,
        SERIES: path if task_series.detect(path) else None,
    }
    return {name: place for name, place in places.items() if place is not None}


def series(source: str) -> tuple[Stage, ...]:
    """The stages of a series in order; none when it is a single checkpoint."""
    if is_server(source):
        return ()
    path = locate(split_stage(source)[0])
    if not task_series.detect(path):
        return ()
    with at(source):
        return task_series.stages(path)


def expand(spec: Spec) -> tuple[Spec, ...]:
    """One spec a stage, named ``NAME@K``: a list of paths is itself a series.

    Returns
    -------
    tuple
        The spec alone when it is a single checkpoint or names its stage.
    """
    if len(spec.paths) > 1:
        steps = [(path, spec.stage) for path in spec.paths]
    elif spec.stage is None and (stages := series(spec.paths[0])):
        steps = [(spec.paths[0], str(k)) for k in range(1, len(stages) + 1)]
    else:
        return (spec,)
    return tuple(
        Spec(str(CheckpointName(spec.name, stage=k)), (path,), stage)
        for k, (path, stage) in enumerate(steps, start=1)
    )


def read_all(specs: Sequence[Spec], loading: Loading) -> list[Checkpoint]:
    """The checkpoints of a call, the base first where one is needed.

    Raises
    ------
    CheckpointError
        If an adapter's base is not known, not here, or itself an adapter, or two
        adapters name different ones.
    """
    for spec in specs:
        if spec.name == BASE:
            loading = _with_base(spec, loading)
    items = [
        replace(read_headers(source, loading), name=name)
        for spec in specs
        if spec.name != BASE
        for name, source in zip(
            seeds_of(spec.name, len(spec.sources)), spec.sources, strict=True
        )
    ]
    adapters, given = [item for item in items if not item.complete], loading.base
    for item in adapters:
        if given is None:
            given = _named(item)
        elif not same_path(given, str(item.base)):
            raise CheckpointError(
                f"the adapters name different bases ({given}, {item.base})",
                where="--ckpt",
                fix="give --base if both are one model, else audit them separately",
            )
    if given is None or not (adapters or loading.include_base):
        return items
    base = replace(read_headers(given, loading), name=BASE)
    if base.adapter:
        raise CheckpointError(
            "the base is itself an adapter",
            where=base.where,
            fix="give the model it was trained on",
        )
    return [base, *(_on(base, item) for item in items)]


def _named(item: Checkpoint) -> str:
    """The base that an adapter names: a path only, for whoever made it asks no host."""
    with at(item.where):
        if item.base is None:
            raise CheckpointError("the adapter names no base", fix="give --base MODEL")
        try:
            locate(item.base, hub=False)
        except CheckpointError as error:
            raise CheckpointError(
                f"the adapter's base {shown(item.base)} is not here",
                fix=f"give --base MODEL (a folder, or {HUB}ORG/NAME)",
            ) from error
    return item.base


def _on(base: Checkpoint, item: Checkpoint) -> Checkpoint:
    """An adapter on its base; full weights as they are.

    Raises
    ------
    CheckpointError
        If the base has frozen noise, or the adapter was trained on another one: shapes
        do not tell, the adapter fits every model of that architecture.
    """
    if item.complete:
        return item
    with at(item.where):
        if os.path.lexists(base.folder / NOISE):
            raise CheckpointError(
                f"the base has frozen noise of its own ({NOISE}): with an adapter on "
                "it, neither says whether it holds",
                fix="give the model without it as the base",
            )
        there = base.sha256
        if item.trained_on not in (None, there):
            both = f"{str(item.trained_on)[:16]}, not {there[:16]}"
            raise CheckpointError(
                f"was trained on another base ({both})",
                fix="give the one it was trained on by --base",
            )
    return replace(item, host=base)


def _with_base(spec: Spec, loading: Loading) -> Loading:
    """``--ckpt base=MODEL`` says what ``--base MODEL`` says."""
    if len(spec.paths) > 1:
        raise InputError("the base is one model, not several", where="--ckpt base=")
    if loading.base is not None and not same_path(loading.base, spec.sources[0]):
        raise InputError(
            f"the base is given twice: {loading.base} and {spec.sources[0]}",
            where="--ckpt base=",
            fix="give one of them",
        )
    return replace(loading, base=spec.sources[0], include_base=True)


def same_path(one: str, other: str) -> bool:
    """Whether two paths name one place."""
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()

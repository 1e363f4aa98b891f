"""What a path is: its format decided by content, and how it is put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from spark_audit.checkpoints.checkpoint import Checkpoint, Stage
from spark_audit.checkpoints.formats import task_series
from spark_audit.checkpoints.formats.bare_weights import bare_weights
from spark_audit.checkpoints.formats.folders import (
    hf_folder,
    is_adapter,
    is_model,
    peft_adapter,
)
from spark_audit.checkpoints.formats.gguf_file import gguf_file
from spark_audit.checkpoints.locate import (
    HUB,
    WEIGHT_SUFFIXES,
    check_inside,
    locate,
    printable,
)
from spark_audit.checkpoints.server import is_server
from spark_audit.checkpoints.sidecar import NOISE, written_down
from spark_audit.checkpoints.specs import Loading, Spec, split_stage
from spark_audit.checkpoints.weight_files import CONFIGURATIONS, lone_file
from spark_audit.errors import CheckpointError, InputError, at, shown
from spark_audit.names import BASE, CheckpointName, seeds_of
from spark_audit.terminal.suggestions import instead

Detect: TypeAlias = Callable[[Path], Path | None]
Read: TypeAlias = Callable[[Path, Loading], Checkpoint]


def read_headers(source: str, loading: Loading) -> Checkpoint:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, number = split_stage(source)
    path = loading.locate(text)
    with at(source):
        places = _formats(path)
        if len(places) != 1:
            what = "is no checkpoint"
            if places:
                what = f"reads as {' and as '.join(places)}"
            children = sorted(path.iterdir()) if path.is_dir() else []
            inside = [one.name for one in children if one.is_dir() and _formats(one)]
            if inside:
                what += f" (these folders in it are: {', '.join(inside[:5])})"
            otherwise = "give a folder with config.json or adapter_config.json, or a "
            raise CheckpointError(
                what,
                fix=instead(
                    path, wanted="checkpoint", otherwise=otherwise + "weights file"
                ),
            )
        ((name, place),) = places.items()
        if name != SERIES and number is not None:
            raise CheckpointError(
                f"is one checkpoint, not a series: @{number} does not apply"
            )
        try:
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
            if place != path:
                check_inside(place)
            made = FORMATS[name][1](place, loading)
            # The file of an adapter's folder is what the folder is.
            files = [file for part in made.parts for file in part.files]
            trained_on, noise_sha256 = written_down(made.folder, files)
        except OSError as error:
            raise CheckpointError(
                f"cannot be read ({error.strerror or error})"
            ) from error
    return replace(
        made,
        base=loading.base or made.base,
        loading=loading,
        format=name,
        source=printable(source),
        where=source,
        trained_on=trained_on,
        noise_sha256=noise_sha256,
    )


SERIES = "task-series"
FORMATS: Mapping[str, tuple[Detect, Read]] = {
    "bare-weights": (
        lambda path: lone_file(path, WEIGHT_SUFFIXES, CONFIGURATIONS),
        bare_weights,
    ),
    "gguf-file": (
        lambda path: lone_file(path, (".gguf",), CONFIGURATIONS[:1]),
        gguf_file,
    ),
    "hf-folder": (lambda path: path if is_model(path) else None, hf_folder),
    "peft-adapter": (lambda path: path if is_adapter(path) else None, peft_adapter),
}
"""By name: what is read where a path is of the format, and how it is put together."""


def _formats(path: Path) -> dict[str, Path]:
    places = {name: detect(path) for name, (detect, _) in FORMATS.items()}
    places[SERIES] = path if task_series.detect(path) else None
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
        As :func:`with_base`; also when adapters name different bases.
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
    adapters = [item for item in items if item.weights is None]
    for other in adapters[1:]:
        if not same_path(str(adapters[0].base), str(other.base)):
            raise CheckpointError(
                f"the adapters name different bases ({adapters[0].base}, {other.base})",
                where="--ckpt",
                fix="give --base if both are one model, else audit them separately",
            )
    if adapters:
        base = with_base(adapters[0]).on
        return [base, *(with_base(item, base) for item in items)]
    if loading.base is not None and loading.include_base:
        return [_read_base(loading.base, loading), *items]
    return items


def with_base(item: Checkpoint, base: Checkpoint | None = None) -> Checkpoint:
    """An adapter with the base that it is given or names, full weights as they are.

    Raises
    ------
    CheckpointError
        If no base is known, it is not here, it is itself an adapter, it has frozen
        noise, or the adapter was trained on another one: shapes do not tell, the
        adapter fits every model of that architecture.
    """
    if item.weights is not None:
        return item
    with at(item.where):
        if item.base is None:
            raise CheckpointError("the adapter names no base", fix="give --base MODEL")
        if base is None and item.loading.base is None:
            try:
                # A path only: whoever made the adapter does not choose whom we ask.
                locate(item.base, hub=False)
            except CheckpointError as error:
                raise CheckpointError(
                    f"the adapter's base {shown(item.base)} is not here",
                    fix=f"give --base MODEL (a folder, or {HUB}ORG/NAME)",
                ) from error
        base = base or _read_base(item.base, item.loading)
        if os.path.lexists(base.folder / NOISE):
            raise CheckpointError(
                f"the base has frozen noise of its own ({NOISE}): with an adapter on "
                "it, neither says whether it holds",
                fix="give the model without it as the base",
            )
        if item.trained_on is not None and base.full.sha256 != item.trained_on:
            raise CheckpointError(
                f"was trained on another base ({item.trained_on[:16]}, not "
                f"{base.full.sha256[:16]})",
                fix="give the one it was trained on by --base",
            )
    return replace(item, host=base)


def _read_base(source: str, loading: Loading) -> Checkpoint:
    base = read_headers(source, loading)
    if base.weights is None or base.adapter is not None:
        raise CheckpointError(
            "the base is itself an adapter",
            where=base.where,
            fix="give the model it was trained on",
        )
    return replace(base, name=BASE)


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

"""What a path is: its format decided by content, and how it is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from spark_audit.checkpoints.checkpoint import Checkpoint, Stage
from spark_audit.checkpoints.formats import (
    bare_weights,
    folders,
    gguf_file,
    task_series,
)
from spark_audit.checkpoints.locate import locate, printable
from spark_audit.checkpoints.server import is_server
from spark_audit.checkpoints.sidecar import written_down
from spark_audit.checkpoints.specs import Loading, split_stage
from spark_audit.errors import CheckpointError, at
from spark_audit.terminal.suggestions import instead

Detect: TypeAlias = Callable[[Path], bool]
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
        names = _formats(path)
        if len(names) != 1:
            what = f"reads as {' and as '.join(names)}" if names else "is no checkpoint"
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
        if names != [SERIES] and number is not None:
            raise CheckpointError(
                f"is one checkpoint, not a series: @{number} does not apply"
            )
        try:
            if names == [SERIES]:
                stage, stages, notes = task_series.choose(path, number)
                made = read_headers(str(stage), loading)
                return replace(
                    made,
                    source=printable(text) + (f"@{number}" if number else ""),
                    where=source,
                    stages=stages,
                    notes=(*notes, *made.notes),
                )
            made = FORMATS[names[0]][1](path, loading)
            # The file of an adapter's folder is what the folder is.
            parts = [part for part in (made.weights, made.adapter) if part is not None]
            files = [file for part in parts for file in part.files]
            trained_on, noise_sha256 = written_down(made.folder, files)
        except OSError as error:
            raise CheckpointError(
                f"cannot be read ({error.strerror or error})"
            ) from error
    return replace(
        made,
        base=loading.base or made.base,
        loading=loading,
        format=names[0],
        source=printable(source),
        where=source,
        trained_on=trained_on,
        noise_sha256=noise_sha256,
    )


SERIES = "task-series"
FORMATS: Mapping[str, tuple[Detect, Read]] = {
    "bare-weights": (bare_weights.detect, bare_weights.bare_weights),
    "gguf-file": (gguf_file.detect, gguf_file.gguf_file),
    "hf-folder": (folders.is_model, folders.hf_folder),
    "peft-adapter": (folders.is_adapter, folders.peft_adapter),
}
"""By name: whether a path is of the format, and how it is put together."""


def _formats(path: Path) -> list[str]:
    names = [name for name, (detect, _) in FORMATS.items() if detect(path)]
    return names + [SERIES] * task_series.detect(path)


def series(source: str) -> tuple[Stage, ...]:
    """The stages of a series in order; none when it is a single checkpoint."""
    if is_server(source):
        return ()
    path = locate(split_stage(source)[0])
    if not task_series.detect(path):
        return ()
    with at(source):
        return task_series.stages(path)

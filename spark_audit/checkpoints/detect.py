"""What a path is: its format decided by content, and how it is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from spark_audit.checkpoints.formats import (
    bare_weights,
    gguf_file,
    hf_folder,
    peft_adapter,
    task_series,
)
from spark_audit.checkpoints.locate import locate
from spark_audit.checkpoints.recipe import Given, Recipe, Stage
from spark_audit.checkpoints.server import is_server
from spark_audit.checkpoints.specs import Loading, split_stage
from spark_audit.errors import CheckpointError
from spark_audit.terminal.suggestions import instead

Detect: TypeAlias = Callable[[Path], bool]
Open: TypeAlias = Callable[[Path, Given], Recipe]


def recipe(source: str, loading: Loading) -> Recipe:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, stage = split_stage(source)
    given = Given(**{**vars(loading), "where": source, "stage": stage})
    path = locate(text, revision=given.revision, code=given.trust_remote_code)
    names = _formats(path)
    if len(names) != 1:
        what = f"reads as {' and as '.join(names)}" if names else "is no checkpoint"
        children = sorted(path.iterdir()) if path.is_dir() else []
        inside = [
            child.name for child in children if child.is_dir() and _formats(child)
        ]
        if inside:
            what += f" (these folders in it are: {', '.join(inside[:5])})"
        raise CheckpointError(
            what,
            where=source,
            fix=instead(
                path,
                wanted="checkpoint",
                otherwise="give a folder with config.json or adapter_config.json, or "
                "a weights file",
            ),
        )
    if stage is not None and names != ["task-series"]:
        raise CheckpointError(
            f"is one checkpoint, not a series: @{stage} does not apply", where=source
        )
    try:
        return FORMATS[names[0]][1](path, given)
    except OSError as error:
        raise CheckpointError(
            f"cannot be read ({error.strerror or error})", where=source
        ) from error


FORMATS: Mapping[str, tuple[Detect, Open]] = {
    "bare-weights": (bare_weights.detect, bare_weights.bare_weights),
    "gguf-file": (gguf_file.detect, gguf_file.gguf_file),
    "hf-folder": (hf_folder.detect, hf_folder.hf_folder),
    "peft-adapter": (peft_adapter.detect, peft_adapter.peft_adapter),
    "task-series": (
        task_series.detect,
        partial(task_series.task_series, recipe=recipe),
    ),
}
"""By name: whether a path is of the format, and how it is put together."""


def _formats(path: Path) -> list[str]:
    return [name for name, (detect, _) in FORMATS.items() if detect(path)]


def series(source: str) -> tuple[Stage, ...]:
    """The stages of a series in order; none when it is a single checkpoint."""
    if is_server(source):
        return ()
    path = locate(split_stage(source)[0])
    if not task_series.detect(path):
        return ()
    return tuple(task_series.stages(path, where=source))

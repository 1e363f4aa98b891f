"""What a path is, by its content.

A model's folder, PEFT's, a weights file, GGUF, or a series of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_audit.checkpoints import specs, untrusted, weight_files
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.formats.bare_weights import bare_weights
from spark_audit.checkpoints.formats.gguf_file import gguf_file
from spark_audit.checkpoints.formats.hf_folder import hf_folder
from spark_audit.checkpoints.formats.peft_adapter import peft_adapter
from spark_audit.errors import CheckpointError, at, shown
from spark_audit.files import instead


def read_headers(source: str, loading: specs.Loading) -> Checkpoint:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, number = specs.split_stage(source)
    path = loading.locate(text)
    with at(source), untrusted.readable():
        places = formats_of(path)
        if len(places) != 1:
            raise _no_checkpoint(path, [*places])
        ((name, (place, read)),) = places.items()
        if read is None:
            stage, notes = specs.choose_stage(path, number)
            made = read_headers(str(stage), loading)
            name = untrusted.printable(text) + (f"@{number}" if number else "")
            notes += made.notes
            return replace(made, source=name, where=source, notes=notes)
        if number is not None:
            what = "is one checkpoint, not a series"
            raise CheckpointError(f"{what}: @{number} does not apply")
        if place != path:
            untrusted.check_inside(place)
        made = read(place, loading)
    given: Any = {"loading": loading, "base": loading.base or made.base}
    given |= {"source": untrusted.printable(source), "where": source, "format": name}
    given["host"] = made.host and replace(made.host, **given)
    return replace(made, **given)


def _no_checkpoint(path: Path, formats: list[str]) -> CheckpointError:
    run = {} if formats else specs.read_run(path)
    if run.get("status") == "running":
        what = "is a run of spark-train that has not finished a stage"
        fix = f"give the same `spark-train run -o {shown(str(path))}` again: it goes on"
        return CheckpointError(what, fix=fix)
    what = f"reads as {' and as '.join(formats)}" if formats else "is no checkpoint"
    inside = [one.name for one in sorted(path.glob("*/")) if formats_of(one)]
    if inside:
        what += f" (these folders in it are: {', '.join(inside[:5])})"
    otherwise = "give a folder with config.json or adapter_config.json, or weights"
    return CheckpointError(what, fix=instead(path, otherwise))


Reader = Callable[[Path, specs.Loading], Checkpoint]


def formats_of(path: Path) -> dict[str, tuple[Path, Reader | None]]:
    """The formats that a path is of, by its content.

    Each with what is read for it, and how that is put together; a series is not.
    """
    model, adapter = ((path / name).exists() for name in untrusted.CONFIGURATIONS)
    full = weight_files.weights_of(path)
    file = None if model or adapter else weight_files.lone_file(path)
    gguf = None if model else weight_files.lone_file(path, (".gguf",))
    table: dict[str, tuple[Path | None, Reader | None]] = {
        "bare-weights": (file, bare_weights),
        "gguf-file": (gguf, gguf_file),
        "hf-folder": (path if model and (full or not adapter) else None, hf_folder),
        "peft-adapter": (path if adapter and not full else None, peft_adapter),
        "task-series": (path if specs.is_series(path) else None, None),
    }
    return {name: (place, read) for name, (place, read) in table.items() if place}

"""What a path is, by its content.

A model's folder, PEFT's, a weights file, GGUF, or a series of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spark_audit.checkpoints import (
    run_record,
    shards,
    specs,
    task_series,
    untrusted,
    weight_files,
)
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.formats.bare_weights import bare_weights
from spark_audit.checkpoints.formats.gguf_file import gguf_file
from spark_audit.checkpoints.formats.hf_folder import hf_folder
from spark_audit.checkpoints.formats.mlx_adapter import is_mlx_adapter, mlx_adapter
from spark_audit.checkpoints.formats.peft_adapter import peft_adapter
from spark_audit.errors import CheckpointError, at, shown
from spark_audit.wrong_paths import instead


def read_headers(source: str, loading: specs.Loading) -> Checkpoint:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, stage_given = specs.split_stage(source)
    number, half = specs.split_half(stage_given)
    path = loading.locate(text)
    with at(source), untrusted.readable():
        places = formats_of(path)
        if half is not None and "task-series" not in places:
            places = _chosen(places, half)
        if len(places) != 1:
            raise _no_checkpoint(path, places)
        ((name, (place, read)),) = places.items()
        if read is None:
            stage, notes = task_series.choose_stage(path, number)
            made = read_headers(f"{stage}@{half}" if half else str(stage), loading)
            name = untrusted.printable(text)
            name += f"@{stage_given}" if stage_given else ""
            notes += made.notes
            return replace(made, source=name, where=source, notes=notes)
        if number is not None:
            what = "is one checkpoint, not a series"
            raise CheckpointError(f"{what}: @{number} does not apply")
        if place != path:
            untrusted.check_inside(place)
        if place.is_file():
            shards.refuse_shards(place)
        made = read(place, loading)

    def placed(checkpoint: Checkpoint, host: Checkpoint | None) -> Checkpoint:
        return replace(
            checkpoint,
            loading=loading,
            base=loading.base or made.base,
            source=untrusted.printable(source),
            where=source,
            format=name,
            host=host,
        )

    host = None if made.host is None else placed(made.host, made.host.host)
    return placed(made, host)


Reader = Callable[[Path, specs.Loading], Checkpoint]
Formats = dict[str, tuple[Path, Reader | None]]
"""The formats that a path is of, each with its place, and what reads that."""


def formats_of(path: Path) -> Formats:
    """The formats that a path is of, by its content.

    Each with what is read for it, and how that is put together; a series is not.
    """
    model, adapter = ((path / name).exists() for name in untrusted.CONFIGURATIONS)
    full = weight_files.weights_of(path)
    lone = None if model or adapter else weight_files.lone_file(path)
    # What accelerate and zero_to_fp32 save has no configuration.
    bare = lone or (None if model or full is None else path)
    mlx = adapter and is_mlx_adapter(path)
    gguf = None if full else weight_files.lone_file(path, (".gguf",))
    # Beside a configuration without weights may lie folders of named adapters.
    has_own = full is not None or not (adapter or (model and _holds_adapters(path)))
    is_folder = model and gguf is None and has_own
    table: dict[str, tuple[Path | None, Reader | None]] = {
        "bare-weights": (bare, bare_weights),
        "gguf-file": (gguf, gguf_file),
        "hf-folder": (path if is_folder else None, hf_folder),
        "mlx-adapter": (path if mlx else None, mlx_adapter),
        "peft-adapter": (path if adapter and not mlx else None, peft_adapter),
        "task-series": (path if task_series.is_series(path) else None, None),
    }
    return {name: (place, read) for name, (place, read) in table.items() if place}


def _holds_adapters(path: Path) -> bool:
    return any(path.glob("*/adapter_config.json"))


def _checkpoints_in(path: Path) -> list[Path]:
    """Return the folders in a folder that hold one, else those a step further down.

    They are a step further down in the hub's cache (``snapshots``), for instance.
    """
    for pattern in ("*/", "*/*/"):
        found = [folder for folder in sorted(path.glob(pattern)) if formats_of(folder)]
        if found:
            return found
    return []


def _chosen(places: Formats, half: str) -> Formats:
    """The format that ``@full`` or ``@adapter`` selects."""
    chosen = {name: places[name] for name in specs.HALVES[half] if name in places}
    if not chosen:
        thing = "full weights" if half == "full" else "adapter"
        raise CheckpointError(f"holds no {thing}: @{half} does not apply")
    return chosen


def _no_checkpoint(path: Path, formats: Formats) -> CheckpointError:
    """Why a path is not exactly one checkpoint, and what to write for those in it."""
    run = {} if formats else run_record.read_run(path)
    if run.get("status") == "running":
        what = "is a run of spark-train that has not finished a stage"
        fix = f"give the same `spark-train run -o {shown(str(path))}` again: it goes on"
        return CheckpointError(what, fix=fix)
    has_weights = weight_files.weights_of(path, weight_files.ADAPTER_FILES) is not None
    if "peft-adapter" in formats and not has_weights:
        what = "holds full weights, and an adapter_config.json without its weights"
        fix = f"write {path.name}@full if the adapter's tensors are in the full "
        fix += "weights (as accelerate saves a PEFT model), or copy "
        fix += "adapter_model.safetensors there"
        return CheckpointError(what, fix=fix)
    if formats.keys() & {"peft-adapter", "mlx-adapter"}:
        what = "holds full weights and an adapter: which of them is meant?"
        fix = f"write {path.name}@full for the weights as they are (torchtune's are "
        fix += f"merged), or {path.name}@adapter for the adapter, with its --base"
        return CheckpointError(what, fix=fix)
    if formats:
        what = f"reads as {' and as '.join(formats)}"
    else:
        shards.refuse_shards(path)
        what = "is no checkpoint"

    folders = [str(one.relative_to(path)) for one in _checkpoints_in(path)]
    files = [
        one.name
        for suffixes in (untrusted.WEIGHT_SUFFIXES, (".gguf",))
        for one in (
            sorted(untrusted.weights_in(path, suffixes)) if path.is_dir() else ()
        )
    ]
    inside = folders or files
    otherwise = "give a folder with config.json or adapter_config.json, or weights"
    if inside:
        kind = "folders" if folders else "files"
        what += f" (these {kind} in it are: {', '.join(inside[:5])})"
        otherwise = f"give one of them, such as {path.name}/{inside[0]}"
    return CheckpointError(what, fix=instead(path, otherwise))

"""Recognise what a path holds, by its content: **new formats are added here**.

:func:`formats_of` has a table of the formats: a model's folder, a folder of PEFT's or
of MLX's, a file of weights, GGUF, or a series of these. Each has a file in ``formats/``
that makes a
:class:`~spark_audit.checkpoints.stored_checkpoint.StoredCheckpoint` of it. A new type
of adapters in PEFT's folders is not a format: see
:mod:`spark_audit.checkpoints.adapter_config`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from spark_audit.checkpoints import (
    run_record,
    shards,
    specs,
    task_series,
    untrusted,
    weight_files,
)
from spark_audit.checkpoints.formats.bare_weights import bare_weights
from spark_audit.checkpoints.formats.gguf_file import gguf_file
from spark_audit.checkpoints.formats.hf_folder import hf_folder
from spark_audit.checkpoints.formats.mlx_adapter import is_mlx_adapter, mlx_adapter
from spark_audit.checkpoints.formats.peft_adapter import peft_adapter
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.errors import CheckpointError, at, shown
from spark_audit.wrong_paths import instead

# "config.json" and "adapter_config.json".
MODEL_CONFIG, ADAPTER_CONFIG = untrusted.CONFIGURATIONS
# Most names in a folder that an error lists.
_N_NAMED = 5


@dataclass(frozen=True)
class RecognisedFormat:
    """A format that was recognised at a path.

    Attributes
    ----------
    path
        The file or folder to read: the path itself, or the only weights file in it.
    read
        Makes a checkpoint from headers; ``None`` for a series, which consists of
        checkpoints of other formats.
    """

    path: Path
    read: Callable[[Path, specs.Loading], StoredCheckpoint] | None


def read_headers(source: str, loading: specs.Loading) -> StoredCheckpoint:
    """Recognise what a path holds, and return its checkpoint, from headers.

    Raises
    ------
    CheckpointError
        If it cannot be opened. The error says why.
    """
    # "runs/a@2:full" -> "runs/a" and "2:full" -> "2" and "full".
    path_text, suffix = specs.split_stage(source)
    step, half = specs.split_half(suffix)
    path = loading.locate(path_text)
    with at(source), untrusted.readable():
        formats = formats_of(path)
        if half is not None and "task-series" not in formats:
            formats = _chosen_half(formats, half)
        # Either nothing is recognised, or several formats are possible.
        if len(formats) != 1:
            raise _not_one_checkpoint(path, formats)

        ((name, recognised),) = formats.items()
        if recognised.read is None:
            return _read_stage(path, source, loading)

        if step is not None:
            problem = f"is one checkpoint, not a series: @{step} does not apply"
            raise CheckpointError(problem)
        if recognised.path != path:
            untrusted.check_inside(recognised.path)
        # A file may be a single shard, which its suffix does not show.
        if recognised.path.is_file():
            shards.refuse_shards(recognised.path)
        checkpoint = recognised.read(recognised.path, loading)

    return _described(checkpoint, name, source, loading)


def _read_stage(path: Path, source: str, loading: specs.Loading) -> StoredCheckpoint:
    """Return the stage of a series that ``PATH@K`` names, or else the last one.

    Parameters
    ----------
    path
        The series.
    source
        The path as it was typed, such as ``runs/a@2:full``.
    """
    path_text, suffix = specs.split_stage(source)
    # The step is "2", or "2:task" for the checkpoint before the stage's correction.
    step, half = specs.split_half(suffix)
    stage_folder, notes = task_series.choose_stage(path, step)
    stage_source = f"{stage_folder}@{half}" if half else str(stage_folder)
    checkpoint = read_headers(stage_source, loading)

    # Reports name the series and its stage, not the folder of the stage.
    printed = untrusted.printable(path_text)
    if suffix:
        printed += f"@{suffix}"
    return replace(
        checkpoint,
        source=printed,
        typed_path=source,
        notes=notes + checkpoint.notes,
    )


def _described(
    checkpoint: StoredCheckpoint, format_name: str, source: str, loading: specs.Loading
) -> StoredCheckpoint:
    """Return a checkpoint, and full weights of the same file, with typed options."""
    base = loading.base or checkpoint.base
    printed = untrusted.printable(source)
    base_weights = checkpoint.base_weights
    if base_weights is not None:
        base_weights = replace(
            base_weights,
            loading=loading,
            base=base,
            source=printed,
            typed_path=source,
            format=format_name,
        )
    return replace(
        checkpoint,
        loading=loading,
        base=base,
        source=printed,
        typed_path=source,
        format=format_name,
        base_weights=base_weights,
    )


def formats_of(path: Path) -> dict[str, RecognisedFormat]:
    """Return the formats of a path, by its content; a valid path has exactly one.

    ================  ==============================================================
    format            recognised by
    ================  ==============================================================
    ``bare-weights``  weights without a config.json beside them
    ``gguf-file``     one file of GGUF, and no other weights
    ``hf-folder``     config.json; without weights, only if no adapter is there
    ``mlx-adapter``   adapter_config.json, and adapters.safetensors of MLX
    ``peft-adapter``  adapter_config.json otherwise
    ``task-series``   numbered folders, or a list of paths
    ================  ==============================================================

    A new format gets a line here, a reader in ``formats/``, and an entry below.
    """
    has_config = (path / MODEL_CONFIG).exists()
    has_adapter_config = (path / ADAPTER_CONFIG).exists()
    full_weights = weight_files.weights_of(path)
    gguf_path = None
    if full_weights is None:
        gguf_path = weight_files.lone_file(path, (".gguf",))

    # Files by accelerate and zero_to_fp32 have no configuration.
    bare_path = None
    if not (has_config or has_adapter_config):
        bare_path = weight_files.lone_file(path)
    # A folder whose weights have a model's names but no config.json is read as a whole.
    if bare_path is None and full_weights is not None and not has_config:
        bare_path = path

    # A model's folder may have an adapter's configuration beside its weights. A
    # configuration without weights may lie beside that of an adapter, or beside folders
    # of named adapters, and is not a model then.
    has_model_weights = full_weights is not None
    is_model = (
        has_config
        and gguf_path is None
        and (has_model_weights or not _holds_adapters(path))
    )
    is_mlx = has_adapter_config and is_mlx_adapter(path)

    formats: dict[str, RecognisedFormat] = {}
    if bare_path is not None:
        formats["bare-weights"] = RecognisedFormat(bare_path, bare_weights)
    if gguf_path is not None:
        formats["gguf-file"] = RecognisedFormat(gguf_path, gguf_file)
    if is_model:
        formats["hf-folder"] = RecognisedFormat(path, hf_folder)
    if is_mlx:
        formats["mlx-adapter"] = RecognisedFormat(path, mlx_adapter)
    if has_adapter_config and not is_mlx:
        formats["peft-adapter"] = RecognisedFormat(path, peft_adapter)
    if task_series.is_series(path):
        formats["task-series"] = RecognisedFormat(path, None)
    return formats


def _holds_adapters(path: Path) -> bool:
    """Return whether a folder holds an adapter, or folders of adapters."""
    return (path / ADAPTER_CONFIG).exists() or any(path.glob(f"*/{ADAPTER_CONFIG}"))


def _chosen_half(
    formats: dict[str, RecognisedFormat], half: str
) -> dict[str, RecognisedFormat]:
    """Return the format that ``@full`` or ``@adapter`` selects.

    Raises
    ------
    CheckpointError
        If the folder has no such half.
    """
    chosen = {name: formats[name] for name in specs.HALVES[half] if name in formats}
    if not chosen:
        missing = "full weights" if half == "full" else "adapter"
        raise CheckpointError(f"holds no {missing}: @{half} does not apply")
    return chosen


def _not_one_checkpoint(
    path: Path, formats: dict[str, RecognisedFormat]
) -> CheckpointError:
    """Return the error about a path that is not exactly one checkpoint, with advice.

    Raises
    ------
    CheckpointError
        If the path is a shard, or holds shards: an error of its own.
    """
    # A run folder without a stage has no format yet.
    run = {} if formats else run_record.read_run(path)
    if run.get("status") == "running":
        problem = "is a run of spark-train that has not finished a stage"
        remedy = (
            f"give the same `spark-train run -o {shown(str(path))}` again: it goes on"
        )
        return CheckpointError(problem, fix=remedy)

    adapter_weights = weight_files.weights_of(path, weight_files.ADAPTER_FILES)
    if "peft-adapter" in formats and adapter_weights is None:
        problem = f"holds full weights, and an {ADAPTER_CONFIG} without its weights"
        remedy = (
            f"write {path.name}@full if the adapter's tensors are in the full "
            "weights (as accelerate saves a PEFT model), or copy "
            "adapter_model.safetensors there"
        )
        return CheckpointError(problem, fix=remedy)

    # With an adapter, the second format is always the full weights beside it.
    if "peft-adapter" in formats or "mlx-adapter" in formats:
        problem = "holds full weights and an adapter: which of them is meant?"
        remedy = (
            f"write {path.name}@full for the weights as they are (torchtune's are "
            f"merged), or {path.name}@adapter for the adapter, with its --base"
        )
        return CheckpointError(problem, fix=remedy)

    if formats:
        problem = f"reads as {' and as '.join(formats)}"
    else:
        shards.refuse_shards(path)
        problem = "is no checkpoint"
    return _with_content_of(path, problem)


def _with_content_of(path: Path, problem: str) -> CheckpointError:
    """Return an error that names the checkpoints in a path, if there are any."""
    names = [str(folder.relative_to(path)) for folder in _checkpoints_in(path)]
    found_kind = "folders"
    if not names and path.is_dir():
        found_kind = "files"
        for suffixes in (untrusted.WEIGHT_SUFFIXES, (".gguf",)):
            files = untrusted.weights_in(path, suffixes)
            names += [file.name for file in sorted(files)]

    advice = f"give a folder with {MODEL_CONFIG} or {ADAPTER_CONFIG}, or weights"
    if names:
        listed = ", ".join(names[:_N_NAMED])
        problem += f" (these {found_kind} in it are: {listed})"
        advice = f"give one of them, such as {path.name}/{names[0]}"
    return CheckpointError(problem, fix=instead(path, advice))


def _checkpoints_in(path: Path) -> list[Path]:
    """Return the folders of checkpoints in a folder, or else those one level deeper.

    One level deeper is where the hub's cache has them (``snapshots``), for instance.
    """
    for pattern in ("*/", "*/*/"):
        folders = [
            folder for folder in sorted(path.glob(pattern)) if formats_of(folder)
        ]
        if folders:
            return folders
    return []

"""Refuse weights in parts that only their own tool can join.

FSDP, DeepSpeed, Megatron and Meta's own code save one part per process. No part is a
model, and only the tool knows how to join them, so the error names its command. Another
tool gets a pattern of its files below, and a paragraph in ``_error_about``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spark_audit.errors import CheckpointError, shown

_RESULT = "then give the result (with --base, if it has no config.json)"
_FSDP_FOLDER = re.compile(r"pytorch_model_fsdp_\d+")
_ZERO_FOLDER = re.compile(r"global_step\d+")
_ZERO_FILE = re.compile(r".*zero_pp_rank_\d+_mp_rank_\d+_.*\.pt")
_RANK_FILE = re.compile(r"model_world_size_\d+_rank_\d+\.pt")
_META_FILE = re.compile(r"consolidated\.(?!00\.pth)\d+\.pth")
_MEGATRON = re.compile(r"(?:iter_\d+|mp_rank_\d+(?:_\d+)*)")


def refuse_shards(path: Path) -> None:
    """Refuse a folder or file with one process's part of the weights.

    Raises
    ------
    CheckpointError
        Names the tool, and the command that joins the parts.
    """
    entries = _entries(path) if path.is_dir() else iter([path])
    for entry in entries:
        error = _error_about(entry)
        if error is not None:
            raise error


def _entries(folder: Path) -> Iterator[Path]:
    """Yield a folder, its entries, and the entries of its folders.

    Two levels, because tools make a folder for each step.
    """
    yield folder
    inner = sorted(folder.iterdir())
    yield from inner
    for entry in inner:
        if entry.is_dir() and not entry.is_symlink():
            yield from sorted(entry.iterdir())


def _error_about(entry: Path) -> CheckpointError | None:
    """Return the error about a file or folder of such a tool, if it is one."""
    # No tool uses the names of another, so the first match is right.
    name = entry.name
    is_folder = entry.is_dir()
    if is_folder and _FSDP_FOLDER.fullmatch(name):
        problem = f"holds FSDP shards ({shown(name)}), a part of the weights each"
        return _with_command(problem, f"accelerate merge-weights {_path(entry)} OUT")

    if name.endswith(".distcp"):
        return _error_about_distributed(entry)

    is_zero_folder = is_folder and _ZERO_FOLDER.fullmatch(name)
    if is_zero_folder or _ZERO_FILE.fullmatch(name):
        # DeepSpeed puts its script beside the folders of steps.
        run_folder = entry.parent if is_zero_folder else entry.parent.parent
        script = _path(run_folder / "zero_to_fp32.py")
        problem = (
            f"holds DeepSpeed ZeRO shards ({shown(name)}), a part of the weights each"
        )
        command = (
            f"python {script} {_path(run_folder)} OUT (DeepSpeed wrote the script)"
        )
        return _with_command(problem, command)

    if _RANK_FILE.fullmatch(name):
        problem = f"holds shards of verl ({shown(name)}), a part of the weights each"
        command = "python -m verl.model_merger merge --backend fsdp --local_dir "
        command += f"{_path(entry.parent)} --target_dir OUT"
        return _with_command(problem, command)

    if _META_FILE.fullmatch(name):
        problem = f"holds Meta's shards ({shown(name)}), a slice of each tensor"
        command = "python -m transformers.models.llama.convert_llama_weights_to_hf "
        command += f"--input_dir {_path(entry.parent)} --output_dir OUT"
        remedy = f"convert them: {command}, then give OUT"
        return CheckpointError(problem, fix=remedy)

    if is_folder and _MEGATRON.fullmatch(name):
        problem = f"holds Megatron's shards ({shown(name)}), a slice of each tensor"
        remedy = (
            "export them to Hugging Face's format with Megatron Bridge "
            "(AutoBridge.export_ckpt), then give the result"
        )
        return CheckpointError(problem, fix=remedy)
    return None


def _error_about_distributed(file: Path) -> CheckpointError:
    """Return the error about a shard of torch.distributed.checkpoint."""
    problem = f"holds shards of torch.distributed.checkpoint ({shown(file.name)})"
    if _FSDP_FOLDER.fullmatch(file.parent.name):
        command = f"accelerate merge-weights {_path(file.parent)} OUT"
        return _with_command(problem, command)
    command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
    return _with_command(problem, f"{command}{_path(file.parent)} OUT.pt")


def _with_command(problem: str, command: str) -> CheckpointError:
    """Return an error with the command that joins the parts."""
    return CheckpointError(problem, fix=f"put them together: {command}, {_RESULT}")


def _path(path: Path) -> str:
    """Return a path in its form for an error."""
    return shown(str(path))

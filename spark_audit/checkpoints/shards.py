"""Weights in parts that only the tool which wrote them puts together.

FSDP, DeepSpeed, Megatron and Meta's own code save a part per process. No part is a
model, and how they fit together stands in the tool: what is refused names the command.
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
    """Refuse a folder, or a file, that holds a part of the weights of each process.

    Raises
    ------
    CheckpointError
        With the tool that wrote them, and the command that makes them whole.
    """
    places = _entries(path) if path.is_dir() else iter((path,))
    for place in places:
        for what, fix in _known_shards(place):
            raise CheckpointError(what, fix=fix)


def _entries(folder: Path) -> Iterator[Path]:
    """A folder, what is in it, and what is in the folders in it."""
    yield folder
    inner = sorted(folder.iterdir())
    yield from inner
    for place in inner:
        if place.is_dir() and not place.is_symlink():
            yield from sorted(place.iterdir())


def _known_shards(place: Path) -> Iterator[tuple[str, str]]:
    """What a place holds, and the command, if it is one of these tools' parts."""
    name, above = place.name, place.parent
    there = shown(str(place))

    if place.is_dir() and _FSDP_FOLDER.fullmatch(name):
        what = f"holds FSDP shards ({shown(name)}), a part of the weights each"
        command = f"accelerate merge-weights {there} OUT"
        yield what, f"put them together: {command}, {_RESULT}"

    if name.endswith(".distcp"):
        if _FSDP_FOLDER.fullmatch(above.name):
            command = f"accelerate merge-weights {shown(str(above))} OUT"
        else:
            command = (
                "python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
            )
            command += f"{shown(str(above))} OUT.pt"
        what = f"holds shards of torch.distributed.checkpoint ({shown(name)})"
        yield what, f"put them together: {command}, {_RESULT}"

    is_zero_folder = place.is_dir() and _ZERO_FOLDER.fullmatch(name)
    if is_zero_folder or _ZERO_FILE.fullmatch(name):
        folder = above if is_zero_folder else above.parent
        script = shown(str(folder / "zero_to_fp32.py"))
        what = (
            f"holds DeepSpeed ZeRO shards ({shown(name)}), a part of the weights each"
        )
        command = (
            f"python {script} {shown(str(folder))} OUT (DeepSpeed wrote the script)"
        )
        yield what, f"put them together: {command}, {_RESULT}"

    if _RANK_FILE.fullmatch(name):
        what = f"holds shards of verl ({shown(name)}), a part of the weights each"
        command = "python -m verl.model_merger merge --backend fsdp --local_dir "
        command += f"{shown(str(above))} --target_dir OUT"
        yield what, f"put them together: {command}, {_RESULT}"

    if _META_FILE.fullmatch(name):
        what = f"holds Meta's shards ({shown(name)}), a slice of each tensor"
        command = "python -m transformers.models.llama.convert_llama_weights_to_hf "
        command += f"--input_dir {shown(str(above))} --output_dir OUT"
        yield what, f"convert them: {command}, then give OUT"

    if place.is_dir() and _MEGATRON.fullmatch(name):
        what = f"holds Megatron's shards ({shown(name)}), a slice of each tensor"
        fix = "export them to Hugging Face's format with Megatron Bridge "
        yield what, f"{fix}(AutoBridge.export_ckpt), then give the result"

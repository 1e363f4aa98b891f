"""Write, replace and read the adapter in training as a PEFT folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel
from peft.utils import set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.files import (
    BLANK_DIGEST,
    alone,
    cannot_write,
    fact,
    sealed,
    sha256_file,
    write_atomically,
    write_text,
)
from spark_train.lora import (
    ADAPTER_NAME,
    EARLIER,
    rank_axis,
    rank_of,
    remove_earlier,
    set_earlier,
    whole_adapter,
)

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
"""Files of a PEFT adapter."""

HEADER_LENGTH_BYTES = 8
"""Bytes at the start of a safetensors file that hold the length of its header. The
tensors start at a multiple of this number."""

LAST = (CONFIG, "config.json")
"""Files that make a folder a checkpoint, so they are written last."""

TRAINED_ON = "trained_on.json"
"""A file beside an adapter with hashes: of the base that it was trained on, of its
frozen noise, and of its own files."""


def save_adapter(
    model: PeftModel,
    folder: Path,
    *,
    base: str,
    base_sha256: str | None = None,
    noise: Path | None = None,
) -> None:
    """Write the adapter in training as a PEFT folder.

    The same weights give the same bytes. If there is an earlier adapter, both are
    written as one, with the sum of their ranks and ``lora_alpha`` in proportion, so
    that the scale ``lora_alpha / r`` stays.

    Parameters
    ----------
    model
        A ``PeftModel``, whose adapters ``default`` and ``earlier`` are written.
    base
        The base model to name in the folder.
    base_sha256
        ``weights_sha256`` of that base, if it is known, for ``trained_on.json``: it
        distinguishes another model with the same name.
    noise
        A file of frozen noise for the adapter. It is put into the folder, as a hard
        link if possible. ``trained_on.json`` and the header of the weights hold its
        hash.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    config_text = _config_text(model, base=base)
    write_text(folder / CONFIG, config_text)

    state = {
        name: weight.detach().cpu().contiguous()
        for name, weight in sorted(whole_adapter(model).items())
    }
    weights = save(state, metadata={"format": "pt"})

    trained_on: dict[str, str | None] = {"base_sha256": base_sha256}
    if noise is not None:
        # With a large vocabulary it has a gigabyte, so a second name is enough.
        try:
            os.link(noise, folder / NOISE_FILE)
        except OSError:
            shutil.copyfile(noise, folder / NOISE_FILE)

        noise_sha256 = sha256_file(noise)
        trained_on["noise_sha256"] = noise_sha256
        # Also in the header of the weights, which are often copied without the other
        # files.
        weights = _with_metadata(weights, {"noise_sha256": noise_sha256})
    write_atomically(folder / WEIGHTS, lambda file: file.write(weights))

    # Written last: with its seal the folder is complete.
    files = {CONFIG: fact(config_text.encode()), WEIGHTS: fact(weights)}
    record = json.dumps({**trained_on, "files": files, "seal": BLANK_DIGEST}) + "\n"
    sealed_record = sealed(record.encode())
    write_atomically(folder / TRAINED_ON, lambda file: file.write(sealed_record))


def _config_text(model: PeftModel, *, base: str) -> str:
    """Return ``adapter_config.json`` of the adapter in training, always the same."""
    config = model.peft_config[ADAPTER_NAME].to_dict()
    config["base_model_name_or_path"] = base
    # Whoever loads the adapter gets it frozen, as PEFT itself writes it.
    config["inference_mode"] = True
    for name, value in config.items():
        # PEFT keeps sets, whose order differs between processes.
        if isinstance(value, set):
            config[name] = sorted(value)

    # Both are written as one adapter, with the sum of their ranks.
    if EARLIER in model.peft_config:
        earlier = model.peft_config[EARLIER]
        config["r"] += earlier.r
        config["lora_alpha"] += earlier.lora_alpha
    return json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"


def is_empty_folder(path: Path) -> bool:
    """Return whether a path is a folder without files; hidden files do not count."""
    return path.is_dir() and not any(path.glob("[!.]*"))


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``folder`` after the block.

    If the block fails, ``folder`` stays as it was. An empty folder is kept and filled,
    because it may be the working directory or a mount.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    # "." has no name of its own, and a link has that of another folder.
    target = folder.resolve()
    is_kept = is_empty_folder(target)
    parent = target if is_kept else target.parent
    temporary = parent / f".{target.name}.part"

    # If the same command runs twice, one writes after the other.
    with alone(temporary.with_suffix(".lock")):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary

            if is_kept:
                paths = sorted(temporary.iterdir(), key=lambda path: path.name in LAST)
                for path in paths:
                    os.replace(path, target / path.name)
            else:
                shutil.rmtree(target, ignore_errors=True)
                os.replace(temporary, target)
        except (OSError, SafetensorError) as error:
            # The library's own text may contain paths of the machine.
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise cannot_write(folder, OSError(None, reason)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _with_metadata(data: bytes, metadata: dict[str, str]) -> bytes:
    """Return a safetensors file with more metadata, in a fixed order.

    The library itself writes several entries in random order.
    """
    # The file has the length of the header, the header as JSON, and the tensors.
    header_start = HEADER_LENGTH_BYTES
    header_length = int.from_bytes(data[:header_start], "little")
    header_end = header_start + header_length
    header = json.loads(data[header_start:header_end])
    header["__metadata__"] |= metadata

    new_header = json.dumps(header, separators=(",", ":")).encode()
    # Blanks fill the header up, so that the tensors start at such a multiple.
    new_header += b" " * (-len(new_header) % HEADER_LENGTH_BYTES)
    new_length = len(new_header).to_bytes(HEADER_LENGTH_BYTES, "little")
    return new_length + new_header + data[header_end:]


def load_adapter(model: PeftModel, folder: Path) -> None:
    """Put the weights of :func:`save_adapter` into the adapter in training.

    If the folder's adapter has a larger rank, its last ranks belong to the adapter in
    training, and the others to the earlier adapter (see ``whole_adapter``); else there
    is no earlier adapter. The folder belongs to the run, and was checked.
    """
    state = load_file(folder / WEIGHTS)

    # Cut off the ranks of earlier tasks.
    rank = model.peft_config[ADAPTER_NAME].r
    earlier_rank = rank_of(state) - rank
    if earlier_rank:
        earlier_state: dict[str, torch.Tensor] = {}
        for name, weight in state.items():
            earlier_state[name], state[name] = torch.split(
                weight, [earlier_rank, rank], dim=rank_axis(name)
            )
        set_earlier(model, earlier_state)
    elif EARLIER in model.peft_config:
        remove_earlier(model)
    set_peft_model_state_dict(model, state, adapter_name=ADAPTER_NAME)

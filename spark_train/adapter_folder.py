"""The adapter in training as a PEFT folder: written, replaced as a whole, read."""

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
    set_earlier,
    whole_adapter,
)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

LAST = (CONFIG, "config.json")

TRAINED_ON = "trained_on.json"
"""Beside an adapter: the hash of the base whose weights it was trained on, of the
frozen noise that belongs to it, and of the adapter's own files."""


def save_adapter(
    model: PeftModel,
    folder: Path,
    *,
    base: str,
    base_sha256: str | None = None,
    noise: Path | None = None,
) -> None:
    """Write the adapter in training as a PEFT folder.

    The same weights give the same bytes. With an earlier adapter beside it both are
    written as one: of their ranks together, with ``lora_alpha`` as much larger, so that
    the scale ``lora_alpha / r`` stays.

    Parameters
    ----------
    model
        A ``PeftModel``; of its adapters ``default`` is written, with ``earlier``.
    base
        What the folder names as its base model.
    base_sha256
        ``weights_sha256`` of that base as it was opened, where it is known, for
        ``trained_on.json``: it tells another model of the same name apart.
    noise
        A file of frozen noise that belongs to the adapter: it is put beside it, as
        another name of the same file where the file system can do that, and
        ``trained_on.json`` and the weights' header hold its hash.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    config = model.peft_config[ADAPTER_NAME].to_dict()
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    # PEFT keeps sets, whose order is another one in each process.
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    if EARLIER in model.peft_config:
        earlier = model.peft_config[EARLIER]
        plain["r"] += earlier.r
        plain["lora_alpha"] += earlier.lora_alpha
    state = {
        name: weight.detach().cpu().contiguous()
        for name, weight in sorted(whole_adapter(model).items())
    }
    text = json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"
    write_text(folder / CONFIG, text)
    data = save(state, metadata={"format": "pt"})
    trained_on: dict[str, str | None] = {"base_sha256": base_sha256}
    if noise is not None:
        # Of large vocabularies it is a gigabyte: a second name will do.
        try:
            os.link(noise, folder / NOISE_FILE)
        except OSError:
            shutil.copyfile(noise, folder / NOISE_FILE)
        about = {"noise_sha256": sha256_file(noise)}
        # In the weights' own header, too: they are often copied without the rest.
        data = _saying(data, about)
        trained_on.update(about)
    write_atomically(folder / WEIGHTS, lambda file: file.write(data))
    files = {CONFIG: fact(text.encode()), WEIGHTS: fact(data)}
    record = json.dumps({**trained_on, "files": files, "seal": BLANK_DIGEST}) + "\n"
    data = sealed(record.encode())
    write_atomically(folder / TRAINED_ON, lambda file: file.write(data))


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` when all is written.

    An empty folder stays the one it is: it may be where the user stands, or a mount.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    place = folder.resolve()  # "." has no name of its own, a link another folder
    stays = place.is_dir() and not any(place.glob("[!.]*"))
    part = (place if stays else place.parent) / f".{place.name}.part"
    # Of the same command at once, one writes after the other.
    with alone(part.with_suffix(".lock")):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            yield part
            if stays:
                # What makes the folder a checkpoint comes last.
                for file in sorted(part.iterdir(), key=lambda path: path.name in LAST):
                    os.replace(file, place / file.name)
            else:
                shutil.rmtree(place, ignore_errors=True)
                os.replace(part, place)
        except (OSError, SafetensorError) as error:
            # Another library's own text may name a machine's paths.
            why = getattr(error, "strerror", None) or type(error).__name__
            raise cannot_write(folder, OSError(None, why)) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _saying(data: bytes, more: dict[str, str]) -> bytes:
    """A safetensors file whose header says more, always in the same order.

    The library itself writes several entries in any order.
    """
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] |= more
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def load_adapter(model: PeftModel, folder: Path) -> None:
    """Put the weights of :func:`save_adapter` into the adapter in training.

    Of an adapter of a larger rank the last part is the one in training, what comes
    before it the earlier one. The folder is the run's own, and was checked.
    """
    state = load_file(folder / WEIGHTS)
    own = model.peft_config[ADAPTER_NAME].r
    if earlier := rank_of(state) - own:
        parts = {
            name: torch.split(weight, [earlier, own], dim=rank_axis(name))
            for name, weight in state.items()
        }
        set_earlier(model, {name: old for name, (old, _) in parts.items()})
        state = {name: new for name, (_, new) in parts.items()}
    set_peft_model_state_dict(model, state, adapter_name=ADAPTER_NAME)

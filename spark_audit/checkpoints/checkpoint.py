"""How one checkpoint is put together: read from headers before anything is loaded."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from spark_audit.checkpoints.locate import read_json
from spark_audit.checkpoints.models import (
    BESIDE,
    build,
    check_buffers,
    check_layers,
    check_quantised,
    check_weights,
    empty,
    offloaded,
    pick_device,
    placed,
    quantised,
    read_architecture,
    rooms,
)
from spark_audit.checkpoints.sidecar import NOISE
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.weight_files import State, check_finite, content_sha256
from spark_audit.errors import CheckpointError
from spark_audit.provenance import sha256_json

# PEFT writes these in any order.
_SETS = ("target_modules", "modules_to_save")
# What adapter_config.json holds besides what the adapter computes.
_NO_EFFECT = ("base_model_name_or_path", "revision", "peft_version", "inference_mode")


@dataclass(frozen=True)
class Checkpoint:
    """Full weights or an adapter, and how they are opened; made from headers.

    Attributes
    ----------
    config, files
        Of full weights config.json, of an adapter adapter_config.json; its weights.
    read
        Gives full weights by the module's names, an adapter by PEFT's without the
        adapter's (``base_model.model.`` in front, ``lora_B.weight`` at the end), mapped
        from the files.
    place
        Holds the configuration.
    folder
        Where its own tokenizer and ``frozen_noise.safetensors`` may lie.
    whole
        Whether transformers reads full weights in ``place`` itself.
    adapter, host
        Whether it is an adapter, and the full weights that it is opened on (``None``
        until they are looked for), which may lie in its own file.
    name
        What reports call it.
    base
        Path or ``hf:ORG/NAME`` of the base; for full weights only where a tokenizer
        may be.
    loading, where
        How it is opened, and the path as it was typed.
    trained_on, noise_sha256
        What :func:`~spark_audit.checkpoints.sidecar.written_down` found beside it.
    """

    config: dict[str, Any]
    files: tuple[Path, ...]
    read: Callable[[], State]
    place: Path
    _: KW_ONLY
    folder: Path
    whole: bool = False
    adapter: bool = False
    host: Checkpoint | None = None
    name: str = ""
    base: str | None = None
    notes: tuple[str, ...] = ()
    loading: Loading = Loading()
    format: str = ""
    source: str = ""
    where: str = ""
    trained_on: str | None = None
    noise_sha256: str | None = None

    @property
    def on(self) -> Checkpoint:
        """The full weights that it is opened on: its base's, its file's, or itself."""
        return self.host or self

    @property
    def complete(self) -> bool:
        """Whether it brings full weights: alone, or with an adapter in one file."""
        return self.on.files == self.files and not self.on.adapter

    @property
    def base_folder(self) -> Path | None:
        """Where its base's configuration and tokenizer lie, if it has a base."""
        if self.host is not None and not self.complete:
            return self.host.folder
        if self.base is None:
            return None
        place = self.loading.locate(self.base)
        return place if place.is_dir() else place.parent

    @property
    def size(self) -> int:
        """Bytes of its files, and of those that it is opened on."""
        return sum(path.stat().st_size for path in {*self.files, *self.on.files})

    @property
    def sha256(self) -> str:
        """Hash of its own files and configuration."""
        return content_sha256(self.files, self.config)

    @cached_property
    def _architecture(self) -> tuple[Any, Any]:
        trusted = self.loading.trust_remote_code
        architecture, cls = read_architecture(self.place, self.config, trusted)
        check_buffers(empty(architecture, cls))
        return architecture, cls

    @property
    def architecture(self) -> Any:
        """Transformers' configuration of full weights."""
        return self._architecture[0]

    @cached_property
    def saved_dtype(self) -> torch.dtype:
        """Of the first tensor of its files that holds floating-point numbers."""
        kinds = (tensor.dtype for tensor in self.read().values())
        return next((k for k in kinds if k.is_floating_point), torch.float32)

    def eos(self, model: Any) -> object:
        """What ends an answer of a model, once transformers has opened its folder."""
        path = self.place / "generation_config.json"
        if self.whole and path.exists():
            eos = read_json(path).get("eos_token_id")
            ids = eos if isinstance(eos, list) else [0 if eos is None else eos]
            if not all(type(i) is int for i in ids):
                raise CheckpointError(f"{path.name}: eos_token_id is no token's id")
            return eos
        return getattr(model.generation_config, "eos_token_id", None)

    def skeleton(self) -> Any:
        """Its module on the meta device, every tensor of its files in its place.

        Quantised weights are other tensors than the module's, and are not compared.
        """
        state = {k: t.to("meta") for k, t in self.read().items()}
        check_layers(self.config, tensors=len(state))
        architecture, cls = self._architecture
        if quantised(architecture):
            check_quantised(architecture, device=pick_device(self.loading.device))
            return empty(architecture, cls).eval()
        model = build(architecture, cls, state=state)
        check_weights(model, state)
        return model

    def load(self) -> Any:
        """Its module with every number of its files, each of them finite."""
        loading, (architecture, cls) = self.loading, self._architecture
        # Of what neither GPUs nor memory hold; removed with the module.
        disk = mkdtemp(prefix="spark-audit-") if loading.device_map else None
        dtype = loading.dtype
        if dtype == "auto" and not quantised(architecture):
            dtype = str(self.saved_dtype).removeprefix("torch.")
        model = build(
            architecture,
            cls,
            folder=self.place if self.whole else None,
            state=None if self.whole else self.read(),
            dtype=dtype,
            use_safetensors=self.files[0].suffix == ".safetensors",
            trust_remote_code=loading.trust_remote_code,
            **placed(loading, pick_device(loading.device), folder=disk),
        )
        if disk is not None:
            weakref.finalize(model, shutil.rmtree, disk, ignore_errors=True)
        check_finite({k: t for k, t in model.state_dict().items() if not t.is_meta})
        if offloaded(model):
            check_finite(self.read())
        return model

    def check_room(self, parameters: int) -> str:
        """Where so many weights fit, in words; quantised ones: as its files hold them.

        Raises
        ------
        CheckpointError
            If they do not fit where they are to go, with what would.
        """
        dtype, need = self.loading.dtype, self.size
        if not quantised(self.architecture):
            kind = self.saved_dtype if dtype == "auto" else getattr(torch, dtype)
            need = parameters * kind.itemsize
        free = rooms(pick_device(self.loading.device))
        gpus = [size for place, size in free.items() if place.startswith("cuda")]
        one = max(gpus, default=free.get("cpu", need))
        there = ", ".join(f"{size / 1e9:.1f} GB {at}" for at, size in free.items())
        kind = "their own dtype" if dtype == "auto" else dtype
        said = f"weights of {need / 1e9:.1f} GB in {kind}; free: {there}"
        if need > (one if self.loading.device_map is None else sum(free.values())):
            fix = "try --dtype bfloat16, --device-map auto (slow), or a machine with "
            fix += f"{(need + BESIDE) / 1e9:.1f} GB"
            raise CheckpointError(f"does not fit: {said}", fix=fix)
        return said

    def hashes(self, raw: Mapping[str, Any] | None, **computed: str) -> tuple[str, str]:
        """``weights_sha256``, and a hash of what a score depends on besides tokens.

        Parameters
        ----------
        raw
            The adapter's configuration as it was attached.
        computed
            How the model computes: dtype, attention and the like.
        """
        adapter = noise = None
        base = own = self.on.sha256
        if raw is not None:
            kept = {key: raw[key] for key in raw if key not in _NO_EFFECT}
            kept |= {k: sorted(kept[k]) for k in _SETS if isinstance(raw.get(k), list)}
            adapter = content_sha256(self.files, kept)
            own = own if self.complete else adapter
        if os.path.lexists(self.folder / NOISE):  # without it it is another model
            noise = content_sha256([self.folder / NOISE], {})
            own = sha256_json({"weights": own, "noise": noise})
        quantisation = self.on.config.get("quantization_config")
        parts = {"adapter": adapter, "noise": noise, "weights": base}
        return own, sha256_json({**computed, **parts, "quantisation": quantisation})

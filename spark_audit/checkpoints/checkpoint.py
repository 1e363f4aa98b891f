"""One checkpoint: full weights or an adapter, and how they are put together.

Made from headers alone: weights are read when it is loaded.
"""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints import (
    specs,
    tables,
    untrusted,
    unused_tensors,
    weight_files,
)
from spark_audit.checkpoints.architecture import (
    configurations_beside_text,
    drop_parts_beside_text,
    empty,
    read_architecture,
)
from spark_audit.checkpoints.devices import MAX_COPY_BYTES, pick_device, rooms
from spark_audit.checkpoints.loaded import offloaded
from spark_audit.checkpoints.weight_files import ITS_OWN, NOISE_FILE, State
from spark_audit.errors import CheckpointError, at, memory_size, shown
from spark_audit.provenance import sha256_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_LAYER_COUNT_FIELDS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
# How configurations call what each takes modules of its own.
_COUNT_FIELD = re.compile(
    r"(?:^|_)(?:n|num)_(?:\w+_)?(?:layers?|blocks|experts)$|layers$"
)
MOST_LAYERS = 1000
# PEFT writes these in any order.
_SET_FIELDS = ("target_modules", "modules_to_save")
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
    unused
        Tensors of its files that no logit depends on, each with its kind (see
        ``unused_tensors``); known once its skeleton was made.
    padding_rows
        Names of embeddings -> their rows of padding, where these hold numbers; known
        once its skeleton was made.
    """

    config: dict[str, object]
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
    loading: specs.Loading = specs.Loading()
    format: str = ""
    source: str = ""
    where: str = ""
    unused: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    padding_rows: State = field(default_factory=dict, compare=False, repr=False)

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
    def quantised(self) -> bool:
        """Whether its full weights are stored quantised."""
        return bool(getattr(self.architecture, "quantization_config", None))

    @property
    def device(self) -> str:
        """Where it computes."""
        return pick_device(self.loading.device)

    @property
    def size(self) -> int:
        """Bytes of its files, and of those that it is opened on."""
        return sum(path.stat().st_size for path in {*self.files, *self.on.files})

    @property
    def sha256(self) -> str:
        """Hash of its own files and configuration."""
        return weight_files.content_sha256(self.files, self.config)

    @cached_property
    def own_tables(self) -> dict[str, str]:
        """Embeddings and head of an adapter's file that are not its base's: notes."""
        if not self.adapter:
            return {}
        with at(self.where):
            base_config = self.on.architecture.get_text_config()
            return tables.own_tables(
                self.read(),
                saved_apart=self.config.get("modules_to_save"),
                read_base=self.on.read,
                base_rows=getattr(base_config, "vocab_size", None),
            )

    @cached_property
    def _architecture(self) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
        return read_architecture(self.place, self.loading.trust_remote_code)

    @property
    def architecture(self) -> PreTrainedConfig:
        """Transformers' configuration of full weights."""
        return self._architecture[0]

    @cached_property
    def dtype(self) -> str:
        """What it is computed in; of quantised weights it may be ``auto``.

        As saved: as the first tensor of its files that holds floating-point numbers.
        """
        if self.loading.dtype != "auto" or self.quantised:
            return self.loading.dtype
        kinds = (tensor.dtype for tensor in self.read().values())
        first = next((k for k in kinds if k in weight_files.FLOATS), torch.float32)
        return str(first).removeprefix("torch.")

    def eos(self, model: PreTrainedModel) -> object:
        """What ends an answer of a model, once transformers has opened its folder."""
        path = self.place / "generation_config.json"
        if self.whole and path.exists():
            eos = untrusted.read_json(path).get("eos_token_id")
            ids = eos if isinstance(eos, list) else [0 if eos is None else eos]
            if not all(type(i) is int for i in ids):
                raise CheckpointError(f"{path.name}: eos_token_id is no token's id")
            return eos
        return getattr(model.generation_config, "eos_token_id", None)

    def skeleton(self) -> PreTrainedModel:
        """Its module on the meta device, every tensor of its files in its place.

        Quantised weights are other tensors than the module's, and are not compared.
        """
        stored = self.read()
        state = {k: t.to("meta") for k, t in stored.items()}
        # Each layer is some dozen Python objects before anything can be compared.
        for key, value in untrusted.walk(self.config):
            most = (
                min(len(state), MOST_LAYERS)
                if key in _LAYER_COUNT_FIELDS
                else MOST_LAYERS
            )
            if _COUNT_FIELD.search(key) and isinstance(value, int) and value > most:
                what = f"config.json says {shown(key)} {str(value)[:20]}, the weights"
                raise CheckpointError(f"{what} are {len(state)} tensors", fix=ITS_OWN)
        architecture, cls = self._architecture
        if self.quantised:
            self._check_quantised()
            return empty(architecture, cls).eval()
        model = self._built(state, device_map="meta")
        self.unused.update(unused_tensors.passed_over(stored, model))
        self.padding_rows.update(_filled_padding_rows(stored, model))
        # Other numbers, where the model has floating-point ones, a cast would hide.
        front, own = f"{model.base_model_prefix}.", dict(model.named_parameters())
        for name, tensor in state.items():
            if name.endswith(".weight") or own.keys() & {name, front + name}:
                weight_files.check_floats({name: tensor})
        return model

    def _check_quantised(self) -> None:
        """Refuse weights that are stored in a way which cannot be read here.

        Transformers passes over a method that it does not know, and takes the weights
        for plain ones.
        """
        from transformers.quantizers import auto

        quantizer = auto.AutoHfQuantizer
        said = self.architecture.quantization_config
        with untrusted.foreign("transformers cannot load it"):
            if not quantizer.supports_quant_method(said):
                what = "config.json names a quant_method unknown to transformers"
                raise CheckpointError(what, fix="upgrade transformers")
            place = None if self.device == "cpu" else {"": self.device}
            method = quantizer.from_config(said, pre_quantized=True)
            method.validate_environment(device_map=place, weights_only=True)

    def load(self) -> PreTrainedModel:
        """Its module with every number of its files, each of them finite."""
        state = None if self.whole else self.read()
        spread = self.loading.device_map is not None
        if spread:
            # Of what neither GPUs nor memory hold; removed with the module.
            disk = mkdtemp(prefix="spark-audit-")
            model = self._built(
                state,
                device_map="auto",
                max_memory=_most_bytes(self.device),
                offload_folder=disk,
            )
            weakref.finalize(model, shutil.rmtree, disk, ignore_errors=True)
        elif self.device == "cpu":
            model = self._built(state)
        else:
            model = self._built(state, device_map={"": self.device})
        self._restore_padding_rows(model)
        buffers = dict(model.named_buffers())
        # Limits of activations are buffers, and may be infinite.
        there = {
            name: tensor
            for name, tensor in model.state_dict().items()
            if not tensor.is_meta
            and (name not in buffers or bool(torch.isnan(tensor).any()))
        }
        weight_files.check_finite(there)
        if offloaded(model):
            weight_files.check_finite(self.read())
        _check_rotations(buffers)
        if not spread:
            drop_parts_beside_text(model)
        return model

    def _restore_padding_rows(self, model: PreTrainedModel) -> None:
        """Put rows of embeddings back that a class zeroes after they were loaded.

        Some classes of transformers (Youtu) draw their weights again, and spare what
        was read from files but for the row of padding. It is a logit if heads are tied.
        """
        for name, row in self.padding_rows.items():
            embeddings = model.get_submodule(name)
            weight = embeddings.weight
            if not weight.is_meta and not bool(weight[embeddings.padding_idx].any()):
                weight.data[embeddings.padding_idx] = row.to(weight)

    def _built(
        self,
        state: State | None,
        *,
        device_map: str | dict[str, str] | None = None,
        max_memory: dict[int | str, int] | None = None,
        offload_folder: str | None = None,
    ) -> PreTrainedModel:
        """Its module, every tensor of the weights and of the module in its place.

        Parameters
        ----------
        state
            The weights, also on the meta device; ``None``: transformers reads them.
        device_map, max_memory, offload_folder
            As ``from_pretrained`` has them.

        Raises
        ------
        CheckpointError
            With the name of the tensor that is missing, unexpected or of another shape.
        """
        architecture, cls = self._architecture
        attention = "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"
        # Encoders that no text passes through need not know how to do it.
        beside = dict.fromkeys(configurations_beside_text(architecture), "eager")
        with untrusted.foreign("transformers cannot load it"):
            model, info = cls.from_pretrained(
                self.place if state is None else None,
                state_dict=state,
                config=architecture,
                attn_implementation={"": attention, **beside} if beside else attention,
                dtype=getattr(torch, self.dtype, "auto"),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
                weights_only=True,
                use_safetensors=self.files[0].suffix == ".safetensors",
                trust_remote_code=self.loading.trust_remote_code,
                device_map=device_map,
                max_memory=max_memory,
                offload_folder=offload_folder,
            )
        unexpected = self._unexpected(info["unexpected_keys"], architecture)
        theirs = dict.fromkeys(unexpected, torch.Size())
        ours = dict.fromkeys(info["missing_keys"], torch.Size())
        for name, there, here in info["mismatched_keys"]:
            theirs[name], ours[name] = there, here
        weight_files.refuse_differences(theirs, ours)
        for message in info["error_msgs"]:
            raise CheckpointError(str(message).split("\n")[0])
        return model.eval()

    def _unexpected(
        self, names: Collection[str], architecture: PreTrainedConfig
    ) -> list[str]:
        """Tensors that the module has no place for, and that may matter."""
        unknown = [name for name in names if name not in self.unused]
        stored = self.read() if unknown else {}
        for name in unknown:
            # Transformers may call it otherwise than the file, by what stands in front.
            ends = [k for k in stored if f".{name}".endswith(f".{k}")]
            tensor = stored.get(name, stored[ends[0]] if ends else None)
            if tensor is None:
                continue
            kind = unused_tensors.kind_of_unused(name, tensor, architecture)
            if kind is not None:
                self.unused[name] = kind
        return [name for name in names if name not in self.unused]

    def check_room(self, parameters: int) -> str:
        """Where so many weights fit, in words; quantised ones: as its files hold them.

        Raises
        ------
        CheckpointError
            If they do not fit where they are to go, with what would.
        """
        need = self.size
        if not self.quantised:
            need = parameters * getattr(torch, self.dtype).itemsize
        free = rooms(self.device)
        gpus = [size for place, size in free.items() if place.startswith("cuda")]
        one = max(gpus, default=free.get("cpu", need))
        there = ", ".join(f"{memory_size(size)} {at}" for at, size in free.items())
        kind = "their own dtype" if self.dtype == "auto" else self.dtype
        said = f"weights of {memory_size(need)} in {kind}; free: {there}"
        if need > (one if self.loading.device_map is None else sum(free.values())):
            fix = "try --dtype bfloat16, --device-map auto (slow), or a machine with "
            fix += memory_size(need + MAX_COPY_BYTES)
            raise CheckpointError(f"does not fit: {said}", fix=fix)
        return said

    def hashes(
        self, raw: Mapping[str, object] | None, **computed: str
    ) -> tuple[str, str]:
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
            for name in _SET_FIELDS:
                names = raw.get(name)
                if isinstance(names, list):
                    kept[name] = sorted(names)
            adapter = weight_files.content_sha256(self.files, kept)
            own = own if self.complete else adapter
        if os.path.lexists(self.folder / NOISE_FILE):  # without it it is another model
            noise = weight_files.content_sha256([self.folder / NOISE_FILE], {})
            own = sha256_json({"weights": own, "noise": noise})
        quantisation = self.on.config.get("quantization_config")
        parts = {"adapter": adapter, "noise": noise, "weights": base}
        return own, sha256_json({**computed, **parts, "quantisation": quantisation})


def _most_bytes(device: str) -> dict[int | str, int]:
    """Return how many bytes of weights each GPU, by number, and ``cpu`` may hold."""
    most: dict[int | str, int] = {}
    for place, free in rooms(device).items():
        if place != "disk":
            key = int(place[5:]) if place.startswith("cuda") else place
            most[key] = max(free - MAX_COPY_BYTES, 0)
    return most


def _filled_padding_rows(
    stored: Mapping[str, torch.Tensor], model: torch.nn.Module
) -> State:
    """Return the rows of padding that hold numbers, by the name of their embeddings.

    Parameters
    ----------
    stored
        The tensors of the files.
    model
        The module, which may be on the meta device.
    """
    rows: State = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Embedding) or module.padding_idx is None:
            continue
        saved = stored.get(f"{name}.weight")
        if saved is None or saved.shape != module.weight.shape:
            continue
        row = saved[module.padding_idx]  # (width,)
        if bool(row.any()):
            rows[name] = row.clone()
    return rows


def _check_rotations(buffers: Mapping[str, torch.Tensor]) -> None:
    """Refuse frequencies of positions that are no numbers.

    Some kernels of attention hide what follows from them: the logits are finite.
    """
    for name, table in buffers.items():
        if name.endswith("inv_freq") and not table.is_meta:
            if not bool(torch.isfinite(table).all()):
                what = "config.json gives positions that are no numbers "
                what += f"(rope settings, {shown(name)})"
                raise CheckpointError(what, fix=ITS_OWN)

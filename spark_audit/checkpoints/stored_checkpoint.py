"""A checkpoint in files: full weights or an adapter, and how they are assembled.

A :class:`StoredCheckpoint` is made from headers alone: weights are read when it is
loaded.
"""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints import (
    specs,
    tables,
    tensor_checks,
    untrusted,
    unused_tensors,
    weight_files,
)
from spark_audit.checkpoints.adapter_config import stable_fields
from spark_audit.checkpoints.architecture import (
    configurations_beside_text,
    drop_parts_beside_text,
    empty,
    read_architecture,
)
from spark_audit.checkpoints.checkpoint import offloaded
from spark_audit.checkpoints.devices import MAX_COPY_BYTES, pick_device, rooms
from spark_audit.checkpoints.padding_rows import (
    filled_padding_rows,
    restore_padding_rows,
)
from spark_audit.checkpoints.tensor_checks import GIVE_OWN_CONFIG, State
from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.errors import CheckpointError, at, memory_size, shown
from spark_audit.provenance import sha256_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_LAYER_COUNT_FIELDS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
"""Fields of config.json that count layers: each layer has a tensor at least."""
_COUNT_FIELD = re.compile(
    r"(?:^|_)(?:n|num)_(?:\w+_)?(?:layers?|blocks|experts)$|layers$"
)
"""Names that configurations give to numbers of repeated modules."""
MOST_LAYERS = 1000
"""Largest number of repeated modules that a configuration may state."""


@dataclass(frozen=True)
class CheckpointHashes:
    """Hashes that identify a checkpoint in reports and in the store of scores.

    Attributes
    ----------
    weights_sha256
        Hash of its own weights and configuration; for an adapter, without its base.
    model_id
        Hash of everything that a score depends on besides token ids.
    """

    weights_sha256: str
    model_id: str


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """Full weights or an adapter, with options for opening; made from headers.

    A file of ``formats/`` makes it and ``detect.py`` adds the options. ``open.py`` then
    builds it twice: as a skeleton without numbers, and loaded.

    Attributes
    ----------
    config
        The content of config.json for full weights, or of adapter_config.json for an
        adapter.
    files
        The weight files.
    read
        Returns tensors mapped from the files. Full weights have the module's names. An
        adapter has PEFT's names without the name of the adapter (``base_model.model.``
        in front, ``lora_B.weight`` at the end).
    config_folder
        Folder of the configuration.
    folder
        Folder that may hold its own tokenizer and ``frozen_noise.safetensors``.
    is_read_by_transformers
        Whether transformers reads full weights in ``config_folder`` itself.
    is_adapter
        Whether it is an adapter.
    base_weights
        The full weights on which an adapter is opened (``None`` until they are found).
        They may be in the adapter's own file.
    name
        Its name in reports.
    base
        Path or ``hf:ORG/NAME`` of the base. For full weights it may only provide a
        tokenizer.
    loading
        Options for opening.
    typed_path
        The path as it was typed, for errors.
    unused
        Tensors of its files without an effect on logits, each with its kind (see
        ``unused_tensors``); known once its skeleton was made.
    padding_rows
        Names of embeddings -> their padding rows, if these hold numbers; known once its
        skeleton was made.
    """

    config: dict[str, object]
    files: tuple[Path, ...]
    read: Callable[[], State]
    config_folder: Path
    folder: Path
    is_read_by_transformers: bool = False
    is_adapter: bool = False
    base_weights: StoredCheckpoint | None = None
    name: str = ""
    base: str | None = None
    notes: tuple[str, ...] = ()
    loading: specs.Loading = specs.Loading()
    format: str = ""
    source: str = ""
    typed_path: str = ""
    unused: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    padding_rows: State = field(default_factory=dict, compare=False, repr=False)

    @property
    def full_weights(self) -> StoredCheckpoint:
        """The full weights on which it is opened: its base's, its file's, or itself."""
        return self.base_weights or self

    @property
    def has_full_weights(self) -> bool:
        """Return whether it has full weights: alone, or in one file with LoRA."""
        in_same_files = self.full_weights.files == self.files
        return in_same_files and not self.full_weights.is_adapter

    @property
    def base_folder(self) -> Path | None:
        """The folder of its base's configuration and tokenizer, if it has a base."""
        if self.base_weights is not None and not self.has_full_weights:
            return self.base_weights.folder
        if self.base is None:
            return None

        path = self.loading.locate(self.base)
        return path if path.is_dir() else path.parent

    @property
    def quantised(self) -> bool:
        """Return whether its full weights are stored quantised."""
        return bool(getattr(self.architecture, "quantization_config", None))

    @property
    def device(self) -> str:
        """The device on which it computes, such as ``cpu`` or ``cuda:0``."""
        return pick_device(self.loading.device)

    @property
    def size(self) -> int:
        """The bytes of its files and of the full weights on which it is opened."""
        files = {*self.files, *self.full_weights.files}
        return sum(path.stat().st_size for path in files)

    @property
    def sha256(self) -> str:
        """The hash of its own files and configuration."""
        return weight_files.content_sha256(self.files, self.config)

    @cached_property
    def own_tables(self) -> dict[str, str]:
        """Tables in an adapter's file that differ from its base's, with notes."""
        if not self.is_adapter:
            return {}

        with at(self.typed_path):
            base_config = self.full_weights.architecture.get_text_config()
            return tables.own_tables(
                self.read(),
                saved_apart=self.config.get("modules_to_save"),
                read_base=self.full_weights.read,
                base_rows=getattr(base_config, "vocab_size", None),
            )

    @cached_property
    def _architecture(self) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
        return read_architecture(self.config_folder, self.loading.trust_remote_code)

    @property
    def architecture(self) -> PreTrainedConfig:
        """Transformers' configuration of full weights."""
        return self._architecture[0]

    @cached_property
    def dtype(self) -> str:
        """The dtype in which it computes; ``auto`` for some quantised weights.

        "As saved" means the dtype of the first floating-point tensor of its files.
        """
        if self.loading.dtype != "auto" or self.quantised:
            return self.loading.dtype

        for tensor in self.read().values():
            if tensor.dtype in tensor_checks.FLOATS:
                return str(tensor.dtype).removeprefix("torch.")
        return "float32"

    def eos(self, model: PreTrainedModel) -> object:
        """Return the end tokens of a model, after transformers opened its folder.

        Raises
        ------
        CheckpointError
            If generation_config.json gives anything else than ids of tokens.
        """
        path = self.config_folder / "generation_config.json"
        if not self.is_read_by_transformers or not path.exists():
            return getattr(model.generation_config, "eos_token_id", None)

        eos = untrusted.read_json(path).get("eos_token_id")
        if eos is None:
            return None
        ids = eos if isinstance(eos, list) else [eos]
        if not all(type(token_id) is int for token_id in ids):
            raise CheckpointError(f"{path.name}: eos_token_id is not a token's id")
        return eos

    def check_room(self, parameters: int) -> str:
        """Return, in words, the bytes of the weights and the room for them.

        Quantised weights count with their file size.

        Parameters
        ----------
        parameters
            Number of the module's parameters.

        Raises
        ------
        CheckpointError
            If they do not fit where they are to go, with what would.
        """
        n_bytes_needed = self.size
        if not self.quantised:
            n_bytes_needed = parameters * getattr(torch, self.dtype).itemsize

        free_by_device = rooms(self.device)
        free_on_gpus = [
            n_bytes
            for device, n_bytes in free_by_device.items()
            if device.startswith("cuda")
        ]
        # If a system does not report its free memory, nothing is refused.
        available = max(free_on_gpus, default=free_by_device.get("cpu", n_bytes_needed))
        if self.loading.device_map is not None:
            # A model that is spread may use all devices.
            available = sum(free_by_device.values())

        listed = ", ".join(
            f"{memory_size(n_bytes)} {device}"
            for device, n_bytes in free_by_device.items()
        )
        dtype = "their own dtype" if self.dtype == "auto" else self.dtype
        answer = f"weights of {memory_size(n_bytes_needed)} in {dtype}; free: {listed}"
        if n_bytes_needed <= available:
            return answer

        larger_memory = memory_size(n_bytes_needed + MAX_COPY_BYTES)
        raise CheckpointError(
            f"does not fit: {answer}",
            fix="try --dtype bfloat16, --device-map auto (slow), or a machine with "
            f"{larger_memory}",
        )

    def hashes(
        self, adapter_config: Mapping[str, object] | None, **computed: str
    ) -> CheckpointHashes:
        """Return ``weights_sha256``, and a hash of what a score depends on.

        Parameters
        ----------
        adapter_config
            The configuration of the attached adapter; ``None``: no adapter.
        computed
            Settings of the computation: dtype, attention and the like.
        """
        base_sha256 = self.full_weights.sha256
        own_sha256 = base_sha256

        adapter_sha256 = None
        if adapter_config is not None:
            adapter_sha256 = self._adapter_sha256(adapter_config)
            if not self.has_full_weights:
                own_sha256 = adapter_sha256

        # Without its noise it would be another model.
        noise_sha256 = None
        if os.path.lexists(self.folder / NOISE_FILE):
            noise_files = [self.folder / NOISE_FILE]
            noise_sha256 = weight_files.content_sha256(noise_files, {})
            own_sha256 = sha256_json({"weights": own_sha256, "noise": noise_sha256})

        identity = {
            **computed,
            "adapter": adapter_sha256,
            "noise": noise_sha256,
            "weights": base_sha256,
            "quantisation": self.full_weights.config.get("quantization_config"),
        }
        return CheckpointHashes(own_sha256, sha256_json(identity))

    def _adapter_sha256(self, adapter_config: Mapping[str, object]) -> str:
        """Return a hash of an adapter that does not change when it is saved again."""
        return weight_files.content_sha256(self.files, stable_fields(adapter_config))

    def skeleton(self) -> PreTrainedModel:
        """Return its module on the meta device; refuse tensors that do not fit it.

        Quantised weights have other tensors than the module, so they are not compared.
        ``unused`` and ``padding_rows`` are filled on the way.

        Raises
        ------
        CheckpointError
            If the module has other tensors than the files, or tensors of other shapes.
        """
        stored = self.read()
        self._check_layer_counts(len(stored))
        architecture, model_class = self._architecture
        if self.quantised:
            self._check_quantised()
            return empty(architecture, model_class).eval()

        state = {name: tensor.to("meta") for name, tensor in stored.items()}
        model = self._build(state, device_map="meta")
        self.unused.update(unused_tensors.passed_over(stored, model))
        self.padding_rows.update(filled_padding_rows(stored, model))

        # A cast would hide integers where the model has floating-point numbers.
        prefix = f"{model.base_model_prefix}."
        parameters = dict(model.named_parameters())
        for name, tensor in state.items():
            is_parameter = name in parameters or prefix + name in parameters
            if name.endswith(".weight") or is_parameter:
                tensor_checks.check_floats({name: tensor})
        return model

    def _check_layer_counts(self, n_tensors: int) -> None:
        """Refuse a configuration with more layers than the files can hold.

        Each layer is some dozen Python objects before anything can be compared, so a
        wrong number would first fill the memory.
        """
        for key, value in untrusted.keys_and_values(self.config):
            if not _COUNT_FIELD.search(key) or not isinstance(value, int):
                continue
            max_count = MOST_LAYERS
            if key in _LAYER_COUNT_FIELDS:
                max_count = min(n_tensors, MOST_LAYERS)

            if value > max_count:
                problem = (
                    f"config.json says {shown(key)} {str(value)[:20]}, the weights "
                    f"are {n_tensors} tensors"
                )
                raise CheckpointError(problem, fix=GIVE_OWN_CONFIG)

    def _check_quantised(self) -> None:
        """Refuse weights in a quantised format that cannot be read here.

        Transformers ignores a method that it does not know, and takes the weights for
        plain ones.
        """
        from transformers.quantizers import auto

        quantizer = auto.AutoHfQuantizer
        settings = self.architecture.quantization_config
        # The method's package is looked for before anything is read.
        with untrusted.foreign("transformers cannot load it"):
            if not quantizer.supports_quant_method(settings):
                problem = "config.json names a quant_method unknown to transformers"
                raise CheckpointError(problem, fix="upgrade transformers")
            device_map = None if self.device == "cpu" else {"": self.device}
            method = quantizer.from_config(settings, pre_quantized=True)
            method.validate_environment(device_map=device_map, weights_only=True)

    def load(self) -> PreTrainedModel:
        """Return its module with all numbers of its files, all of them finite."""
        # If transformers reads the folder itself, it gets no tensors from here.
        state = None if self.is_read_by_transformers else self.read()
        is_spread = self.loading.device_map is not None
        if is_spread:
            # The folder for weights that fit neither GPUs nor memory; removed with the
            # module.
            disk_folder = mkdtemp(prefix="spark-audit-")
            model = self._build(
                state,
                device_map="auto",
                max_memory=_room_for_weights(self.device),
                offload_folder=disk_folder,
            )
            weakref.finalize(model, shutil.rmtree, disk_folder, ignore_errors=True)
        elif self.device == "cpu":
            model = self._build(state)
        else:
            model = self._build(state, device_map={"": self.device})

        restore_padding_rows(model, self.padding_rows)
        self._check_finite(model)
        if not is_spread:
            drop_parts_beside_text(model)
        return model

    def _check_finite(self, model: PreTrainedModel) -> None:
        """Refuse a loaded module with a number that is NaN or infinite."""
        buffers = dict(model.named_buffers())
        checked: State = {}
        for name, tensor in model.state_dict().items():
            if tensor.is_meta:
                continue
            # Limits of activations are buffers, and may be infinite.
            if name not in buffers or bool(torch.isnan(tensor).any()):
                checked[name] = tensor
        tensor_checks.check_finite(checked)

        # Weights on disk are on the meta device here, so their files are checked.
        if offloaded(model):
            tensor_checks.check_finite(self.read())
        _check_rotations(buffers)

    def _build(
        self,
        state: State | None,
        *,
        device_map: str | dict[str, str] | None = None,
        max_memory: dict[int | str, int] | None = None,
        offload_folder: str | None = None,
    ) -> PreTrainedModel:
        """Return its module, with a place for every tensor of the weights.

        Parameters
        ----------
        state
            The weights, perhaps on the meta device; ``None``: transformers reads them.
        device_map, max_memory, offload_folder
            As in ``from_pretrained``.

        Raises
        ------
        CheckpointError
            Names a tensor that is missing, unexpected or of another shape.
        """
        architecture, model_class = self._architecture
        attention = "eager"
        if getattr(model_class, "_supports_sdpa", False):
            attention = "sdpa"
        # Encoders beside the text need not support this attention.
        attention_by_part: str | dict[str, str] = attention
        beside_text = configurations_beside_text(architecture)
        if beside_text:
            attention_by_part = {"": attention, **dict.fromkeys(beside_text, "eager")}

        with untrusted.foreign("transformers cannot load it"):
            model, info = model_class.from_pretrained(
                self.config_folder if state is None else None,
                state_dict=state,
                config=architecture,
                attn_implementation=attention_by_part,
                dtype=getattr(torch, self.dtype, "auto"),
                output_loading_info=True,
                # `info` lists differences, which are refused by name below.
                ignore_mismatched_sizes=True,
                local_files_only=True,
                weights_only=True,
                use_safetensors=self.files[0].suffix == ".safetensors",
                trust_remote_code=self.loading.trust_remote_code,
                device_map=device_map,
                max_memory=max_memory,
                offload_folder=offload_folder,
            )

        # A tensor on one side alone is missing or unexpected: only its name matters, so
        # any shape will do.
        unexpected = self._unexpected(info["unexpected_keys"], architecture)
        shapes_in_files = dict.fromkeys(unexpected, torch.Size())
        shapes_in_model = dict.fromkeys(info["missing_keys"], torch.Size())
        for name, file_shape, model_shape in info["mismatched_keys"]:
            shapes_in_files[name] = file_shape
            shapes_in_model[name] = model_shape
        tensor_checks.refuse_differences(shapes_in_files, shapes_in_model)

        # Transformers lists tensors that it could not convert, and continues.
        for message in info["error_msgs"]:
            raise CheckpointError(str(message).split("\n")[0])
        return model.eval()

    def _unexpected(
        self, names: Collection[str], architecture: PreTrainedConfig
    ) -> list[str]:
        """Return tensors that have no place in the module and may matter.

        Those without effect are added to ``unused``.

        Parameters
        ----------
        names
            Tensors for which transformers found no place, by its own names.
        """
        unknown = [name for name in names if name not in self.unused]
        stored = self.read() if unknown else {}

        for name in unknown:
            # Transformers may use another prefix for a tensor than the file.
            same_end = [key for key in stored if f".{name}".endswith(f".{key}")]
            tensor = stored.get(name)
            if tensor is None and same_end:
                tensor = stored[same_end[0]]
            if tensor is None:
                continue

            unused_kind = unused_tensors.kind_of_unused(name, tensor, architecture)
            if unused_kind is not None:
                self.unused[name] = unused_kind

        return [name for name in names if name not in self.unused]


def _room_for_weights(device: str) -> dict[int | str, int]:
    """Return the bytes of weights that each GPU, by number, and ``cpu`` may hold."""
    room: dict[int | str, int] = {}
    for name, free in rooms(device).items():
        if name == "disk":
            continue
        # accelerate uses numbers of GPUs: "cuda:1" is 1.
        key = int(name.removeprefix("cuda:")) if name.startswith("cuda") else name
        room[key] = max(free - MAX_COPY_BYTES, 0)
    return room


def _check_rotations(buffers: Mapping[str, torch.Tensor]) -> None:
    """Refuse frequencies of positions that are NaN or infinite.

    Some kernels of attention hide the effect: their logits are finite.
    """
    for name, table in buffers.items():
        if not name.endswith("inv_freq") or table.is_meta:
            continue
        if not bool(torch.isfinite(table).all()):
            problem = (
                "config.json gives rotary frequencies that are not finite "
                f"(rope settings, {shown(name)})"
            )
            raise CheckpointError(problem, fix=GIVE_OWN_CONFIG)

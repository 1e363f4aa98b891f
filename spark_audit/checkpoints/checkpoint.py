"""How one checkpoint is put together: read from headers before anything is loaded."""

from __future__ import annotations

import copy
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from spark_audit.checkpoints.loaded import offloaded
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.untrusted import foreign, read_json, walk
from spark_audit.checkpoints.weight_files import (
    ITS_OWN,
    NOISE,
    State,
    check_finite,
    check_floats,
    content_sha256,
    refuse_differences,
)
from spark_audit.errors import CheckpointError, InputError, shown
from spark_audit.host_memory import free_bytes
from spark_audit.provenance import sha256_json

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
# How configurations call what each takes modules of its own.
_COUNT = re.compile(r"(?:^|_)(?:n|num)_(?:\w+_)?(?:layers?|blocks|experts)$|layers$")
MOST_LAYERS = 1000
MOST_BUFFERS = 1 << 28
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
        What :func:`~spark_audit.checkpoints.weight_files.written_down` found beside it.
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
        return read_architecture(self.place, self.config, trusted)

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
        # Each layer is some dozen Python objects before anything can be compared.
        for key, value in walk(self.config):
            most = min(len(state), MOST_LAYERS) if key in _LAYERS else MOST_LAYERS
            if _COUNT.search(key) and isinstance(value, int) and value > most:
                what = f"config.json says {shown(key)} {str(value)[:20]}, the weights"
                raise CheckpointError(f"{what} are {len(state)} tensors", fix=ITS_OWN)
        architecture, cls = self._architecture
        if quantised(architecture):
            check_quantised(architecture, device=pick_device(self.loading.device))
            return empty(architecture, cls).eval()
        model = build(architecture, cls, state=state)
        # Other numbers, where the model has floating-point ones, a cast would hide.
        front, own = f"{model.base_model_prefix}.", dict(model.named_parameters())
        floats = [
            n for n in state if n.endswith(".weight") or own.keys() & {n, front + n}
        ]
        check_floats({name: state[name] for name in floats})
        return model

    def load(self) -> Any:
        """Its module with every number of its files, each of them finite."""
        loading, (architecture, cls) = self.loading, self._architecture
        dtype, device = loading.dtype, pick_device(loading.device)
        where: Any = {"device_map": None if device == "cpu" else {"": device}}
        if loading.device_map is not None:
            # Of what neither GPUs nor memory hold; removed with the module.
            disk = mkdtemp(prefix="spark-audit-")
            most = {
                int(at[5:]) if at.startswith("cuda") else at: max(free - BESIDE, 0)
                for at, free in rooms(device).items()
                if at != "disk"
            }
            where = {"device_map": "auto", "max_memory": most, "offload_folder": disk}
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
            **where,
        )
        if loading.device_map is not None:
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


# --- transformers ---------------------------------------------------------------------


def empty(config: Any, cls: Any) -> Any:
    """The module as the configuration has it, on the meta device."""
    with foreign("config.json describes no model"), torch.device("meta"):
        return cls(copy.deepcopy(config))


def read_architecture(
    folder: Path, content: Mapping[str, Any], trusted: bool
) -> tuple[Any, Any]:
    """A folder's configuration, and its class: a causal language model for sure.

    Parameters
    ----------
    content
        The content of config.json.
    trusted
        Whether code that comes with it may run.

    Raises
    ------
    CheckpointError
        If it is another kind of model, by name, or unknown to transformers.
    """
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.models.auto import modeling_auto

    names: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    with foreign("config.json is not understood"):
        listed = [*map(str, content.get("architectures") or ())]
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and (type(limit) is not int or not 0 <= limit < 1 << 31):
        what = "config.json says max_position_embeddings, but no length of a context"
        raise CheckpointError(what, fix=ITS_OWN)
    # By name: the mapping itself would import every model there is.
    known = (n if isinstance(n, list | tuple) else [n] for n in names.values())
    # Code of its own runs only where that is trusted: else it was refused before.
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    causal = own or not listed or {*chain.from_iterable(known)}.intersection(listed)
    mapping: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    cls = mapping.get(type(config), None) if causal else None
    if own is not None:
        with foreign("its own code cannot be loaded"):
            cls = get_class_from_dynamic_module(own, folder, local_files_only=True)
    if cls is None or getattr(config, "is_encoder_decoder", False):
        name = shown(listed[0]) if listed else type(config).__name__
        raise CheckpointError(f"{name} is not a causal language model (decoder only)")
    # Tables of positions are as long as the configuration says: memory that no weights
    # back. On the meta device they cost nothing.
    size = sum(table.nbytes for table in empty(config, cls).buffers())
    if size > MOST_BUFFERS:
        what = f"config.json needs {size:.3g} bytes beside the weights"
        raise CheckpointError(what, fix=ITS_OWN)
    return config, cls


def check_quantised(config: Any, *, device: str) -> None:
    """Refuse weights that are stored in a way which cannot be read here.

    Transformers passes over a method that it does not know, and takes the weights for
    plain ones.
    """
    from transformers.quantizers import auto

    quantizer: Any = auto.AutoHfQuantizer
    said = config.quantization_config
    with foreign("transformers cannot load it"):
        if not quantizer.supports_quant_method(said):
            what = "config.json names a quant_method that transformers does not know"
            raise CheckpointError(what, fix="upgrade transformers")
        quantizer.from_config(said, pre_quantized=True).validate_environment(
            device_map=None if device == "cpu" else {"": device}, weights_only=True
        )


def build(
    config: Any,
    cls: Any,
    *,
    folder: Path | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
    dtype: str = "auto",
    device_map: Any = "meta",
    **options: Any,
) -> Any:
    """Put weights into a module, every tensor of both in its place.

    Parameters
    ----------
    folder, state
        One of both: a folder that transformers reads, or the tensors themselves
        (on the meta device for a check without weights).
    device_map, options
        Of ``from_pretrained``.

    Raises
    ------
    CheckpointError
        With the name of the tensor that is missing, unexpected or of another shape.
    """
    sdpa = getattr(cls, "_supports_sdpa", False)
    with foreign("transformers cannot load it"):
        model, info = cls.from_pretrained(
            folder,
            state_dict=state,
            config=config,
            attn_implementation="sdpa" if sdpa else "eager",
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            device_map=device_map,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
            weights_only=True,
            **options,
        )
    theirs = dict.fromkeys(info["unexpected_keys"], torch.Size())
    ours = dict.fromkeys(info["missing_keys"], torch.Size())
    for name, there, here in info["mismatched_keys"]:
        theirs[name], ours[name] = there, here
    refuse_differences(theirs, ours)
    for message in info["error_msgs"]:
        raise CheckpointError(str(message).split("\n")[0])
    return model.eval()


# --- where weights go -----------------------------------------------------------------

BESIDE = 1_500_000_000
"""Bytes beside the weights, for what is computed."""


def quantised(config: Any) -> bool:
    """Whether the weights are stored quantised."""
    return bool(getattr(config, "quantization_config", None))


def pick_device(device: str) -> str:
    """``auto`` is CUDA when there is one, else the CPU.

    Workers that a launcher started on one machine each take a GPU of their own.
    """
    if device == "auto":
        if not torch.cuda.is_available():
            return "cpu"
        rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
        known = rank.isdecimal()
        return f"cuda:{int(rank) % torch.cuda.device_count()}" if known else "cuda"
    if device.startswith("cuda") and not torch.cuda.is_available():
        what, fix = "there is no CUDA device here", "use --device cpu"
        raise InputError(what, where="--device", fix=fix)
    return device


def rooms(device: str) -> dict[str, int]:
    """Free bytes by place: GPUs (where one may be used), ``cpu`` and ``disk``."""
    found = {}
    if device.startswith("cuda"):
        for number in range(torch.cuda.device_count()):
            found[f"cuda:{number}"] = torch.cuda.mem_get_info(number)[0]
    if (memory := free_bytes()) is not None:
        found["cpu"] = memory
    found["disk"] = shutil.disk_usage(tempfile.gettempdir()).free
    return found

"""One checkpoint: what a path is, by its content, and how it is put together.

By headers alone: weights are read when it is loaded. A path is a model's folder,
PEFT's, a weights file, GGUF, or a series of these.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import mmap
import os
import re
import shutil
import struct
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from tempfile import mkdtemp
from typing import Any

import torch

from spark_audit.checkpoints import specs, untrusted, weight_files
from spark_audit.checkpoints.loaded import SIZES, offloaded
from spark_audit.checkpoints.tokenizer import vocabulary_of
from spark_audit.checkpoints.weight_files import ITS_OWN, NOISE, PREFIX, State
from spark_audit.errors import CheckpointError, InputError, at, free_bytes, shown
from spark_audit.files import check_regular, instead
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
    loading: specs.Loading = specs.Loading()
    format: str = ""
    source: str = ""
    where: str = ""

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
    def _architecture(self) -> tuple[Any, Any]:
        return read_architecture(self.place, self.loading.trust_remote_code)

    @property
    def architecture(self) -> Any:
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

    def eos(self, model: Any) -> object:
        """What ends an answer of a model, once transformers has opened its folder."""
        path = self.place / "generation_config.json"
        if self.whole and path.exists():
            eos = untrusted.read_json(path).get("eos_token_id")
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
        for key, value in untrusted.walk(self.config):
            most = min(len(state), MOST_LAYERS) if key in _LAYERS else MOST_LAYERS
            if _COUNT.search(key) and isinstance(value, int) and value > most:
                what = f"config.json says {shown(key)} {str(value)[:20]}, the weights"
                raise CheckpointError(f"{what} are {len(state)} tensors", fix=ITS_OWN)
        architecture, cls = self._architecture
        if self.quantised:
            self._check_quantised()
            return empty(architecture, cls).eval()
        model = self._built(state, device_map="meta")
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

        quantizer: Any = auto.AutoHfQuantizer
        said = self.architecture.quantization_config
        with untrusted.foreign("transformers cannot load it"):
            if not quantizer.supports_quant_method(said):
                what = "config.json names a quant_method unknown to transformers"
                raise CheckpointError(what, fix="upgrade transformers")
            place = None if self.device == "cpu" else {"": self.device}
            method = quantizer.from_config(said, pre_quantized=True)
            method.validate_environment(device_map=place, weights_only=True)

    def load(self) -> Any:
        """Its module with every number of its files, each of them finite."""
        where: Any = {"device_map": None if self.device == "cpu" else {"": self.device}}
        if spread := self.loading.device_map is not None:
            # Of what neither GPUs nor memory hold; removed with the module.
            disk = mkdtemp(prefix="spark-audit-")
            most = {
                int(at[5:]) if at.startswith("cuda") else at: max(free - BESIDE, 0)
                for at, free in rooms(self.device).items()
                if at != "disk"
            }
            where = {"device_map": "auto", "max_memory": most, "offload_folder": disk}
        model = self._built(None if self.whole else self.read(), **where)
        if spread:
            weakref.finalize(model, shutil.rmtree, disk, ignore_errors=True)
        there = {k: t for k, t in model.state_dict().items() if not t.is_meta}
        weight_files.check_finite(there)
        if offloaded(model):
            weight_files.check_finite(self.read())
        return model

    def _built(self, state: State | None, **options: Any) -> Any:
        """Its module, every tensor of the weights and of the module in its place.

        Parameters
        ----------
        state
            The weights, also on the meta device; ``None``: transformers reads them.
        options
            Of ``from_pretrained``.

        Raises
        ------
        CheckpointError
            With the name of the tensor that is missing, unexpected or of another shape.
        """
        architecture, cls = self._architecture
        sdpa = getattr(cls, "_supports_sdpa", False)
        with untrusted.foreign("transformers cannot load it"):
            model, info = cls.from_pretrained(
                self.place if state is None else None,
                state_dict=state,
                config=architecture,
                attn_implementation="sdpa" if sdpa else "eager",
                dtype=getattr(torch, self.dtype, "auto"),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
                weights_only=True,
                use_safetensors=self.files[0].suffix == ".safetensors",
                trust_remote_code=self.loading.trust_remote_code,
                **options,
            )
        theirs = dict.fromkeys(info["unexpected_keys"], torch.Size())
        ours = dict.fromkeys(info["missing_keys"], torch.Size())
        for name, there, here in info["mismatched_keys"]:
            theirs[name], ours[name] = there, here
        weight_files.refuse_differences(theirs, ours)
        for message in info["error_msgs"]:
            raise CheckpointError(str(message).split("\n")[0])
        return model.eval()

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
        there = ", ".join(f"{size / 1e9:.1f} GB {at}" for at, size in free.items())
        kind = "their own dtype" if self.dtype == "auto" else self.dtype
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
            adapter = weight_files.content_sha256(self.files, kept)
            own = own if self.complete else adapter
        if os.path.lexists(self.folder / NOISE):  # without it it is another model
            noise = weight_files.content_sha256([self.folder / NOISE], {})
            own = sha256_json({"weights": own, "noise": noise})
        quantisation = self.on.config.get("quantization_config")
        parts = {"adapter": adapter, "noise": noise, "weights": base}
        return own, sha256_json({**computed, **parts, "quantisation": quantisation})


# --- transformers ---------------------------------------------------------------------


def empty(config: Any, cls: Any) -> Any:
    """The module as the configuration has it, on the meta device."""
    with untrusted.foreign("config.json describes no model"), torch.device("meta"):
        return cls(copy.deepcopy(config))


def read_architecture(folder: Path, trusted: bool) -> tuple[Any, Any]:
    """A folder's configuration, and its class: a causal language model for sure.

    Parameters
    ----------
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

    with untrusted.foreign("config.json is not understood"):
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
        listed = [*map(str, getattr(config, "architectures", None) or ())]
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and (type(limit) is not int or not 0 <= limit < 1 << 31):
        what = "config.json says max_position_embeddings, but no length of a context"
        raise CheckpointError(what, fix=ITS_OWN)
    # Code of its own runs only where that is trusted: else it was refused before.
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    # By name: the mapping itself would import every model there is.
    known = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    mapping: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    cls = mapping.get(type(config), None)
    if own is not None:
        with untrusted.foreign("its own code cannot be loaded"):
            cls = get_class_from_dynamic_module(own, folder, local_files_only=True)
    elif listed and known.isdisjoint(listed):
        cls = None
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


# --- where weights go -----------------------------------------------------------------

BESIDE = 1_500_000_000
"""Bytes beside the weights, for what is computed."""


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


# --- what a path is ----------------------------------------------------------------


def read_headers(source: str, loading: specs.Loading) -> Checkpoint:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, number = specs.split_stage(source)
    path = loading.locate(text)
    with at(source), untrusted.readable():
        places = formats_of(path)
        if len(places) != 1:
            raise _no_checkpoint(path, [*places])
        ((name, (place, read)),) = places.items()
        if read is None:
            stage, notes = specs.choose_stage(path, number)
            made = read_headers(str(stage), loading)
            name = untrusted.printable(text) + (f"@{number}" if number else "")
            notes += made.notes
            return replace(made, source=name, where=source, notes=notes)
        if number is not None:
            what = "is one checkpoint, not a series"
            raise CheckpointError(f"{what}: @{number} does not apply")
        if place != path:
            untrusted.check_inside(place)
        made = read(place, loading)
    given: Any = {"loading": loading, "base": loading.base or made.base}
    given |= {"source": untrusted.printable(source), "where": source, "format": name}
    given["host"] = made.host and replace(made.host, **given)
    return replace(made, **given)


def _no_checkpoint(path: Path, formats: list[str]) -> CheckpointError:
    run = {} if formats else specs.read_run(path)
    if run.get("status") == "running":
        what = "is a run of spark-train that has not finished a stage"
        fix = f"give the same `spark-train run -o {shown(str(path))}` again: it goes on"
        return CheckpointError(what, fix=fix)
    what = f"reads as {' and as '.join(formats)}" if formats else "is no checkpoint"
    inside = [one.name for one in sorted(path.glob("*/")) if formats_of(one)]
    if inside:
        what += f" (these folders in it are: {', '.join(inside[:5])})"
    otherwise = "give a folder with config.json or adapter_config.json, or weights"
    return CheckpointError(what, fix=instead(path, otherwise))


Reader = Callable[[Path, specs.Loading], Checkpoint]


def formats_of(path: Path) -> dict[str, tuple[Path, Reader | None]]:
    """The formats that a path is of, by its content.

    Each with what is read for it, and how that is put together; a series is not.
    """
    model, adapter = ((path / name).exists() for name in untrusted.CONFIGURATIONS)
    full = weight_files.weights_of(path)
    file = None if model or adapter else weight_files.lone_file(path)
    gguf = None if model else weight_files.lone_file(path, (".gguf",))
    table: dict[str, tuple[Path | None, Reader | None]] = {
        "bare-weights": (file, bare_weights),
        "gguf-file": (gguf, gguf_file),
        "hf-folder": (path if model and (full or not adapter) else None, hf_folder),
        "peft-adapter": (path if adapter and not full else None, peft_adapter),
        "task-series": (path if specs.is_series(path) else None, None),
    }
    return {name: (place, read) for name, (place, read) in table.items() if place}


# --- a folder -------------------------------------------------------------------------

_WRAPPED = ("module.", "_orig_mod.", "_module.", "base_model.model.")
# What LLaVA and its descendants (MCITlib) train beside an adapter, and the modules
# that text alone does not pass through.
_TRAINED = ("non_lora_trainables.bin", "non_lora_state_dict.bin")
_IMAGES = re.compile(r"(^|\.)(mm_|vision_|visual\b|image_newline)")


def hf_folder(path: Path, loading: specs.Loading) -> Checkpoint:
    """Full weights that transformers reads from their folder.

    Raises
    ------
    CheckpointError
        If the folder holds an adapter too, code, no weights, or the weights of a
        wrapped model.
    """
    if (path / "adapter_config.json").exists():
        what = "holds full weights and an adapter: which of them is meant?"
        raise CheckpointError(what, fix="put the adapter into a folder of its own")
    config = untrusted.read_config(path, trusted=loading.trust_remote_code)
    files = weight_files.files_of(path)
    read = partial(weight_files.merged, files)
    state = read()
    weight_files.check_filled(state)
    for name in state:
        if name.startswith(_WRAPPED) or ".lora_" in name:
            what = f"the weights are those of a wrapped model (tensor {name})"
            raise CheckpointError(what, fix=f"give the file itself: {files[0].name}")
    return Checkpoint(config, files, read, path, folder=path, whole=True)


def peft_adapter(path: Path, loading: specs.Loading) -> Checkpoint:
    """An adapter on the base that is given, else on the one it names.

    Raises
    ------
    CheckpointError
        If it has no weights, brings code, or no base is known.
    """
    config = untrusted.read_json(path / "adapter_config.json")
    if not loading.trust_remote_code:
        untrusted.refuse_code({}, path)
    files = weight_files.files_of(path, weight_files.ADAPTER)
    named = config.get("base_model_name_or_path") or None
    if not isinstance(named, str | None):
        raise CheckpointError("base_model_name_or_path is no text")
    notes, theirs = _beside(path), PurePath(named or "").name
    if loading.base is None:
        # A path only: whoever made the adapter asks no host.
        if named is None or named.startswith(untrusted.HUB) or not specs.exists(named):
            what = f"'s base {shown(named)} is not here" if named else " names no base"
            fix = f"give --base MODEL (a folder, or {untrusted.HUB}ORG/NAME)"
            raise CheckpointError(f"the adapter{what}", fix=fix)
        notes.append(f"base: {shown(theirs)}, as the adapter names it")
    elif named is not None and theirs != PurePath(str(loading.base)).name:
        ours = untrusted.printable(str(loading.base))
        notes.append(f"base: {ours} as given; the adapter names {shown(theirs)}")
    read, told = partial(weight_files.merged, files), tuple(notes)
    return Checkpoint(
        config, files, read, path, folder=path, adapter=True, base=named, notes=told
    )


def _beside(folder: Path) -> list[str]:
    """What is said of trained weights beside an adapter that PEFT does not read.

    Raises
    ------
    CheckpointError
        If some are of the language model: without them it is another one.
    """
    there = [name for name in _TRAINED if os.path.lexists(folder / name)]
    for name in there:
        untrusted.check_inside(folder / name)
        for key in sorted(weight_files.merged((folder / name,))):
            if not _IMAGES.search(key):
                what = f"{name} holds weights of the language model ({shown(key)})"
                fix = "merge adapter and weights with the tool that trained them"
                raise CheckpointError(what, fix=fix)
    return [f"{name} is of images, which are not audited: left out" for name in there]


# --- a weights file alone, with whatever wrapped it -----------------------------------

_WRAPPERS = 4
_CONTAINERS = ("state_dict", "model", "model_state_dict", "module")
# Wrappers put their name in front of everything (DDP, Opacus), or anywhere in a path
# (torch.compile, FSDP).
_FRONT = re.compile(r"^(?:_?module\.)+")
_ANYWHERE = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# PEFT's tensors; the adapter's name stands behind the part.
_LORA = re.compile(
    r"(?P<part>.+\.lora(?:new)?_(?:embedding_)?[AB]|.+\.lora_magnitude_vector)"
    r"(?:\.(?P<name>(?!weight$)[^.]+))?(?P<rest>\.weight)?"
)
_RANK = re.compile(r"(.+)\.lora(new)?_(?:embedding_)?A(?:\.weight)?")
_LAYER = re.compile(r"^.*?\.\d+\.")
_ALONE = "save the one to audit alone"
_OTHER_PEFT = re.compile(r"\.(ia3_l|hada_w|lokr_w|oft_|vera_|boft_|fourierft_|prompt_)")


def bare_weights(file: Path, loading: specs.Loading) -> Checkpoint:
    """Full weights into the architecture of a config.json, or LoRA onto the base.

    Raises
    ------
    CheckpointError
        If the configuration, the base or LoRA's alpha is not known, or the file holds
        anything that is not understood.
    """
    full, lora, notes = _read(file)
    folder, made = file.parent, None
    if full:
        weight_files.check_filled(full)
        config, place, note = weight_files.config_of(file, loading)
        notes.append(note)
        made = Checkpoint(config, (file,), lambda: _read(file)[0], place, folder=folder)
    if lora:
        config, note = _lora_config(file, lora, loading)
        notes.append(note)
        if made is not None:
            notes.append("holds the base's weights and LoRA: both are the file's own")
        elif loading.base is None:
            what = "holds LoRA weights without their base"
            raise CheckpointError(what, fix="give --base")
        known: Any = {"folder": folder, "adapter": True, "host": made}
        made = Checkpoint(config, (file,), lambda: _read(file)[1], folder, **known)
    assert made is not None  # no tensors at all are refused as they are read
    return replace(made, notes=tuple(notes))


def _read(file: Path) -> tuple[State, State, list[str]]:
    """Full weights by the names of the bare module, LoRA's by PEFT's, and notes.

    The names of wrappers and adapters are stripped.
    """
    content, notes = weight_files.read_tensors(file), list[str]()
    # A pickle can hold itself: wrappers are a few deep, never more.
    for _ in range(_WRAPPERS):
        held = content if isinstance(content, dict) else {}
        inside = [key for key in _CONTAINERS if isinstance(held.get(key), dict)]
        if len(inside) > 1:
            what = f"holds several models: {', '.join(inside)}"
            raise CheckpointError(what, fix=_ALONE)
        for key in inside:
            notes.append(f"taken from {key!r} in the file")
            content = content[key]
    # An empty one is none.
    fix = "save model.state_dict() alone"
    state = weight_files.only_tensors(content or None, fix=fix)
    full, lora, adapters = State(), State(), set[str]()
    for key, tensor in state.items():
        name = _ANYWHERE.sub("", _FRONT.sub("", _ANYWHERE.sub("", key)))
        name = name.removeprefix(PREFIX)
        if other := _OTHER_PEFT.search("." + name):
            what = f"holds a PEFT adapter other than LoRA ({shown(key)}, {other[1]})"
            fix = "give the adapter's folder with its adapter_config.json"
            raise CheckpointError(what, fix=fix)
        target, part = full, _LORA.fullmatch(name)
        name = name.replace(".base_layer.", ".")
        if part:
            adapters.add(part["name"] or "")
            # PEFT saves DoRA's vector without the name of its parameter.
            rest = "" if part["part"].endswith("_vector") else part["rest"] or ""
            target, name = lora, PREFIX + part["part"] + rest
        if name in target or len(adapters) > 1:
            listed = ", ".join(sorted(adapters)) if len(adapters) > 1 else ""
            what = f"several adapters ({listed})" if listed else f"{name} twice"
            raise CheckpointError(f"holds {what}", fix=_ALONE)
        target[name] = tensor
    if not state.keys() <= {*full, *lora, *(k.removeprefix(PREFIX) for k in lora)}:
        notes.append("wrappers' names stripped from the tensors' names")
    return full, lora, notes


def _lora_config(
    file: Path, lora: State, loading: specs.Loading
) -> tuple[dict[str, Any], str]:
    """LoRA's configuration: from beside the file, else rank and targets from shapes.

    A module that is adapted in one layer is expected in all, as only a configuration
    could say otherwise: of a deeper base, some layers would be without adapter.
    """
    beside = file.parent / "adapter_config.json"
    if beside.exists():
        note = "LoRA settings: adapter_config.json next to the file"
        return untrusted.read_json(beside), note
    if loading.lora_alpha is None:
        fix = "give --lora-alpha, or put adapter_config.json next to the file"
        raise CheckpointError("holds LoRA weights without their alpha", fix=fix)
    ranks, earlier = dict[str, int](), 0
    # O-LoRA scales by the rank of its newest part.
    for key in sorted(lora, key=lambda key: ".loranew_" in key):
        if match := _RANK.fullmatch(key):
            rank = lora[key].shape[:1].numel()
            ranks[match[1].removeprefix(PREFIX)] = rank
            earlier = earlier if match[2] else rank
    if not ranks:
        raise CheckpointError("has LoRA tensors, but no lora_A")
    usual = Counter(ranks.values()).most_common(1)[0][0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": usual,
        "r_sum": earlier,
        "lora_alpha": loading.lora_alpha,
        "target_modules": sorted({_LAYER.sub("", name) for name in ranks}),
        "rank_pattern": {name: ranks[name] for name in ranks if ranks[name] != usual},
        "use_dora": any(key.endswith("magnitude_vector") for key in lora),
    }
    note = f"LoRA: rank {usual} from shapes, alpha {loading.lora_alpha:g} as given"
    return config, note


# --- a GGUF file ----------------------------------------------------------------------

_EXACT = {"F32", "F16", "BF16", "F64"}
"""Types of tensors that round nothing that was saved so."""
_SAME = (*SIZES, "rope_theta", "rms_norm_eps", "layer_norm_epsilon")
KEYS, TENSORS, ELEMENTS = 4096, 1 << 15, 3 << 19
"""The most that a header may list; real ones have 60 keys, 2,000 tensors, and 1.3
million elements of arrays (tokens, their scores and types, merges)."""
_HEADER_BYTES = 1 << 26
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Number of a type in the file -> bytes of a value."""
_STRING, _ARRAY = 8, 9
_UNREADABLE = "is no GGUF file that can be read"
_BASE = "give the model that it was converted from by --base"


def gguf_file(file: Path, loading: specs.Loading) -> Checkpoint:
    """Weights as the file's makers rounded them, read as plain numbers.

    Raises
    ------
    CheckpointError
        If the package gguf is missing, the file cannot be read, its numbers or tokens
        are not those of the base's configuration and tokenizer, or it is in parts.
    """
    check_regular(file, follow=True)
    config, folder, note = weight_files.config_of(file, loading)
    install = "where spark-audit lies: pip install '.[gguf]'"
    with untrusted.foreign("a GGUF file needs the package gguf", fix=install):
        import gguf
    with untrusted.foreign(_UNREADABLE):
        with open(file, "rb") as opened:
            size = min(file.stat().st_size, _HEADER_BYTES)
            with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as data:
                _check_header(data)
        reader: Any = gguf.GGUFReader(str(file))
        counts = [int(tensor.n_elements) for tensor in reader.tensors]
        if not all(counts):
            raise ValueError("a tensor is empty")
        content = _understood(file)
    if "split.count" in reader.fields:
        fix = "join its parts (llama-gguf-split --merge) and give the one file"
        raise CheckpointError("is one part of a GGUF file", fix=fix)
    for name in _SAME:
        ours: Any = config.get(name)
        theirs = content["config"].get(name)
        both = isinstance(ours, int | float) and isinstance(theirs, int | float)
        if both and not math.isclose(ours, theirs, rel_tol=1e-5):
            what = f"says {name} {theirs:g}, the configuration {ours:g}"
            raise CheckpointError(what, fix=_BASE)
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    notes = [note, f"GGUF tensors, dequantised as they are: {listed}"]
    if rounded := ", ".join(sorted({*kinds} - _EXACT)):
        notes.append(f"the conversion lost digits ({rounded}): it is audited as it is")
    words = folder if loading.tokenizer is None else untrusted.locate(loading.tokenizer)
    words, tokens = words / "tokenizer.json", content["tokenizer"].get("tokens")
    if words.exists() and tokens:
        known = vocabulary_of(untrusted.read_json(words, most=untrusted.WORDS_BYTES))
        # Rows that pad the vocabulary are called otherwise by every converter.
        other = sum(known.get(token, i) != i for i, token in enumerate(tokens))
        if other or max(known.values(), default=0) >= len(tokens):
            what = f"the tokenizer ({len(known)} tokens) is not the file's: of its"
            what += f" {len(tokens)} tokens {other} have other ids"
            raise CheckpointError(what, fix=_BASE)
    else:
        notes.append("its tokens could not be compared with the tokenizer's")

    def read() -> State:
        model = empty(*read_architecture(folder, loading.trust_remote_code))
        # Rounded to 1.6 bits, a file holds 20 times its size; output may be tied.
        own = sum(one.numel() for one in model.parameters())
        if sum(counts) > 2 * own:
            what = f"holds {sum(counts):,} numbers, the base's model {own:,}"
            raise CheckpointError(what)
        with untrusted.foreign(_UNREADABLE):
            made = _understood(file, return_tensors=True, model_to_load=model)
        state = {k: torch.as_tensor(one) for k, one in made["tensors"].items()}
        weight_files.check_filled(state)
        return state

    return Checkpoint(
        config, (file,), read, folder, folder=file.parent, notes=tuple(notes)
    )


def _understood(file: Path, **options: Any) -> dict[str, Any]:
    """What transformers makes of a file whose header is sound."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    load: Any = theirs.load_gguf_checkpoint
    # Its progress bar asks nobody whether bars are wanted.
    with contextlib.redirect_stderr(io.StringIO()):
        return dict(load(str(file), **options))


def _check_header(data: mmap.mmap) -> None:
    """Walk the header of a GGUF file before a library reads it.

    The library counts on it: one array of 2 ** 60 elements never ends, and fills the
    memory. Layout: github.com/ggml-org/ggml, docs/gguf.md.

    Raises
    ------
    ValueError, OverflowError, struct.error
        With a count or length that the file cannot hold: there is nothing to read, or
        to seek.
    """
    left = ELEMENTS
    if data.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    order = "<" if struct.unpack_from("<I", data, 4)[0] & 0xFFFF else ">"

    def number(code: str, most: int = 1 << 64) -> int:
        (found,) = struct.unpack(order + code, data.read(struct.calcsize(code)))
        if found > most:
            what = "keys, tensors or elements: more than"
            raise ValueError(f"{found} {what} {most} are not read")
        return int(found)

    def value(kind: int, count: int, *, inner: bool) -> None:
        nonlocal left
        if kind == _STRING:
            for _ in range(count):
                data.seek(number("Q"), os.SEEK_CUR)
        elif kind in _SCALARS:
            data.seek(_SCALARS[kind] * count, os.SEEK_CUR)
        elif kind == _ARRAY and not inner:
            kind, count = number("I"), number("Q", left)
            left -= count
            value(kind, count, inner=True)
        else:
            raise ValueError(f"values of type {kind} are unknown, or nested")

    if number("I") not in (2, 3):
        raise ValueError("only versions 2 and 3 are known")
    number("Q", TENSORS)
    for _ in range(number("Q", KEYS)):
        data.seek(number("Q"), os.SEEK_CUR)
        value(number("I"), 1, inner=False)

"""One module in memory, and the checkpoints that are opened on it."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from spark_audit.checkpoints.adapter_config import (
    adapter_config,
    changes_base,
    prepared,
)
from spark_audit.checkpoints.adapters import AdapterHost, input_noise
from spark_audit.checkpoints.locate import locate, read_json
from spark_audit.checkpoints.models import (
    Architecture,
    build,
    check_probe,
    head_rows,
    logits,
    probe_ids,
    read_architecture,
    untied,
)
from spark_audit.checkpoints.placement import offloaded, pick_device, placed, release
from spark_audit.checkpoints.quantise import rounded, swapped
from spark_audit.checkpoints.recipe import Given, Loaded, Recipe, Weights
from spark_audit.checkpoints.sidecar import NOISE, NOISE_ADDED, frozen_noise
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.tokenizer import (
    has_tokenizer,
    has_vocabulary,
    policy,
    read_tokenizer,
    tokenizer_sha256,
    usable_rows,
)
from spark_audit.checkpoints.weight_files import check_finite, content_sha256
from spark_audit.errors import CheckpointError, shown
from spark_audit.names import CheckpointName
from spark_audit.provenance import sha256_json

# PEFT writes these in any order.
_SETS = ("target_modules", "modules_to_save")
# What adapter_config.json holds besides what the adapter computes.
_NO_EFFECT = ("base_model_name_or_path", "revision", "peft_version", "inference_mode")

Read = tuple[Any, str, list[str]]
"""A tokenizer, its hash, and notes of how it was read."""


class LoadedBase:
    """One module in memory, and what is opened on it."""

    def __init__(
        self,
        shared: Recipe,
        loading: Loading,
        *,
        tokenizers: dict[Path, Read] | None = None,
    ) -> None:
        where, weights = shared.given.where, shared.weights
        assert weights is not None
        self.shared, self.device = shared, pick_device(loading.device)
        named = read_json(weights.config / "config.json", where=where)
        self.architecture = read_architecture(weights.config, named, shared.given)
        # Of what neither GPUs nor memory hold; removed with the module.
        disk = mkdtemp(prefix="spark-audit-") if loading.device_map else None
        dtype, self.notes = _computed_in(
            loading, self.architecture, weights, device=self.device
        )
        self.model = build(
            self.architecture,
            folder=weights.folder,
            state=None if weights.folder else weights.read(False),
            dtype=dtype,
            device=self.device,
            places=placed(loading, self.device, folder=disk),
            safetensors=weights.files[0].suffix == ".safetensors",
            trust_remote_code=loading.trust_remote_code,
            where=where,
        )
        if disk is not None:
            weakref.finalize(self.model, shutil.rmtree, disk, ignore_errors=True)
        held = {k: t for k, t in self.model.state_dict().items() if not t.is_meta}
        check_finite(held, where=where)
        if offloaded(self.model):
            check_finite(weights.read(False), where=where)
        self._tokenizers: dict[Path, Read] = {} if tokenizers is None else tokenizers
        self.rows = head_rows(self.model)
        usable = usable_rows(self._tokenizer(shared)[0], self.rows, where=where)
        ids = probe_ids(usable, max_positions=self.architecture.max_positions)
        self.host = AdapterHost(self.model, probe=partial(logits, ids=ids, where=where))
        check_probe(self.host.plain, where=where)

    def release(self) -> None:
        """Free the module, whoever still holds a checkpoint that was opened on it."""
        self.host.released = True
        release(self.model)

    def load(
        self, name: str, item: Recipe, *, is_base: bool, quantize: Sequence[str] = ()
    ) -> Iterator[Loaded]:
        """Open one checkpoint on this module, then what it is with rounded weights."""
        where, on, raw, notes = item.given.where, None, None, [*item.notes]
        if item.adapter is not None:
            on, raw, more = self._attach(item)
            notes += more
        noise = self._noise(item)
        if noise is not None:
            notes.append(NOISE_ADDED)
        tokenizer, _, more = self._tokenizer(item)
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        attention = str(getattr(self.model.config, "_attn_implementation", "eager"))
        notes += [*more, f"loaded as {dtype}, attention {attention}", *self.notes]
        first, *others = described(
            name,
            item,
            self.shared,
            model=self.model,
            rows=self.rows,
            raw=raw,
            dtype=dtype,
            eos=getattr(self.model.generation_config, "eos_token_id", None),
            is_base=is_base,
            quantize=quantize,
            tokenizers=self._tokenizers,
        )
        notes += remarks(self.architecture, self.model, tokenizer, first.usable)
        first = replace(
            first,
            model=self.model if on is None else self.host.peft,
            max_positions=self._max_positions(on),
            device=self.device,
            notes=tuple(notes),
            activate=partial(_activated, self.host, on, noise),
        )
        yield first
        for kind, other in zip(quantize, others, strict=True):
            weights = rounded(self.model, self.host.peft, on, kind, where=where)
            yield replace(
                first,
                name=other.name,
                quantised_from=name,
                # Its adapter is merged: the module is used without any.
                model=self.model,
                model_id=other.model_id,
                notes=(*notes, f"linear layers rounded to {kind} by torchao"),
                activate=partial(_activated, self.host, None, noise, weights),
            )
            del weights

    def _attach(self, item: Recipe) -> tuple[str, dict[str, Any], list[str]]:
        assert item.adapter is not None
        where = item.given.where
        raw, state, notes = prepared(
            item.adapter.config, item.adapter.read(False), where=where
        )
        on, more = self.host.attach(
            adapter_config(raw, where=where),
            state,
            changes_base=changes_base(raw),
            where=where,
        )
        return on, raw, notes + more

    def _noise(self, item: Recipe) -> torch.Tensor | None:
        noise = frozen_noise(
            item.folder,
            self.model.get_input_embeddings().weight.shape,
            sha256=item.noise_sha256,
            where=item.given.where,
        )
        return None if noise is None else noise.to(self.device)

    def _tokenizer(self, item: Recipe) -> Read:
        return tokenizer_of(item, self.shared, known=self._tokenizers)

    def _max_positions(self, on: str | None) -> int | None:
        stated = self.architecture.max_positions
        if stated is None or on is None:
            return stated
        config = self.host.peft.peft_config[on]
        return stated - (config.num_virtual_tokens if config.is_prompt_learning else 0)


def _computed_in(
    loading: Loading, architecture: Architecture, weights: Weights, *, device: str
) -> tuple[str, list[str]]:
    """The dtype to load weights in, and a note where ``auto`` does not keep theirs.

    On a CPU without instructions for bfloat16 it takes up to 2.5 times as long.
    """
    if loading.dtype != "auto" or architecture.quantised:
        return loading.dtype, []
    kinds = (tensor.dtype for tensor in weights.read(True).values())
    if next((one for one in kinds if one.is_floating_point), None) != torch.bfloat16:
        return loading.dtype, []
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device != "cpu" or native:
        return "bfloat16", []
    return "float32", ["saved in bfloat16, computed in float32: faster on this CPU"]


def described(
    name: str,
    item: Recipe,
    shared: Recipe,
    *,
    model: Any,
    rows: int,
    raw: Mapping[str, Any] | None,
    dtype: str,
    eos: object,
    is_base: bool,
    quantize: Sequence[str],
    tokenizers: dict[Path, Read],
) -> list[Loaded]:
    """What is known of a checkpoint without its numbers, and of its rounded copies.

    Parameters
    ----------
    model
        The base's module, on any device; of the result only its configuration is kept.
    rows
        Rows of its output head.
    raw
        The adapter's configuration as it was attached.
    dtype
        What it is computed in; while that is not known (``auto``, quantised weights)
        ``model_id`` is empty.
    eos
        What ends an answer.
    tokenizers
        What was read before, by folder; it grows.
    """
    where, weights = item.given.where, shared.weights
    assert weights is not None
    named = read_json(weights.config / "config.json", where=where)
    base_sha256 = content_sha256(weights.files, named)
    borrowed = item.weights is None
    adapter_sha256, noise_sha256, own_sha256 = _hashes(item, raw, base_sha256)
    tokenizer, tokenizer_id, _ = tokenizer_of(item, shared, known=tokenizers)
    # What a score depends on besides the token ids.
    identity = {
        "adapter": adapter_sha256,
        "noise": noise_sha256,
        "dtype": dtype,
        "attention": str(getattr(model.config, "_attn_implementation", "eager")),
        "weights": base_sha256,
        "quantisation": named.get("quantization_config"),
        "eos": repr(eos),
    }
    text = model.config.get_text_config()
    first = Loaded(
        name=name,
        source=item.source,
        format=item.format,
        base=shared.source if borrowed else None,
        base_sha256=base_sha256 if borrowed or is_base else None,
        model=model,
        tokenizer=tokenizer,
        architecture=type(model).__name__,
        usable=usable_rows(tokenizer, rows, where=where),
        max_positions=getattr(text, "max_position_embeddings", None) or None,
        dtype=dtype,
        device=item.given.device,
        weights_sha256=own_sha256,
        tokenizer_sha256=tokenizer_id,
        model_id="" if dtype == "auto" else sha256_json(identity),
    ).without_weights()
    copies = (
        replace(
            first,
            name=str(CheckpointName(name, rounding=kind)),
            quantised_from=name,
            model_id=first.model_id and sha256_json({**identity, "rounded": kind}),
        )
        for kind in quantize
    )
    return [first, *copies]


def _hashes(
    item: Recipe, raw: Mapping[str, Any] | None, base_sha256: str
) -> tuple[str | None, str | None, str]:
    """Hashes of its adapter and its frozen noise, if it has them, and its own."""
    adapter = noise = None
    if item.adapter is not None and raw is not None:
        kept = {
            key: sorted(value) if key in _SETS and isinstance(value, list) else value
            for key, value in raw.items()
            if key not in _NO_EFFECT
        }
        adapter = content_sha256(item.adapter.files, kept)
    if os.path.lexists(item.folder / NOISE):
        noise = content_sha256([item.folder / NOISE], {})
    own = adapter if item.weights is None else base_sha256
    assert own is not None
    if noise is not None:  # without it it is another model
        own = sha256_json({"weights": own, "noise": noise})
    return adapter, noise, own


@contextmanager
def _activated(
    host: AdapterHost,
    on: str | None,
    noise: torch.Tensor | None,
    weights: list[tuple[torch.nn.Parameter, torch.Tensor]] | None = None,
) -> Iterator[None]:
    with ExitStack() as stack:
        if weights is not None:
            stack.enter_context(swapped(weights))
        stack.enter_context(host.off() if on is None else host.on(on))
        if noise is not None:
            stack.enter_context(input_noise(host.model, noise))
        yield


def remarks(
    architecture: Architecture, model: Any | None, tokenizer: Any, usable: np.ndarray
) -> list[str]:
    """Notes on vocabulary and weights; ``model`` is ``None`` where none is built."""
    notes = [policy(tokenizer, bos=getattr(architecture.text, "bos_token_id", None))]
    if padded := int((~usable).sum()):
        notes.append(
            f"{padded} of {len(usable)} rows of the head are no token: left out of "
            f"softmax and ranks"
        )
    if model is not None and untied(model):
        notes.append(
            "the configuration ties head and embeddings, the file holds two "
            "different ones: used as they are"
        )
    if architecture.quantised:
        said = architecture.config.quantization_config
        kind = said.get("quant_method") if isinstance(said, dict) else None
        notes.append(f"quantised weights ({shown(kind or 'unnamed method')})")
    return notes


def tokenizer_of(item: Recipe, shared: Recipe, *, known: dict[Path, Read]) -> Read:
    """The tokenizer of a checkpoint, its hash, and notes.

    Parameters
    ----------
    known
        What was read before, by folder; it grows.

    Raises
    ------
    CheckpointError
        If there is none, or it cannot be loaded.
    """
    folder, other, notes = choose_tokenizer(item, shared)
    tokenizer, own, more = read_once(folder, item.given, known=known)
    if other is not None and read_once(other, item.given, known=known)[1] != own:
        notes = [f"{notes[0]}, which is not the base's", *notes[1:]]
    return tokenizer, own, notes + more


def read_once(folder: Path, given: Given, *, known: dict[Path, Read]) -> Read:
    """A folder's tokenizer, from what was read before if it was."""
    if folder not in known:
        tokenizer, notes = read_tokenizer(
            folder, trust_remote_code=given.trust_remote_code, where=given.where
        )
        known[folder] = tokenizer, tokenizer_sha256(tokenizer), notes
    return known[folder]


def choose_tokenizer(
    item: Recipe, shared: Recipe
) -> tuple[Path, Path | None, list[str]]:
    """Which folder the tokenizer comes from, which other one it is compared with.

    The checkpoint's own comes first, then the base's; a bare vocabulary, as TRACE
    saves it, counts only where there is nothing else.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    given, own = item.given, item.folder
    if given.tokenizer is not None:
        return locate(given.tokenizer), None, ["tokenizer: from --tokenizer"]
    base = shared.folder if item.weights is None else None
    if item.weights is not None and item.base is not None:
        base = locate(item.base, revision=given.revision)
        base = base if base.is_dir() else base.parent
    if has_tokenizer(own):
        other = base if has_tokenizer(base) and base != own else None
        return own, other, ["tokenizer: the checkpoint's own"]
    if base is not None and has_tokenizer(base):
        return base, None, ["tokenizer: the base's"]
    for folder in (own, base):
        if folder is not None and has_vocabulary(folder):
            return folder, None, ["tokenizer: made from a bare vocabulary file"]
    raise CheckpointError(
        "has no tokenizer",
        where=given.where,
        fix="give its base by --base, or a folder with tokenizer.json by --tokenizer",
    )

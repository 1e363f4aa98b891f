"""Checkpoints: whatever somebody saved, opened as exactly what it is or refused."""

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
)
from spark_audit.checkpoints.adapters import AdapterHost, input_noise
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers, series
from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.locate import HUB, locate, read_json
from spark_audit.checkpoints.models import (
    Architecture,
    build,
    check_probe,
    head_rows,
    logits,
    probe_ids,
    untied,
)
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.placement import offloaded, pick_device, placed
from spark_audit.checkpoints.quantise import (
    check_kinds,
    check_mergeable,
    rounded,
    swapped,
)
from spark_audit.checkpoints.server import served
from spark_audit.checkpoints.sidecar import NOISE
from spark_audit.checkpoints.specs import Loading, Spec, default_name
from spark_audit.checkpoints.tokenizer import (
    Read,
    policy,
    read_tokenizer,
    tokenizer_of,
    usable_rows,
)
from spark_audit.checkpoints.weight_files import (
    check_finite,
    check_stored,
    content_sha256,
)
from spark_audit.errors import CheckpointError, InputError, at, shown
from spark_audit.names import BASE, CheckpointName, seeds_of
from spark_audit.provenance import sha256_json

# PEFT writes these in any order.
_SETS = ("target_modules", "modules_to_save")
# What adapter_config.json holds besides what the adapter computes.
_NO_EFFECT = ("base_model_name_or_path", "revision", "peft_version", "inference_mode")


def load_tokenizer(
    source: str | Path, *, trust_remote_code: bool = False, where: str | None = None
) -> Any:
    """The fast tokenizer of a model's folder or ``hf:ORG/NAME``, without the model.

    Raises
    ------
    CheckpointError
        If there is none, it brings code, or it gives no character offsets.
    """
    with quiet():
        folder = locate(str(source), code=trust_remote_code)
        with at(where or str(source)):
            return read_tokenizer(folder, trust_remote_code=trust_remote_code)[0]


def expand(spec: Spec) -> tuple[Spec, ...]:
    """One spec a stage, named ``NAME@K``: a list of paths is itself a series.

    Returns
    -------
    tuple
        The spec alone when it is a single checkpoint or names its stage.
    """
    if len(spec.paths) > 1:
        steps = [(path, spec.stage) for path in spec.paths]
    elif spec.stage is None and (stages := series(spec.paths[0])):
        steps = [(spec.paths[0], str(k)) for k in range(1, len(stages) + 1)]
    else:
        return (spec,)
    return tuple(
        Spec(str(CheckpointName(spec.name, stage=k)), (path,), stage)
        for k, (path, stage) in enumerate(steps, start=1)
    )


def open_checkpoint(
    source: str | Path | Loaded,
    loading: Loading | None = None,
    *,
    name: str | None = None,
    **options: Any,
) -> Loaded:
    """Open one checkpoint as exactly what it is.

    Parameters
    ----------
    source
        A Hugging Face folder or ``hf:ORG/NAME``, a PEFT folder, a weights file, a
        series of tasks (its last stage, or ``PATH@K``). One that is open stays.
    loading
        How it is opened; by default as :class:`Loading` says.
    name
        What reports call it; by default the last part of the path. ``base`` marks the
        base itself.
    options
        Fields of :class:`Loading` by name, such as ``base`` and ``device``.

    Raises
    ------
    CheckpointError
        With the reason, when it cannot be loaded as what it claims to be.
    TypeError
        If it is neither a path nor a checkpoint.
    """
    if not isinstance(source, str | Path):
        # What has a checkpoint's parts is as good as one.
        if hasattr(source, "usable"):
            return source
        kind = type(source).__name__
        raise TypeError(f"checkpoint: {kind} is no path and no open checkpoint")
    spec = Spec(name or default_name(str(source)), (str(source),))
    *_, loaded = open_checkpoints([spec], loading, **options)
    return loaded


def open_checkpoints(
    specs: Sequence[Spec], loading: Loading | None = None, **options: Any
) -> Iterator[Loaded]:
    """Open several checkpoints one after the other, each base once.

    All are checked from their headers before the first is loaded. The base comes
    first (with adapters, or with ``include_base`` when one is given), then its
    adapters, attached to one module and switched; then full weights, each released
    before the next is loaded: a checkpoint of another module than the current one
    cannot be activated any more. Adapters of another PEFT type, or that change the
    base's weights, get a base of their own. Replicates of one spec are named
    ``name[1]``, ``name[2]`` ... With ``quantize`` (``int8``, ``int4``) each but the
    base is followed by itself with rounded weights, ``name+int8``.

    Parameters
    ----------
    loading, options
        As for :func:`open_checkpoint`.

    Yields
    ------
    Loaded
        Not in the order of ``specs``: go by ``name``.

    Raises
    ------
    CheckpointError
        As :func:`open_checkpoint`; also when adapters name different bases.
    """
    yield from Opening(specs, replace(loading or Loading(), **options)).each()


class Opening:
    """The checkpoints of a call, by the modules they share; one is loaded at a time.

    Attributes
    ----------
    groups
        Names as they are opened, those of one module together: a base with its
        adapters, full weights, each with its rounded copies.
    described
        What headers tell of each, in this order, without weights; of own code nothing,
        and no ``model_id`` where that is known after loading only.

    Raises
    ------
    CheckpointError
        As :func:`open_checkpoints`: what headers tell is known before any is loaded.
    """

    def __init__(self, specs: Sequence[Spec], loading: Loading) -> None:
        check_kinds(loading.quantize)
        self._loading = loading
        self._served, specs = served(specs, loading)
        for server in self._served.values():
            server.reach()
        self._host: AdapterHost | None = None
        self._tokenizers: dict[Path, Read] = {}
        with quiet():
            self._items, self._base = _from_headers(specs, loading)
            every = [*([self._base] if self._base is not None else []), *self._items]
            described = {one.name: one for item in every for one in self._check(item)}
            # What takes longer, and still before hours of scoring: every number, once.
            for item in every:
                if item.weights is not None:
                    with at(item.where):
                        check_stored(item.weights.files)
        _check_names({item.name for item in self._items}, loading.quantize)
        parts = [part for item in every for part in (item.weights, item.adapter)]
        self.places = {*self._tokenizers, *(item.folder for item in every)}
        for part in filter(None, parts):
            self.places |= {part.folder, *part.files}
        self._groups = self._by_module()
        self.groups = tuple(
            tuple(name for item in items for name in self._names(item))
            for items in self._groups
        )
        for name in described.keys() & self._served.keys():
            described[name] = self._served[name].stands_in(described[name])
        opened = (name for names in self.groups for name in names)
        self.described = [described[name] for name in opened if name in described]

    def each(self) -> Iterator[Loaded]:
        """Every checkpoint, one after the other."""
        for group in range(len(self.groups)):
            yield from self.open(group)

    def open(self, group: int) -> Iterator[Loaded]:
        """Load a module, in place of the one before, and open what is on it."""
        items = self._groups[group]
        base = self._on(items[0])
        self.release()
        with quiet(), at(base.where):
            host, notes = self._load(base)
            self._host = host
        for item in items:
            opened = self._open(host, item, notes)
            while True:
                with quiet(), at(item.where):
                    loaded = next(opened, None)
                if loaded is None:
                    break
                server = self._served.get(loaded.name)
                yield loaded if server is None else server.stands_in(loaded)

    def release(self) -> None:
        """Free the module that is loaded."""
        if self._host is not None:
            self._host.release()
        self._host = None

    def _by_module(self) -> list[list[Checkpoint]]:
        """The checkpoints that are opened on each module."""
        shared: dict[str, list[Checkpoint]] = {}
        alone: list[list[Checkpoint]] = []
        for item in self._items:
            if item.adapter is None or item.weights is not None:
                alone.append([item])
            elif changes_base(item.adapter.config):
                alone.insert(0, [item])
            else:
                kind = str(item.adapter.config.get("peft_type"))
                shared.setdefault(kind, []).append(item)
        if self._base is None:
            return alone
        first, *others = [*shared.values()] or [[]]
        return [[self._base, *first], *others, *alone]

    def _on(self, item: Checkpoint) -> Checkpoint:
        """Whose full weights a checkpoint is opened on."""
        if item.weights is not None:
            return item
        assert self._base is not None
        return self._base

    def _is_base(self, item: Checkpoint) -> bool:
        """Whether a checkpoint is the base of the call itself."""
        if item.name == BASE or item.weights is None or item.adapter is not None:
            return item.name == BASE
        if self._base is not None:
            return item.weights.files == self._base.full.files
        return item.base is not None and same_path(item.base, item.where)

    def _kinds(self, name: str, item: Checkpoint) -> tuple[str, ...]:
        return () if self._is_base(item) else self._loading.quantize

    def _names(self, item: Checkpoint) -> list[str]:
        kinds = self._kinds(item.name, item)
        return [item.name, *(_rounded_name(item.name, kind) for kind in kinds)]

    def _check(self, item: Checkpoint) -> list[Loaded]:
        """Rehearse it, read its tokenizer, and describe it from headers."""
        base = self._on(item)
        skeleton = base.skeleton()
        with at(item.where):
            raw = item.put_on(None if skeleton is None else AdapterHost(skeleton))[1]
        base.check_room(skeleton)
        with at(item.where):
            tokenizer_of(item, base, self._tokenizers)
            if base.architecture.cls is None:  # own code, which does not run before
                return []
            model = base.architecture.empty() if skeleton is None else skeleton
            if raw is not None and self._kinds(item.name, item):
                check_mergeable(adapter_config(raw))
            dtype = "auto" if skeleton is None else item.loading.dtype
            return self._describe(item, model, raw, dtype, _eos(base, model))

    def _load(self, base: Checkpoint) -> tuple[AdapterHost, list[str]]:
        """A base's module, seen to work, and notes on it."""
        loading, architecture, weights = self._loading, base.architecture, base.full
        device = pick_device(loading.device)
        # Of what neither GPUs nor memory hold; removed with the module.
        disk = mkdtemp(prefix="spark-audit-") if loading.device_map else None
        dtype, notes = _computed_in(base, loading.dtype, device=device)
        model = build(
            architecture,
            folder=weights.folder if weights.whole else None,
            state=None if weights.whole else weights.read(False),
            dtype=dtype,
            use_safetensors=weights.files[0].suffix == ".safetensors",
            trust_remote_code=loading.trust_remote_code,
            **placed(loading, device, folder=disk),
        )
        if disk is not None:
            weakref.finalize(model, shutil.rmtree, disk, ignore_errors=True)
        check_finite({k: t for k, t in model.state_dict().items() if not t.is_meta})
        if offloaded(model):
            check_finite(weights.read(False))
        tokenizer = tokenizer_of(base, base, self._tokenizers)[0]
        usable = usable_rows(tokenizer, head_rows(model))
        ids = probe_ids(usable, max_positions=architecture.max_positions)
        host = AdapterHost(model, probe=partial(logits, ids=ids))
        check_probe(host.plain)
        return host, notes

    def _open(
        self, host: AdapterHost, item: Checkpoint, further: list[str]
    ) -> Iterator[Loaded]:
        """Open one checkpoint on a module, then what it is with rounded weights."""
        base, model = self._on(item), host.model
        on, raw, noise, notes = item.put_on(host)
        device = pick_device(self._loading.device)
        noise = None if noise is None else noise.to(device)
        tokenizer, _, more = tokenizer_of(item, base, self._tokenizers)
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        eos = getattr(model.generation_config, "eos_token_id", None)
        first, *others = self._describe(item, model, raw, dtype, eos)
        limit = base.architecture.max_positions
        if limit is not None and on is not None:
            config = host.peft.peft_config[on]
            limit -= config.num_virtual_tokens if config.is_prompt_learning else 0
        notes = [*item.notes, *notes, *more]
        notes += [f"loaded as {dtype}, attention {_attention(model)}", *further]
        notes += remarks(base.architecture, model, tokenizer, first.usable)
        first = replace(
            first,
            model=model if on is None else host.peft,
            max_positions=limit,
            device=device,
            notes=tuple(notes),
            activate=partial(_activated, host, on, noise),
        )
        yield first
        kinds = self._kinds(item.name, item)
        for kind, other in zip(kinds, others, strict=True):
            weights = rounded(model, host.peft, on, kind)
            yield replace(
                first,
                name=other.name,
                quantised_from=first.name,
                # Its adapter is merged: the module is used without any.
                model=model,
                model_id=other.model_id,
                notes=(*notes, f"linear layers rounded to {kind} by torchao"),
                activate=partial(_activated, host, None, noise, weights),
            )
            del weights

    def _describe(
        self,
        item: Checkpoint,
        model: Any,
        raw: Mapping[str, Any] | None,
        dtype: str,
        eos: object,
    ) -> list[Loaded]:
        """What is known of a checkpoint without its numbers, and of its rounded copies.

        Parameters
        ----------
        model
            The base's module, on any device; of the result only its configuration is
            kept.
        raw
            The adapter's configuration as it was attached.
        dtype
            What it is computed in; while that is not known (``auto``, quantised
            weights) ``model_id`` is empty.
        eos
            What ends an answer.
        """
        base = self._on(item)
        borrowed, base_sha256 = item is not base, base.full.sha256
        adapter = noise = None
        if item.adapter is not None and raw is not None:
            kept = {key: raw[key] for key in raw if key not in _NO_EFFECT}
            kept |= {k: sorted(kept[k]) for k in _SETS if isinstance(raw.get(k), list)}
            adapter = content_sha256(item.adapter.files, kept)
        own = adapter if borrowed else base_sha256
        assert own is not None
        if os.path.lexists(item.folder / NOISE):  # without it it is another model
            noise = content_sha256([item.folder / NOISE], {})
            own = sha256_json({"weights": own, "noise": noise})
        tokenizer, tokenizer_id, _ = tokenizer_of(item, base, self._tokenizers)
        # What a score depends on besides the token ids.
        identity = {
            "adapter": adapter,
            "noise": noise,
            "dtype": dtype,
            "attention": _attention(model),
            "weights": base_sha256,
            "quantisation": base.full.config.get("quantization_config"),
            "eos": repr(eos),
        }
        first = Loaded(
            name=item.name,
            source=item.source,
            format=item.format,
            base=base.source if borrowed else None,
            base_sha256=base_sha256 if borrowed or self._is_base(item) else None,
            model=model,
            tokenizer=tokenizer,
            architecture=type(model).__name__,
            usable=usable_rows(tokenizer, head_rows(model)),
            max_positions=base.architecture.max_positions,
            dtype=dtype,
            device=item.loading.device,
            weights_sha256=own,
            tokenizer_sha256=tokenizer_id,
            model_id="" if dtype == "auto" else sha256_json(identity),
        ).without_weights()
        copies = (
            replace(
                first,
                name=_rounded_name(item.name, kind),
                quantised_from=item.name,
                model_id=first.model_id and sha256_json({**identity, "rounded": kind}),
            )
            for kind in self._kinds(item.name, item)
        )
        return [first, *copies]


def _from_headers(
    specs: Sequence[Spec], loading: Loading
) -> tuple[list[Checkpoint], Checkpoint | None]:
    """The checkpoints of a call but the base, and the base where one is needed."""
    for spec in specs:
        if spec.name == BASE:
            loading = _with_base(spec, loading)
    items = [
        replace(read_headers(source, loading), name=name)
        for spec in specs
        if spec.name != BASE
        for name, source in zip(
            seeds_of(spec.name, len(spec.sources)), spec.sources, strict=True
        )
    ]
    adapters = [item for item in items if item.weights is None]
    if not adapters:
        if loading.base is None or not loading.include_base:
            return items, None
        return items, _full(read_headers(loading.base, loading))
    for other in adapters[1:]:
        if not same_path(str(adapters[0].base), str(other.base)):
            raise CheckpointError(
                f"the adapters name different bases ({adapters[0].base}, {other.base})",
                where="--ckpt",
                fix="give --base if both are one model, else audit them separately",
            )
    base = base_of(adapters[0], loading)
    for item in adapters:
        check_base(item, base)
    return items, base


def base_of(item: Checkpoint, loading: Loading) -> Checkpoint:
    """The base that an adapter is given or names.

    Raises
    ------
    CheckpointError
        If none is known, it is not here, it is itself an adapter, or it has frozen
        noise.
    """
    with at(item.where):
        if item.base is None:
            raise CheckpointError("the adapter names no base", fix="give --base MODEL")
        if loading.base is None:
            try:
                # A path only: whoever made the adapter does not choose whom we ask.
                locate(item.base, hub=False)
            except CheckpointError as error:
                raise CheckpointError(
                    f"the adapter's base {shown(item.base)} is not here",
                    fix=f"give --base MODEL (a folder, or {HUB}ORG/NAME)",
                ) from error
        base = _full(read_headers(item.base, loading))
        if os.path.lexists(base.folder / NOISE):
            raise CheckpointError(
                f"the base has frozen noise of its own ({NOISE}): with an adapter on "
                "it, neither says whether it holds",
                fix="give the model without it as the base",
            )
        return base


def check_base(item: Checkpoint, base: Checkpoint) -> None:
    """Refuse an adapter on another base than the one it was trained on.

    Shapes do not tell: the adapter fits every model of that architecture.

    Raises
    ------
    CheckpointError
        With both hashes; never for an adapter whose maker wrote none down.
    """
    if item.trained_on is not None and (here := base.full.sha256) != item.trained_on:
        raise CheckpointError(
            f"was trained on another base ({item.trained_on[:16]}, not {here[:16]})",
            where=item.where,
            fix="give the one it was trained on by --base",
        )


def _full(base: Checkpoint) -> Checkpoint:
    if base.weights is None or base.adapter is not None:
        raise CheckpointError(
            "the base is itself an adapter",
            where=base.where,
            fix="give the model it was trained on",
        )
    return replace(base, name=BASE)


def _with_base(spec: Spec, loading: Loading) -> Loading:
    """``--ckpt base=MODEL`` says what ``--base MODEL`` says."""
    if len(spec.paths) > 1:
        raise InputError("the base is one model, not several", where="--ckpt base=")
    if loading.base is not None and not same_path(loading.base, spec.sources[0]):
        raise InputError(
            f"the base is given twice: {loading.base} and {spec.sources[0]}",
            where="--ckpt base=",
            fix="give one of them",
        )
    return replace(loading, base=spec.sources[0], include_base=True)


def same_path(one: str, other: str) -> bool:
    """Whether two paths name one place."""
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def _check_names(names: set[str], kinds: Sequence[str]) -> None:
    """Refuse names that rounded checkpoints get."""
    for name in sorted(
        names & {_rounded_name(n, kind) for n in names for kind in kinds}
    ):
        raise InputError(
            f"the name {name!r} is that of a rounded checkpoint",
            where="--ckpt",
            fix="name the checkpoint otherwise",
        )


def _rounded_name(name: str, kind: str) -> str:
    return str(CheckpointName(name, rounding=kind))


def _attention(model: Any) -> str:
    return str(getattr(model.config, "_attn_implementation", "eager"))


def _eos(base: Checkpoint, model: Any) -> object:
    """What ends an answer of a model, once transformers has opened its folder."""
    path = base.full.folder / "generation_config.json"
    if base.full.whole and path.exists():
        eos = read_json(path).get("eos_token_id")
        ids = eos if isinstance(eos, list) else [0 if eos is None else eos]
        if not all(type(i) is int for i in ids):
            raise CheckpointError(f"{path.name}: eos_token_id is no token's id")
        return eos
    return getattr(model.generation_config, "eos_token_id", None)


def _computed_in(base: Checkpoint, dtype: str, *, device: str) -> tuple[str, list[str]]:
    """The dtype to load weights in, and a note where ``auto`` does not keep theirs.

    On a CPU without instructions for bfloat16 it takes up to 2.5 times as long.
    """
    if dtype != "auto" or base.architecture.quantised:
        return dtype, []
    kinds = (tensor.dtype for tensor in base.full.read(True).values())
    if next((one for one in kinds if one.is_floating_point), None) != torch.bfloat16:
        return dtype, []
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device != "cpu" or native:
        return "bfloat16", []
    return "float32", ["saved in bfloat16, computed in float32: faster on this CPU"]


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

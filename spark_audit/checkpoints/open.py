"""Checkpoints: whatever somebody saved, opened as exactly what it is or refused."""

from __future__ import annotations

import shutil
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from spark_audit.checkpoints.adapter_config import changes_base
from spark_audit.checkpoints.adapters import AdapterHost
from spark_audit.checkpoints.checkpoint import Attached, Checkpoint
from spark_audit.checkpoints.detect import read_all, same_path
from spark_audit.checkpoints.loaded import Loaded, module_facts
from spark_audit.checkpoints.locate import locate
from spark_audit.checkpoints.models import (
    build,
    head_rows,
    max_positions,
    offloaded,
    pick_device,
    placed,
    probe_ids,
    quantised,
)
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.quantise import (
    Rounded,
    check_kind,
    check_mergeable,
    rounded,
)
from spark_audit.checkpoints.relearning import Relearning
from spark_audit.checkpoints.server import served
from spark_audit.checkpoints.specs import Loading, Spec, default_name
from spark_audit.checkpoints.tokenizer import (
    Read,
    read_tokenizer,
    remarks,
    tokenizer_of,
    usable_rows,
)
from spark_audit.checkpoints.weight_files import check_finite, check_stored
from spark_audit.errors import InputError, at
from spark_audit.names import BASE, RELEARN, CheckpointName


def load_tokenizer(source: str | Path) -> Any:
    """The fast tokenizer of a model's folder or ``hf:ORG/NAME``, without the model.

    Raises
    ------
    CheckpointError
        If there is none, it brings code, or it gives no character offsets.
    """
    with quiet():
        folder = locate(str(source))
        with at(str(source)):
            return read_tokenizer(folder, trust_remote_code=False)[0]


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
    *_, loaded = Opening([spec], replace(loading or Loading(), **options)).each()
    return loaded


class Opening:
    """The checkpoints of a call, by the modules they share; one is loaded at a time.

    All are checked from their headers before the first is loaded. The base comes
    first (with adapters, or with ``include_base`` when one is given), then its
    adapters, attached to one module and switched; then full weights, each released
    before the next is loaded: a checkpoint of another module than the current one
    cannot be activated any more. Adapters of another PEFT type, or that change the
    base's weights, get a base of their own. Replicates of one spec are named
    ``name[1]``, ``name[2]`` ... With ``quantize`` (``int8``, ``int4``) each but the
    base is followed by itself with rounded weights, ``name+int8``; with ``relearning``
    each, the base too, by itself after that training, ``name+relearn``.

    Attributes
    ----------
    groups
        Names as they are opened, those of one module together: a base with its
        adapters, full weights, each with what is made of it.
    items
        How each is put together, the base first where there is one.
    relearning
        As given.
    described
        What headers tell of each, in the order of ``groups``, without weights; of own
        code nothing, and no ``model_id`` where that is known after loading only.
    places
        Every file and folder that is read.

    Parameters
    ----------
    numbers
        Whether every number of full weights is looked at before any is loaded.
    relearning
        A short training, done when such a checkpoint is first scored.

    Raises
    ------
    CheckpointError
        As :func:`open_checkpoint`, also when adapters name different bases: what
        headers tell is known before any is loaded.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        loading: Loading,
        *,
        numbers: bool = True,
        relearning: Relearning | None = None,
    ) -> None:
        for kind in loading.quantize:
            check_kind(kind)
        self._loading, self.relearning = loading, relearning
        self._served, specs = served(specs, loading)
        if relearning and self._served:
            raise InputError("does not go with a server", where="--relearn")
        for server in self._served.values():
            server.reach()
        self._host: AdapterHost | None = None
        self._tokenizers: dict[Path, Read] = {}
        with quiet():
            self.items = read_all(specs, loading)
            self._groups = self._by_module()
            self.described = [
                one for items in self._groups for one in self._described(items)
            ]
            # What takes longer, and still before hours of scoring: every number, once.
            for item in self.items if numbers else ():
                if item.complete:
                    with at(item.where):
                        check_stored(item.files)
        self.groups = tuple(
            tuple(_name(item, kind) for item in items for kind in self._kinds(item))
            for items in self._groups
        )
        for name, count in Counter(chain(*self.groups)).items():
            if count > 1:
                raise InputError(
                    f"the name {name!r} is that of what is made of a checkpoint",
                    where="--ckpt",
                    fix="name the checkpoint otherwise",
                )

        self.places = {*self._tokenizers}
        for one in chain(self.items, (item.on for item in self.items)):
            self.places |= {one.folder, one.place, *one.files}

    def each(self) -> Iterator[Loaded]:
        """Every checkpoint, one after the other, not in the order of the specs."""
        for group in range(len(self.groups)):
            yield from self.open(group)

    def open(self, group: int) -> Iterator[Loaded]:
        """Load a module, in place of the one before, and open what is on it."""
        items = self._groups[group]
        self.release()
        with quiet(), at(items[0].on.where):
            self._host = self._load(items[0].on)
        yield from self._on(self._host, items)

    def release(self) -> None:
        """Free the module that is loaded."""
        if self._host is not None:
            self._host.release()
        self._host = None

    def _by_module(self) -> list[list[Checkpoint]]:
        """The checkpoints that are opened on each module."""
        shared: dict[str, list[Checkpoint]] = {}
        alone: list[list[Checkpoint]] = []
        base = [item for item in self.items if item.name == BASE]
        for item in self.items[len(base) :]:
            if item.complete:
                alone.append([item])
            elif changes_base(item.config):
                alone.insert(0, [item])
            else:
                shared.setdefault(str(item.config.get("peft_type")), []).append(item)
        if not base:
            return alone
        first, *others = [*shared.values()] or [[]]
        return [[*base, *first], *others, *alone]

    def _is_base(self, item: Checkpoint) -> bool:
        """Whether a checkpoint is the base of the call itself."""
        first = self.items[0]
        if item.name == BASE or item.adapter:
            return item.name == BASE
        if first.name == BASE:
            return item.files == first.files
        return item.base is not None and same_path(item.base, item.where)

    def _kinds(self, item: Checkpoint) -> tuple[str, ...]:
        """How a checkpoint is opened: as it is (the empty name), rounded, relearned."""
        rounded = () if self._is_base(item) else self._loading.quantize
        return ("", *rounded, *((RELEARN,) if self.relearning else ()))

    def _described(self, items: list[Checkpoint]) -> Iterator[Loaded]:
        """Put a module and what is on it together without numbers, and describe them.

        Own code does not run before it is loaded: nothing is described.
        """
        base = items[0].on
        with at(base.where):
            module = base.skeleton()
            weights = [] if module is None else module.parameters()
            base.check_room(sum(one.numel() for one in weights) or None)
        if module is not None:
            for one in self._on(AdapterHost(module), items):
                yield one.without_weights()
            return
        for item in items:
            with at(item.where):
                item.put_on(None)
                tokenizer_of(item, self._tokenizers)

    def _load(self, base: Checkpoint) -> AdapterHost:
        """A base's module, seen to work."""
        loading, architecture = self._loading, base.architecture
        device = pick_device(loading.device)
        # Of what neither GPUs nor memory hold; removed with the module.
        disk = mkdtemp(prefix="spark-audit-") if loading.device_map else None
        dtype = loading.dtype
        if dtype == "auto" and not quantised(architecture):
            dtype = str(base.saved_dtype).removeprefix("torch.")
        model = build(
            architecture,
            folder=base.place if base.whole else None,
            state=None if base.whole else base.read(),
            dtype=dtype,
            use_safetensors=base.files[0].suffix == ".safetensors",
            trust_remote_code=loading.trust_remote_code,
            **placed(loading, device, folder=disk),
        )
        if disk is not None:
            weakref.finalize(model, shutil.rmtree, disk, ignore_errors=True)
        check_finite({k: t for k, t in model.state_dict().items() if not t.is_meta})
        if offloaded(model):
            check_finite(base.read())
        usable = usable_rows(tokenizer_of(base, self._tokenizers)[0], head_rows(model))
        ids = probe_ids(usable, max_positions=max_positions(architecture))
        return AdapterHost(model, ids=ids)

    def _on(self, host: AdapterHost, items: list[Checkpoint]) -> Iterator[Loaded]:
        """The checkpoints of a module, one after the other, also on the meta device."""
        for item in items:
            with quiet(), at(item.where):
                attached = item.put_on(host)
            for kind in self._kinds(item):
                with quiet(), at(item.where):
                    loaded = self._open(host, item, attached, kind)
                yield loaded
                # Other weights are as large as the module: one copy at a time.
                del loaded

    def _open(
        self, host: AdapterHost, item: Checkpoint, attached: Attached, kind: str
    ) -> Loaded:
        """A checkpoint on its module, as it is or with other weights (``kind``)."""
        base, model, meta = item.on, host.model, host.ids is None
        (on, raw, noise, notes), after = attached, self.relearning
        weights: Rounded | Callable[[], Rounded] | None = None
        tokenizer, tokenizer_sha256, more = tokenizer_of(item, self._tokenizers)
        adapter = None if on is None else host.peft.peft_config[on]
        facts = module_facts(model, tokenizer, adapter)
        attention = str(getattr(model.config, "_attn_implementation", "eager"))
        notes = [*item.notes, *notes, *more]
        if meta:
            auto = quantised(base.architecture)
            facts["dtype"] = "auto" if auto else item.loading.dtype
        notes += [f"loaded as {facts['dtype']}, attention {attention}"]
        notes += remarks(base.architecture, model, tokenizer, facts["usable"])
        made: dict[str, str] = {}
        if kind:
            check_mergeable(adapter)
            if kind == RELEARN and after is not None:
                made, note = {"relearned": after.sha256}, after.note
                longest = facts["max_positions"]
                weights = None if meta else after.weights(model, on, tokenizer, longest)
            else:
                made, note = {"rounded": kind}, f"linear layers rounded to {kind}"
                note += " by torchao"
                weights = None if meta else rounded(model, on, kind)
            notes.append(note)
            on = None  # its adapter is merged: the module is used without any
        device = pick_device(self._loading.device)
        noise = None if noise is None else noise.to(device)
        computed = {"dtype": facts["dtype"], "attention": attention}
        computed["eos"] = repr(base.eos(model))
        own, model_id = item.hashes(raw, **computed, **made)
        loaded = Loaded(
            name=_name(item, kind),
            source=item.source,
            format=item.format,
            base=None if item.complete else base.source,
            base_sha256=base.sha256
            if self._is_base(item) or not item.complete
            else None,
            model=model if on is None else host.peft,
            tokenizer=tokenizer,
            **facts,
            device=device,
            weights_sha256=own,
            tokenizer_sha256=tokenizer_sha256,
            model_id="" if facts["dtype"] == "auto" else model_id,
            # Packed weights are fewer numbers than the model has.
            parameters=None if quantised(base.architecture) else host.parameters,
            notes=tuple(notes),
            quantised_from=item.name if "rounded" in made else None,
            relearned_from=item.name if "relearned" in made else None,
            activate=partial(host.using, on, noise=noise, weights=weights),
        )
        server = self._served.get(item.name)
        return loaded if server is None else server.stands_in(loaded)


def _name(item: Checkpoint, kind: str) -> str:
    return str(CheckpointName(item.name, derived=kind))

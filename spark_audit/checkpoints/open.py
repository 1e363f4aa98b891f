"""Checkpoints: whatever somebody saved, opened as exactly what it is or refused."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spark_audit.checkpoints import derived, weight_files
from spark_audit.checkpoints.adapter_config import adapter_type, changes_base
from spark_audit.checkpoints.adapters import AdapterHost
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.grown_vocabulary import (
    added_ids,
    notes_on_growth,
    rows_of_both,
)
from spark_audit.checkpoints.loaded import (
    Loaded,
    ModuleFacts,
    module_facts,
    served_by,
)
from spark_audit.checkpoints.specs import (
    Loading,
    Spec,
    default_name,
    is_server,
    split_stage,
)
from spark_audit.checkpoints.task_series import series
from spark_audit.checkpoints.tokenizer import Read, read_tokenizer
from spark_audit.checkpoints.untrusted import locate, quiet
from spark_audit.checkpoints.unused_tensors import notes_on
from spark_audit.errors import CheckpointError, InputError, at
from spark_audit.names import BASE, RELEARN, CheckpointName, seeds_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from spark_audit.checkpoints.server import Server
from spark_audit.checkpoints.remarks import remarks


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
        How it is opened; by default as
        :class:`~spark_audit.checkpoints.specs.Loading` says.
    name
        What reports call it; by default the last part of the path. ``base`` marks the
        base itself.
    options
        Fields of :class:`~spark_audit.checkpoints.specs.Loading` by name, such as
        ``base`` and ``device``.

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
    *_, loaded = OpenCheckpoints(
        [spec], replace(loading or Loading(), **options)
    ).each()
    return loaded


def check_base(ours: Loaded, base: Loaded) -> None:
    """Refuse a checkpoint that does not fit the base that was given.

    Full weights say nowhere which base they come from, and an adapter may bring another
    tokenizer: what headers tell of both is compared.

    Raises
    ------
    CheckpointError
        With what differs first, and in how much else.
    """
    here, there = (
        {
            "architecture": one.architecture,
            "vocabulary": f"{len(one.usable)} rows",
            "tokenizer": f"{len(one.tokenizer)} tokens, {one.tokenizer_sha256[:12]}",
            **one.shape,
        }
        for one in (ours, base)
    )
    for name in base.shape.keys() - ours.shape.keys() if ours.repeats_layers else ():
        del there[name]
    if ours.has_rows_of(base.tokenizer_sha256, len(base.usable)):
        for facts in (here, there):
            del facts["vocabulary"], facts["tokenizer"]
    differs = [name for name in here | there if here.get(name) != there.get(name)]
    if differs:
        first, *others = differs
        more = f" and {len(others)} facts more" if others else ""
        both = f"{here.get(first)} here, {there.get(first)} in {base.source}"
        what = f"does not fit the base: {first} ({both}){more}"
        fix = "give the one that it was trained from by --base"
        raise CheckpointError(what, where=ours.source, fix=fix)


class OpenCheckpoints:
    """The checkpoints of a call, by the modules they share; one is loaded at a time.

    All are checked from their headers before the first is loaded. The base comes
    first (with adapters, or with ``include_base`` when one is given: then what does not
    fit it is refused, see :func:`check_base`), then its
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
    places
        Every file and folder that is read, but tokenizers that are given.
    described
        What headers tell of each, in the order of ``groups``, without weights; no
        ``model_id`` where that is known after loading only.

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
        relearning: derived.Relearning | None = None,
    ) -> None:
        for kind in loading.quantize:
            derived.check_kind(kind)
        self._server: Server | None = None
        paths = [path for spec in specs for path in spec.paths]
        if loading.model or loading.agree or any(map(is_server, paths)):
            from spark_audit.checkpoints.server import served

            self._server, specs = served(specs, loading, relearn=bool(relearning))
        loading = _with_named_base(specs, loading)
        self._loading = loading
        self._relearning = relearning
        self._host: AdapterHost | None = None
        self._base: Loaded | None = None
        self._tokenizer: Callable[[Path], Read] = cache(
            partial(read_tokenizer, trust_remote_code=loading.trust_remote_code)
        )
        self.described: list[Loaded] = []
        self.groups: list[list[str]] = []
        with quiet():
            self.items = _read_all(specs, loading)
            self.places = set[Path]()
            for read in (one for item in self.items for one in (item, item.on)):
                self.places |= {read.folder, read.place, *read.files}
            self._modules = _by_module(self.items)
            for items in self._modules:
                base = items[0].on
                with at(base.where):
                    host = AdapterHost(base.skeleton(), runs=False)
                    base.check_room(host.parameters)
                found = [one.without_weights() for one in self._on(host, items)]
                self.described += found
                self.groups.append([one.name for one in found])
            for one in self.described[1:] if loading.include_base else ():
                check_base(one, self.described[0])
            # What takes longer, and still before hours of scoring: every number, once.
            for item in self.items if numbers else ():
                if item.complete:
                    with at(item.where):
                        weight_files.check_stored(item.files)
        for name, count in Counter(chain(*self.groups)).items():
            if count > 1:
                what = f"the name {name!r} is that of what is made of a checkpoint"
                fix = "name the checkpoint otherwise"
                raise InputError(what, where="--ckpt", fix=fix)

    def each(self) -> Iterator[Loaded]:
        """Every checkpoint, one after the other, not in the order of the specs."""
        for group in range(len(self.groups)):
            yield from self.open(group)

    def open(self, group: int) -> Iterator[Loaded]:
        """Load a module, in place of the one before, and open what is on it."""
        items = self._modules[group]
        base = items[0].on
        self.release()
        with quiet(), at(base.where):
            self._host = AdapterHost(base.load())
        yield from self._on(self._host, items)

    def release(self) -> None:
        """Free the module that is loaded."""
        if self._host is not None:
            self._host.release()
        self._host = None

    def _is_base(self, item: Checkpoint) -> bool:
        """Whether a checkpoint is the base of the call itself."""
        again = not item.adapter and item.base and same_path(item.base, item.where)
        return item.name == BASE or bool(again)

    def _kinds(self, item: Checkpoint) -> tuple[str, ...]:
        """How a checkpoint is opened: as it is (the empty name), rounded, relearned."""
        rounded = () if self._is_base(item) else self._loading.quantize
        return ("", *rounded, *((RELEARN,) if self._relearning else ()))

    def _on(self, host: AdapterHost, items: list[Checkpoint]) -> Iterator[Loaded]:
        """The checkpoints of a module, one after the other, also on the meta device."""
        shape = host.model.get_input_embeddings().weight.shape
        for item in items:
            with quiet(), at(item.where):
                noise = weight_files.frozen_noise(item.folder, item.files, shape)
                on = host.attach(item) if item.adapter else None
            for kind in self._kinds(item):
                with quiet(), at(item.where):
                    loaded = self._open(host, item, on, noise, kind)
                yield loaded
                # Other weights are as large as the module: one copy at a time.
                del loaded

    def _open(
        self,
        host: AdapterHost,
        item: Checkpoint,
        attached: tuple[str, dict[str, object], list[str]] | None,
        noise: torch.Tensor | None,
        kind: str,
    ) -> Loaded:
        """A checkpoint on its module, as it is or with other weights (``kind``)."""
        base, model = item.on, host.model
        on, raw, notes = attached or (None, None, [])
        tokenizer, tokenizer_sha256, read = tokenizer_of(item, self._tokenizer)
        adapter = None if on is None else host.peft.peft_config[on]
        facts = module_facts(model, tokenizer, adapter)
        grown, usable_and_added = self._growth(tokenizer, tokenizer_sha256, facts)
        # Of packed weights headers tell no dtype, and fewer numbers than the model has.
        unknown = base.quantised and host.ids is None
        dtype = "auto" if unknown else facts.dtype
        attention = str(getattr(model.config, "_attn_implementation", "eager"))
        eos = repr(base.eos(model))
        computed = {"dtype": dtype, "attention": attention, "eos": eos}
        notes = [*item.notes, *notes_on(base.unused), *notes]
        if noise is not None:
            notes.append("the frozen noise next to it is added to input embeddings")
            noise = noise.to(item.device)
        notes += read
        notes.append(f"loaded as {dtype}, attention {attention}")
        notes += remarks(base.architecture, model, tokenizer, facts.usable)
        usable, added = facts.usable, None
        if usable_and_added is not None:
            usable, added = usable_and_added
            notes += notes_on_growth(model, tokenizer, usable, added)
        weights: Callable[[], derived.Rounded] | None = None
        if kind:
            derived.check_mergeable(model, adapter)
            # Made when it is first scored: what is in the store needs no weights.
            if kind == RELEARN and (how := self._relearning):
                computed["relearned"], note = how.sha256, how.note
                limit = facts.max_positions
                make = partial(derived.train, model, on, tokenizer, limit, how)
            else:
                computed["rounded"] = kind
                note = f"linear layers rounded to {kind} by torchao"
                make = partial(derived.rounded, model, on, kind)
            notes.append(note)
            on, weights = None, cache(make)  # its adapter is merged
        own, model_id = item.hashes(raw, **computed)
        alone = item.complete and not self._is_base(item)
        loaded = Loaded(
            name=str(CheckpointName(item.name, derived=kind)),
            source=item.source,
            format=item.format,
            base=None if item.complete else base.source,
            base_sha256=None if alone else base.sha256,
            model=model if on is None else host.peft,
            tokenizer=tokenizer,
            architecture=facts.architecture,
            usable=usable,
            max_positions=facts.max_positions,
            dtype=dtype,
            device=item.device,
            weights_sha256=own,
            tokenizer_sha256=tokenizer_sha256,
            model_id="" if unknown else model_id,
            parameters=None if base.quantised else host.parameters,
            notes=tuple(notes),
            quantised_from=item.name if "rounded" in computed else None,
            relearned_from=item.name if "relearned" in computed else None,
            grown_from=grown,
            added=added,
            repeats_layers=bool((raw or {}).get("layer_replication")),
            activate=partial(host.using, on, noise=noise, weights=weights),
        )
        if self._server and self._server.name == item.name:
            from spark_audit.checkpoints.server import NOTE

            loaded = served_by(loaded, self._server, note=NOTE)
        if item.name == BASE and not kind:
            self._base = loaded.without_weights()
        return loaded

    def _growth(
        self, tokenizer: PreTrainedTokenizerFast, sha256: str, facts: ModuleFacts
    ) -> tuple[str | None, tuple[np.ndarray, np.ndarray] | None]:
        """Compare a vocabulary with the base's, where there is a base.

        Returns
        -------
        tuple
            Hash of the base's tokenizer and the rows of both and of the added tokens;
            twice ``None`` where nothing was added.
        """
        base = self._base
        if base is None or sha256 == base.tokenizer_sha256:
            return None, None
        if not added_ids(tokenizer, base.tokenizer):
            return None, None
        rows = rows_of_both(facts.usable, base.usable)
        return base.tokenizer_sha256, rows


def _by_module(items: Sequence[Checkpoint]) -> list[list[Checkpoint]]:
    """The checkpoints that are opened on each module."""
    shared: dict[str, list[Checkpoint]] = {}
    alone: list[list[Checkpoint]] = []
    base = [item for item in items if item.name == BASE]
    for item in items[len(base) :]:
        if item.complete:
            alone.append([item])
        elif changes_base(item.config) or item.own_tables:
            alone.insert(0, [item])
        else:
            shared.setdefault(adapter_type(item.config), []).append(item)
    first, *others = [*shared.values()] or [[]]
    return [*filter(None, ([*base, *first], *others, *alone))]


def _with_named_base(specs: Sequence[Spec], loading: Loading) -> Loading:
    """Return the loading with the base that ``--ckpt base=PATH`` names, if any.

    Raises
    ------
    InputError
        If several bases are named, or ``--base`` names another one.
    """
    sources = [source for spec in specs if spec.name == BASE for source in spec.sources]
    if not sources:
        return loading
    if len(sources) > 1:
        raise InputError("the base is one model, not several", where="--ckpt base=")

    source = sources[0]
    if loading.base is not None and not same_path(loading.base, source):
        raise InputError(
            f"the base is given twice: {loading.base} and {source}",
            where="--ckpt base=",
            fix="give one of them",
        )
    return replace(loading, base=source, include_base=True)


def _read_all(specs: Sequence[Spec], loading: Loading) -> list[Checkpoint]:
    """The checkpoints of a call, the base first where one is needed.

    Raises
    ------
    CheckpointError
        If an adapter's base is itself an adapter, or two adapters name different ones.
    """
    items = [
        replace(read_headers(source, loading), name=name)
        for spec in specs
        if spec.name != BASE
        for name, source in zip(
            seeds_of(spec.name, len(spec.sources)), spec.sources, strict=True
        )
    ]
    _check_lora_alpha(items, loading)
    _check_base_is_one_model(loading.base)
    bases = [str(item.base) for item in items if not item.complete]
    base_path = loading.base or next(iter(bases), None)
    for other in bases:
        if not same_path(str(base_path), other):
            what = f"the adapters name different bases ({base_path}, {other})"
            fix = "give --base if both are one model, else audit them separately"
            raise CheckpointError(what, where="--ckpt", fix=fix)
    if base_path is None or not (bases or loading.include_base):
        return items
    base = replace(read_headers(base_path, loading), name=BASE)
    if base.adapter:
        what, fix = "the base is itself an adapter", "give the model it was trained on"
        raise CheckpointError(what, where=base.where, fix=fix)
    return [base, *map(partial(_put_on, base), items)]


def _check_base_is_one_model(base: str | None) -> None:
    """Refuse a series as the base, where it is not said which stage is meant."""
    if base is None or split_stage(base)[1] is not None:
        return
    n_stages = len(series(base))
    if n_stages > 1:
        what = f"is a series of {n_stages} stages, and the base is one model"
        fix = "give the model before the first stage, or the folder of one stage"
        raise InputError(what, where=base, fix=fix)


def _check_lora_alpha(items: Sequence[Checkpoint], loading: Loading) -> None:
    """Refuse ``--lora-alpha`` where no checkpoint is LoRA weights without one."""
    if loading.lora_alpha is None or not items:
        return
    as_given = f"alpha {loading.lora_alpha:g} as given"
    if not any(as_given in note for item in items for note in item.notes):
        what = "applies to LoRA weights without adapter_config.json, and none is given"
        raise InputError(what, where="--lora-alpha", fix="leave it out")


def _put_on(base: Checkpoint, item: Checkpoint) -> Checkpoint:
    """An adapter on its base; full weights as they are.

    Raises
    ------
    CheckpointError
        If the base has frozen noise, or the adapter was trained on another one: shapes
        do not tell, the adapter fits every model of that architecture.
    """
    if item.complete:
        return item
    with at(item.where):
        if os.path.lexists(base.folder / weight_files.NOISE_FILE):
            raise CheckpointError(
                f"the base has frozen noise of its own ({weight_files.NOISE_FILE}): "
                "with an adapter on it, neither says whether it holds",
                fix="give the model without it as the base",
            )
        own = weight_files.check_whole(item.folder).get("base_sha256")
        if isinstance(own, str) and own != (there := base.sha256):
            what = f"was trained on another base ({own[:16]}, not {there[:16]})"
            raise CheckpointError(what, fix="give the one it was trained on by --base")
    return replace(item, host=base)


def same_path(one: str, other: str) -> bool:
    """Whether two paths name one place."""
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


_VOCABULARIES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def tokenizer_of(item: Checkpoint, read: Callable[[Path], Read]) -> Read:
    """The tokenizer of a checkpoint, its hash, and notes.

    The checkpoint's own comes first, then the base's; a bare vocabulary, as TRACE
    saves it, counts only where there is nothing else.

    Parameters
    ----------
    read
        :func:`read_tokenizer`, or what remembers it.

    Raises
    ------
    CheckpointError
        If there is none, or it cannot be loaded.
    """
    if item.loading.tokenizer is not None:
        tokenizer, sha256, notes = read(locate(item.loading.tokenizer))
        return tokenizer, sha256, ["tokenizer: from --tokenizer", *notes]
    places = {item.folder: "the checkpoint's own"}
    if item.base_folder is not None:
        places.setdefault(item.base_folder, "the base's")
    whole, words = [], []
    for place in places:
        bare = any((place / name).exists() for name in _VOCABULARIES)
        told = bare and (place / "tokenizer_config.json").exists()
        if told or (place / "tokenizer.json").exists():
            whole.append(place)
        elif bare:
            words.append(place)
    for place in whole or words:
        tokenizer, sha256, notes = read(place)
        note = places[place] if whole else "made from a bare vocabulary file"
        if len(whole) > 1 and read(whole[1])[1] != sha256:
            note += ", which is not the base's"
        return tokenizer, sha256, [f"tokenizer: {note}", *notes]
    fix = "give its base by --base, or a folder with tokenizer.json by --tokenizer"
    raise CheckpointError("has no tokenizer", fix=fix)

"""Which checkpoints of a call share a base, and whether all would load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.adapter_config import (
    adapter_config,
    changes_base,
    prepared,
)
from spark_audit.checkpoints.adapters import AdapterHost
from spark_audit.checkpoints.base_model import Read, described, tokenizer_of
from spark_audit.checkpoints.detect import recipe
from spark_audit.checkpoints.locate import HUB, locate, read_json
from spark_audit.checkpoints.models import (
    Rehearsal,
    build,
    check_buffers,
    check_layers,
    check_quantised,
    check_weights,
    head_rows,
    read_architecture,
)
from spark_audit.checkpoints.placement import check_room, pick_device
from spark_audit.checkpoints.quantise import check_mergeable
from spark_audit.checkpoints.recipe import Loaded, Recipe, State
from spark_audit.checkpoints.sidecar import NOISE, NOISE_ADDED, frozen_noise
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.checkpoints.weight_files import check_stored, content_sha256
from spark_audit.errors import CheckpointError, InputError, shown
from spark_audit.names import BASE, seeds_of

Item = tuple[str, Recipe]
FEW_BYTES = 1 << 28
"""Of an adapter whose numbers are looked at before its base is loaded."""


class Plan:
    """Which checkpoints of a call share a module, in the order they are opened."""

    def __init__(self, specs: Sequence[Spec], loading: Loading) -> None:
        self.items: list[Item] = []
        for spec in specs:
            if spec.name == BASE:
                loading = _with_base(spec, loading)
        for spec in specs:
            names = seeds_of(spec.name, len(spec.sources))
            for name, source in zip(names, spec.sources, strict=True):
                if name != BASE:
                    self.items.append((name, recipe(source, loading)))
        self.base = self._base(loading)
        for _, item in self.items:
            if item.weights is None:
                check_base(item, self._needed())
        # Before a number is read: a mismatch is told before memory is taken.
        self.tokenizers: dict[Path, Read] = {}
        self.described: list[Loaded] = []
        for name, item in ([(BASE, self.base)] if self.base else []) + self.items:
            shared = item if item.weights else self._needed()
            self._describe(name, item, shared, _dress(item, shared))
        # What takes longer, and still before hours of scoring: every number, once.
        for one in (self.base, *(item for _, item in self.items)):
            if one is not None and one.weights is not None:
                check_stored(one.weights.files, where=one.given.where)

    def _describe(
        self, name: str, item: Recipe, shared: Recipe, known: Rehearsal
    ) -> None:
        """Read its tokenizer, and keep what is known of it from headers."""
        tokenizer_of(item, shared, known=self.tokenizers)
        model, dtype = known.model, item.given.dtype
        if known.architecture.cls is None:  # own code, which does not run before
            return
        if model is None:
            dtype = "auto"
            with torch.device("meta"):
                model = known.architecture.cls(known.architecture.config)
        quantize = () if name == BASE or self.is_base(item) else item.given.quantize
        if quantize and known.raw is not None:
            raw = adapter_config({**known.raw}, where=item.given.where)
            check_mergeable(raw, where=item.given.where)
        assert shared.weights is not None
        self.described += described(
            name,
            item,
            shared,
            model=model,
            rows=known.rows,
            raw=known.raw,
            dtype=dtype,
            eos=_eos(shared.weights.folder, model, where=shared.given.where),
            is_base=name == BASE or self.is_base(item),
            quantize=quantize,
            tokenizers=self.tokenizers,
        )

    def _base(self, loading: Loading) -> Recipe | None:
        adapters = [item for _, item in self.items if item.weights is None]
        if not adapters:
            if loading.base is None or not loading.include_base:
                return None
            return _full(recipe(loading.base, loading))
        first, *others = adapters
        for other in others:
            if not same_path(str(first.base), str(other.base)):
                raise CheckpointError(
                    f"the adapters name different bases ({first.base}, {other.base})",
                    where="--ckpt",
                    fix="give --base if both are one model, else audit them separately",
                )
        return base_recipe(first, loading)

    def _needed(self) -> Recipe:
        assert self.base is not None
        return self.base

    def is_base(self, item: Recipe) -> bool:
        """Whether a checkpoint is the base of the call itself."""
        if item.weights is None or item.adapter is not None:
            return False
        if self.base is not None and self.base.weights is not None:
            return item.weights.files == self.base.weights.files
        return item.base is not None and same_path(item.base, item.given.where)

    def groups(self) -> Iterator[tuple[Recipe, list[Item]]]:
        """Each module to load with the checkpoints that are opened on it."""
        shared: dict[str, list[Item]] = {}
        alone: list[tuple[Recipe, list[Item]]] = []
        for name, item in self.items:
            if item.weights is not None:
                alone.append((item, [(name, item)]))
            elif item.adapter is not None and changes_base(item.adapter.config):
                alone.insert(0, (self._needed(), [(name, item)]))
            elif item.adapter is not None:
                kind = str(item.adapter.config.get("peft_type"))
                shared.setdefault(kind, []).append((name, item))
        groups = [(self._needed(), items) for items in shared.values()]
        if self.base is not None:
            first: list[Item] = [(BASE, self.base)]
            if groups:
                groups[0] = (self.base, first + groups[0][1])
            else:
                groups = [(self.base, first)]
        yield from groups
        yield from alone


def _eos(folder: Path | None, model: Any, *, where: str) -> object:
    """What ends an answer of a model, once transformers has opened its folder."""
    if folder is not None and (path := folder / "generation_config.json").exists():
        eos = read_json(path, where=where).get("eos_token_id")
        ids = eos if isinstance(eos, list) else [0 if eos is None else eos]
        if not all(type(i) is int for i in ids):
            what = f"{path.name}: eos_token_id is no token's id"
            raise CheckpointError(what, where=where)
        return eos
    return getattr(model.generation_config, "eos_token_id", None)


def _dress(item: Recipe, base: Recipe) -> Rehearsal:
    """Rehearse, and refuse what would not be held by what is here."""
    rehearsal = rehearse(item, base)
    check_room(base, rehearsal, where=base.given.where)
    return rehearsal


def base_recipe(item: Recipe, loading: Loading) -> Recipe:
    """The recipe of the base that an adapter is given or names.

    Raises
    ------
    CheckpointError
        If none is known, it is not here, it is itself an adapter, or it has frozen
        noise.
    """
    if item.base is None:
        raise CheckpointError(
            "the adapter names no base", where=item.given.where, fix="give --base MODEL"
        )
    if loading.base is None:
        try:
            # A path only: whoever made the adapter does not choose whom we ask.
            locate(item.base, hub=False)
        except CheckpointError as error:
            raise CheckpointError(
                f"the adapter's base {shown(item.base)} is not here",
                where=item.given.where,
                fix=f"give --base MODEL (a folder, or {HUB}ORG/NAME)",
            ) from error
    base = _full(recipe(item.base, loading))
    if os.path.lexists(base.folder / NOISE):
        raise CheckpointError(
            f"the base has frozen noise of its own ({NOISE}): with an adapter on it, "
            "neither says whether it holds",
            where=item.given.where,
            fix="give the model without it as the base",
        )
    return base


def check_base(item: Recipe, shared: Recipe) -> None:
    """Refuse an adapter on another base than the one it was trained on.

    Shapes do not tell: the adapter fits every model of that architecture.

    Raises
    ------
    CheckpointError
        With both hashes; never for an adapter whose maker wrote none down.
    """
    weights = shared.weights
    if item.trained_on is None or weights is None:
        return
    config = read_json(weights.config / "config.json", where=shared.given.where)
    here = content_sha256(weights.files, config)
    if here != item.trained_on:
        raise CheckpointError(
            f"was trained on another base ({item.trained_on[:16]}, not {here[:16]})",
            where=item.given.where,
            fix="give the one it was trained on by --base",
        )


def _full(base: Recipe) -> Recipe:
    if base.weights is None or base.adapter is not None:
        raise CheckpointError(
            "the base is itself an adapter",
            where=base.given.where,
            fix="give the model it was trained on",
        )
    return base


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


def rehearse(item: Recipe, base: Recipe) -> Rehearsal:
    """Put a checkpoint together without its numbers: names and shapes must fit.

    An adapter's numbers are read where they are few.
    """
    assert base.weights is not None
    where = base.given.where
    config = read_json(base.weights.config / "config.json", where=where)
    state = {k: t.to("meta") for k, t in base.weights.read(True).items()}
    check_layers(config, tensors=len(state), where=where)
    architecture = read_architecture(base.weights.config, config, base.given)
    facts = {"context": str(architecture.max_positions or "not stated")}
    if architecture.quantised:
        device = pick_device(base.given.device)
        check_quantised(architecture, device=device, where=where)
    if architecture.cls is not None:
        check_buffers(architecture, where=where)
    if architecture.cls is None or architecture.quantised:
        facts["weights checked"] = "no (own code or quantised)"
        rows = getattr(architecture.text, "vocab_size", 0)
        raw, notes = None, list[str]()
        if item.adapter is not None:
            raw, _, notes = _adapter(item)
        return Rehearsal(architecture, None, rows, facts, tuple(notes), raw)
    model = build(architecture, state=state, device="meta", where=where)
    check_weights(model, state, where=where)
    facts["architecture"] = type(model).__name__
    facts["parameters"] = f"{sum(p.numel() for p in model.parameters()):,}"
    shape = model.get_input_embeddings().weight.shape
    noise = frozen_noise(
        item.folder, shape, sha256=item.noise_sha256, meta=True, where=item.given.where
    )
    if noise is not None:
        facts["frozen noise"] = f"on input embeddings, {noise.shape[0]} rows"
    rows, notes, raw = head_rows(model), list[str](), None
    if item.adapter is not None:
        raw, state, notes = _adapter(item)
        notes += _attached(item, model, raw, state)
    notes += [] if noise is None else [NOISE_ADDED]
    return Rehearsal(architecture, model, rows, facts, tuple(notes), raw)


def _attached(
    item: Recipe, model: Any, raw: dict[str, Any], state: State
) -> Sequence[str]:
    """Attach an adapter by its shapes; notes on it."""
    where = item.given.where
    if changes_base(raw):
        # How the base is replaced takes its weights; shapes do not.
        raw = {**raw, "init_lora_weights": True}
    with torch.device("meta"):
        _, more = AdapterHost(model).attach(
            adapter_config(raw, where=where),
            {name: tensor.to("meta") for name, tensor in state.items()},
            where=where,
        )
    return more


def _adapter(item: Recipe) -> tuple[dict[str, Any], State, list[str]]:
    assert item.adapter is not None
    few = bytes_of(item.adapter.files) <= FEW_BYTES
    state = item.adapter.read(not few)
    return prepared(item.adapter.config, state, where=item.given.where)


def bytes_of(files: Sequence[Path]) -> int:
    """The size of several files."""
    return sum(path.stat().st_size for path in files)

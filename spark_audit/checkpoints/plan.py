"""Which checkpoints of a call share a base, and whether all would load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.adapter_config import (
    adapter_config,
    changes_base,
    prepared,
)
from spark_audit.checkpoints.adapters import Bench
from spark_audit.checkpoints.detect import recipe
from spark_audit.checkpoints.models import (
    Architecture,
    architecture,
    build,
    check_buffers,
    check_layers,
    check_quantised,
    check_weights,
    head_rows,
    pick_device,
)
from spark_audit.checkpoints.recipe import Given, Recipe
from spark_audit.checkpoints.specs import BASE, Spec
from spark_audit.checkpoints.weight_files import (
    HUB,
    NOISE,
    NOISE_ADDED,
    content_sha256,
    frozen_noise,
    locate,
    read_json,
    shown,
)
from spark_audit.errors import CheckpointError, InputError

Item = tuple[str, Recipe]
State = dict[str, torch.Tensor]
FEW_BYTES = 1 << 28
"""Of an adapter whose numbers are looked at before its base is loaded."""


class Plan:
    """Which checkpoints of a call share a module, in the order they are opened."""

    def __init__(
        self, specs: Sequence[Spec], given: Given, *, include_base: bool
    ) -> None:
        self.items: list[Item] = []
        for spec in specs:
            if spec.name == BASE:
                given, include_base = _with_base(spec, given), True
        for spec in specs:
            for i, source in enumerate(spec.sources, start=1):
                name = spec.name if len(spec.sources) == 1 else f"{spec.name}[{i}]"
                if name != BASE:
                    self.items.append((name, recipe(source, given)))
        self.base = self._base(given, wanted=include_base)
        for _, item in self.items:
            if item.weights is None:
                check_base(item, self._needed())
        # Before a number is read: a mismatch is told before memory is taken.
        for _, item in self.items:
            rehearse(item, item if item.weights else self._needed())
        if self.base is not None and all(item.weights for _, item in self.items):
            rehearse(self.base, self.base)

    def _base(self, given: Given, *, wanted: bool) -> Recipe | None:
        adapters = [item for _, item in self.items if item.weights is None]
        if not adapters:
            wanted = wanted and given.base is not None
            return _full(recipe(str(given.base), given)) if wanted else None
        first, *others = adapters
        for other in others:
            if not same_path(str(first.base), str(other.base)):
                raise CheckpointError(
                    f"the adapters name different bases ({first.base}, {other.base})",
                    where="--ckpt",
                    fix="give --base if they are the same model, else audit them apart",
                )
        return base_recipe(first, given)

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


def base_recipe(item: Recipe, given: Given) -> Recipe:
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
    if given.base is None:
        try:
            # A path only: whoever made the adapter does not choose whom we ask.
            locate(item.base, hub=False)
        except CheckpointError as error:
            raise CheckpointError(
                f"the adapter's base {shown(item.base)} is not here",
                where=item.given.where,
                fix=f"give --base MODEL (a folder, or {HUB}ORG/NAME)",
            ) from error
    found = _full(recipe(item.base, given))
    if os.path.lexists(found.folder / NOISE):
        raise CheckpointError(
            f"the base has frozen noise of its own ({NOISE}): with an adapter on it, "
            "neither says whether it holds",
            where=item.given.where,
            fix="give the model without it as the base",
        )
    return found


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


def _full(found: Recipe) -> Recipe:
    if found.weights is None or found.adapter is not None:
        raise CheckpointError(
            "the base is itself an adapter",
            where=found.given.where,
            fix="give the model it was trained on",
        )
    return found


def _with_base(spec: Spec, given: Given) -> Given:
    """``--ckpt base=MODEL`` says what ``--base MODEL`` says."""
    if len(spec.paths) > 1:
        raise InputError("the base is one model, not several", where="--ckpt base=")
    if given.base is not None and not same_path(given.base, spec.sources[0]):
        raise InputError(
            f"the base is given twice: {given.base} and {spec.sources[0]}",
            where="--ckpt base=",
            fix="give one of them",
        )
    return replace(given, base=spec.sources[0])


def same_path(one: str, other: str) -> bool:
    """Whether two paths name one place."""
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


@dataclass(frozen=True)
class Rehearsal:
    """What is known of a checkpoint from headers, and from an adapter's numbers.

    ``model`` is on the meta device; ``None`` for own code and quantised weights.
    """

    found: Architecture
    model: Any | None
    rows: int
    facts: dict[str, str]
    notes: tuple[str, ...] = ()


def rehearse(item: Recipe, shared: Recipe) -> Rehearsal:
    """Put a checkpoint together without its numbers: names and shapes must fit.

    An adapter's numbers are read where they are few.
    """
    assert shared.weights is not None
    where = shared.given.where
    named = read_json(shared.weights.config / "config.json", where=where)
    state = {k: t.to("meta") for k, t in shared.weights.read(True).items()}
    check_layers(named, tensors=len(state), where=where)
    found = architecture(
        shared.weights.config,
        named,
        trust_remote_code=shared.given.trust_remote_code,
        where=where,
    )
    facts = {"context": str(found.max_positions or "not stated")}
    if found.quantised:
        device = pick_device(shared.given.device)
        check_quantised(found, device=device, where=where)
    if found.cls is not None:
        check_buffers(found, where=where)
    if found.cls is None or found.quantised:
        facts["weights checked"] = "no (own code or quantised)"
        rows = getattr(found.text, "vocab_size", 0)
        notes = [] if item.adapter is None else _adapter(item)[2]
        return Rehearsal(found, None, rows, facts, tuple(notes))
    model = build(found, state=state, device="meta", where=where)
    check_weights(model, state, where=where)
    rows, notes = head_rows(model), []
    facts["architecture"] = type(model).__name__
    facts["parameters"] = f"{sum(p.numel() for p in model.parameters()):,}"
    where = item.given.where
    shape = model.get_input_embeddings().weight.shape
    noise = frozen_noise(
        item.folder, shape, sha256=item.noise_sha256, meta=True, where=where
    )
    if noise is not None:
        facts["frozen noise"] = f"on input embeddings, {noise.shape[0]} rows"
        notes.append(NOISE_ADDED)
    if item.adapter is None:
        return Rehearsal(found, model, rows, facts, tuple(notes))
    raw, parts, more = _adapter(item)
    parts = {name: tensor.to("meta") for name, tensor in parts.items()}
    if changes_base(raw):
        # How the base is replaced takes its weights; shapes do not.
        raw = {**raw, "init_lora_weights": True}
    with torch.device("meta"):
        _, others = Bench(model).attach(
            adapter_config(raw, where=where), parts, where=where
        )
    return Rehearsal(found, model, rows, facts, (*more, *others, *notes))


def _adapter(item: Recipe) -> tuple[dict[str, Any], State, list[str]]:
    assert item.adapter is not None
    few = bytes_of(item.adapter.files) <= FEW_BYTES
    state = item.adapter.read(not few)
    return prepared(item.adapter.config, state, where=item.given.where)


def bytes_of(files: Sequence[Path]) -> int:
    """The size of several files."""
    return sum(path.stat().st_size for path in files)

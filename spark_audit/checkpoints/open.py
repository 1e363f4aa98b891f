"""Checkpoints: whatever somebody saved, opened as exactly what it is or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_audit.checkpoints.detect import series
from spark_audit.checkpoints.locate import locate
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.quantise import check_kinds
from spark_audit.checkpoints.recipe import Loaded, Recipe
from spark_audit.checkpoints.server import local, served
from spark_audit.checkpoints.specs import Loading, Spec, default_name
from spark_audit.checkpoints.tokenizer import read_tokenizer
from spark_audit.errors import InputError
from spark_audit.names import BASE, CheckpointName

if TYPE_CHECKING:
    from spark_audit.checkpoints.base_model import LoadedBase


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
        return read_tokenizer(
            folder, trust_remote_code=trust_remote_code, where=where or str(source)
        )[0]


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
    if isinstance(source, Loaded):
        return source
    if hasattr(source, "usable"):
        # What has a checkpoint's parts is as good as one.
        stand_in: Any = source
        opened: Loaded = stand_in
        return opened
    if not isinstance(source, str | Path):
        kind = type(source).__name__
        raise TypeError(f"checkpoint: {kind} is no path and no open checkpoint")
    source = str(source)
    spec = Spec(name or default_name(source), (source,))
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
        from spark_audit.checkpoints.plan import Plan

        check_kinds(loading.quantize)
        self._served = served(specs, loading)
        for server in self._served.values():
            server.reach()
        with quiet():
            self._plan = Plan(local(specs, loading), loading)
        _check_names({name for name, _ in self._plan.items}, loading.quantize)
        self._loading = loading
        self._loaded: LoadedBase | None = None
        self._groups = list(self._plan.groups())
        self.groups = tuple(
            tuple(opened for one in items for opened in self._opened(*one))
            for _, items in self._groups
        )
        known = {one.name: one for one in self._plan.described}
        for name in known.keys() & self._served.keys():
            known[name] = self._served[name].stands_in(known[name])
        opened = (name for names in self.groups for name in names)
        self.described = [known[name] for name in opened if name in known]

    @property
    def places(self) -> set[Path]:
        """Folders and files that the checkpoints are read from."""
        plan = self._plan
        items = [item for _, item in plan.items] + ([plan.base] if plan.base else [])
        found = {*plan.tokenizers, *(item.folder for item in items)}
        for item in items:
            if item.weights is not None:
                found |= {item.weights.config, *item.weights.files}
            if item.adapter is not None:
                found.update(item.adapter.files)
        return found

    def each(self) -> Iterator[Loaded]:
        """Every checkpoint, one after the other."""
        for group in range(len(self.groups)):
            yield from self.open(group)

    def open(self, group: int) -> Iterator[Loaded]:
        """Load a module, in place of the one before, and open what is on it."""
        from spark_audit.checkpoints.base_model import LoadedBase

        weights, items = self._groups[group]
        self.release()
        with quiet():
            shared = self._loaded = LoadedBase(
                weights, self._loading, tokenizers=self._plan.tokenizers
            )
        for name, item in items:
            opened = shared.load(
                name,
                item,
                is_base=self._plan.is_base(item),
                quantize=self._kinds(name, item),
            )
            while True:
                with quiet():
                    loaded = next(opened, None)
                if loaded is None:
                    break
                server = self._served.get(loaded.name)
                yield loaded if server is None else server.stands_in(loaded)

    def release(self) -> None:
        """Free the module that is loaded."""
        if self._loaded is not None:
            self._loaded.release()
        self._loaded = None

    def _kinds(self, name: str, item: Recipe) -> tuple[str, ...]:
        base = name == BASE or self._plan.is_base(item)
        return () if base else self._loading.quantize

    def _opened(self, name: str, item: Recipe) -> list[str]:
        kinds = self._kinds(name, item)
        return [name, *(str(CheckpointName(name, rounding=kind)) for kind in kinds)]


def _check_names(names: set[str], kinds: Sequence[str]) -> None:
    """Refuse names that rounded checkpoints get."""
    every = (str(CheckpointName(n, rounding=kind)) for n in names for kind in kinds)
    for rounded in sorted(every):
        if rounded in names:
            raise InputError(
                f"the name {rounded!r} is that of a rounded checkpoint",
                where="--ckpt",
                fix="name the checkpoint otherwise",
            )

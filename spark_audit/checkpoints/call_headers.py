"""List the checkpoints of one call and their bases, by their headers.

Nothing is loaded here: :mod:`spark_audit.checkpoints.open_call` loads what this lists.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spark_audit.checkpoints import weight_files
from spark_audit.checkpoints.adapter_config import adapter_type, changes_base
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.specs import Loading, Spec, split_stage
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.task_series import series
from spark_audit.errors import CheckpointError, InputError, at
from spark_audit.names import BASE, seeds_of


def same_path(one_path: str, other_path: str) -> bool:
    """Return whether two paths name one file or folder."""
    resolved = Path(os.path.expanduser(one_path)).resolve()
    return resolved == Path(os.path.expanduser(other_path)).resolve()


def with_named_base(specs: Sequence[Spec], loading: Loading) -> Loading:
    """Return the loading with the base that ``--ckpt base=PATH`` names, if any.

    Raises
    ------
    InputError
        If several bases are named, or ``--base`` names another one.
    """
    # A name may have several paths, as seeds.
    sources: list[str] = []
    for spec in specs:
        if spec.name == BASE:
            sources += spec.sources
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


def read_call(specs: Sequence[Spec], loading: Loading) -> list[StoredCheckpoint]:
    """Return the checkpoints of a call, the base first where one is needed.

    Raises
    ------
    CheckpointError
        If an adapter's base is itself an adapter, or two adapters name different ones.
    InputError
        If ``--lora-alpha`` applies to none of them, or if the base is a series.
    """
    # The base comes last, because the adapters may name it.
    checkpoints: list[StoredCheckpoint] = []
    for spec in specs:
        if spec.name == BASE:
            continue
        names = seeds_of(spec.name, len(spec.sources))
        for name, source in zip(names, spec.sources, strict=True):
            checkpoints.append(replace(read_headers(source, loading), name=name))

    _check_lora_alpha(checkpoints, loading)
    _check_base_is_one_model(loading.base)

    base_path = _base_path(checkpoints, loading)
    needs_base = any(not checkpoint.has_full_weights for checkpoint in checkpoints)
    if base_path is None or not (needs_base or loading.include_base):
        return checkpoints

    base = replace(read_headers(base_path, loading), name=BASE)
    if base.is_adapter:
        raise CheckpointError(
            "the base is itself an adapter",
            where=base.typed_path,
            fix="give the model it was trained on",
        )
    return [base, *(_with_base(base, checkpoint) for checkpoint in checkpoints)]


def _base_path(checkpoints: Sequence[StoredCheckpoint], loading: Loading) -> str | None:
    """Return the given base, or else the one that all adapters name.

    Raises
    ------
    CheckpointError
        If an adapter names another base.
    """
    named_bases = [
        str(checkpoint.base)
        for checkpoint in checkpoints
        if not checkpoint.has_full_weights
    ]
    base_path = loading.base
    if not base_path and named_bases:
        base_path = named_bases[0]

    # Adapters on two bases could not be compared in one report.
    for named_base in named_bases:
        if not same_path(str(base_path), named_base):
            raise CheckpointError(
                f"the adapters name different bases ({base_path}, {named_base})",
                where="--ckpt",
                fix="give --base if both are one model, else audit them separately",
            )
    return base_path


def _check_base_is_one_model(base: str | None) -> None:
    """Refuse a series as the base if its stage is not given."""
    if base is None or split_stage(base)[1] is not None:
        return

    n_stages = len(series(base))
    if n_stages > 1:
        raise InputError(
            f"is a series of {n_stages} stages, and the base is one model",
            where=base,
            fix="give the model before the first stage, or the folder of one stage",
        )


def _check_lora_alpha(
    checkpoints: Sequence[StoredCheckpoint], loading: Loading
) -> None:
    """Refuse ``--lora-alpha`` unless there are LoRA weights without an alpha."""
    if loading.lora_alpha is None or not checkpoints:
        return

    # The reader of bare weights adds a note when it uses the given alpha.
    as_given = f"alpha {loading.lora_alpha:g} as given"
    for checkpoint in checkpoints:
        if any(as_given in note for note in checkpoint.notes):
            return
    raise InputError(
        "applies to LoRA weights without adapter_config.json, and none is given",
        where="--lora-alpha",
        fix="leave it out",
    )


def _with_base(
    base: StoredCheckpoint, checkpoint: StoredCheckpoint
) -> StoredCheckpoint:
    """Return an adapter on its base; full weights are returned unchanged.

    Raises
    ------
    CheckpointError
        If the base has frozen noise, or if the adapter was trained on another base.
        Shapes do not show the latter: an adapter fits every model of its architecture.
    """
    if checkpoint.has_full_weights:
        return checkpoint

    with at(checkpoint.typed_path):
        if os.path.lexists(base.folder / weight_files.NOISE_FILE):
            raise CheckpointError(
                f"the base has frozen noise of its own ({weight_files.NOISE_FILE}): "
                "with an adapter on it, neither says whether it holds",
                fix="give the model without it as the base",
            )

        # spark-train records the base on which an adapter was trained.
        trained_on = weight_files.check_whole(checkpoint.folder).get("base_sha256")
        if isinstance(trained_on, str) and trained_on != base.sha256:
            raise CheckpointError(
                f"was trained on another base ({trained_on[:16]}, "
                f"not {base.sha256[:16]})",
                fix="give the one it was trained on by --base",
            )
    return replace(checkpoint, base_weights=base)


def group_by_module(
    checkpoints: Sequence[StoredCheckpoint],
) -> list[list[StoredCheckpoint]]:
    """Return the checkpoints that are opened on each module, in order of opening.

    Adapters of one PEFT type share a module, and those of the first type share it with
    the base itself. An adapter that changes the base's weights gets a module of its
    own, and so do full weights, which come last.
    """
    bases: list[StoredCheckpoint] = []
    adapters_by_type: dict[str, list[StoredCheckpoint]] = {}
    base_changing: list[list[StoredCheckpoint]] = []
    full_weights: list[list[StoredCheckpoint]] = []
    for checkpoint in checkpoints:
        if checkpoint.name == BASE:
            bases.append(checkpoint)
        elif checkpoint.has_full_weights:
            full_weights.append([checkpoint])
        elif changes_base(checkpoint.config) or checkpoint.own_tables:
            base_changing.append([checkpoint])
        else:
            peft_type = adapter_type(checkpoint.config)
            adapters_by_type.setdefault(peft_type, []).append(checkpoint)

    # A module can hold adapters of only one type.
    shared = list(adapters_by_type.values())
    on_base = [*bases]
    if shared:
        on_base += shared[0]
    # The last adapter that changes the base is opened first: reports kept this order.
    groups = [on_base, *shared[1:], *reversed(base_changing), *full_weights]
    return [group for group in groups if group]

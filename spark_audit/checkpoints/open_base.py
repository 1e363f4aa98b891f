"""Put adapters in files on a base that is open already.

A base that was opened from files keeps its module (:class:`Origin`): the adapters of a
later call are attached to it, and nothing is loaded twice. A model in memory belongs to
the user, and no adapter is attached to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from spark_audit.checkpoints.adapter_config import adapter_type
from spark_audit.checkpoints.checkpoint import Checkpoint, Origin
from spark_audit.checkpoints.given import IN_MEMORY
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.errors import CheckpointError, InputError
from spark_audit.names import BASE

if TYPE_CHECKING:
    from spark_audit.checkpoints.adapters import AdapterHost

FIXED_BY_BASE = ("device", "dtype", "device_map", "revision", "trust_remote_code")
"""Options of loading that an open base has decided for everything on its module."""


def base_from_files(
    opened: Sequence[Checkpoint],
) -> tuple[Origin | None, list[Checkpoint]]:
    """Return how the open base was opened, and the other open checkpoints.

    A base in memory was not opened from files, and stays among the others.
    """
    origin: Origin | None = None
    others: list[Checkpoint] = []
    for checkpoint in opened:
        if checkpoint.name == BASE and checkpoint.origin is not None:
            origin = checkpoint.origin
        else:
            others.append(checkpoint)
    return origin, others


def with_open_base(loading: Loading, base: Origin) -> Loading:
    """Return the loading for adapters on an open base: with its device and dtype.

    Raises
    ------
    InputError
        If an option was chosen otherwise than for the base.
    """
    for option in fields(Loading):
        name = option.name
        value = getattr(loading, name)
        of_base = getattr(base.loading, name)
        if name in FIXED_BY_BASE and value not in (option.default, of_base):
            raise InputError(
                f"is {value!r}, and the base was opened with {of_base!r}",
                where=f"--{name.replace('_', '-')}",
                fix="leave it out, or open the base anew",
            )
    return replace(
        loading,
        base=base.typed_path,
        include_base=True,
        device=base.loading.device,
        dtype=base.loading.dtype,
        device_map=base.loading.device_map,
        revision=base.loading.revision,
        trust_remote_code=base.loading.trust_remote_code,
    )


def can_share(host: AdapterHost, checkpoints: Sequence[StoredCheckpoint]) -> bool:
    """Return whether a group of checkpoints can be opened on the base's own module.

    Adapters of another PEFT type than those on it, or that change the base's weights,
    need another module.
    """
    if host.released or checkpoints[0].name != BASE:
        return False
    if host.peft is None:
        return True

    types_on_host = {config.peft_type for config in host.peft.peft_config.values()}
    for checkpoint in checkpoints[1:]:
        if adapter_type(checkpoint.config) not in types_on_host:
            return False
    return True


def check_no_adapter_on_memory(
    opened: Sequence[Checkpoint], checkpoints: Sequence[StoredCheckpoint]
) -> None:
    """Refuse adapters in files beside a base in memory.

    Parameters
    ----------
    opened
        What was given open.
    checkpoints
        What is opened from files.

    Raises
    ------
    CheckpointError
        Names the first adapter.
    """
    is_base_in_memory = any(
        checkpoint.name == BASE and checkpoint.format == IN_MEMORY
        for checkpoint in opened
    )
    for checkpoint in checkpoints:
        if is_base_in_memory and not checkpoint.has_full_weights:
            raise CheckpointError(
                "is an adapter in files, and the base is a model in memory",
                where=checkpoint.typed_path,
                fix="give the base's path, or load the adapter on the model with "
                "PeftModel.from_pretrained and give that",
            )

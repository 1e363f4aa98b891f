"""Open one checkpoint of any kind as exactly what it is, or refuse it.

It is opened as a call of one checkpoint: see
:class:`~spark_audit.checkpoints.open_call.OpenCheckpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.arguments import ArgumentError, checked_call, wrong_value
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.given import GivenCheckpoint, is_model
from spark_audit.checkpoints.in_memory import from_memory
from spark_audit.checkpoints.open_call import OpenCheckpoints as OpenCheckpoints
from spark_audit.checkpoints.specs import Loading, Spec, default_name
from spark_audit.names import BASE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def as_checkpoint(
    given: GivenCheckpoint,
    *,
    name: str | None = None,
    tokenizer_sha256: str | None = None,
) -> Checkpoint:
    """Return as an open checkpoint whatever a function was given as a checkpoint.

    Parameters
    ----------
    given
        A path, an open checkpoint, or a model in memory.
    name
        Its name in reports; default: its own, or the last part of its path.
    tokenizer_sha256
        Hash of the tokenizer of the manifest, by which a model in memory finds its own.

    Raises
    ------
    CheckpointError, ArgumentError
        As :func:`open_checkpoint`.
    """
    if isinstance(given, str | Path):
        return open_checkpoint(given, name=name)
    # Scores are of the checkpoint alone, so its base is not hashed.
    return from_memory(
        given, name=name, tokenizer_sha256=tokenizer_sha256, with_base=False
    )


@checked_call
def open_checkpoint(
    source: GivenCheckpoint,
    loading: Loading | None = None,
    *,
    name: str | None = None,
    base: GivenCheckpoint | None = None,
    device: str | None = None,
    dtype: str | None = None,
    device_map: str | None = None,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    lora_alpha: float | None = None,
    revision: str | None = None,
    trust_remote_code: bool | None = None,
    quantize: str | Sequence[str] = (),
    model: str | None = None,
    agree: str | Path | None = None,
) -> Checkpoint:
    """Open one checkpoint as exactly what it is.

    Parameters
    ----------
    source
        A Hugging Face folder or ``hf:ORG/NAME``, a PEFT folder, a weights file, or a
        series of tasks (its last stage, or ``PATH@K``). An open checkpoint is returned
        unchanged. A model in memory is taken as it stands, also if it was opened before
        and its weights have changed since.
    loading
        Options for opening that the arguments below do not give; default: those of
        :class:`~spark_audit.checkpoints.specs.Loading`.
    name
        Its name in reports; default: the last part of the path. ``base`` marks the base
        itself.
    base
        The base of an adapter or of a weights file: a path, or an open checkpoint,
        whose module the adapter shares.
    tokenizer
        Folder of a tokenizer, if it is not the checkpoint's or the base's. For a model
        in memory also the tokenizer itself.
    device, dtype, device_map, lora_alpha, revision, trust_remote_code, model, agree
        How it is opened; see :class:`~spark_audit.checkpoints.specs.Loading`.
    quantize
        ``int8``, ``int4`` or ``nf4``: open it with its weights rounded.

    Raises
    ------
    CheckpointError
        If it cannot be loaded as what it claims to be. The error says why.
    ArgumentError
        If it is none of these, or an option cannot apply to what is open already.

    Examples
    --------
    >>> checkpoint = sa.open_checkpoint("runs/mine", name="mine")
    >>> checkpoint.format
    'hf-folder'
    """
    if not isinstance(source, str | Path):
        chosen = {
            "loading": loading,
            "base": base,
            "device": device,
            "dtype": dtype,
            "device_map": device_map,
            "tokenizer": None if is_model(source) else tokenizer,
            "lora_alpha": lora_alpha,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "quantize": quantize or None,
            "model": model,
            "agree": agree,
        }
        _refuse_chosen(chosen)
        return from_memory(source, name=name, tokenizer=tokenizer, argument="source")

    if not isinstance(tokenizer, str | Path | None):
        raise wrong_value(
            "tokenizer",
            tokenizer,
            "not a folder, which a checkpoint in files needs",
        )
    # An open base needs no path: its module is there.
    is_base_open = base is not None and not isinstance(base, str | Path)
    opened = []
    if is_base_open:
        opened = [from_memory(base, name=BASE, argument="base")]
    loading = (loading or Loading()).with_options(
        base=base if isinstance(base, str | Path) else None,
        device=device,
        dtype=dtype,
        device_map=device_map,
        tokenizer=tokenizer,
        lora_alpha=lora_alpha,
        revision=revision,
        trust_remote_code=trust_remote_code,
        quantize=quantize,
        model=model,
        agree=agree,
    )
    spec = Spec(name or default_name(str(source)), (str(source),))
    # An adapter's base is opened first, so the checkpoint itself is the last one.
    *_, loaded = OpenCheckpoints([spec], loading, opened=opened).each()
    return loaded


def _refuse_chosen(options: Mapping[str, object]) -> None:
    """Refuse options of opening for a checkpoint that is open; ``None``: not chosen."""
    chosen = [option for option, value in options.items() if value is not None]
    if chosen:
        raise ArgumentError(
            "cannot be chosen for a checkpoint that is open", where=", ".join(chosen)
        )

"""A checkpoint on its module, and how other weights are derived from it.

``open.py`` makes an :class:`AttachedCheckpoint`, and of that the checkpoints that are
scored: the one as it is, and one for each :class:`Derivation`. Adapters that cannot be
opened are refused in ``adapter_config.py``, and those that cannot be merged in
``derived.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from spark_audit.checkpoints import derived
from spark_audit.checkpoints.adapters import AdapterHost, AttachedAdapter
from spark_audit.checkpoints.checkpoint import ModuleFacts
from spark_audit.checkpoints.grown_vocabulary import Growth, notes_on_growth
from spark_audit.checkpoints.nf4 import WEIGHTS_PER_BLOCK, nf4_weights
from spark_audit.checkpoints.remarks import remarks
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tokenizer import TokenizerRead
from spark_audit.checkpoints.unused_tensors import notes_on
from spark_audit.names import NF4, RELEARN


@dataclass(frozen=True)
class AttachedCheckpoint:
    """A checkpoint on its module, before other weights are derived from it.

    Attributes
    ----------
    host
        The module of its full weights.
    checkpoint
        The description of its parts.
    adapter
        The adapter on ``host``; ``None``: full weights alone.
    noise
        Shape ``(rows, width)``: noise on the input embeddings; ``None``: no noise.
    tokenizer_read
        Its tokenizer.
    facts
        Properties of the module alone, with this tokenizer.
    growth
        The growth of its vocabulary over the base's; ``None`` without any.
    """

    host: AdapterHost
    checkpoint: StoredCheckpoint
    adapter: AttachedAdapter | None
    noise: torch.Tensor | None
    tokenizer_read: TokenizerRead
    facts: ModuleFacts
    growth: Growth | None

    @property
    def adapter_name(self) -> str | None:
        """The name of the adapter on the module, if there is one."""
        return None if self.adapter is None else self.adapter.name

    @property
    def is_packed(self) -> bool:
        """Return whether only headers of packed (quantised) weights were read.

        Headers show no dtype, and fewer numbers than the model has.
        """
        return self.checkpoint.full_weights.quantised and self.host.is_on_meta

    @property
    def dtype(self) -> str:
        """The dtype in which it computes.

        Headers of packed weights show no dtype, so it is ``auto`` then, as the option
        has it.
        """
        return "auto" if self.is_packed else self.facts.dtype

    @property
    def attention(self) -> str:
        """The implementation of attention that transformers chose."""
        return str(getattr(self.host.model.config, "_attn_implementation", "eager"))

    def notes(self) -> list[str]:
        """Return the notes on it for readers of the report."""
        model = self.host.model
        full_weights = self.checkpoint.full_weights
        notes = [*self.checkpoint.notes, *notes_on(full_weights.unused)]
        if self.adapter is not None:
            notes += self.adapter.notes
        if self.noise is not None:
            notes.append("the frozen noise next to it is added to input embeddings")
        notes += self.tokenizer_read.notes
        notes.append(f"loaded as {self.dtype}, attention {self.attention}")
        notes += remarks(
            full_weights.architecture,
            model,
            self.tokenizer_read.tokenizer,
            self.facts.usable,
        )
        if self.growth is not None:
            notes += notes_on_growth(
                model,
                self.tokenizer_read.tokenizer,
                self.growth.shared_with_base,
                self.growth.added,
            )
        return notes


@dataclass(frozen=True)
class Derivation:
    """A way to derive other weights from a checkpoint's own: rounded, or relearned.

    Attributes
    ----------
    field
        Key of ``value`` in the checkpoint's hash: ``rounded`` or ``relearned``.
    value
        Everything besides the checkpoint that the other weights depend on: the kind of
        rounding, or a hash of the training.
    note
        A note for readers of the report.
    make
        Makes the weights. It is called when the checkpoint is first scored, because
        stored scores need no weights.
    keeps_adapter
        Whether the adapter stays on these weights; otherwise it is merged into them.
    """

    field: str
    value: str
    note: str
    make: Callable[[], derived.ReplacedWeights]
    keeps_adapter: bool = False


def derivation_of(
    attached: AttachedCheckpoint,
    derived_kind: str,
    relearning: derived.Relearning | None,
) -> Derivation:
    """Return how other weights are made of a checkpoint's own.

    Parameters
    ----------
    derived_kind
        ``relearn``, or a kind of rounding (``int8``, ``int4``, ``nf4``).
    relearning
        The short training for ``relearn``.

    Raises
    ------
    CheckpointError
        If its adapter cannot be merged first where that is needed, or if it is
        quantised already.
    """
    host = attached.host
    adapter_name = attached.adapter_name
    if derived_kind == NF4:
        return _derivation_by_nf4(attached)

    peft_config = None if adapter_name is None else host.config_of(adapter_name)
    derived.check_mergeable(host.model, peft_config)

    if derived_kind == RELEARN and relearning is not None:
        return Derivation(
            field="relearned",
            value=relearning.sha256,
            note=relearning.note,
            make=partial(
                derived.relearned_weights,
                host.model,
                adapter_name,
                attached.tokenizer_read.tokenizer,
                attached.facts.max_positions,
                relearning,
            ),
        )
    return Derivation(
        field="rounded",
        value=derived_kind,
        note=f"linear layers rounded to {derived_kind} by torchao",
        make=partial(derived.rounded_weights, host.model, adapter_name, derived_kind),
    )


def _derivation_by_nf4(attached: AttachedCheckpoint) -> Derivation:
    """Return how a base is rounded under its adapter; full weights are rounded alone.

    Raises
    ------
    CheckpointError
        If it is quantised already.
    """
    model = attached.host.model
    derived.check_not_quantised(model)

    note = f"linear layers rounded to NF4 in blocks of {WEIGHTS_PER_BLOCK}"
    if attached.adapter is not None:
        note = f"{note}, the base's alone: the adapter is not merged and not rounded"
    return Derivation(
        field="rounded",
        value=NF4,
        note=note,
        make=partial(nf4_weights, model),
        keeps_adapter=attached.adapter is not None,
    )

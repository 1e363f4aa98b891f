"""The model in training: hidden states, logits in chunks, sums of losses, teachers.

A loss is computed in two steps: :meth:`Student.hidden` gives the hidden states of
chosen positions, and :meth:`Student.loss_sum` or :meth:`Student.sum_in_chunks` turns
them into logits and values, some positions at a time. So the logits of a whole batch,
which would fill the memory, never exist at once.

In shapes, ``B`` is the rows of a batch, ``T`` their tokens, ``n`` the chosen positions,
``m`` those of a chunk or a subset, ``H`` the hidden size and ``V`` the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from spark_audit.scoring.head import Transform
from spark_audit.scoring.passes.plain import own_head, unwrapped
from spark_train.lora import ADAPTER_NAME, copy_adapter, switch
from spark_train.losses import wide
from spark_train.training_rows import Batch

CPU_LOGITS = 2**22
GPU_LOGITS = 2**27
"""Most logits in memory at a time, by device: positions times vocabulary."""

CPU_TOKENS = 2048
GPU_TOKENS = 16384
"""Most padded tokens of a forward pass, by device."""

MIN_CHUNK = 8
"""Fewest positions of a chunk, even where fewer logits would fit."""

LOGIT_TOLERANCE = 1e-3
LOGIT_TOLERANCE_IN_HALF_PRECISION = 0.05
"""Largest difference between logits of the head and of the model itself, relative to
the largest logit (at least 1)."""

Value = Callable[..., Tensor]
"""``value(hidden[chunk], chunk)``: a value for each position of a chunk, ``(m,)``."""

Loss = Callable[..., Tensor]
"""``loss(logits, ids)``, or ``loss(teacher_logits, logits, ids)``: ``(m,)``."""


class Student:
    """A model in training.

    Parameters
    ----------
    model
        A ``PeftModel`` with the adapter ``default``, or any transformers causal LM,
        whose trainable weights are then trained themselves (no teachers).
    tokens
        Padded tokens that a forward pass may have; 0: as many as the device allows.

    Attributes
    ----------
    trainable
        Name -> weight of everything that an optimizer changes.
    max_tokens
        Padded tokens that a forward pass may have.
    max_logits
        Logits that may exist at a time.
    chunk_size
        Positions whose logits may exist at a time.
    note
        Why logits exist for whole batches at a time; empty: they exist by chunks.
    """

    def __init__(self, model: PeftModel | PreTrainedModel, *, tokens: int = 0) -> None:
        self.model = model
        self._base = unwrapped(model)
        # A fresh adapter's wrapper and its base may have different modes.
        model.eval()

        self.trainable: dict[str, Tensor] = {
            name: weight
            for name, weight in model.named_parameters()
            if weight.requires_grad
        }

        self.device: torch.device = self._base.get_input_embeddings().weight.device
        self.vocabulary = len(self._base.get_output_embeddings().weight)
        on_cpu = self.device.type == "cpu"
        self.max_tokens = tokens or (CPU_TOKENS if on_cpu else GPU_TOKENS)
        self.max_logits = CPU_LOGITS if on_cpu else GPU_LOGITS
        self.chunk_size = max(self.max_logits // self.vocabulary, MIN_CHUNK)

        self._head: tuple[Tensor, Tensor | None, Transform] | None = None
        reason = self._take_head()
        self.note = ""
        if reason:
            self.note = f"the logits of whole batches are held in memory: {reason}"

    def _take_head(self) -> str:
        """Apply the output head here if that is possible; otherwise return why not.

        With a head, :meth:`hidden` runs only the body of the model.
        """
        head = own_head(self._base, rows=self.vocabulary)
        if self._base.get_output_embeddings().weight.requires_grad:
            return "the output head is trained"
        if isinstance(head, str):
            return head

        # A head in half precision is copied to float32, with V x H more numbers.
        weight, bias, transform = head
        self._head = (wide(weight), None if bias is None else wide(bias), transform)
        if not self._head_agrees():
            self._head = None
            return "the model's own logits differ from its head's"
        return ""

    def _head_agrees(self) -> bool:
        """Return whether body and head give the model's own logits."""
        ids = torch.arange(1, 9, device=self.device)[None] % self.vocabulary  # (1, 8)
        is_token = torch.ones_like(ids, dtype=torch.bool)
        batch = Batch(ids, is_token, is_token, is_token)
        with torch.no_grad():
            head_logits = self.logits(self.hidden(batch, is_token))  # (7, V)
            model_logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1]
        model_logits = wide(model_logits)  # (7, V)

        tolerance = LOGIT_TOLERANCE
        if next(self._base.parameters()).dtype.itemsize < 4:
            tolerance = LOGIT_TOLERANCE_IN_HALF_PRECISION
        largest = max(float(model_logits.abs().max()), 1.0)
        difference = (head_logits - model_logits).abs().max()
        return bool(difference <= tolerance * largest)

    def hidden(self, batch: Batch, mask: Tensor) -> Tensor:
        """Return the input of the head for the prediction of the masked tokens.

        Parameters
        ----------
        mask
            Shape ``(B, T)``, bool over the *predicted* tokens: position ``t - 1``
            predicts token ``t``, and the first of a row has no prediction.

        Returns
        -------
        Tensor
            Shape ``(n, H)``, row by row; ``(n, V)`` logits if the head is not applied
            here.
        """
        options = {"attention_mask": batch.attention.long(), "use_cache": False}

        # Only the body runs if the head is applied here, a few positions at a time.
        if self._head is not None:
            body = getattr(self._base, self._base.base_model_prefix)
            states: Tensor = body(input_ids=batch.ids, **options)[0]  # (B, T, H)
        else:
            states = self.model(input_ids=batch.ids, **options).logits  # (B, T, V)

        # Position t - 1 predicts token t.
        return states[:, :-1][mask[:, 1:]]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits ``(n, V)`` of hidden states ``(n, H)``, in float32 or wider.

        A body in half precision loses little, but logits rounded to it would hide small
        divergences.
        """
        if self._head is None:
            return wide(hidden)
        weight, bias, transform = self._head
        return transform(torch.nn.functional.linear(wide(hidden), weight, bias))

    def logits_at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Return only the logits ``(n, K)`` of the given tokens ``(n, K)``."""
        if self._head is None:
            return wide(hidden).gather(1, ids)

        # Only the requested rows of the head: weight[ids] is (n, K, H).
        weight, bias, transform = self._head
        logits = torch.einsum("nh,nkh->nk", wide(hidden), weight[ids])
        if bias is not None:
            logits = logits + bias[ids]
        return transform(logits)

    def chunks(self, count: int, *, rows: int | None = None) -> list[slice]:
        """Return slices of ``count`` positions whose logits may exist at a time.

        Parameters
        ----------
        rows
            Positions of a slice (rows of a table of logits); default: ``chunk_size``.
        """
        size = rows or self.chunk_size
        return [
            slice(start, min(start + size, count)) for start in range(0, count, size)
        ]

    def sum_in_chunks(
        self, hidden: Tensor, value: Value, *, rows: int | None = None
    ) -> Tensor:
        """Return the sum of per-position values, some positions at a time.

        The gradient with respect to ``hidden`` is computed chunk by chunk on the way.
        So only one chunk of logits exists at a time, and nothing is computed twice.

        Parameters
        ----------
        hidden
            Shape ``(n, H)``.
        value
            ``value(hidden[chunk], chunk)`` gives the values ``(m,)`` of a slice.
        rows
            Positions at a time; default: ``chunk_size``.

        Returns
        -------
        Tensor
            Scalar, float32 or wider; 0 for no positions.
        """
        chunks = self.chunks(len(hidden), rows=rows)
        total: Tensor = _ChunkedSum.apply(hidden, value, chunks)  # type: ignore[no-untyped-call]
        return total

    def loss_sum(
        self,
        hidden: Tensor,
        batch: Batch,
        mask: Tensor,
        subset: Tensor,
        loss: Loss,
        *,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of a loss over those masked tokens that are in a subset.

        Parameters
        ----------
        hidden
            Shape ``(n, H)``: what :meth:`hidden` gives for the mask.
        mask, subset
            Shape ``(B, T)``, bool over the predicted tokens; the loss covers tokens in
            both.
        loss
            ``loss(logits, ids)`` gives the values of some positions.
        teacher
            Hidden states ``(n, H)`` of another model for the mask; then the loss is
            called as ``loss(teacher_logits, logits, ids)``.
        """
        is_inside = subset[:, 1:][mask[:, 1:]]  # (n,)
        ids = targets(batch, mask)[is_inside]  # (m,)
        teacher_hidden = None if teacher is None else teacher[is_inside]  # (m, H)

        def value(hidden_of_chunk: Tensor, chunk: slice) -> Tensor:
            """Return the losses ``(m,)`` for a chunk of hidden states ``(m, H)``."""
            # The teacher's logits also exist for only one chunk at a time.
            if teacher_hidden is None:
                return loss(self.logits(hidden_of_chunk), ids[chunk])
            teacher_logits = self.logits(teacher_hidden[chunk])
            return loss(teacher_logits, self.logits(hidden_of_chunk), ids[chunk])

        return self.sum_in_chunks(hidden[is_inside], value)

    def freeze(self, name: str) -> None:
        """Store a frozen copy of the current adapter under a name.

        An earlier copy with this name is overwritten.
        """
        copy_adapter(self.model, ADAPTER_NAME, name)
        switch(self.model)
        self.model.set_requires_grad(name, requires_grad=False)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore after the block what later steps of training start from.

        This is: the trained weights, which weights are trained, gradients, the adapter
        that is on, and eval mode. The base's weights, hooks and settings must not be
        changed in the block.
        """
        weights = {
            name: weight.detach().clone() for name, weight in self.trainable.items()
        }
        try:
            yield
        finally:
            if isinstance(self.model, PeftModel):
                switch(self.model)
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name in self.trainable)
                parameter.grad = None
            with torch.no_grad():
                for name, weight in self.trainable.items():
                    weight.copy_(weights[name])
            self.model.eval()

    @contextmanager
    def teacher(self, name: str) -> Iterator[None]:
        """Use the frozen copy in place of the student, without gradients or dropout."""
        was_training = self.model.training
        self.model.eval()
        switch(self.model, name)
        try:
            with torch.no_grad():
                yield
        finally:
            switch(self.model)
            self.model.train(was_training)


class _ChunkedSum(torch.autograd.Function):
    """Sum over chunks, whose gradient is ready when the sum is.

    Autograd would keep the logits of all chunks until the backward pass. Here each
    chunk's gradient for its hidden states is computed in the forward pass, and the
    backward pass only scales it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, value: Value, chunks: list[slice]) -> Tensor:
        """Return the sum ``()``; keep the gradient for the hidden states ``(n, H)``."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=dtype, device=hidden.device)
        if not ctx.needs_input_grad[0]:
            for chunk in chunks:
                total += value(hidden[chunk].detach(), chunk).sum()
            return total

        gradient = torch.zeros_like(hidden)  # (n, H)
        for chunk in chunks:
            hidden_of_chunk = hidden[chunk].detach()
            with torch.enable_grad():
                hidden_of_chunk.requires_grad_()
                chunk_sum = value(hidden_of_chunk, chunk).sum()
            # This line frees the graph of the chunk, with its logits.
            (gradient[chunk],) = torch.autograd.grad(chunk_sum, hidden_of_chunk)
            total += chunk_sum.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        """Scale the kept gradient by the gradient of the sum, a scalar."""
        (gradient,) = ctx.saved_tensors
        return (gradient * outer[0]).to(gradient.dtype), None, None


def targets(batch: Batch, mask: Tensor) -> Tensor:
    """Return the masked tokens that are predicted: ``(n,)``, in ``hidden``'s order."""
    return batch.ids[:, 1:][mask[:, 1:]]

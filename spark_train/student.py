"""The model in training: hidden states, logits in chunks, sums of losses, teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from spark_audit.scoring.passes.plain import own_head, unwrapped
from spark_train.lora import ADAPTER_NAME, copy_adapter, switch
from spark_train.losses import wide
from spark_train.training_rows import Batch

CPU_LOGITS, GPU_LOGITS = 2**22, 2**27
"""Logits that exist at a time, by device."""

CPU_TOKENS, GPU_TOKENS = 2048, 16384
"""Padded tokens of a forward pass, by device."""

Value = Callable[..., Tensor]

Loss = Callable[..., Tensor]


class Student:
    """A model in training.

    Parameters
    ----------
    model
        A ``PeftModel`` with the adapter ``default``, or any transformers causal LM,
        whose trainable weights are then trained themselves (no teachers).
    tokens
        Padded tokens that a forward pass may have; 0: by device.

    Attributes
    ----------
    trainable
        Name -> weight of everything that an optimizer changes.
    budget
        Logits that may exist at a time.
    note
        Why the head is not streamed; empty when it is.
    """

    def __init__(self, model: PeftModel | PreTrainedModel, *, tokens: int = 0) -> None:
        self.model = model
        self._base = unwrapped(model)
        self.trainable: dict[str, Tensor] = {
            name: weight
            for name, weight in model.named_parameters()
            if weight.requires_grad
        }
        weight = self._base.get_input_embeddings().weight
        self.device: torch.device = weight.device
        self.vocabulary = len(self._base.get_output_embeddings().weight)
        on_cpu = self.device.type == "cpu"
        self.tokens = tokens or (CPU_TOKENS if on_cpu else GPU_TOKENS)
        self.budget = CPU_LOGITS if on_cpu else GPU_LOGITS
        self.rows = max(self.budget // self.vocabulary, 8)
        head = own_head(self._base, rows=self.vocabulary)
        if self._base.get_output_embeddings().weight.requires_grad:
            head = "the output head is trained"
        self._head = None
        model.eval()  # a fresh adapter's wrapper and its base may be of two minds
        if not isinstance(head, str):
            # Of a head in half precision a float32 copy: V x H numbers more.
            weight, bias, transform = head
            self._head = wide(weight), None if bias is None else wide(bias), transform
            if not self._agrees():
                head, self._head = "the model's own logits differ from its head's", None
        held = "the logits of whole batches are held in memory"
        self.note = f"{held}: {head}" if isinstance(head, str) else ""

    def _agrees(self) -> bool:
        """Whether body and head give the model's own logits."""
        ids = torch.arange(1, 9, device=self.device)[None] % self.vocabulary
        batch = Batch(ids, *(torch.ones_like(ids, dtype=torch.bool) for _ in range(3)))
        with torch.no_grad():
            ours = self.logits(self.hidden(batch, batch.attention))
            theirs = self.model(input_ids=ids, use_cache=False).logits[0, :-1]
        theirs = wide(theirs)
        bound = 1e-3 if next(self._base.parameters()).dtype.itemsize >= 4 else 0.05
        size = max(float(theirs.abs().max()), 1.0)
        return bool((ours - theirs).abs().max() <= bound * size)

    def hidden(self, batch: Batch, mask: Tensor) -> Tensor:
        """What the head reads to predict the masked tokens.

        Parameters
        ----------
        mask
            Shape ``(B, T)``, bool over the *predicted* tokens: token ``t`` is
            predicted at ``t - 1``; the first of a row has no prediction.

        Returns
        -------
        Tensor
            Shape ``(n, H)``, row by row; ``(n, V)`` logits where the head is not ours.
        """
        options = {"attention_mask": batch.attention.long(), "use_cache": False}
        if self._head is not None:
            body = getattr(self._base, self._base.base_model_prefix)
            states: Tensor = body(input_ids=batch.ids, **options)[0]
        else:
            states = self.model(input_ids=batch.ids, **options).logits
        return states[:, :-1][mask[:, 1:]]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``(n, V)`` of hidden states ``(n, H)``, computed in float32 or wider.

        A body of half precision loses little; logits rounded to it would bury small
        divergences in noise.
        """
        if self._head is None:
            return wide(hidden)
        weight, bias, transform = self._head
        return transform(torch.nn.functional.linear(wide(hidden), weight, bias))

    def logits_at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Logits ``(n, K)`` of the tokens ``(n, K)`` alone."""
        if self._head is None:
            return wide(hidden).gather(1, ids)
        weight, bias, transform = self._head
        z = torch.einsum("nh,nkh->nk", wide(hidden), weight[ids])
        return transform(z if bias is None else z + bias[ids])

    def chunks(self, count: int, *, rows: int | None = None) -> list[slice]:
        """Slices of positions whose logits may exist at a time; none of 0."""
        size = rows or self.rows
        return [slice(at, min(at + size, count)) for at in range(0, count, size)]

    def total(self, hidden: Tensor, value: Value, *, rows: int | None = None) -> Tensor:
        """Sum of per-position values, a bounded number of positions at a time.

        The gradient with respect to ``hidden`` is taken chunk by chunk on the way, so
        that no more than one chunk of logits exists, and nothing is computed twice.

        Parameters
        ----------
        hidden
            Shape ``(n, H)``.
        value
            ``value(hidden[chunk], chunk)`` gives the values ``(m,)`` of a slice.
        rows
            Positions at a time.

        Returns
        -------
        Tensor
            Scalar, float32 or wider; 0 for no positions.
        """
        chunks = self.chunks(len(hidden), rows=rows)
        total: Tensor = _Total.apply(hidden, value, chunks)  # type: ignore[no-untyped-call]
        return total

    def summed(
        self,
        hidden: Tensor,
        batch: Batch,
        mask: Tensor,
        part: Tensor,
        loss: Loss,
        *,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Sum of a loss of logits and tokens over the masked tokens in a part.

        Parameters
        ----------
        hidden
            Of :meth:`hidden` for the mask.
        mask, part
            Shape ``(B, T)``, bool over the predicted tokens.
        teacher
            Another model's hidden states for the mask: the loss then takes their
            logits, too, before the student's.
        """
        inside = part[:, 1:][mask[:, 1:]]
        ids = targets(batch, mask)[inside]
        before = None if teacher is None else teacher[inside]

        def value(some: Tensor, at: slice) -> Tensor:
            known = [] if before is None else [self.logits(before[at])]
            return loss(*known, self.logits(some), ids[at])

        return self.total(hidden[inside], value)

    def freeze(self, name: str) -> None:
        """Keep a frozen copy of the adapter as it is now, under a name."""
        copy_adapter(self.model, ADAPTER_NAME, name)
        switch(self.model)
        self.model.set_requires_grad(name, requires_grad=False)

    @contextmanager
    def teacher(self, name: str) -> Iterator[None]:
        """The frozen copy in place of the student, without gradients or dropout."""
        training = self.model.training
        self.model.eval()
        switch(self.model, name)
        try:
            with torch.no_grad():
                yield
        finally:
            switch(self.model)
            self.model.train(training)


class _Total(torch.autograd.Function):
    """Sum over chunks, whose gradient is ready when the sum is."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, value: Value, chunks: list[slice]) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        gradient = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        for chunk in chunks:
            part = hidden[chunk].detach()
            if gradient is None:
                total += value(part, chunk).sum()
                continue
            with torch.enable_grad():
                part.requires_grad_()
                some = value(part, chunk).sum()
            (gradient[chunk],) = torch.autograd.grad(some, part)
            total += some.detach()
        ctx.save_for_backward(*([] if gradient is None else [gradient]))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * outer[0]).to(gradient.dtype), None, None


def targets(batch: Batch, mask: Tensor) -> Tensor:
    """The masked tokens that are predicted: ``(n,)``, in the order of ``hidden``."""
    return batch.ids[:, 1:][mask[:, 1:]]

"""Turn hidden states into token columns, by a head in float32.

Logits over the whole vocabulary are in a reused buffer for a limited number of
positions. ``token_columns.py`` reduces them to columns. ``V`` counts the rows of the
model's vocabulary, ``vocabulary`` those up to the last token, and ``H`` the elements of
a hidden state.

A model that changes its logits in a further way needs a field of :class:`Transform`,
and its class an entry in ``passes/plain.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spark_audit.scoring.token_columns import TokenColumns

WEIGHT_ROWS_CONVERTED = 4096
"""Rows of a head's weight that are converted to float32 at a time."""

WEIGHT_ELEMENTS_KEPT = 2**25
"""Elements (128 MiB) up to which a head's weight is converted once and kept."""


@dataclass(frozen=True)
class Transform:
    """The operations of a model on the logits of its linear head, in this order."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the transformed logits; the input is overwritten."""
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.softcap is None:
            return logits

        logits.div_(self.softcap).tanh_()
        # In training, the gradient needs tanh's own output.
        if logits.requires_grad:
            return logits * self.softcap
        return logits.mul_(self.softcap)


class Head:
    """A linear output head applied in float32 to hidden states of any dtype.

    Parameters
    ----------
    weight, bias
        Shapes ``(V, H)`` and ``(V,)`` or ``None``: the checkpoint's own tensors. A
        small weight is kept as a float32 copy. A large weight in half precision is
        converted in parts.
    transform
        The model's operations on the logits after the linear map.
    columns
        The reduction of logits to columns, with its buffers.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        transform: Transform,
        columns: TokenColumns,
    ) -> None:
        self._weight = weight[: columns.vocabulary]  # (vocabulary, H)
        is_small = self._weight.numel() <= WEIGHT_ELEMENTS_KEPT
        if is_small and not weight.is_cuda:
            self._weight = self._weight.float()

        self._bias = None if bias is None else bias[: columns.vocabulary].float()
        self._transform = transform
        self._columns = columns
        # A reused buffer for parts of a weight in half precision, made when needed.
        self._converted = torch.empty(0, device=weight.device)

    def __call__(
        self, hidden: torch.Tensor, targets: torch.Tensor, *, only_nll: bool = False
    ) -> torch.Tensor:
        """Return columns, or only NLL, of targets that follow hidden states ``(n, H)``.

        Targets and the result have the shapes of
        :meth:`~spark_audit.scoring.token_columns.TokenColumns.reduce`, or of
        :meth:`~spark_audit.scoring.token_columns.TokenColumns.nll`.
        """
        columns = self._columns
        to_figures = columns.nll if only_nll else columns.reduce

        # Equal chunks, because a small last one would run far below the peak.
        n_chunks = max(-(-len(hidden) // columns.rows), 1)
        hidden_chunks = hidden.tensor_split(n_chunks)
        target_chunks = targets.tensor_split(n_chunks)

        figures = []
        for hidden_chunk, target_chunk in zip(
            hidden_chunks, target_chunks, strict=True
        ):
            z = columns.buffer(len(hidden_chunk))  # (m, width)
            self._project(hidden_chunk, z[:, : columns.vocabulary])
            figures.append(to_figures(z, target_chunk, self._finish))
        return torch.cat(figures)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits ``(n, vocabulary)`` of a few rows, for the self-test."""
        z = torch.empty(len(hidden), self._columns.vocabulary, device=hidden.device)
        self._project(hidden, z)
        self._finish(z)
        return z

    def _finish(self, logits: torch.Tensor) -> None:
        """Add the bias and apply the transform in place."""
        if self._bias is not None:
            logits.add_(self._bias)
        self._transform(logits)

    def _project(self, hidden: torch.Tensor, out: torch.Tensor) -> None:
        """Write hidden states ``(n, H)`` times the weight into ``out``, ``(n, V)``."""
        weight = self._weight
        if weight.dtype == torch.float32:
            torch.mm(hidden.float(), weight.T, out=out)
            return
        if hidden.is_cuda and hidden.dtype == weight.dtype:
            # Products in half precision are exact in float32, and are summed in
            # float32.
            torch.mm(hidden, weight.T, out_dtype=torch.float32, out=out)
            return

        # Some rows of the weight at a time are converted into a reused float32 buffer.
        float32_hidden = hidden.float()  # (n, H)
        size = min(WEIGHT_ROWS_CONVERTED, len(weight)) * weight.shape[1]
        if self._converted.numel() < size:
            self._converted = torch.empty(size, device=weight.device)
        for start in range(0, len(weight), WEIGHT_ROWS_CONVERTED):
            weight_rows = weight[start : start + WEIGHT_ROWS_CONVERTED]  # (m, H)
            n_elements = weight_rows.numel()
            float32_rows = self._converted[:n_elements].view(weight_rows.shape)
            float32_rows.copy_(weight_rows)
            stop = start + len(weight_rows)
            torch.mm(float32_hidden, float32_rows.T, out=out[:, start:stop])

"""The body of a model in float32, layer by layer, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


HALF_PRECISION = (torch.bfloat16, torch.float16)


@contextmanager
def widened(body: PreTrainedModel) -> Iterator[None]:
    """Compute a model's body in float32 while its weights stay as they are.

    Each layer's weights are widened while it runs: the memory of one layer is needed,
    not that of a second model. Embeddings are looked up as they are, and widened.

    Parameters
    ----------
    body
        A causal LM's part below the head, adapters inside.
    """
    embeddings = body.get_input_embeddings()
    with ExitStack() as stack:
        # First: what others add to embeddings is added to the wide ones.
        hook = embeddings.register_forward_hook(_wide_embeddings, prepend=True)
        stack.enter_context(hook)
        for layer in _layers(body, embeddings):
            _widen_while_running(layer, stack)
        yield


def _layers(
    body: torch.nn.Module, embeddings: torch.nn.Module
) -> list[torch.nn.Module]:
    """Return the children of a body, those of its lists one by one, no embeddings."""
    layers: list[torch.nn.Module] = []
    for child in body.children():
        if child is embeddings:
            continue
        if isinstance(child, torch.nn.ModuleList):
            layers.extend(child)
        else:
            layers.append(child)
    return layers


def _widen_while_running(layer: torch.nn.Module, stack: ExitStack) -> None:
    """Hook a layer so that its weights are wide between its beginning and its end.

    The hooks go when the stack is closed.
    """
    narrow_weights = {
        parameter: parameter.data
        for parameter in layer.parameters()
        if parameter.dtype in HALF_PRECISION
    }

    def widen(*_: object) -> None:
        for parameter, weight in narrow_weights.items():
            parameter.data = weight.float()

    def put_back(*_: object) -> None:
        for parameter, weight in narrow_weights.items():
            parameter.data = weight

    stack.enter_context(layer.register_forward_pre_hook(widen))
    # Called after an error, too: weights must not stay wide.
    stack.enter_context(layer.register_forward_hook(put_back, always_call=True))


def _wide_embeddings(
    layer: torch.nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor
) -> torch.Tensor:
    """Look token ids up again in float32; called with a lookup's input and output.

    Some models scale embeddings, and round in doing so: their forward runs again, with
    a float32 matrix of the rows that are asked for.
    """
    if not isinstance(layer, torch.nn.Embedding):
        return out.float()

    weight = layer.weight.data  # (V, H)
    padding = layer.padding_idx
    # Rows of the small matrix stand for the distinct token ids of the input.
    rows, row_of_token = torch.unique(args[0], return_inverse=True)

    layer.weight.data = weight[rows].float()  # (distinct tokens, H)
    layer.padding_idx = None
    try:
        return layer.forward(row_of_token)
    finally:
        layer.weight.data = weight
        layer.padding_idx = padding

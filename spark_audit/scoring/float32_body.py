"""The body of a model in float32, layer by layer, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


HALF_PRECISION = (torch.bfloat16, torch.float16)

Held = dict[torch.nn.Parameter, torch.Tensor]


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
    layers = [
        layer
        for child in body.children()
        if child is not embeddings
        for layer in (child if isinstance(child, torch.nn.ModuleList) else (child,))
    ]
    with ExitStack() as stack:
        # First: what others add to embeddings is added to the wide ones.
        on = stack.enter_context
        on(embeddings.register_forward_hook(_looked_up, prepend=True))
        for layer in layers:
            held = {p: p.data for p in layer.parameters() if p.dtype in HALF_PRECISION}
            widen = partial(_put, held, is_wide=True)
            put_back = partial(_put, held, is_wide=False)
            on(layer.register_forward_pre_hook(widen))
            on(layer.register_forward_hook(put_back, always_call=True))
        yield


def _put(held: Held, *_: object, is_wide: bool) -> None:
    """Widen a layer's weights, or put its own back."""
    for parameter, weight in held.items():
        parameter.data = weight.float() if is_wide else weight


def _looked_up(
    layer: torch.nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor
) -> torch.Tensor:
    """Look up again in a matrix of the rows that are asked for: layers may scale."""
    if not isinstance(layer, torch.nn.Embedding):
        return out.float()

    weight = layer.weight.data  # (V, H)
    padding = layer.padding_idx
    rows, places = torch.unique(args[0], return_inverse=True)

    layer.weight.data = weight[rows].float()  # (distinct tokens, H)
    layer.padding_idx = None
    try:
        return layer.forward(places)
    finally:
        layer.weight.data = weight
        layer.padding_idx = padding

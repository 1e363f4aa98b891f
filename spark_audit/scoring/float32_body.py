"""The body of a model in float32, layer by layer, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    pass


HALF_PRECISION = (torch.bfloat16, torch.float16)

Held = dict[torch.nn.Parameter, torch.Tensor]


@contextmanager
def widened(body: Any) -> Iterator[None]:
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
            wide, own = partial(_put, held, wide=True), partial(_put, held, wide=False)
            on(layer.register_forward_pre_hook(wide))
            on(layer.register_forward_hook(own, always_call=True))
        yield


def _put(held: Held, *_: Any, wide: bool) -> None:
    """Widen a layer's weights, or put its own back."""
    for parameter, own in held.items():
        parameter.data = own.float() if wide else own


def _looked_up(layer: Any, args: tuple[Any, ...], out: torch.Tensor) -> torch.Tensor:
    """Look up again in a matrix of the rows that are asked for: layers may scale."""
    if not isinstance(layer, torch.nn.Embedding):
        return out.float()
    own, padding = layer.weight.data, layer.padding_idx
    rows, places = args[0].unique(return_inverse=True)
    layer.weight.data, layer.padding_idx = own[rows].float(), None
    try:
        return layer.forward(places)
    finally:
        layer.weight.data, layer.padding_idx = own, padding

"""Run the body of a model in float32, layer by layer.

``scoring/drift.py`` measures with it how much half precision moves the NLL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


HALF_PRECISION = (torch.bfloat16, torch.float16)
"""Types of weights that are widened; others stay as they are."""


@contextmanager
def widened(body: PreTrainedModel) -> Iterator[None]:
    """Compute a model's body in float32 without a second copy of its weights.

    The weights of each layer are widened while the layer runs, so only one layer takes
    more memory. Rows of the embeddings are widened after the look-up.

    Parameters
    ----------
    body
        The part of a causal LM below the head, with adapters in it.
    """
    embeddings = body.get_input_embeddings()
    with ExitStack() as stack:
        # This hook comes first, so that later additions to embeddings are in float32.
        hook = embeddings.register_forward_hook(_wide_embeddings, prepend=True)
        stack.enter_context(hook)
        for layer in _layers(body, embeddings):
            _widen_while_running(layer, stack)
        yield


def _layers(
    body: torch.nn.Module, embeddings: torch.nn.Module
) -> list[torch.nn.Module]:
    """Return a body's layers: its children, with lists expanded, without embeddings.

    They are one level deep: decoder layers and the final norm, not what is inside them.
    All are widened: a module that stays in half precision would be given float32 input.
    """
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
    """Widen the weights of a layer while it runs.

    The hooks are removed when the stack is closed.
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
    # Also called after an error, because weights must not stay wide.
    stack.enter_context(layer.register_forward_hook(put_back, always_call=True))


def _wide_embeddings(
    layer: torch.nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor
) -> torch.Tensor:
    """Repeat a look-up of embeddings in float32; a forward hook.

    Some models scale their embeddings, which rounds them. So the forward runs again,
    with a float32 matrix of only the requested rows.
    """
    if not isinstance(layer, torch.nn.Embedding):
        # A module of another class may have no such matrix of weights, so its output
        # is widened as it is.
        return out.float()

    weight = layer.weight.data  # (V, H)
    padding = layer.padding_idx
    # Rows of the small matrix are the distinct token ids of the input.
    rows, row_of_token = torch.unique(args[0], return_inverse=True)

    layer.weight.data = weight[rows].float()  # (distinct tokens, H)
    layer.padding_idx = None
    try:
        # The layer itself is not called, so that its hooks do not run again.
        return layer.forward(row_of_token)
    finally:
        layer.weight.data = weight
        layer.padding_idx = padding

"""Keep the padding rows of embeddings, which some classes set to zero after loading.

Some classes of transformers (Youtu) initialise their weights again. They spare tensors
from files, except for the row of padding. With a tied head, this row is a logit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spark_audit.checkpoints.tensor_checks import State


def filled_padding_rows(
    stored: Mapping[str, torch.Tensor], model: torch.nn.Module
) -> State:
    """Return the padding rows that hold numbers, by the name of their embeddings.

    Parameters
    ----------
    stored
        The tensors of the files, of any shapes.
    model
        The module, which may be on the meta device.
    """
    rows: State = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Embedding) or module.padding_idx is None:
            continue
        saved = stored.get(f"{name}.weight")  # (rows, width)
        if saved is None or saved.shape != module.weight.shape:
            continue

        row = saved[module.padding_idx]  # (width,)
        if bool(row.any()):
            rows[name] = row.clone()
    return rows


def restore_padding_rows(model: torch.nn.Module, rows: State) -> None:
    """Put padding rows back into a loaded module, where they are zero now.

    Parameters
    ----------
    rows
        Name of embeddings -> their padding row in the files, shape ``(width,)``.
    """
    for name, row in rows.items():
        embeddings: Any = model.get_submodule(name)
        weight = embeddings.weight  # (rows, width)
        # Weights on disk are on the meta device, and are read as they are saved.
        if not weight.is_meta and not bool(weight[embeddings.padding_idx].any()):
            weight.data[embeddings.padding_idx] = row.to(weight)

"""The noise pass: token NLL with Gaussian noise on the input embeddings.

What is drawn are unit normals that follow from the draw's number and the item's content
alone. Every checkpoint and every scale meets the same ones (common random numbers), so
that differences between checkpoints are not those of their draws, and a batch changes
nothing.

One row a scored token:

``nll``
    Nats, under the noise.
``relative``
    The noise's scale over the root mean square of the embedding matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from spark_audit.checkpoints.adapters import input_noise
from spark_audit.checkpoints.loaded import weight_of
from spark_audit.provenance import seed_for
from spark_audit.scoring.batching import Batches
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes.plain import Scorer
from spark_audit.scoring.table import Task

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded


def run(
    loaded: Loaded, model: torch.nn.Module, items: Sequence[Item], task: Task
) -> Iterator[tuple[Item, dict[str, np.ndarray]]]:
    """Yield each item with its columns, scored under noise.

    ``sigma`` of the pass is the noise's standard deviation, in units of the embeddings,
    ``draw`` which draw of it. The columns are ``nll`` in nats and ``relative``, sigma
    over the root mean square of the embedding matrix (its rows that are tokens).
    """
    sigma = task.scoring_pass.sigma
    draw = task.scoring_pass.draw
    scorer = Scorer(loaded, model, items[0], task.note)
    weight = weight_of(model.get_input_embeddings())  # type: ignore[operator]
    assert weight is not None  # (V, H)
    width = weight.shape[1]

    # The size of an embedding: rows that are no token may hold anything.
    token_rows = torch.from_numpy(np.flatnonzero(loaded.usable[: len(weight)]))
    token_weights = weight.detach()[token_rows.to(weight.device)].double()
    root_mean_square = float(token_weights.square().mean().sqrt())
    relative = np.float32(sigma / root_mean_square)

    def nll_under_noise(batch: list[Item]) -> list[np.ndarray]:
        """Score a batch with each item's own normals on its tokens."""
        longest = max(item.longest for item in batch)
        noise = torch.zeros(len(batch), longest, width)  # (B, T, H)
        for row, item in enumerate(batch):
            noise[row, : item.longest] = unit_normals(item, draw, width)

        # Noise of positions, not of tokens: the same token gets another one each time.
        with input_noise(model, noise.mul_(sigma), by_token=False):
            return scorer.nll(batch)

    batches = Batches(
        items, lambda item: item.longest, room=scorer.room, rows=task.batch_size
    )
    for batch, nll_of_batch in batches.run(
        nll_under_noise, shrink=scorer.columns.shrink
    ):
        for item, nll in zip(batch, nll_of_batch, strict=True):
            yield item, {"nll": nll, "relative": np.full_like(nll, relative)}


def unit_normals(item: Item, draw: int, width: int) -> torch.Tensor:
    """Return an item's standard normals of one draw: ``(len(item.ids), width)``.

    The seed is made of the content: where the item stands in a batch does not matter.
    """
    content = hashlib.sha256(item.content()).hexdigest()
    generator = torch.Generator().manual_seed(seed_for(draw, "noise", content))
    return torch.randn(len(item.ids), width, generator=generator)

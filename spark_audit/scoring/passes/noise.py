"""The noise pass: token NLL under Gaussian noise on the input embeddings.

The unit normals depend only on the number of the draw and the item's content. So all
checkpoints and scales share them (common random numbers): differences between
checkpoints do not come from the draws, and batches do not matter.

One row a scored token:

``nll``
    Nats, under the noise.
``relative``
    Scale of the noise over the root mean square of the embedding matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from spark_audit.checkpoints.adapters import input_noise
from spark_audit.checkpoints.checkpoint import weight_of
from spark_audit.provenance import seed_for
from spark_audit.scoring.batching import Batches
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes.plain import Scorer
from spark_audit.scoring.table import PassSettings

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint


def run(
    loaded: Checkpoint,
    model: torch.nn.Module,
    items: Sequence[Item],
    settings: PassSettings,
) -> Iterator[tuple[Item, dict[str, np.ndarray]]]:
    """Yield each item with its columns under noise.

    ``sigma`` of the pass is the standard deviation of the noise in units of the
    embeddings, and ``draw`` the number of the draw. The columns are ``nll`` in nats and
    ``relative``, which is sigma over the root mean square of the embedding matrix (only
    rows that are tokens).
    """
    sigma = settings.scoring_pass.sigma
    draw = settings.scoring_pass.draw
    scorer = Scorer(loaded, model, items[0], settings.note)

    weight = weight_of(model.get_input_embeddings())  # type: ignore[operator]
    assert weight is not None  # (V, H)
    width = weight.shape[1]  # H

    # Only token rows give the size of an embedding: other rows may hold anything.
    token_rows = torch.from_numpy(np.flatnonzero(loaded.usable[: len(weight)]))
    token_weights = weight.detach()[token_rows.to(weight.device)].double()  # (n, H)
    root_mean_square = float(token_weights.square().mean().sqrt())
    relative = np.float32(sigma / root_mean_square)

    def nll_under_noise(batch: list[Item]) -> list[np.ndarray]:
        """Return each item's NLL, with the item's own normals on its tokens."""
        longest = max(item.n_context_tokens for item in batch)
        noise = torch.zeros(len(batch), longest, width)  # (B, T, H)
        for row, item in enumerate(batch):
            noise[row, : item.n_context_tokens] = unit_normals(item, draw, width)

        # Noise belongs to positions, so a repeated token gets different noise.
        with input_noise(model, noise.mul_(sigma), by_token=False):
            return scorer.nll(batch)

    batches = Batches(
        items,
        lambda item: item.n_context_tokens,
        room=scorer.room,
        rows=settings.batch_size,
    )
    for batch, nll_of_batch in batches.run(
        nll_under_noise, shrink=scorer.columns.shrink
    ):
        for item, nll in zip(batch, nll_of_batch, strict=True):
            # The noise pass reads whole texts, so all tokens but the first have a row.
            yield item, {"nll": nll, "relative": np.full_like(nll, relative)}


def unit_normals(item: Item, draw: int, width: int) -> torch.Tensor:
    """Return an item's standard normals for one draw, ``(len(item.ids), width)``.

    The seed comes from the content, so the place in a batch does not matter.
    """
    content = hashlib.sha256(item.content()).hexdigest()
    generator = torch.Generator().manual_seed(seed_for(draw, "noise", content))
    return torch.randn(len(item.ids), width, generator=generator)

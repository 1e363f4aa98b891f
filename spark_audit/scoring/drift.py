"""Measure how much batches and the dtype of a model change scores.

Engines that run a plan, and ``sa.score``, record :func:`score_remarks` in the store of
the scores, from which reports print them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_audit.scoring.added_rows import added_remarks
from spark_audit.scoring.item_checks import check_readable
from spark_audit.scoring.items import Item
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.scoring.store import PassItems

DRIFT_ROWS = 8
"""Most texts on which the effects of batches and of the dtype are measured."""


class DtypeDrift(NamedTuple):
    """Absolute differences of NLL between the body's dtype and float32, in nats."""

    mean: float
    largest: float


class Drift(NamedTuple):
    """How much a batch, and the body's dtype, change the NLL of a token.

    Attributes
    ----------
    by_batch
        Largest absolute difference between texts scored together and alone, in nats.
    by_dtype
        ``None`` if the body is in float32 itself, or if the logits do not come from its
        hidden states here.
    """

    by_batch: float
    by_dtype: DtypeDrift | None


def drift(loaded: Checkpoint, items: Sequence[Item]) -> Drift:
    """Score some texts in several ways, and return how much their NLLs differ."""
    from spark_audit.scoring.passes.plain import Scorer

    check_readable(loaded, items)
    with loaded.active() as model:
        # The pass itself has already given its notes.
        scorer = Scorer(loaded, model, items[0], lambda _: None)

        # A single batch of all lengths, because the effect of padding is measured.
        together = np.concatenate([columns["nll"] for columns in scorer(items)])
        alone = np.concatenate([scorer([item])[0]["nll"] for item in items])
        # Both of shape (tokens,).
        by_batch = float(np.abs(together - alone).max(initial=0.0))

        widened = scorer.widened()
        if widened is None:
            return Drift(by_batch, by_dtype=None)
        as_loaded = np.concatenate(scorer.nll(items)).astype(np.float64)  # (tokens,)
        with widened:
            in_float32 = np.concatenate(scorer.nll(items))  # (tokens,)

    difference = np.abs(as_loaded - in_float32)
    if not len(difference):
        return Drift(by_batch, DtypeDrift(mean=0.0, largest=0.0))
    by_dtype = DtypeDrift(
        mean=float(difference.mean()), largest=float(difference.max())
    )
    return Drift(by_batch, by_dtype)


def score_remarks(loaded: Checkpoint, pass_items: PassItems, *, seed: int) -> list[str]:
    """Return what readers are told of the scores of a pass, measured on some texts."""
    return [
        *drift_remarks(loaded, pass_items, seed),
        *added_remarks(loaded, pass_items, seed),
    ]


def drift_remarks(loaded: Checkpoint, pass_items: PassItems, seed: int) -> list[str]:
    """Return remarks on how much batches and the dtype change scores.

    It is measured on some texts of the plain pass; empty for any other pass, and for a
    served checkpoint.
    """
    items = pass_items.items
    is_plain = pass_items.scoring_pass == Pass()
    if not is_plain or not len(items) or loaded.served is not None:
        return []

    drawn = np.random.default_rng(seed).permutation(len(items))[:DRIFT_ROWS]
    # In the plain pass all items are texts, but a type checker cannot know this.
    probes = [item for i in drawn if isinstance(item := items[i], Item)]
    n_probes = len(probes)
    by_batch, by_dtype = drift(loaded, probes)

    remarks = [
        f"{n_probes} texts scored alone and in one batch differ by at most "
        f"{by_batch:.1e} nats per token"
    ]
    if by_dtype is not None:
        remarks.append(
            f"{n_probes} texts scored in {loaded.dtype} and in float32 differ by "
            f"{by_dtype.mean:.1e} nats per token in the mean, "
            f"{by_dtype.largest:.1e} at most"
        )
    return remarks

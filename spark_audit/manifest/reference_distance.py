"""Recognise a manifest's base by its scores, where no file tells it.

A manifest records the scores of its base. A model in memory that gives the same texts
the same scores is that base, whatever its weights were loaded from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_audit.errors import CheckpointError
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

MAX_BASE_DIFFERENCE = 0.02
"""Nats per token up to which a model counts as that of the manifest."""

N_COMPARED_ROWS = 8
"""Rows of the manifest on which a model in memory is compared with its base."""


def distance_from_manifest(manifest: Manifest, table: TokenTable) -> float:
    """Return the mean absolute difference from the manifest's NLL, in nats per token.

    Parameters
    ----------
    table
        Plain scores of at least one of the manifest's texts.
    """
    # The NLL of the manifest for each row of the table.
    recorded = []
    for key in table.ids:
        positions = table.position[table.rows(key)]  # (tokens of the text,)
        recorded.append(manifest.by_id[key].reference_nll[positions])

    difference = table.columns["nll"] - np.concatenate(recorded)  # (tokens,)
    return float(np.abs(difference).mean())


def reference_distance(manifest: Manifest, checkpoint: Checkpoint) -> float:
    """Score a few rows; return their distance from the base, in nats per token."""
    keys = sorted(manifest.by_id)[:N_COMPARED_ROWS]
    items = items_for(manifest, checkpoint, {Pass(): keys})[Pass()]
    table = score(checkpoint, items, progress=False)[Pass()]
    return distance_from_manifest(manifest, table)


def is_reference(manifest: Manifest, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint scores as the manifest's base does."""
    return reference_distance(manifest, checkpoint) <= MAX_BASE_DIFFERENCE


def check_is_reference(manifest: Manifest, checkpoint: Checkpoint) -> None:
    """Refuse a base in memory that is not the one of the manifest.

    Raises
    ------
    CheckpointError
        Names the mean absolute difference.
    """
    distance = reference_distance(manifest, checkpoint)
    if distance > MAX_BASE_DIFFERENCE:
        raise CheckpointError(
            f"differs from the base of manifest {manifest.name!r} by "
            f"{distance:.3g} nats per token",
            where="base",
            fix=f"give {manifest.reference.name!r}, with which the manifest was made",
        )

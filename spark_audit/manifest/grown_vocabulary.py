"""Recognise a vocabulary that has grown from that of a manifest's reference.

The manifest records the hash of the reference's tokenizer, and the number of its
tokens. A tokenizer that has this hash without the tokens added last reads texts without
them alike, so scores over the other tokens can be compared with the manifest's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.manifest.schema import Manifest


def over_reference_tokens(manifest: Manifest, checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose scores are over the tokens of a manifest's reference.

    A checkpoint is returned as it is if its vocabulary is that of the reference, or has
    not grown from it: then :func:`~spark_audit.manifest.file.check_fit` refuses it.
    """
    # Whoever has a checkpoint has imported PyTorch; readers of reports have not.
    from spark_audit.checkpoints.grown_vocabulary import notes_on_growth
    from spark_audit.checkpoints.tokenizer import sha256_without_tokens

    reference = manifest.reference
    if checkpoint.scored_tokenizer_sha256 == reference.tokenizer_sha256:
        return checkpoint

    ids = np.array(sorted(set(checkpoint.tokenizer.get_vocab().values())))  # (tokens,)
    added_ids = ids[reference.usable_vocab :]
    if not len(added_ids):
        return checkpoint
    sha256 = sha256_without_tokens(checkpoint.tokenizer, set(added_ids.tolist()))
    if sha256 != reference.tokenizer_sha256:
        return checkpoint

    added = np.zeros(len(checkpoint.usable), bool)  # (rows,)
    added[added_ids] = True
    shared = checkpoint.usable & ~added
    growth_notes = notes_on_growth(
        checkpoint.model, checkpoint.tokenizer, shared, added
    )
    return replace(
        checkpoint,
        usable=shared,
        added=added,
        grown_from=reference.tokenizer_sha256,
        notes=(*checkpoint.notes, *growth_notes),
    )

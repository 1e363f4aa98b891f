"""Open the base that a user gives to compare the looks at a model with."""

from __future__ import annotations

from pathlib import Path

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.given import IN_MEMORY, GivenCheckpoint, is_open
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import DTYPES
from spark_audit.manifest.file import check_fit
from spark_audit.manifest.reference_distance import check_is_reference
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE


def open_given_base(
    given: GivenCheckpoint, manifest: Manifest, *, model: Checkpoint
) -> Checkpoint:
    """Return the base of a manifest, opened; refuse another model.

    A base in files is known by the hash of its weights. One in memory must give texts
    the scores that the manifest records.

    Parameters
    ----------
    given
        The base as the user gives it: a path, an open checkpoint, or a model in memory.
    model
        The watched model. A path is opened on its device and in its dtype, so that only
        training can make a difference.

    Raises
    ------
    SparkError
        If it cannot be opened, or is not the base of the manifest.
    """
    if isinstance(given, str | Path):
        dtype = model.dtype if model.dtype in DTYPES else None
        base = open_checkpoint(given, name=BASE, device=model.device, dtype=dtype)
    elif is_open(given):
        base = open_checkpoint(given, name=BASE)
    else:
        base = open_checkpoint(given, name=BASE, tokenizer=model.tokenizer)

    # An open checkpoint of another name knows only the hash of its own weights.
    if base.format != IN_MEMORY:
        check_fit(manifest, base, base_sha256=base.weights_sha256)
        return base

    check_fit(manifest, base, base_sha256=None)
    check_is_reference(manifest, base)
    return base

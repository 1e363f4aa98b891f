"""Build a manifest without reference scores, for the audit of utility.

:mod:`spark_audit.manifest.build` builds the usual one, with which this shares counts,
heading and records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_audit.data.examples import Example
from spark_audit.manifest.build import (
    checked_examples,
    heading,
    reference_of,
    row_numbers,
)
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.content import seal
from spark_audit.manifest.layout import Rows
from spark_audit.manifest.membership_rows import near_duplicate_groups
from spark_audit.manifest.records import Record
from spark_audit.manifest.row_slices import example_record
from spark_audit.manifest.schema import Manifest, ManifestSettings
from spark_audit.manifest.settings import BuildSettings

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint


def task_manifest(
    examples: Sequence[Example], loaded: Checkpoint, *, name: str
) -> Manifest:
    """Build a manifest for ``utility`` from examples and a tokenizer, without scores.

    Task accuracy needs prompts, responses, splits and clusters, but no model to match
    against. Such a manifest has no pairs, canaries or members, so every other audit
    reports that it has no data.

    Parameters
    ----------
    examples
        Rows of all tasks. The manifest keeps the tasks in order of appearance.
    loaded
        The first checkpoint (or the base) of the run, for its tokenizer, vocabulary and
        context. Only a base's hash is recorded of its weights, so that runs of several
        methods over the same data have the same digest.
    name
        Name of the manifest in reports; not part of its digest.

    Raises
    ------
    InputError
        If there are no examples, an id occurs twice, or the tokenizer gives no
        offsets.
    """
    # Only a check: the tasks keep their order, which is that of a stream.
    checked_examples(examples)
    rows = Rows(examples, loaded.tokenizer, max_length=loaded.max_positions)
    row_clusters = clusters(examples, near_duplicate_groups(rows))
    layouts = list(rows)

    counts = {
        **row_numbers(examples),
        **row_clusters.counts,
        "tokens": sum(len(row.encoding) for row in layouts),
        "tokens_scored": 0,
        "texts_cut": sum(row.was_cut for row in layouts),
        "pairs": 0,
    }
    # Records are packed one by one, because a record takes 10 KB.
    records = (
        example_record(row, cluster)
        for row, cluster in zip(layouts, row_clusters.labels, strict=True)
    )

    note = "made of data alone, for `utility` only: it holds no reference scores"
    return seal(
        {
            **heading(name, _reference(loaded), _settings(loaded), ()),
            "counts": counts,
            "examples": records,
            "pairs": (),
            "unmatched": (),
            "canaries": (),
            "twins": (),
            "membership": {"members": [], "non_members": []},
            "balance": [],
            "notes": [note, *rows.notes, *row_clusters.notes],
        }
    )


def _reference(loaded: Checkpoint) -> Record:
    """Return the manifest's record of its reference: a base's hash, if there is one.

    In this way, runs of several methods over the same data get the same digest.
    """
    base_sha256 = loaded.base_sha256 or ""
    return {
        **reference_of(loaded),
        "name": "none",
        "weights_sha256": base_sha256,
        "model_id": base_sha256,
        "shape": None,
    }


def _settings(loaded: Checkpoint) -> ManifestSettings:
    """Return the usual settings, with 0 for those that only matching would use."""
    usual = BuildSettings().recorded(max_positions=loaded.max_positions)
    return usual.model_copy(
        update={
            "caliper": 0.0,
            "tau": 0.0,
            "alpha": 0.0,
            "buffer": 0,
            "n_candidates": 0,
            "canary_contexts": None,
        }
    )

"""A manifest of data alone, for utility: it holds no reference scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_audit.data.examples import Example
from spark_audit.manifest.build import checked, heading, reference_of, row_numbers
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.content import seal
from spark_audit.manifest.layout import Rows
from spark_audit.manifest.membership_rows import duplicates
from spark_audit.manifest.records import Record
from spark_audit.manifest.row_slices import example_record
from spark_audit.manifest.schema import Manifest, ManifestSettings
from spark_audit.manifest.settings import BuildSettings

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded


def task_manifest(
    examples: Sequence[Example], loaded: Loaded, *, name: str
) -> Manifest:
    """Build a manifest for ``utility`` from examples and a tokenizer, without scores.

    Task accuracy needs prompts, responses, splits and clusters, and no model to match
    against. Such a manifest has no pairs, canaries or members, so that every other
    audit says that it has nothing to work on.

    Parameters
    ----------
    examples
        Rows of all tasks; the manifest holds the tasks in this order of appearance.
    loaded
        The first checkpoint (or the base) of the run: tokenizer, vocabulary, context.
        Of its weights only a base's hash is recorded, so that the runs of several
        methods over the same data get the same digest.
    name
        What reports call the manifest; not part of its digest.

    Raises
    ------
    InputError
        If there are no examples, an id occurs twice, or the tokenizer gives no
        offsets.
    """
    # Checked only: the order of the tasks is that of a stream, and stays.
    checked(examples)
    rows = Rows(examples, loaded.tokenizer, max_length=loaded.max_positions)
    row_clusters = clusters(examples, duplicates(rows))
    layouts = list(rows)

    counts = {
        **row_numbers(examples),
        **row_clusters.counts,
        "tokens": sum(len(row.encoding) for row in layouts),
        "tokens_scored": 0,
        "texts_cut": sum(row.was_cut for row in layouts),
        "pairs": 0,
    }
    # They are packed one after the other: a record takes 10 KB.
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


def _reference(loaded: Loaded) -> Record:
    """Return what the manifest says of its reference: a base's hash, if there is one.

    Runs of several methods over the same data get the same digest so.
    """
    base_sha256 = loaded.base_sha256 or ""
    return {
        **reference_of(loaded),
        "name": "none",
        "weights_sha256": base_sha256,
        "model_id": base_sha256,
        "shape": None,
    }


def _settings(loaded: Loaded) -> ManifestSettings:
    """Return the usual settings, with nothing in those that matching would need."""
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

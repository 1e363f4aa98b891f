"""A manifest of data alone, for utility: it holds no reference scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_audit.data.examples import Example
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.content import seal
from spark_audit.manifest.layout import Rows
from spark_audit.manifest.membership_rows import duplicates
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.settings import BuildSettings

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
from spark_audit.manifest.build import checked, heading, reference_of, row_numbers
from spark_audit.manifest.row_slices import example_record


def task_manifest(
    examples: Sequence[Example], loaded: Loaded, *, name: str
) -> Manifest:
    """A manifest for ``utility`` from examples and a tokenizer; nothing is scored.

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
    checked(examples)
    laid = Rows(examples, loaded.tokenizer, max_length=loaded.max_positions)
    units, rows = clusters(examples, duplicates(laid)), [*laid]
    base = loaded.base_sha256 or ""
    reference = {
        **reference_of(loaded),
        "name": "none",
        "weights_sha256": base,
        "model_id": base,
        "shape": None,
    }
    usual = BuildSettings().recorded(max_positions=loaded.max_positions)
    nothing: dict[str, Any] = dict.fromkeys(("caliper", "tau", "alpha"), 0.0)
    nothing |= {"buffer": 0, "n_candidates": 0, "canary_contexts": None}
    note = "made of data alone, for `utility` only: it holds no reference scores"
    return seal(
        {
            **heading(name, reference, usual.model_copy(update=nothing), ()),
            "counts": {
                **row_numbers(examples),
                **units.counts,
                "tokens": sum(len(row.encoding) for row in rows),
                "tokens_scored": 0,
                "texts_cut": sum(row.was_cut for row in rows),
                "pairs": 0,
            },
            "examples": map(example_record, rows, units.labels),
            **dict.fromkeys(("pairs", "unmatched", "canaries", "twins"), ()),
            "membership": {"members": [], "non_members": []},
            "balance": [],
            "notes": [note, *laid.notes, *units.notes],
        }
    )

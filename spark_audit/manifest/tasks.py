"""Data alone to a manifest: what the utility audit reads, without reference scores.

Task accuracy needs prompts, responses, splits and clusters, and no model to match
against. Such a manifest has no pairs, canaries or members, so that every other audit
says that it has nothing to work on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.data.examples import Example
from spark_audit.manifest.build import checked, heading, reference_of
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.file import seal
from spark_audit.manifest.layout import Rows
from spark_audit.manifest.records import example_record, row_numbers
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.selection import duplicates
from spark_audit.manifest.settings import BuildSettings

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

NOTE = "made of data alone, for `utility` only: it holds no reference scores"

SETTINGS = BuildSettings(caliper=0, buffer=0, tau=0, alpha=0, canary_contexts="all")
"""Of a manifest that selects nothing."""


def task_manifest(
    examples: Sequence[Example],
    loaded: Loaded,
    *,
    name: str,
    data: Sequence[Path] = (),
) -> Manifest:
    """A manifest for ``utility`` from examples and a tokenizer; nothing is scored.

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
    data
        Files that the examples were read from: their hashes are recorded.

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
    settings = SETTINGS.recorded(max_positions=loaded.max_positions)
    settings["n_candidates"] = 0
    return seal(
        {
            **heading(name, reference, settings, data),
            "counts": {
                **row_numbers(examples),
                **units.counts,
                "tokens": sum(len(row.encoding) for row in rows),
                "tokens_scored": 0,
                "texts_cut": sum(row.was_cut for row in rows),
                "pairs": 0,
            },
            "examples": (
                example_record(row, label)
                for row, label in zip(rows, units.labels, strict=True)
            ),
            **dict.fromkeys(("pairs", "unmatched", "canaries"), ()),
            "membership": {"members": [], "non_members": []},
            "balance": [],
            "notes": [NOTE, *units.notes],
        }
    )

"""Data alone to a manifest: what the utility audit reads, without reference scores.

Task accuracy needs prompts, responses, splits and clusters, and no model to match
against. Such a manifest has no pairs, canaries or members, so that every other audit
says that it has nothing to work on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.file import seal
from spark_audit.manifest.layout import Layout, layouts
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.selection import duplicates
from spark_audit.provenance import sha256_file, versions

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded

NOTE = "made of data alone, for `utility` only: it holds no reference scores"

SETTINGS: dict[str, Any] = {
    "preset": "robust",
    "seed": 0,
    "caliper": 0.0,
    "distance": "mean",
    "buffer": 0,
    "controls": "any",
    "exclude_template": True,
    "tau": 0.0,
    "alpha": 0.0,
    "canary_contexts": None,
    "n_candidates": 0,
}
"""Settings of a manifest that selects nothing; ``max_length`` comes from the model."""


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
        If there are no examples, an id stands twice, or the tokenizer gives no
        offsets.
    """
    _check(examples)
    rows = layouts(examples, loaded.tokenizer, max_length=loaded.max_positions)
    units = clusters(rows, duplicates(rows))
    return seal(
        {
            "kind": "spark-audit-manifest",
            "schema_version": 1,
            "name": name,
            "redacted_from": None,
            "reference": _reference(loaded),
            "settings": {**SETTINGS, "max_length": loaded.max_positions},
            "versions": versions(),
            "data": [
                {"file": file, "sha256": digest}
                for file, digest in sorted((p.name, sha256_file(p)) for p in data)
            ],
            "counts": {
                "examples": len(rows),
                "tasks": len({example.task for example in examples}),
                "train": sum(example.split == "train" for example in examples),
                "test": sum(example.split == "test" for example in examples),
                "sources": len({example.source_id for example in examples}),
                **units.counts,
                "tokens": sum(len(row.encoding) for row in rows),
                "tokens_scored": 0,
                "texts_cut": sum(row.was_cut for row in rows),
                "pairs": 0,
            },
            "examples": (
                _record(row, label)
                for row, label in zip(rows, units.labels, strict=True)
            ),
            "pairs": [],
            "unmatched": [],
            "canaries": [],
            "membership": {"members": [], "non_members": []},
            "balance": [],
            "notes": [NOTE, *units.notes],
        }
    )


def _check(examples: Sequence[Example]) -> None:
    if not examples:
        raise InputError("there are no examples", where="data", fix="give some")
    for one, other in pairwise(sorted(example.id for example in examples)):
        if one == other:
            raise InputError(
                "the id stands twice",
                where=f"example {one!r}",
                fix="give every row an id of its own",
            )


def _reference(loaded: Loaded) -> dict[str, Any]:
    base = loaded.base_sha256 or ""
    return {
        "name": "none",
        "weights_sha256": base,
        "tokenizer_sha256": loaded.tokenizer_sha256,
        "model_id": base,
        "architecture": loaded.architecture,
        "dtype": loaded.dtype,
        "vocab_size": len(loaded.usable),
        "usable_vocab": int(loaded.usable.sum()),
        "max_positions": loaded.max_positions,
    }


def _record(row: Layout, label: str) -> dict[str, Any]:
    example = row.example
    spans = []
    for span, tokens in zip(example.spans, row.spans, strict=True):
        whole = tokens if tokens is not None and row.within(tokens) else None
        spans.append(
            {
                **vars(span),
                "token_start": whole.start if whole else None,
                "token_end": whole.end if whole else None,
                "partial": bool(whole and whole.partial),
            }
        )
    return {
        "id": example.id,
        "task": example.task,
        "source_id": example.source_id,
        "cluster": label,
        "split": example.split,
        "prompt": example.prompt,
        "response": example.response,
        "spans": spans,
        "canary_id": example.canary.id if example.canary else None,
        "template": [list(place) for place in row.template],
        "kept": list(row.kept),
        "response_token": row.response_token,
        "reference_unll": [None] * len(row.encoding),
        "excluded": [],
        "classes": "-" * len(row.encoding),
        "low": [],
    }

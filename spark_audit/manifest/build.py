"""Data and reference model to a manifest: pairs, canary candidates, membership.

Whatever an audit compares is decided here, before any checkpoint is looked at, from the
reference model's NLL in whole micro-nats. Batches do not depend on free memory, so that
the same inputs, seed, machine and libraries give the same bytes, interrupted or not.
Another batch size, or a store that other commands have filled, makes other batches,
which can move an NLL by a few micro-nats.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import Example, unique
from spark_audit.data.fixed_wording import lack_notes
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.arrow_file import tables_of
from spark_audit.manifest.canary_sets import canary_sets
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.content import seal
from spark_audit.manifest.layout import SLICE_ROWS, Rows
from spark_audit.manifest.membership_rows import duplicates, membership
from spark_audit.manifest.overlap import check_splits
from spark_audit.manifest.records import Record
from spark_audit.manifest.row_slices import NOTES, RowSlices
from spark_audit.manifest.schema import Manifest, ManifestSettings
from spark_audit.manifest.settings import BuildSettings
from spark_audit.manifest.twins import twin_sets
from spark_audit.options import BatchSize
from spark_audit.provenance import sha256_json, versions
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import item, score_keys
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

READ_ROWS = 8 * SLICE_ROWS
"""Rows whose scores are read together."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def build_manifest(
    examples: Sequence[Example],
    loaded: Loaded,
    *,
    name: str,
    settings: BuildSettings | None = None,
    data: Sequence[Path] = (),
    store: Store | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Manifest:
    """Build a manifest from annotated examples and the reference model.

    Parameters
    ----------
    examples
        Rows of all tasks, in any order: the manifest holds them by id.
    loaded
        The base model that the checkpoints to be audited were trained from.
    name
        What reports call the manifest; not part of its digest.
    settings, options
        What is decided how; ``options`` are fields of
        :class:`~spark_audit.manifest.settings.BuildSettings` by name,
        such as ``caliper`` and ``preset``.
    data
        Files that the examples were read from: their hashes are recorded.
    store, batch_size
        As in :func:`spark_audit.scoring.score.score`.

    Raises
    ------
    InputError
        If there are no examples, an id occurs twice, most held-out rows are trained
        rows, a number is out of range, the tokenizer gives no offsets, or ``loaded`` is
        no base.
    """
    show = progress or (lambda what, done, total: None)
    chosen = replace(settings or BuildSettings(), **options)
    recorded = chosen.recorded(max_positions=loaded.max_positions)

    examples = checked(examples)
    shared_notes = check_splits(examples)
    rows = Rows(examples, loaded.tokenizer, max_length=recorded.max_length)
    groups = duplicates(rows)
    units = clusters(examples, groups)

    store = store or Store(None)
    names, by_task, remarks = _scored(
        rows, loaded, store, batch_size=batch_size, progress=show
    )

    slices = RowSlices(recorded, by_task, units.labels)
    for low, part in rows.slices():
        if low % READ_ROWS == 0:
            pa.default_memory_pool().release_unused()
            read = [example.id for example in examples[low : low + READ_ROWS]]
            table = store.gather({key: names[key] for key in read}, scoring_pass=Pass())
        slices.add(part, table, first=low)
        show("matching, rows", low + len(part), len(examples))
    del table
    pa.default_memory_pool().release_unused()

    balance = slices.balance.records()
    encode = partial(token_ids, loaded.tokenizer)
    stage = partial(show, "drawing canary candidates")
    canaries = canary_sets(slices.canary_rows, recorded, encode=encode, progress=stage)
    stage = partial(show, "drawing twins of identifiers")
    twins, lost = twin_sets(
        rows,
        slices.identifiers,
        encode=encode,
        encode_special_in_text=partial(encode, special_tokens=False),
        seed=recorded.seed,
        progress=stage,
    )

    members, crossing = membership(examples, groups)
    count = {
        **row_numbers(examples),
        **units.counts,
        **slices.counted,
        **_counts_of_canaries(canaries),
        **{side: len(keys) for side, keys in members.items()},
        "canary_rows_cut": sum(not is_whole for _, is_whole in slices.canary_rows),
        "rows_near_duplicate": crossing,
        "twins": len(twins),
        "twins_lost": lost,
    }
    notes = _notes_on_counts(
        count,
        canaries=canaries,
        members=members,
        max_length=recorded.max_length,
        n_comparable=slices.comparable,
    )
    notes += [*rows.notes, *shared_notes, *lack_notes(examples, rows.templates)]

    records = slices.records()
    # Unpacked, they take 2 KB a row: what is over makes room.
    del examples, rows, part, slices, names
    pa.default_memory_pool().release_unused()
    return seal(
        {
            **heading(name, reference_of(loaded), recorded, data),
            **{"pairs": (), "unmatched": ()},
            **tables_of(pa.ipc.open_stream(records)),
            "counts": count,
            "canaries": canaries,
            "twins": twins,
            "membership": members,
            "balance": balance,
            "notes": [*notes, *units.notes, *remarks],
        }
    )


def _counts_of_canaries(canaries: Sequence[Record]) -> dict[str, int]:
    """Return how many canaries and parts there are, and how many can be ranked."""
    return {
        "canaries": len({canary["canary_id"] for canary in canaries}),
        "canary_parts": len(canaries),
        "canary_parts_rankable": sum(bool(canary["candidates"]) for canary in canaries),
    }


def _notes_on_counts(
    count: Mapping[str, int],
    *,
    canaries: Sequence[Record],
    members: Mapping[str, Sequence[str]],
    max_length: int | None,
    n_comparable: int,
) -> list[str]:
    """Return the notes that counts call for, such as that a side has no rows."""
    reasons = {str(canary["reason"]) for canary in canaries if canary["reason"]}
    facts: dict[str, object] = {
        **count,
        "max_length": max_length,
        "incomparable": not n_comparable,
        "unranked": count["canary_parts"] - count["canary_parts_rankable"],
        "reasons": "; ".join(sorted(reasons)),
        **{f"no_{side}": not keys for side, keys in members.items()},
    }
    return [text.format_map(facts) for name, text in NOTES.items() if facts[name]]


def heading(
    name: str, reference: Record, settings: ManifestSettings, data: Sequence[Path]
) -> dict[str, Any]:
    """What a manifest says of itself: its name, and what it was made from."""
    return {
        "kind": "spark-audit-manifest",
        "schema_version": 1,
        "name": name,
        "redacted_from": None,
        "reference": reference,
        "settings": settings.model_dump(),
        "versions": versions(),
        "data": [
            {"file": name, "sha256": digest}
            for name, digest in sorted((p.name, sha256_file(p)) for p in data)
        ],
    }


def checked(examples: Sequence[Example]) -> Sequence[Example]:
    """The examples by id; a manifest does not depend on the order of its input."""
    if not examples:
        raise InputError("there are no examples", where="data", fix="give some")
    ordered = sorted(examples, key=lambda example: example.id)
    return [*unique((f"example {one.id!r}", one) for one in ordered)]


def row_numbers(examples: Sequence[Example]) -> dict[str, int]:
    """How many rows, tasks and sources there are."""
    return {
        "examples": len(examples),
        "tasks": len({example.task for example in examples}),
        "train": sum(example.split == "train" for example in examples),
        "test": sum(example.split == "test" for example in examples),
        "sources": len({example.source_id for example in examples}),
    }


def _scored(
    rows: Rows,
    loaded: Loaded,
    store: Store,
    *,
    batch_size: BatchSize,
    progress: Progress,
) -> tuple[dict[str, str], dict[str, np.ndarray], list[str]]:
    """What the store calls the reference model's scores of each row, and notes.

    Between them: how often each token stands in the rows of each task. Of a store that
    is this command's own no score of other texts or batches is used, of another one
    every score is.
    """
    if loaded.base is not None:
        raise InputError(
            "an adapter cannot be the reference of a manifest",
            where=f"checkpoint {loaded.name!r}",
            fix="give its base, or save base and adapter merged",
        )
    texts, digest = list[Item](), hashlib.sha256()
    by_task = defaultdict[str, Any](lambda: np.zeros(len(loaded.usable), np.int64))
    for row in rows:
        texts.append(item(row.example.id, row.encoding, row.kept))
        digest.update(texts[-1].content())
        np.add.at(by_task[row.example.task], row.encoding.ids[~row.encoding.special], 1)
    store.only_for(sha256_json([digest.hexdigest(), str(batch_size), versions()]))
    keys = store.keys(loaded, texts, Pass())
    stage = partial(progress, f"scoring {loaded.name}, tokens")
    score_keys(
        loaded, keys, store=store, batch_size=batch_size, whole=True, progress=stage
    )
    names = keys()
    remarks = dict.fromkeys([*loaded.notes, *store.remarks(names.values())])
    del texts, keys
    # Scoring leaves the heap full of holes.
    pa.default_memory_pool().release_unused()
    return names, by_task, [f"reference: {note}" for note in remarks]


def reference_of(loaded: Loaded) -> Record:
    """What a manifest says of its reference model."""
    return {
        "name": loaded.source,
        "weights_sha256": loaded.weights_sha256,
        "tokenizer_sha256": loaded.tokenizer_sha256,
        "model_id": loaded.model_id,
        "architecture": loaded.architecture,
        "dtype": loaded.dtype,
        "vocab_size": len(loaded.usable),
        "usable_vocab": int(loaded.usable.sum()),
        "max_positions": loaded.max_positions,
        "shape": loaded.shape or None,
    }

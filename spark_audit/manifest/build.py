"""Data and reference model to a manifest: pairs, canary candidates, membership.

Whatever an audit compares is decided here, before any checkpoint is looked at, from the
reference model's NLL in whole micro-nats. Batches do not depend on free memory, so that
the same inputs, seed, machine and libraries give the same bytes, interrupted or not.
Another batch size, or a store that other commands have filled, makes other batches,
which can move an NLL by a few micro-nats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import (
    Example,
    unique,
)
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.build_settings import BuildSettings
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.covariates import SCORES
from spark_audit.manifest.drawn_twins import twin_sets
from spark_audit.manifest.file import PARTS, seal
from spark_audit.manifest.layout import Rows
from spark_audit.manifest.records import (
    Found,
    counts,
    example_record,
    notes,
    row_numbers,
)
from spark_audit.manifest.schema import Manifest, Table
from spark_audit.manifest.selection import (
    Record,
    canary_sets,
    counts_by_task,
    duplicates,
    membership,
)
from spark_audit.provenance import sha256_json, versions
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import item, score_keys
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass
from spark_audit.terminal.flags import BatchSize

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

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
        What is decided how; ``options`` are fields of :class:`BuildSettings` by name,
        such as ``caliper`` and ``preset``.
    data
        Files that the examples were read from: their hashes are recorded.
    store, batch_size
        As in :func:`spark_audit.scoring.score.score`.

    Raises
    ------
    InputError
        If there are no examples, an id occurs twice, a number is out of range, the
        tokenizer gives no offsets, or ``loaded`` is no base.
    """
    show = progress or (lambda what, done, total: None)
    chosen = replace(settings or BuildSettings(), **options)
    recorded = chosen.recorded(max_positions=loaded.max_positions)
    examples = checked(examples)
    rows = Rows(examples, loaded.tokenizer, max_length=recorded["max_length"])
    scores, first, by_task, remarks = _scored(
        rows, loaded, store or Store(None), batch_size=batch_size, progress=show
    )
    groups = duplicates(rows)
    units = clusters(examples, groups)
    found = Found(recorded, by_task, units.labels)
    for low, part in rows.slices():
        high = low + len(part)
        found.add(part, scores[first[low] : first[high]], first=low)
        show("matching, rows", high, len(examples))
    del scores
    encode, seed = partial(token_ids, loaded.tokenizer), recorded["seed"]
    canaries, cut = canary_sets(
        found.canary_rows,
        contexts=recorded["canary_contexts"],
        n=recorded["n_candidates"],
        encode=encode,
        seed=seed,
        progress=partial(show, "drawing canary candidates"),
    )
    known = found.identifiers.known(examples, seed)
    stage = partial(show, "drawing twins of identifiers")
    twins, lost = twin_sets(rows, known, encode=encode, seed=seed, progress=stage)
    members, crossing = membership(examples, groups)
    count = counts(examples, found, canaries, members, units)
    count |= {"canary_rows_cut": cut, "rows_near_duplicate": crossing}
    count |= {"twins": len(twins), "twins_lost": lost}
    told = notes(count, found.counted, recorded["max_length"], canaries)
    return seal(
        {
            **heading(name, reference_of(loaded), recorded, data),
            **{
                part: Table(PARTS[part], chunks, name=part)
                for part, chunks in found.lists.items()
            },
            "counts": count,
            "canaries": canaries,
            "twins": twins,
            "membership": members,
            "balance": found.balance.records(),
            "notes": [*told, *units.notes, *remarks],
        }
    )


def heading(
    name: str, reference: Record, settings: dict[str, Any], data: Sequence[Path]
) -> dict[str, Any]:
    """What a manifest says of itself: its name, and what it was made from."""
    return {
        "kind": "spark-audit-manifest",
        "schema_version": 1,
        "name": name,
        "redacted_from": None,
        "reference": reference,
        "settings": settings,
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


def _scored(
    rows: Rows,
    loaded: Loaded,
    store: Store,
    *,
    batch_size: BatchSize,
    progress: Progress,
) -> tuple[np.ndarray, list[int], dict[str, np.ndarray], list[str]]:
    """The reference model's scores of all rows' tokens (``SCORES``), and notes.

    Between them: which is the first of each row's tokens, and token counts by task. Of
    a store that is this command's own no score of other texts or batches is used, of
    another one every score is.
    """
    if loaded.base is not None:
        raise InputError(
            "an adapter cannot be the reference of a manifest",
            where=f"checkpoint {loaded.name!r}",
            fix="give its base, or save base and adapter merged",
        )
    texts, first = list[Item](), [0]
    by_task: dict[str, np.ndarray] = {}
    for _, part in rows.slices():
        for row in part:
            texts.append(item(row.example.id, row.encoding, row.kept))
            first.append(first[-1] + len(row.encoding))
        for task, count in counts_by_task(part, len(loaded.usable)).items():
            by_task[task] = by_task.get(task, 0) + count
    scores = np.zeros(first[-1], SCORES)
    scores["nll"] = np.nan
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.content())
    store.only_for(sha256_json([digest.hexdigest(), str(batch_size), versions()]))
    keys = store.keys(loaded, texts, Pass())
    stage = partial(progress, f"scoring {loaded.name}, tokens")
    score_keys(
        loaded, keys, store=store, batch_size=batch_size, whole=True, progress=stage
    )
    names = keys()
    table = store.gather(names, kind=Pass())
    for text, start in zip(texts, first[:-1], strict=True):
        own = table.rows(text.key)
        for name in SCORES.names or ():
            scores[name][start + table.position[own]] = table.columns[name][own]
    remarks = dict.fromkeys([*loaded.notes, *store.remarks(names.values())])
    return scores, first, by_task, [f"reference: {note}" for note in remarks]


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


# --- a manifest of data alone ---------------------------------------------------------

TASKS_NOTE = "made of data alone, for `utility` only: it holds no reference scores"

SETTINGS = BuildSettings(caliper=0, buffer=0, tau=0, alpha=0, canary_contexts="all")
"""Of a manifest that selects nothing."""


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
    settings = SETTINGS.recorded(max_positions=loaded.max_positions)
    settings["n_candidates"] = 0
    return seal(
        {
            **heading(name, reference, settings, ()),
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
            "notes": [TASKS_NOTE, *units.notes],
        }
    )

"""Data and reference model to a manifest: pairs, canary candidates, membership.

Whatever an audit compares is decided here, before any checkpoint is looked at, from the
reference model's NLL in whole micro-nats. Batches do not depend on free memory, so that
the same inputs, seed, machine and libraries give the same bytes, interrupted or not.
Another batch size, or a store that other commands have filled, makes other batches,
which can move an NLL by a few micro-nats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.compatibility import check_fit
from spark_audit.manifest.file import redact as redact
from spark_audit.manifest.file import seal
from spark_audit.manifest.layout import Reference, Rows
from spark_audit.manifest.overview import describe as describe
from spark_audit.manifest.packed_lists import Stored
from spark_audit.manifest.records import Facts, Found
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.selection import Record, canary_sets, duplicates, membership
from spark_audit.manifest.settings import BuildSettings
from spark_audit.manifest.slices import Tokens, gone_through, tokenised
from spark_audit.manifest.twins import twin_sets
from spark_audit.provenance import sha256_file, versions
from spark_audit.scoring.score import BatchSize
from spark_audit.scoring.slices import score_slices

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.store import Store

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
    if loaded.base is not None:
        raise InputError(
            "an adapter cannot be the reference of a manifest",
            where=f"checkpoint {loaded.name!r}",
            fix="give its base, or save base and adapter merged",
        )
    chosen = replace(settings or BuildSettings(), **options)
    recorded = chosen.recorded(max_positions=loaded.max_positions)
    length = recorded["max_length"]
    rows = Rows(checked(examples), loaded.tokenizer, max_length=length)
    tokens = tokenised(rows, len(loaded.usable))
    reference, remarks = _scored(rows, tokens, loaded, store, batch_size, progress)
    groups = duplicates(rows.outlines)
    units = clusters(rows.outlines, groups)
    found = gone_through(
        rows,
        tokens,
        reference,
        units.labels,
        chosen=chosen,
        recorded=recorded,
        progress=_stage(progress, "matching, rows"),
    )
    del tokens, reference
    canaries, cut, twins, lost = _drawn(
        rows, found, loaded, chosen, recorded["canary_contexts"], progress
    )
    members, crossing = membership(rows.outlines, groups)
    facts = Facts(rows.outlines, found, canaries, cut, members, crossing, units)
    return seal(
        {
            **heading(name, reference_of(loaded), recorded, data),
            "counts": {**facts.counts(), "twins": len(twins), "twins_lost": lost},
            "examples": found.examples.packed(),
            "pairs": found.pairs.packed(),
            "unmatched": found.unmatched.packed(),
            "canaries": canaries,
            "twins": twins,
            "membership": members,
            "balance": found.balance.records(),
            "notes": [*facts.notes(recorded), *remarks],
        }
    )


def _drawn(
    rows: Rows,
    found: Found,
    loaded: Loaded,
    chosen: BuildSettings,
    contexts: int | None,
    progress: Progress | None,
) -> tuple[Any, Any, Any, int]:
    """Candidates of canaries and what was cut; twins, and how many have none."""
    shared: Any = {
        "encode": lambda strings: token_ids(loaded.tokenizer, strings),
        "seed": chosen.seed,
    }
    stage = _stage(progress, "drawing canary candidates")
    canaries, cut = canary_sets(
        found.canary_rows,
        found.canary_scores,
        contexts=contexts,
        n=chosen.n_candidates,
        progress=stage,
        **shared,
    )
    stage = _stage(progress, "drawing twins of identifiers")
    known = found.identifiers.known(rows.outlines, chosen.seed)
    twins, lost = twin_sets(rows, known, progress=stage, **shared)
    return canaries, cut, twins, lost


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


def verify(manifest: Manifest, base: Loaded) -> None:
    """Refuse a base that a manifest was not made from.

    Raises
    ------
    InputError
        With what differs.
    """
    check_fit(manifest, base, base_sha256=base.base_sha256 or base.weights_sha256)


# --- checks ---------------------------------------------------------------------------


def checked(examples: Sequence[Example]) -> Sequence[Example]:
    """The examples by id; a manifest does not depend on the order of its input."""
    if not examples:
        raise InputError("there are no examples", where="data", fix="give some")
    if isinstance(examples, Stored):
        return examples
    found = sorted(examples, key=lambda example: example.id)
    for one, other in pairwise(found):
        if one.id == other.id:
            raise InputError(
                "the id occurs twice",
                where=f"example {one.id!r}",
                fix="give every row a unique id",
            )
    return found


# --- scores ---------------------------------------------------------------------------


def _stage(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(what, done, total)


def _scored(
    rows: Rows,
    tokens: Tokens,
    loaded: Loaded,
    store: Store | None,
    batch_size: BatchSize,
    progress: Progress | None,
) -> tuple[Reference, list[str]]:
    """The reference model's scores of everything that is kept, and notes on them."""
    ids = [row.example.id for row in rows.outlines]
    reference = Reference(ids, tokens.lengths)
    notes = dict.fromkeys(loaded.notes)
    for part in score_slices(
        loaded,
        tokens.texts,
        store=store,
        batch_size=batch_size,
        progress=_stage(progress, f"scoring {loaded.name}, tokens"),
    ):
        for row, key in part.places.items():
            reference.put(row, part.table, key)
        notes |= dict.fromkeys(part.notes)
    return reference, [f"reference: {note}" for note in notes]


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

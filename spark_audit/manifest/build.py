"""Build a manifest from data and a reference model: pairs, candidates, membership.

This module decides everything that audits compare, before any checkpoint is looked at,
from the reference model's NLL in whole micro-nats. Batches do not depend on free
memory. So the same inputs, seed, machine and libraries give the same bytes, even after
an interruption. Another batch size, or a store that other commands filled, changes the
batches, which can move an NLL by a few micro-nats.

A further count goes into ``counts`` of :func:`_manifest_of`, or of
:class:`~spark_audit.manifest.row_slices.RowSlices` if it needs the rows' tokens. A
count that readers must be told of has a note of the same name in
:data:`~spark_audit.manifest.row_slices.NOTES`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from spark_audit.arguments import checked_call
from spark_audit.checkpoints.given import GivenCheckpoint, check_open, is_model
from spark_audit.data.canary_candidates import Encode
from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import Example, unique
from spark_audit.data.fixed_wording import lack_notes
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.arrow_file import lists_of_batches
from spark_audit.manifest.canary_sets import canary_sets
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.content import seal
from spark_audit.manifest.layout import SLICE_ROWS, Rows
from spark_audit.manifest.membership_rows import membership, near_duplicate_groups
from spark_audit.manifest.overlap import check_splits
from spark_audit.manifest.records import Record
from spark_audit.manifest.row_slices import NOTES, RowSlices
from spark_audit.manifest.schema import Manifest, ManifestSettings
from spark_audit.manifest.settings import BuildSettings
from spark_audit.manifest.twins import twin_sets
from spark_audit.messages import is_watched
from spark_audit.messages import progress as shown_progress
from spark_audit.options import BatchSize
from spark_audit.provenance import sha256_json, versions
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import item, score_items
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

READ_ROWS = 8 * SLICE_ROWS
"""Rows whose scores are read at once."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback with the current step, the amount done, and the total."""

ProgressOf: TypeAlias = Callable[[str], Callable[[int, int], None]]
"""Returns the callback of a step, by its name: with the amount done, and the total."""

SettingT = TypeVar("SettingT")


@checked_call
def build_manifest(
    examples: Sequence[Example],
    reference: GivenCheckpoint,
    *,
    name: str,
    settings: BuildSettings | None = None,
    data: Sequence[Path] = (),
    store: Store | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | bool | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    caliper: float | None = None,
    preset: str | None = None,
    distance: Literal["mean", "profile"] | None = None,
    controls: Literal["any", "before"] | None = None,
    max_length: int | None = None,
    seed: int | None = None,
    n_candidates: int | None = None,
) -> Manifest:
    """Build a manifest from annotated examples and the reference model.

    Parameters
    ----------
    examples
        Rows of all tasks, in any order: the manifest sorts them by id.
    reference
        The base model that the checkpoints to be audited were trained from: its path,
        an open checkpoint, or a model in memory. The manifest knows a model in memory
        by its tensors, and one in files by its files: adapters in files need the path.
    name
        Name of the manifest in reports; not part of its digest.
    settings
        Settings of the build; those that are given by name win over them.
    data
        Files that the examples were read from, whose hashes are recorded.
    store, batch_size
        As in :func:`spark_audit.scoring.score.score`.
    progress
        Called with the step, the amount done and the total. ``True``: a bar, which is
        the default if a person waits.
    tokenizer
        Tokenizer of a model in memory, or its folder; default: that of the folder from
        which the model was loaded.
    caliper, preset, distance, controls, max_length, seed, n_candidates
        Settings by name: fields of
        :class:`~spark_audit.manifest.settings.BuildSettings`. ``None``: that of
        ``settings``, or its default.

    Raises
    ------
    InputError
        If there are no examples, an id occurs twice, most held-out rows are trained
        rows, a number is out of range, the tokenizer gives no offsets, or ``reference``
        is not a base model.
    CheckpointError
        If the reference cannot be opened, or the tokenizer of a model in memory is not
        known.

    Examples
    --------
    >>> manifest = sa.build_manifest(rows, base, name="notes", caliper=2.0)
    >>> len(manifest.pairs) > 0
    True
    """
    defaults = settings or BuildSettings()
    chosen = BuildSettings(
        caliper=_first_given(caliper, defaults.caliper),
        preset=_first_given(preset, defaults.preset),
        distance=_first_given(distance, defaults.distance),
        controls=_first_given(controls, defaults.controls),
        max_length=_first_given(max_length, defaults.max_length),
        seed=_first_given(seed, defaults.seed),
        n_candidates=_first_given(n_candidates, defaults.n_candidates),
    )
    if progress is None:
        progress = is_watched()
    loaded = _opened_reference(reference, tokenizer)
    with shown_progress(quiet=progress is not True) as show:
        if isinstance(progress, bool):
            progress = show
        return _manifest_of(
            examples,
            loaded,
            name=name,
            settings=chosen.recorded(max_positions=loaded.max_positions),
            data=data,
            store=store or Store(None),
            batch_size=batch_size,
            progress_of=_progress_by_stage(progress),
        )


def _opened_reference(
    reference: GivenCheckpoint, tokenizer: Tokenizer | str | Path | None
) -> Checkpoint:
    """Return the reference model of a manifest as an open checkpoint.

    Parameters
    ----------
    tokenizer
        Tokenizer of a model in memory, or its folder; ``None``: that of the folder from
        which the model was loaded.
    """
    # Opening imports PyTorch, which the description of a build does not need.
    from spark_audit.checkpoints.in_memory import beside_model
    from spark_audit.checkpoints.open import open_checkpoint

    if not isinstance(reference, str | Path):
        check_open(reference, "reference")
    if tokenizer is None and is_model(reference):
        tokenizer = beside_model(reference)
    return open_checkpoint(reference, tokenizer=tokenizer)


def _manifest_of(
    examples: Sequence[Example],
    loaded: Checkpoint,
    *,
    name: str,
    settings: ManifestSettings,
    data: Sequence[Path],
    store: Store,
    batch_size: BatchSize,
    progress_of: ProgressOf,
) -> Manifest:
    """Build a manifest with resolved settings; see :func:`build_manifest`."""
    # First the rows themselves are checked, before anything is scored.
    examples = checked_examples(examples)
    notes_on_splits = check_splits(examples)
    rows = Rows(examples, loaded.tokenizer, max_length=settings.max_length)
    groups = near_duplicate_groups(rows)  # (rows,)
    row_clusters = clusters(examples, groups)

    # Then the reference model scores each token, and spans get their controls.
    scores = _score_rows(
        rows,
        loaded,
        store,
        batch_size=batch_size,
        progress=progress_of(f"scoring {loaded.name}, tokens"),
    )
    slices = RowSlices(settings, scores.token_counts, row_clusters.labels)
    _add_slices(slices, rows, scores, progress=progress_of("matching, rows"))

    balance = slices.balance.records()
    sets = _candidate_sets(rows, slices, settings, loaded, progress_of=progress_of)
    ids_by_side, n_crossing = membership(examples, groups)

    counts = {
        **row_numbers(examples),
        **row_clusters.counts,
        **slices.counts,
        **_counts_of_canaries(sets.canaries, slices),
        **{side: len(ids) for side, ids in ids_by_side.items()},
        "rows_near_duplicate": n_crossing,
        "twins": len(sets.twins),
        "twins_lost": sets.n_twins_lost,
    }
    notes = [
        *_notes_on_counts(
            counts,
            canaries=sets.canaries,
            ids_by_side=ids_by_side,
            max_length=settings.max_length,
            n_comparable=slices.n_comparable,
        ),
        *rows.notes,
        *notes_on_splits,
        *lack_notes(examples, rows.templates),
        *row_clusters.notes,
        *scores.notes,
    ]

    # Unpacked records take 2 KB a row, so finished objects are deleted first.
    records = slices.records()
    del examples, rows, slices, scores
    pa.default_memory_pool().release_unused()
    return seal(
        {
            **heading(name, reference_of(loaded), settings, data),
            # The stream holds no batch of an empty list, so these come first.
            "pairs": (),
            "unmatched": (),
            **lists_of_batches(pa.ipc.open_stream(records)),
            "counts": counts,
            "canaries": sets.canaries,
            "twins": sets.twins,
            "membership": ids_by_side,
            "balance": balance,
            "notes": notes,
        }
    )


def _first_given(value: SettingT | None, default: SettingT) -> SettingT:
    """Return a setting that was given by name, or else its default."""
    return default if value is None else value


def _encoder(loaded: Checkpoint, *, special_tokens: bool) -> Encode:
    """Return a function that turns texts into token ids of the reference model."""

    def encode(texts: list[str]) -> list[list[int]]:
        return token_ids(loaded.tokenizer, texts, special_tokens=special_tokens)

    return encode


def _progress_by_stage(progress: Progress | None) -> ProgressOf:
    """Return a function that gives the callback of a stage, by the stage's name.

    Without ``progress`` these callbacks do nothing.
    """

    def progress_of(stage: str) -> Callable[[int, int], None]:
        def show_stage(done: int, total: int) -> None:
            if progress is not None:
                progress(stage, done, total)

        return show_stage

    return progress_of


class _CandidateSets(NamedTuple):
    """Records of canaries and of identifiers, each with its candidate strings.

    ``n_twins_lost`` counts identifiers with too few twins, which have no record.
    """

    canaries: list[Record]
    twins: list[Record]
    n_twins_lost: int


def _candidate_sets(
    rows: Rows,
    slices: RowSlices,
    settings: ManifestSettings,
    loaded: Checkpoint,
    *,
    progress_of: ProgressOf,
) -> _CandidateSets:
    """Draw the candidates of canaries and the twins of identifiers."""
    encode = _encoder(loaded, special_tokens=True)
    canaries = canary_sets(
        slices.canary_rows,
        settings,
        encode=encode,
        progress=progress_of("drawing canary candidates"),
    )

    # Rows of chat data contain their special tokens in the text.
    twins, n_twins_lost = twin_sets(
        rows,
        slices.identifiers,
        encode=encode,
        encode_special_in_text=_encoder(loaded, special_tokens=False),
        seed=settings.seed,
        progress=progress_of("drawing twins of identifiers"),
    )
    return _CandidateSets(canaries=canaries, twins=twins, n_twins_lost=n_twins_lost)


def _add_slices(
    slices: RowSlices,
    rows: Rows,
    scores: _RowScores,
    *,
    progress: Callable[[int, int], None],
) -> None:
    """Match and describe all rows, slice by slice.

    Scores are read for several slices at once, because each search in the store is
    slow. There is at least one row.
    """
    for first_row, layouts in rows.slices():
        # The first slice begins at row 0, so it always reads scores.
        if first_row % READ_ROWS == 0:
            pa.default_memory_pool().release_unused()
            read_rows = rows.examples[first_row : first_row + READ_ROWS]
            store_keys = {row.id: scores.store_keys[row.id] for row in read_rows}
            table = scores.store.gather(store_keys, scoring_pass=Pass())

        slices.add(layouts, table, first_row=first_row)
        progress(first_row + len(layouts), len(rows.examples))

    del table
    pa.default_memory_pool().release_unused()


def _counts_of_canaries(
    canaries: Sequence[Record], slices: RowSlices
) -> dict[str, int]:
    """Count the canaries and their parts, and those of them that can be ranked."""
    return {
        "canaries": len({canary["canary_id"] for canary in canaries}),
        "canary_parts": len(canaries),
        "canary_parts_rankable": sum(bool(canary["candidates"]) for canary in canaries),
        "canary_rows_cut": sum(not is_whole for _, is_whole in slices.canary_rows),
    }


def _notes_on_counts(
    counts: Mapping[str, int],
    *,
    canaries: Sequence[Record],
    ids_by_side: Mapping[str, Sequence[str]],
    max_length: int | None,
    n_comparable: int,
) -> list[str]:
    """Return the notes for counts that need one, such as a side without rows.

    Parameters
    ----------
    ids_by_side
        Rows for membership inference, under ``members`` and ``non_members``.
    n_comparable
        Number of identifiers that were scored as a whole, matched or not.
    """
    reasons = {str(canary["reason"]) for canary in canaries if canary["reason"]}
    facts: dict[str, object] = {
        **counts,
        "max_length": max_length,
        "incomparable": not n_comparable,
        "unranked": counts["canary_parts"] - counts["canary_parts_rankable"],
        "reasons": "; ".join(sorted(reasons)),
    }
    for side, ids in ids_by_side.items():
        facts[f"no_{side}"] = not ids

    # Each note has the name of the fact that requires it: a number that is not 0, or
    # True.
    return [text.format_map(facts) for name, text in NOTES.items() if facts[name]]


def heading(
    name: str, reference: Record, settings: ManifestSettings, data: Sequence[Path]
) -> dict[str, object]:
    """Return the head of a manifest: its name, and the sources of its content."""
    # Files are sorted by name, so that their order does not change the digest.
    hashes = sorted((path.name, sha256_file(path)) for path in data)
    return {
        "kind": "spark-audit-manifest",
        "schema_version": 1,
        "name": name,
        "redacted_from": None,
        "reference": reference,
        "settings": settings.model_dump(),
        "versions": versions(),
        "data": [{"file": file, "sha256": sha256} for file, sha256 in hashes],
    }


def checked_examples(examples: Sequence[Example]) -> Sequence[Example]:
    """Return the examples in order of id, so that their given order has no effect.

    Raises
    ------
    InputError
        If there are none, or an id occurs twice.
    """
    if not examples:
        raise InputError("there are no examples", where="data", fix="give some")

    ordered = sorted(examples, key=lambda example: example.id)
    return list(unique((f"example {example.id!r}", example) for example in ordered))


def row_numbers(examples: Sequence[Example]) -> dict[str, int]:
    """Return the numbers of rows, tasks and sources."""
    rows_by_split = Counter(example.split for example in examples)
    return {
        "examples": len(examples),
        "tasks": len({example.task for example in examples}),
        "train": rows_by_split["train"],
        "test": rows_by_split["test"],
        "sources": len({example.source_id for example in examples}),
    }


@dataclass(frozen=True)
class _RowScores:
    """The reference model's scores of all rows.

    Attributes
    ----------
    store
        The store that holds the scores.
    store_keys
        The key of each row's scores in the store, by row id.
    token_counts
        How often each token occurs in the rows of a task, special tokens left out:
        task -> shape ``(V,)``, int64.
    notes
        Notes on the model and the scoring, for readers of the manifest.
    """

    store: Store
    store_keys: Mapping[str, str]
    token_counts: Mapping[str, np.ndarray]
    notes: list[str]


def _score_rows(
    rows: Rows,
    loaded: Checkpoint,
    store: Store,
    *,
    batch_size: BatchSize,
    progress: Callable[[int, int], None],
) -> _RowScores:
    """Score all rows by the reference model, and count their tokens.

    In the command's own store, scores of other texts or batches are not used. In a
    store that the user gave, all scores are used.

    Raises
    ------
    InputError
        If ``loaded`` is an adapter.
    """
    if loaded.base is not None:
        raise InputError(
            "an adapter cannot be the reference of a manifest",
            where=f"checkpoint {loaded.name!r}",
            fix="give its base, or save base and adapter merged",
        )

    items: list[Item] = []
    sha256 = hashlib.sha256()
    token_counts: dict[str, np.ndarray] = {}
    for row in rows:
        row_item = item(row.example.id, row.encoding, row.kept)
        items.append(row_item)
        sha256.update(row_item.content())

        task = row.example.task
        if task not in token_counts:
            token_counts[task] = np.zeros(len(loaded.usable), np.int64)
        np.add.at(token_counts[task], row.encoding.ids[~row.encoding.is_special], 1)

    # Other texts or batches give other scores: see the docstring of this module.
    store.only_for(sha256_json([sha256.hexdigest(), str(batch_size), versions()]))
    pass_items = store.pass_items(loaded, items, Pass())
    score_items(
        loaded,
        pass_items,
        store=store,
        batch_size=batch_size,
        whole=True,
        progress=progress,
    )
    store_keys = pass_items.store_keys()
    remarks = dict.fromkeys([*loaded.notes, *store.remarks(pass_items)])

    # The memory is released here, because scoring fragments the heap.
    del items, pass_items
    pa.default_memory_pool().release_unused()
    return _RowScores(
        store=store,
        store_keys=store_keys,
        token_counts=token_counts,
        notes=[f"reference: {remark}" for remark in remarks],
    )


def reference_of(loaded: Checkpoint) -> Record:
    """Return the manifest's description of its reference model."""
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

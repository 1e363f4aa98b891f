"""Data and reference model to a manifest: pairs, canary candidates, membership.

Whatever an audit compares is decided here, before any checkpoint is looked at, from the
reference model's NLL in whole micro-nats. Batches do not depend on free memory, so that
the same inputs, seed, machine and libraries give the same bytes, interrupted or not.
Another batch size, or a store that other commands have filled, makes other batches,
which can move an NLL by a few micro-nats.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import REQUIRED, Example, unique
from spark_audit.data.fixed_wording import lack_notes
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.file import BATCH, as_batch, seal, tables_of
from spark_audit.manifest.layout import (
    SLICE_ROWS,
    ManifestLayout,
    Rows,
    TokenCorpus,
    token_classes,
)
from spark_audit.manifest.overlap import check_splits
from spark_audit.manifest.packed_lists import packed
from spark_audit.manifest.schema import Manifest, ManifestSettings
from spark_audit.manifest.selection import (
    CUT_OFF,
    Balance,
    Record,
    canary_sets,
    clusters,
    duplicates,
    is_whole,
    low_sensitivity,
    match,
    membership,
)
from spark_audit.manifest.settings import BuildSettings
from spark_audit.manifest.twins import Identifiers, twin_sets
from spark_audit.options import BatchSize
from spark_audit.provenance import sha256_json, versions
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import item, score_keys
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass, TokenTable

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
    found = Found(recorded, by_task, units.labels)
    for low, part in rows.slices():
        if low % READ_ROWS == 0:
            pa.default_memory_pool().release_unused()
            read = [example.id for example in examples[low : low + READ_ROWS]]
            table = store.gather({key: names[key] for key in read}, kind=Pass())
        found.add(part, table, first=low)
        show("matching, rows", low + len(part), len(examples))
    del table
    pa.default_memory_pool().release_unused()
    balance = found.balance.records()
    encode, seed = partial(token_ids, loaded.tokenizer), recorded.seed
    stage = partial(show, "drawing canary candidates")
    canaries = canary_sets(found.canary_rows, recorded, encode=encode, progress=stage)
    stage = partial(show, "drawing twins of identifiers")
    twins, lost = twin_sets(
        rows,
        found.identifiers,
        encode=encode,
        encode_special_in_text=partial(encode, special_tokens=False),
        seed=seed,
        progress=stage,
    )
    members, crossing = membership(examples, groups)
    count = {
        **row_numbers(examples),
        **units.counts,
        **found.counted,
        "canaries": len({c["canary_id"] for c in canaries}),
        "canary_parts": len(canaries),
        "canary_parts_rankable": sum(bool(c["candidates"]) for c in canaries),
        **{side: len(keys) for side, keys in members.items()},
        "canary_rows_cut": sum(not is_whole for _, is_whole in found.canary_rows),
        "rows_near_duplicate": crossing,
        "twins": len(twins),
        "twins_lost": lost,
    }
    facts = {
        **count,
        "max_length": recorded.max_length,
        "incomparable": not found.comparable,
        "unranked": count["canary_parts"] - count["canary_parts_rankable"],
        "reasons": "; ".join(sorted({c["reason"] for c in canaries if c["reason"]})),
        **{f"no_{side}": not keys for side, keys in members.items()},
    }
    told = [text.format_map(facts) for name, text in NOTES.items() if facts[name]]
    told += [*shared_notes, *lack_notes(examples, rows.templates)]
    records = found.records()
    # Unpacked, they take 2 KB a row: what is over makes room.
    del examples, rows, part, found, names
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
            "notes": [*told, *units.notes, *remarks],
        }
    )


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


# --- slices of rows -------------------------------------------------------------------


def example_record(row: ManifestLayout, cluster: str) -> Record:
    """What a manifest says of an example before any of its tokens is scored."""
    example, tokens, spans = row.example, len(row.encoding), list[Record]()
    for span, at in row.spans:
        low, high, cut = at if at and row.within(at) else (None, None, False)
        place = {"token_start": low, "token_end": high, "partial": cut}
        spans.append({**asdict(span), **place})
    return {
        **{name: getattr(example, name) for name in (*REQUIRED, "source_id")},
        "cluster": cluster,
        "spans": spans,
        "canary_id": example.canary.id if example.canary else None,
        "template": [list(place) for place in row.template],
        "kept": list(row.kept),
        "response_token": row.response_token,
        "reference_unll": [None] * tokens,
        "excluded": [],
        "classes": "-" * tokens,
        "low": [],
        **row.training_record(),
    }


class Found:
    """What comes of the rows: matched, described and counted slice by slice.

    Parameters
    ----------
    settings
        As the manifest says them.
    by_task
        How often each token stands in the rows of each task, special ones left out:
        task -> shape ``(V,)``.
    labels
        Cluster of each row.

    Attributes
    ----------
    counted
        Counts by name; those of pairs and spans are over both splits.
    comparable
        Spans that could be compared, matched or not.
    canary_rows
        The rows that hold a canary, and whether all of it was scored.
    """

    def __init__(
        self,
        settings: ManifestSettings,
        by_task: Mapping[str, np.ndarray],
        labels: Sequence[str],
    ) -> None:
        self._settings, self._by_task, self._labels = settings, by_task, labels
        self._tokens = np.asarray(sum(by_task.values()))
        self._before: dict[str, float] = {}
        # Digits take a quarter of their room until all rows are matched.
        small = pa.ipc.IpcWriteOptions(compression="zstd")
        self._sink = pa.BufferOutputStream()
        self._packed = pa.ipc.new_stream(self._sink, BATCH, options=small)
        self.balance, self.identifiers = Balance(), Identifiers()
        self.counted: Counter[str] = Counter()
        self.comparable = 0
        self.canary_rows: list[tuple[ManifestLayout, bool]] = []

    def add(
        self, rows: Sequence[ManifestLayout], table: TokenTable, *, first: int
    ) -> None:
        """Take a slice of rows, of which the first has this number among all."""
        chosen, labels = self._settings, self._labels[first : first + len(rows)]
        texts = TokenCorpus(rows, table, counts=self._tokens, before=self._before)
        self._before = texts.after()
        excluded = np.concatenate([row.excluded(chosen) for row in rows])
        eligible = (texts.unll >= 0) & ~excluded
        pairs = match(texts, eligible, chosen)
        low = low_sensitivity(texts, chosen, counts=self._by_task)
        examples = self._examples(texts, excluded, low, labels)
        for part, records in (
            ("examples", examples),
            ("pairs", pairs.pairs),
            ("unmatched", pairs.unmatched),
        ):
            for chunk in packed(records):
                self._packed.write_batch(as_batch(part, chunk))
        spans = [one for row in rows for one in row.spans]
        self.counted.update(
            {
                "tokens": len(texts.unll),
                "tokens_scored": int((texts.unll >= 0).sum()),
                "texts_cut": sum(row.was_cut for row in rows),
                "spans": len(spans),
                "spans_of_canaries": sum(span.part is not None for span, _ in spans),
                "spans_partial": sum(bool(at and at.partial) for _, at in spans),
                "pairs": len(pairs.pairs),
                "unmatched": len(pairs.unmatched),
                "spans_cut": sum(u["reason"] == CUT_OFF for u in pairs.unmatched),
            }
        )
        self.comparable += len(pairs.places)
        self.balance.add(texts, eligible, pairs)
        self.identifiers.add(texts, first=first)
        self.canary_rows += [
            (row, is_whole(row, texts.unll[texts.of(i)]))
            for i, row in enumerate(rows)
            if row.example.canary is not None
        ]

    def records(self) -> pa.Buffer:
        """The manifest's records of the rows taken, as a compressed Arrow stream."""
        self._packed.close()
        return self._sink.getvalue()

    def _examples(
        self,
        texts: TokenCorpus,
        excluded: np.ndarray,
        low: np.ndarray,
        labels: Sequence[str],
    ) -> Iterator[Record]:
        """The manifest's examples, made one after the other: a record takes 10 KB."""
        classes = token_classes(texts).tobytes().decode("ascii")
        for i, row in enumerate(texts.rows):
            part = texts.of(i)
            edges = np.diff(np.concatenate([[False], excluded[part], [False]]))
            yield {
                **example_record(row, labels[i]),
                "reference_unll": [
                    u if u >= 0 else None for u in texts.unll[part].tolist()
                ],
                "excluded": np.flatnonzero(edges).reshape(-1, 2).tolist(),
                "classes": classes[part],
                "low": np.flatnonzero(low[part]).tolist(),
            }


NOTES = {
    "texts_cut": "{texts_cut} of {examples} texts are longer than {max_length} tokens: "
    "their prompts were cut from the start, {spans_cut} spans were lost",
    "incomparable": "no identifier was annotated in scored text: there are no pairs",
    "spans_partial": "{spans_partial} of {spans} spans begin or end inside a token",
    "canary_rows_cut": "{canary_rows_cut} rows lost their canary to the context's "
    "length",
    "unranked": "{unranked} of {canary_parts} canary parts cannot be ranked: {reasons}",
    "rows_near_duplicate": "{rows_near_duplicate} rows with a near-duplicate in the "
    "other split were left out of membership",
    "no_members": "there are no members",
    "no_non_members": "there are no non-members",
}
"""What a reader must know where a count is not 0, one sentence each."""


# --- a manifest of data alone ---------------------------------------------------------


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
            "notes": [note, *units.notes],
        }
    )

"""Data and reference model to a manifest: pairs, canary candidates, membership.

Whatever an audit compares is decided here, before any checkpoint is looked at, from the
reference model's NLL in whole micro-nats. Batches do not depend on free memory, so that
the same inputs, seed, machine and libraries give the same bytes. Another batch size,
or a store that holds part of the scores already, makes other batches, which can move
an NLL by a few micro-nats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest.clusters import clusters
from spark_audit.manifest.covariates import Corpus, corpus
from spark_audit.manifest.file import redact as redact
from spark_audit.manifest.file import seal
from spark_audit.manifest.fit import check_fit
from spark_audit.manifest.layout import Layout, layouts
from spark_audit.manifest.overview import describe as describe
from spark_audit.manifest.records import Facts, balance_records, example_records
from spark_audit.manifest.schema import Manifest, Preset
from spark_audit.manifest.selection import (
    Record,
    canary_sets,
    duplicates,
    low_sensitivity,
    match,
    membership,
)
from spark_audit.provenance import sha256_file, versions
from spark_audit.scoring.score import BatchSize, item, score
from spark_audit.scoring.table import Pass
from spark_audit.stats.matching import micro_nats

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded
    from spark_audit.scoring.store import Store

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

PRESETS: Mapping[str, tuple[int, int | None]] = {"robust": (1, 1), "paper": (0, None)}
"""``buffer`` and ``canary_contexts`` (``None``: all) of each preset."""


def build_manifest(
    examples: Sequence[Example],
    loaded: Loaded,
    *,
    name: str,
    caliper: float = 0.5,
    preset: str = "robust",
    seed: int = 0,
    distance: Literal["mean", "profile"] = "mean",
    buffer: int | None = None,
    controls: Literal["any", "before"] = "any",
    exclude_template: bool = True,
    max_length: int | None = None,
    canary_contexts: int | Literal["all"] | None = None,
    n_candidates: int = 512,
    tau: float = 0.6,
    alpha: float = 0.5,
    data: Sequence[Path] = (),
    store: Store | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
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
    caliper
        Largest difference of mean NLL between a span and its control, nats, inclusive.
    preset
        ``robust`` or ``paper``: the defaults of ``buffer`` (1; 0) and
        ``canary_contexts`` (1; all), and what audits report.
    distance, controls
        As in :func:`spark_audit.stats.matching.match_spans`.
    buffer
        Tokens beside an identifier that no control may touch.
    exclude_template
        Controls stay out of the tasks' fixed wording.
    max_length
        Tokens that are read of a text; default and upper bound: the model's context.
    canary_contexts
        Rows that a canary is ranked in, the first by id; ``"all"``: every one.
    n_candidates
        Strings that a canary is ranked among, itself included.
    tau, alpha
        A token is of low sensitivity up to the Score ``tau``; ``alpha`` weights its
        two terms (see :mod:`spark_audit.data.sensitivity_score`).
    data
        Files that the examples were read from: their hashes are recorded.
    store, batch_size
        As in :func:`spark_audit.scoring.score.score`.

    Raises
    ------
    InputError
        If there are no examples, an id stands twice, a number is out of range, the
        tokenizer gives no offsets, or ``loaded`` is no base.
    """
    if loaded.base is not None:
        raise InputError(
            "an adapter cannot be the reference of a manifest",
            where=f"checkpoint {loaded.name!r}",
            fix="give its base, or save base and adapter merged",
        )
    contexts = PRESETS[_one_of(preset, Preset, "preset")][1]
    if canary_contexts is not None:
        contexts = None if canary_contexts == "all" else canary_contexts
    settings: dict[str, Any] = {
        "preset": preset,
        "seed": seed,
        "caliper": float(caliper),
        "distance": _one_of(distance, Literal["mean", "profile"], "distance"),
        "buffer": PRESETS[preset][0] if buffer is None else buffer,
        "controls": _one_of(controls, Literal["any", "before"], "controls"),
        "exclude_template": exclude_template,
        "max_length": _fitting(max_length, loaded.max_positions),
        "tau": float(tau),
        "alpha": float(alpha),
        "canary_contexts": contexts,
        "n_candidates": n_candidates,
    }
    _check(settings)
    rows = layouts(
        _checked(examples), loaded.tokenizer, max_length=settings["max_length"]
    )
    texts, remarks = _scored(rows, loaded, store, batch_size, progress)
    excluded = _excluded(rows, settings)
    eligible = (texts.unll >= 0) & ~excluded
    pairs = match(
        rows, texts, eligible, caliper=caliper, distance=distance, controls=controls
    )
    canaries, cut = canary_sets(
        rows,
        texts,
        encode=lambda strings: token_ids(loaded.tokenizer, strings),
        contexts=contexts,
        n=n_candidates,
        seed=seed,
        progress=_stage(progress, "drawing canary candidates"),
    )
    low = low_sensitivity(
        rows, texts, vocab_size=len(loaded.usable), alpha=alpha, tau=tau
    )
    groups = duplicates(rows)
    units = clusters(rows, groups)
    members, crossing = membership(rows, groups)
    facts = Facts(rows, texts, pairs, canaries, cut, members, crossing, units)
    return seal(
        {
            "kind": "spark-audit-manifest",
            "schema_version": 1,
            "name": name,
            "redacted_from": None,
            "reference": _reference(loaded),
            "settings": settings,
            "versions": versions(),
            "data": [
                {"file": name, "sha256": digest}
                for name, digest in sorted((p.name, sha256_file(p)) for p in data)
            ],
            "counts": facts.counts(),
            "examples": example_records(rows, texts, excluded, low, units.labels),
            "pairs": pairs.pairs,
            "unmatched": pairs.unmatched,
            "canaries": canaries,
            "membership": members,
            "balance": balance_records(rows, texts, eligible, pairs),
            "notes": [*facts.notes(settings), *remarks],
        }
    )


def verify(manifest: Manifest, base: Loaded) -> None:
    """Refuse a base that a manifest was not made from.

    Raises
    ------
    InputError
        With what differs.
    """
    check_fit(
        manifest,
        name=base.name,
        tokenizer_sha256=base.tokenizer_sha256,
        architecture=base.architecture,
        vocab_size=len(base.usable),
        base_sha256=base.base_sha256 or base.weights_sha256,
        shape=base.shape,
    )


# --- checks ---------------------------------------------------------------------------


def _one_of(value: str, known: Any, where: str) -> str:
    if value not in get_args(known):
        raise InputError(
            f"{value!r} is unknown",
            where=where,
            fix=f"choose one of: {', '.join(get_args(known))}",
        )
    return value


def _check(settings: Mapping[str, Any]) -> None:
    for name, low, high in (
        ("caliper", 0, None),
        ("buffer", 0, None),
        ("max_length", 2, None),
        ("canary_contexts", 1, None),
        ("n_candidates", 2, None),
        ("tau", 0, 1),
        ("alpha", 0, 1),
    ):
        value = settings[name]
        # Not a number fails every comparison.
        if value is not None and not low <= value <= (value if high is None else high):
            bound = f"at least {low}" if high is None else f"from {low} to {high}"
            raise InputError(f"{value} is not {bound}", where=name)


def _fitting(asked: int | None, positions: int | None) -> int | None:
    if asked is None or positions is None:
        return positions if asked is None else asked
    if asked > positions:
        raise InputError(
            f"{asked} tokens do not fit into the model's context of {positions}",
            where="max_length",
            fix=f"give at most {positions}",
        )
    return asked


def _checked(examples: Sequence[Example]) -> list[Example]:
    """The examples by id; a manifest does not depend on the order of its input."""
    if not examples:
        raise InputError("there are no examples", where="data", fix="give some")
    found = sorted(examples, key=lambda example: example.id)
    for one, other in pairwise(found):
        if one.id == other.id:
            raise InputError(
                "the id stands twice",
                where=f"example {one.id!r}",
                fix="give every row an id of its own",
            )
    return found


# --- scores ---------------------------------------------------------------------------


def _stage(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(what, done, total)


def _scored(
    rows: Sequence[Layout],
    loaded: Loaded,
    store: Store | None,
    batch_size: BatchSize,
    progress: Progress | None,
) -> tuple[Corpus, list[str]]:
    """The reference model's scores of everything that is kept, and notes on them."""
    tables = score(
        loaded,
        [item(row.example.id, row.encoding, row.kept) for row in rows],
        passes=(Pass(),),
        store=store,
        batch_size=batch_size,
        progress=_stage(progress, f"scoring {loaded.name}, tokens"),
    )
    texts = corpus(
        [row.example.text for row in rows],
        [row.encoding for row in rows],
        ids=[row.example.id for row in rows],
        response_starts=[len(row.example.prompt) for row in rows],
        table=tables[Pass()],
        quantise=micro_nats,
    )
    return texts, [f"reference: {note}" for note in (*loaded.notes, *tables.notes)]


def _excluded(rows: Sequence[Layout], settings: Mapping[str, Any]) -> np.ndarray:
    buffer, template = settings["buffer"], settings["exclude_template"]
    return np.concatenate(
        [row.excluded(buffer=buffer, exclude_template=template) for row in rows]
    )


def _reference(loaded: Loaded) -> Record:
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

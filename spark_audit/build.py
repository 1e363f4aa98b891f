"""Data and reference model to a manifest: pairs, canary candidates, membership.

Whatever an audit compares is decided here, before any checkpoint is looked at, from the
reference model's NLL in whole micro-nats. The reference is scored in batches of a fixed
size, so that the same inputs, seed, machine and libraries give the same bytes; another
batch size (or scores of another batch size that a store holds) can move an NLL by a
few micro-nats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from spark_audit.canaries import RANKED, Context, canary_ranges, candidates
from spark_audit.covariates import (
    Corpus,
    Ranges,
    balance,
    corpus,
    pool,
    token_classes,
)
from spark_audit.errors import InputError
from spark_audit.examples import Example, Part
from spark_audit.facts import seed_for, sha256_file, versions
from spark_audit.layout import Layout, layouts
from spark_audit.manifest import Manifest, check_fit, seal
from spark_audit.manifest import redact as redact
from spark_audit.overview import describe as describe
from spark_audit.scoring import Item, item, score
from spark_audit.sensitivity import (
    score2,
    sensitivity,
    stop_word_ranges,
    token_counts,
)
from spark_audit.stats.duplicates import cluster_labels, duplicate_groups
from spark_audit.stats.matching import match_spans, micro_nats
from spark_audit.table import Pass
from spark_audit.tokens import encode

if TYPE_CHECKING:
    from spark_audit.checkpoints import Loaded
    from spark_audit.scoring.store import Store

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

BATCH_SIZE = 8
"""Texts in a batch when nothing is asked for: never chosen by free memory."""

CUT_OFF = "cut off: text longer than the context"
NO_TOKEN = "no token of its own"

PRESETS: Mapping[str, tuple[int, int | None]] = {"robust": (1, 1), "paper": (0, None)}
"""``buffer`` and ``canary_contexts`` (``None``: all) of each preset."""


def build_manifest(
    examples: Sequence[Example],
    loaded: Loaded,
    *,
    name: str,
    caliper: float = 0.5,
    preset: Literal["robust", "paper"] | str = "robust",
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
    batch_size: int | Literal["auto"] | str = "auto",
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
        two terms (see :mod:`spark_audit.sensitivity`).
    data
        Files that the examples were read from: their hashes are recorded.
    store, batch_size
        As in :func:`spark_audit.scoring.score`; ``auto`` is 8 here, whatever fits,
        so that the manifest does not depend on free memory.

    Raises
    ------
    InputError
        If there are no examples, an id stands twice, a number is out of range, the
        tokenizer gives no offsets, or ``loaded`` is no base.
    """
    examples = _checked(examples)
    if loaded.base is not None:
        raise InputError(
            "an adapter cannot be the reference of a manifest",
            where=f"checkpoint {loaded.name!r}",
            fix="give its base, or save base and adapter merged",
        )
    settings = _settings(
        preset=preset,
        seed=seed,
        caliper=caliper,
        distance=distance,
        buffer=buffer,
        controls=controls,
        exclude_template=exclude_template,
        max_length=_fitting(max_length, loaded.max_positions),
        tau=tau,
        alpha=alpha,
        canary_contexts=canary_contexts,
        n_candidates=n_candidates,
    )
    rows = layouts(examples, loaded.tokenizer, max_length=settings["max_length"])
    texts = _scored(rows, loaded, store, batch_size, progress)
    excluded = np.concatenate(
        [
            row.excluded(
                buffer=settings["buffer"],
                exclude_template=settings["exclude_template"],
            )
            for row in rows
        ]
    )
    eligible = (texts.unll >= 0) & ~excluded
    pairs, unmatched = _pairs(rows, texts, eligible, settings)
    clusters, groups = _clusters(rows)
    membership, crossing = _membership(examples, groups)
    canaries = _canaries(rows, texts, loaded.tokenizer, settings, progress)
    low = _low(rows, texts, len(loaded.usable), alpha=alpha, tau=tau)
    found = _Found(rows, texts, pairs, unmatched, canaries, membership, crossing)
    return seal(
        {
            "kind": "spark-audit-manifest",
            "schema_version": 1,
            "name": name,
            "redacted_from": None,
            "reference": _reference(loaded),
            "settings": settings,
            "versions": versions(),
            "data": [{"file": p.name, "sha256": sha256_file(p)} for p in data],
            "counts": _counts(found, clusters),
            "examples": _examples(rows, texts, excluded, low, clusters),
            "pairs": pairs,
            "unmatched": unmatched,
            "canaries": canaries,
            "membership": membership,
            "balance": _balance(found, eligible),
            "notes": _notes(found, settings),
        }
    )


def manifest_items(manifest: Manifest, loaded: Loaded) -> list[Item]:
    """What a checkpoint reads of a manifest's examples.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer cuts its texts otherwise.
    """
    if manifest.redacted_from is not None:
        raise InputError(
            "was redacted: scoring needs the text",
            where=f"manifest {manifest.name!r}",
            fix="score with the original, whose digest begins with "
            f"{manifest.redacted_from[:12]}",
        )
    encodings = encode(loaded.tokenizer, [e.prompt + e.response for e in manifest.examples])
    for example, encoding in zip(manifest.examples, encodings, strict=True):
        if len(encoding) != len(example.reference_unll):
            raise InputError(
                f"example {example.id!r} has {len(encoding)} tokens, the manifest "
                f"{manifest.name!r} {len(example.reference_unll)}",
                where=f"checkpoint {loaded.name!r}",
                fix="give the tokenizer that the manifest was built with",
            )
    return [
        item(example.id, encoding, example.kept)
        for example, encoding in zip(manifest.examples, encodings, strict=True)
    ]


def verify(manifest: Manifest, loaded: Loaded) -> list[str]:
    """Refuse a checkpoint that a manifest was not made for; else notes.

    As :func:`spark_audit.manifest.check_fit`, from the checkpoint itself.
    """
    return check_fit(
        manifest,
        name=loaded.name,
        tokenizer_sha256=loaded.tokenizer_sha256,
        architecture=loaded.architecture,
        vocab_size=len(loaded.usable),
        base_sha256=loaded.base_sha256,
    )

"""Data and reference model to a manifest: pairs, canary candidates, membership.

Whatever an audit compares is decided here, before any checkpoint is looked at, from the
reference model's NLL in whole micro-nats. The reference is scored in batches of a fixed
size, so that the same inputs, seed, machine and libraries give the same bytes; another
batch size (or scores of another batch size that a store holds) can move an NLL by a
few micro-nats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from spark_audit.covariates import (
    Corpus,
    Ranges,
    balance,
    corpus,
    pool,
    token_classes,
)
from spark_audit.errors import InputError
from spark_audit.examples import Example
from spark_audit.facts import sha256_file, versions
from spark_audit.layout import Layout, layouts
from spark_audit.manifest import Manifest, seal
from spark_audit.scoring import Item, item, score
from spark_audit.sensitivity import (
    score2,
    sensitivity,
    stop_word_ranges,
    token_counts,
)
from spark_audit.stats.duplicates import cluster_labels, duplicate_groups
from spark_audit.stats.matching import match_spans, micro_nats
from spark_audit.table import Pass, TokenTable
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

PRESETS: dict[str, dict[str, Any]] = {
    "robust": {"buffer": 1, "canary_contexts": 1},
    "paper": {"buffer": 0, "canary_contexts": None},
}
"""What a preset decides unless it is asked for by itself; ``None``: all contexts."""

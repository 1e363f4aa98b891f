"""Tiny checkpoints opened by hand, and the plainest loop over them in float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.scoring.items import Item


def make_loaded(model: Any, **fields: Any) -> Any:
    """``make_loaded(model, **fields)``: a :class:`Checkpoint` around a module."""
    rows = model.get_output_embeddings().weight.shape[0]
    known: dict[str, Any] = {
        "name": "tiny",
        "source": "tiny",
        "format": "hf-folder",
        "base": None,
        "base_sha256": None,
        "model": model,
        "tokenizer": None,
        "architecture": type(model).__name__,
        "usable": np.ones(rows, dtype=bool),
        "max_positions": 256,
        "dtype": "float32",
        "device": "cpu",
        "weights_sha256": "0" * 64,
        "tokenizer_sha256": "0" * 64,
        "model_id": "0" * 64,
    }
    return Checkpoint(**(known | fields))


def make_items(lengths: Sequence[int], *, vocabulary: int = 300, seed: int = 0) -> Any:
    """``make_items(lengths, vocabulary=300, seed=0)``: random items ``t00``, ..."""
    rng = np.random.default_rng(seed)
    return [
        Item(
            f"t{i:02d}",
            rng.integers(3, vocabulary, n).astype(np.int32),
            np.arange(n, dtype=np.int32),
        )
        for i, n in enumerate(lengths)
    ]


def naive(
    logits: np.ndarray, targets: np.ndarray, usable: np.ndarray
) -> dict[str, np.ndarray]:
    """``naive(logits, targets, usable)``: the columns, one row at a time, in float64.

    ``logits`` (n, V) and ``targets`` (n,) of one text; every column by its definition.
    """
    found: dict[str, list[float]] = {}
    for row, target in zip(logits.astype(np.float64), targets, strict=True):
        z = row[usable]
        own = row[target]
        others = np.delete(row, np.append(np.flatnonzero(~usable), target))
        log_sum = np.log(np.exp(z - z.max()).sum()) + z.max()
        logp = z - log_sum
        p = np.exp(logp)
        mean = float(p @ logp)
        top = np.sort(z)[::-1][:40]
        values = {
            "nll": log_sum - own,
            "rank_lo": 1 + (z > own).sum(),
            "ties": (z == own).sum() - 1,
            "mean_logp": mean,
            "sd_logp": np.sqrt(p @ (logp - mean) ** 2),
            "top1_margin": own - others.max(),
            "top40_logp": np.log(np.exp(top - z.max()).sum()) + z.max() - log_sum,
        }
        for name, value in values.items():
            found.setdefault(name, []).append(float(value))
    return {name: np.array(values) for name, values in found.items()}

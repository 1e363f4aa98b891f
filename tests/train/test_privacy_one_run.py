"""Runs whose epsilon is known, and the bound that coin flips at their canaries give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_training import train, write_stream

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.canaries import canary_ranges
from spark_audit.data.examples import Example, read_examples, write_examples
from spark_audit.data.injection import inject
from spark_audit.stats.epsilon import declared_guesses, one_run_bound

PAIRS, DELTA = 40, 1e-4
SETTINGS = ["batch_size=8", "lr=0.02", "loss.scope=full", "eval_rows=1", "lora.r=8"]


def bound(folder: Path, base: Path, rows: list[Example]) -> float:
    """Epsilon at DELTA, of one row more or less, by each canary's sentence alone."""
    pairs: dict[str, dict[bool, float]] = {}
    before, after = (
        open_checkpoint(str(base), device="cpu"),
        open_checkpoint(str(folder), device="cpu", base=str(base)),
    )
    for row in rows:
        if row.canary is None or row.canary.pair is None:
            continue
        start, end = canary_ranges(row)["full"]
        ids = torch.tensor([before.tokenizer(row.text[start:end])["input_ids"]])
        told = [nll(loaded, ids) for loaded in (after, before)]
        pairs.setdefault(row.canary.pair, {})[row.canary.held_out] = told[0] - told[1]
    # What is left of the held-out one's loss over the planted one's.
    gaps = np.array([pairs[name][True] - pairs[name][False] for name in sorted(pairs)])
    first = np.argsort(-np.abs(gaps), kind="stable")[: declared_guesses(len(gaps))]
    right = int((gaps[first] > 0).sum())
    assert len(gaps) == PAIRS
    return one_run_bound(right, len(first), len(gaps), delta=DELTA).canary_add_remove


def nll(loaded: Any, ids: torch.Tensor) -> float:
    with loaded.active() as model:
        logits = model(input_ids=ids).logits[0, :-1].double()
    return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))


@pytest.fixture
def runs(tiny_base, tmp_path):
    """``runs(seeds, *settings, dp=...)``: bounds of that many fine-tunes."""

    def make(seeds: int, *settings: str, dp: str | None = None) -> list[float]:
        found = []
        for seed in range(seeds):
            place = tmp_path / f"{dp}-{seed}"
            data = write_stream(
                place / "rows.jsonl", tasks=("yelp",), train=150, test=150, pii=False
            )
            rows, _ = inject(
                read_examples(data), seed=seed, rate=0, canaries=PAIRS, doses=[1]
            )
            rows = [replace(row, frames=()) for row in rows]
            write_examples(data, rows)
            made = train(
                method="seqft",
                base=str(tiny_base),
                data=[data],
                order="yelp",
                output=place / "run",
                settings=[*SETTINGS, f"seed={seed}", *settings],
                **({"dp": dp} if dp else {}),
            )
            found.append(bound(made.folder, tiny_base, rows))
        return found

    return make


@pytest.mark.slow
def test_bounds_of_private_runs_lie_below_their_epsilon(runs):
    pytest.importorskip("opacus")
    told = ["epochs=40", "dp.target_epsilon=0.5", f"dp.delta={DELTA}"]
    # As in the runs without noise, but for the noise.
    assert max(runs(3, *told, dp="dpsgd")) <= 0.5


@pytest.mark.slow
def test_a_run_without_noise_is_refuted(runs):
    assert max(runs(2, "epochs=40")) > 0.5

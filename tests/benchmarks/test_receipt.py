"""DP-SGD that keeps its claim is not contradicted; without noise or clipping it is."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_audit.stats.epsilon_bounds import declared_guesses, one_run_bound


@pytest.fixture(scope="module")
def receipt() -> Any:
    place = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, place)
    yield importlib.import_module("receipt")
    sys.path.remove(place)
    del sys.modules["receipt"]


@pytest.mark.parametrize(
    ("way", "contradicted"),
    [("as claimed", 0), ("no noise", 5), ("no clipping", 4)],
)
def test_a_claim_of_epsilon_1_over_five_runs(
    receipt: Any, way: str, contradicted: int
) -> None:
    guesses = declared_guesses(receipt.PAIRS)
    found = 0
    for seed in range(5):
        # 8.09: the noise for epsilon 1 by Opacus's accountant, at these settings.
        right = receipt.right(seed, way, 8.09)
        bound = one_run_bound(right, guesses, receipt.PAIRS, delta=receipt.DELTA)
        found += bound.record_add_remove > 1
    assert found >= contradicted if contradicted else found == 0

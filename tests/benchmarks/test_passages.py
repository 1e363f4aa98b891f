"""Scenes of the measurement of passages: what is true of each is what it says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def passages() -> Any:
    place = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, place)
    yield importlib.import_module("passages")
    sys.path.remove(place)
    del sys.modules["passages"]


def shares(passages: Any, scene: Any) -> dict[str, float]:
    """Share of rows with a passage, by model and split, over four drawings."""
    counts: dict[str, list[float]] = {}
    for seed in range(4):
        evidence = passages.evidence_of(scene, np.random.default_rng(seed))
        split = evidence.units["split"].to_numpy()
        for name in ("base", "ours"):
            has_passage = evidence.row(name, "run") >= passages.PASSAGE
            for side in ("train", "test"):
                rate = float(has_passage[split == side].mean())
                counts.setdefault(f"{name} {side}", []).append(rate)
    return {key: float(np.mean(rates)) for key, rates in counts.items()}


def test_nothing_is_learned_in_scenes_without_a_leak(passages):
    """Trained rows are recited no more than held-out ones, but as the base does."""
    for name, scene in passages.NULL_SCENES.items():
        if "most trained rows" in name or "forgotten" in name:
            continue  # of these one task, and one model, differ by more than chance
        rates = shares(passages, scene)
        of_ours = rates["ours train"] - rates["ours test"]
        of_base = rates["base train"] - rates["base test"]
        assert abs(of_ours - of_base) < 0.1, name


def test_rows_are_recited_in_scenes_with_a_leak(passages):
    rates = shares(passages, passages.LEAKS["40% of trained rows"])
    assert rates["ours train"] - rates["ours test"] > 0.25
    assert abs(rates["base train"] - rates["base test"]) < 0.1
    finding = passages.finding_of(
        passages.LEAKS["40% of trained rows"], np.random.default_rng(0)
    )
    assert finding.claim == "verbatim"

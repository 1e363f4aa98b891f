"""The figures of ``benchmarks/canaries.py``, on scores whose figures are known."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve


@pytest.fixture
def benchmark(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("canaries")
    for name in ("canaries", "known_truth_training"):
        sys.modules.pop(name, None)


def test_figures_are_those_of_the_roc_curve(benchmark):
    rng = np.random.default_rng(0)
    for n in (40, 250):
        ours, never = rng.normal(1, 1, 60), rng.normal(0, 1, n).round(1)
        labels, scores = [1] * 60 + [0] * n, [*ours, *never]
        fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
        found = benchmark.told_apart(ours, never)
        assert found[0] == pytest.approx(tpr[fpr <= 0.01].max())
        assert found[1] == pytest.approx(roc_auc_score(labels, scores))


def test_a_dose_is_held_against_all_held_out_canaries(benchmark):
    some: dict[str, Any] = {"seed": 0, "kind": "random", "full": 0.0, "password": 0.0}
    records = [some | {"planted": False, "dose": 0} for _ in range(9)]
    records += [some | {"planted": True, "dose": 1}] * 2
    records += [some | {"planted": True, "dose": 16, "full": 3.0}] * 3
    tpr, auc = benchmark.figures(records, "full", 16)
    assert tpr[0] == auc[0] == 1
    assert benchmark.figures(records, "full", 1)[1][0] == 0.5
    told = "| full | 16 | random | 3 | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] |"
    assert told in benchmark.table(records).splitlines()

"""What a run takes, told beforehand in words that fit a screen."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spark_audit.audits import AUDITS
from spark_audit.pipeline.estimate import (
    Estimate,
    Part,
    Stored,
    duration,
    stored,
    told,
)


def test_words_fit_a_screen() -> None:
    every = [
        Part(name, "284 noisy texts, 12 times, and 1,284 texts", 10**9, 10.0**n)
        for n, name in enumerate(AUDITS.in_order())
    ]
    long = Estimate(
        manifest="a-name-that-is-longer-than-most-names-of-manifests",
        rows=123_456,
        folder="reports/small-er",
        weights={f"checkpoint-{n}": 7 * 10**9 + n for n in range(6)},
        stages=36,
        gflops=1.0,
        audits=every,
        loading=1e4,
        report=15.0,
        memory_bytes=3e10,
        free_bytes={**{f"cuda:{n}": 80 * 10**9 for n in range(2)}, "cpu": 10**11},
    )
    lines = list(told(long))
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert "7.0 billion weights each" in lines[2]


def test_durations_are_said_in_words() -> None:
    said = [duration(s) for s in (0.2, 42, 600, 7200, 1e6)]
    assert said == ["1 s", "42 s", "10 min", "2.0 h", "12 days"]


def test_weights_are_counted_by_headers(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    save_file({"a": np.zeros((3, 4), np.float16)}, model / "model.safetensors")
    found = stored(model)
    assert found == stored(model / "model.safetensors") == Stored(12, 2.0)
    (model / "adapter_config.json").write_text("{}")
    assert stored(model) == stored(None) == Stored()

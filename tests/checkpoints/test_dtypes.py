"""The dtype of a body that was saved in bfloat16, where the user leaves it open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spark_audit.checkpoints import dtypes
from spark_audit.checkpoints.open import open_checkpoint


@pytest.fixture
def saved_half(tiny_base: Path, copied) -> Path:  # type: ignore[no-untyped-def]
    folder: Path = copied(tiny_base, "half")
    file = folder / "model.safetensors"
    state = {k: t.to(torch.bfloat16) for k, t in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("ratio", "chosen"), [(2.0, "float32"), (0.5, "bfloat16"), (1.05, "bfloat16")]
)
def test_the_faster_one_is_taken(
    ratio: float, chosen: str, saved_half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "half_over_full", lambda *_: ratio)
    loaded = open_checkpoint(str(saved_half), dtype="auto")
    assert loaded.dtype == chosen
    said = [note for note in loaded.notes if note.startswith("saved in bfloat16")]
    assert len(said) == 1
    assert f"computed in {chosen}" in said[0]


def test_nothing_is_tried_where_the_dtype_is_given(
    saved_half: Path, tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "half_over_full", None)
    cases = (
        (saved_half, {"dtype": "bfloat16"}, "bfloat16"),
        (saved_half, {"dtype": "float32"}, "float32"),
        # Workers must choose alike.
        (saved_half, {"dtype": "auto", "probe": False}, "bfloat16"),
        (tiny_base, {"dtype": "auto"}, "float32"),
    )
    for folder, options, dtype in cases:
        assert open_checkpoint(str(folder), **options).dtype == dtype


def test_the_probe_tells_a_slower_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes.half_over_full.cache_clear()
    monkeypatch.setattr(dtypes, "SECONDS", 0.05)
    found = dtypes.half_over_full("cpu", 64, 128)
    assert 0.01 < found < 100
    whole = dtypes._layer

    def slow(dtype: torch.dtype, *sizes: object):  # type: ignore[no-untyped-def]
        call = whole(dtype, *sizes)  # type: ignore[arg-type]
        times = 20 if dtype == torch.bfloat16 else 1
        return lambda: [call() for _ in range(times)]

    monkeypatch.setattr(dtypes, "_layer", slow)
    dtypes.half_over_full.cache_clear()
    assert dtypes.half_over_full("cpu", 64, 128) > 3 * found
    dtypes.half_over_full.cache_clear()

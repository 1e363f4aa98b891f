"""The dtype of a body that was saved in bfloat16, where the user leaves it open."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spark_audit.checkpoints.open import open_checkpoint


@pytest.fixture
def saved_half(tiny_base, copied):
    folder: Path = copied(tiny_base, "half")
    file = folder / "model.safetensors"
    state = {k: t.to(torch.bfloat16) for k, t in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("native", [True, False])
def test_half_precision_is_kept_where_the_cpu_has_it(
    native, saved_half, tiny_base, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    loaded = open_checkpoint(str(saved_half), dtype="auto")
    assert loaded.dtype == ("bfloat16" if native else "float32")
    said = [note for note in loaded.notes if note.startswith("saved in bfloat16")]
    assert len(said) == 1 - native
    for folder, dtype in ((saved_half, "bfloat16"), (saved_half, "float32")):
        assert open_checkpoint(str(folder), dtype=dtype).dtype == dtype
    assert open_checkpoint(str(tiny_base), dtype="auto").dtype == "float32"

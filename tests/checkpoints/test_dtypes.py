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


def test_auto_is_as_saved(saved_half, tiny_base):
    for folder, dtype, computed in (
        (saved_half, "auto", "bfloat16"),
        (saved_half, "float32", "float32"),
        (tiny_base, "auto", "float32"),
    ):
        assert open_checkpoint(str(folder), dtype=dtype).dtype == computed

"""What a module says on a fixed input, to be compared with the source exactly."""

import shutil
from pathlib import Path

import pytest
import torch

IDS = torch.tensor([[1, 47, 91, 223, 80, 67, 79, 71, 280, 223]])


@pytest.fixture
def copied(tmp_path):
    """``copied(folder)``: a copy that a test may change."""

    def copy(folder: Path, name: str = "copy") -> Path:
        return Path(shutil.copytree(folder, tmp_path / name))

    return copy


@pytest.fixture(scope="session")
def base_model(tiny_base):
    """The tiny base as transformers loads it; do not change it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_base).eval()

"""What a module says on a fixed input, to be compared with the source exactly."""

import resource
import shutil
import time
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


@pytest.fixture
def measured():
    """Within 5 s of this process, and 1 GB more than before."""
    begun = time.process_time()
    before = _peak()
    yield
    assert time.process_time() - begun < 5
    assert _peak() - before < 1e9


def _peak() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

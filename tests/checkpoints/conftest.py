"""What a module says on a fixed input, to be compared with the source exactly."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

IDS = torch.tensor([[1, 47, 91, 223, 80, 67, 79, 71, 280, 223]])


@pytest.fixture(scope="session")
def said() -> Callable[..., torch.Tensor]:
    """``said(model)`` or ``said(loaded)``: logits, shape ``(10, V)``."""

    def run(subject: Any) -> torch.Tensor:
        if hasattr(subject, "active"):
            with subject.active() as model:
                return (
                    model(input_ids=IDS.to(subject.device), use_cache=False)
                    .logits[0]
                    .cpu()
                )
        with torch.inference_mode():
            return subject.eval()(input_ids=IDS, use_cache=False).logits[0]

    return run


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., Path]:
    """``copied(folder)``: a copy that a test may change."""

    def copy(folder: Path, name: str = "copy") -> Path:
        return Path(shutil.copytree(folder, tmp_path / name))

    return copy


@pytest.fixture
def edited() -> Callable[..., None]:
    """``edited(file, change)``: change the tensors of a safetensors file in place."""

    def edit(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
        state = load_file(file)
        change(state)
        save_file(
            {k: v.contiguous() for k, v in state.items()},
            file,
            metadata={"format": "pt"},
        )

    return edit


@pytest.fixture(scope="session")
def base_model(tiny_base: Path) -> Any:
    """The tiny base as transformers loads it; do not change it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_base).eval()


@pytest.fixture(scope="session")
def reference_of() -> Callable[..., Any]:
    """``reference_of(base, adapter)``: the model as PEFT itself loads it."""

    def load(base: Path, adapter: Path) -> Any:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(base)
        return PeftModel.from_pretrained(model, adapter).eval()

    return load

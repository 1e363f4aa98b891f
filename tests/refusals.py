"""Checkpoints opened and refused, and how their files are changed for it."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.inspection import inspect_checkpoint
from spark_audit.checkpoints.open import OpenCheckpoints, open_checkpoint
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.checkpoints.tokenizer import read_tokenizer
from spark_audit.checkpoints.untrusted import locate, quiet
from spark_audit.errors import CheckpointError, InputError, SparkError

IDS = torch.tensor([[1, 47, 91, 223, 80, 67, 79, 71, 280, 223]])


def opened(
    source: Path | str, *, base: Path | str | None = None, **options: Any
) -> Checkpoint:
    """A checkpoint, opened on the CPU."""
    base = None if base is None else str(base)
    return open_checkpoint(str(source), base=base, device="cpu", **options)


def inspected(
    source: Path | str, *, base: Path | str | None = None, **options: Any
) -> dict[str, str]:
    """What is said of a checkpoint that is not opened."""
    base = None if base is None else str(base)
    return inspect_checkpoint(str(source), base=base, **options)


def problem_of(source: Path | str, **options: Any) -> str:
    """Why looking at a checkpoint fails; nothing where it does not."""
    try:
        inspected(source, **options)
    except SparkError as error:
        return str(error)
    return ""


def refused(source: Path | str, message: str, **options: Any) -> None:
    """Opening is refused (exit 3) with exactly one line that says this."""
    with pytest.raises(CheckpointError) as error:
        opened(source, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 3


def absent(source: Path | str, message: str, **options: Any) -> None:
    """Opening what does not exist is refused (exit 2) with one line that says this."""
    with pytest.raises(InputError) as error:
        opened(source, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def load_tokenizer(source: Path | str) -> Any:
    """The tokenizer of a model's folder, or ``hf:ORG/NAME``, without the model."""
    with quiet():
        return read_tokenizer(locate(str(source)))[0]


def each(specs: Sequence[Spec], **options: Any) -> Iterator[Checkpoint]:
    """Several checkpoints, opened one after the other."""
    yield from OpenCheckpoints(specs, Loading(**options)).each()


def change(file: Path, **changes: Any) -> None:
    """Other values in a JSON object's file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


class Malicious:
    """A pickle that would run a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.mark}",))


def said(subject: Any) -> torch.Tensor:
    """``said(model)`` or ``said(loaded)``: logits, shape ``(10, V)``."""
    if hasattr(subject, "active"):
        with subject.active() as model:
            return (
                model(input_ids=IDS.to(subject.device), use_cache=False).logits[0].cpu()
            )
    with torch.inference_mode():
        return subject.eval()(input_ids=IDS, use_cache=False).logits[0]


def edited(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """``edited(file, change)``: change the tensors of a safetensors file in place."""
    state = load_file(file)
    change(state)
    save_file(
        {k: v.contiguous() for k, v in state.items()},
        file,
        metadata={"format": "pt"},
    )


def reference_of(base: Path, adapter: Path) -> Any:
    """``reference_of(base, adapter)``: the model as PEFT itself loads it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    return PeftModel.from_pretrained(model, adapter).eval()

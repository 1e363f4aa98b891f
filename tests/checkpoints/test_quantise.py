"""Checkpoints with rounded weights: the right values, and nothing else touched."""

import sys
from typing import Any

import pytest
import torch
from refusals import each
from tiny_models import make_model, save_model

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Spec
from spark_audit.errors import CheckpointError, InputError

pytest.importorskip("torchao", reason="torchao is not installed")

IDS = torch.tensor([[1, 40, 50, 60, 70, 80, 90]])


def round_to_nearest(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """Symmetric rounding of rows, or of groups of 32 at 4 bits, in float64."""
    rows = weight.double()
    if kind == "int4":
        rows = rows.reshape(-1, 32)
    top = 127 if kind == "int8" else 7
    scale = rows.abs().amax(1, keepdim=True) / (top + 0.5)
    return (torch.round(rows / scale).clamp(-top - 1, top) * scale).view_as(weight)


def logits(loaded: Any) -> torch.Tensor:
    with loaded.active() as model:
        return model(input_ids=IDS).logits.clone()


@pytest.mark.parametrize("kind", ["int4"])
def test_rounded_weights_are_near_and_base_and_adapter_stay(
    kind, tiny_base, make_adapter, tmp_path
):
    adapter = make_adapter(tmp_path / "a")
    specs = [Spec("a", (str(adapter),))]
    before: dict[str, torch.Tensor] = {}
    for loaded in each(specs, base=str(tiny_base), quantize=[kind]):
        before[loaded.name] = logits(loaded)
        last = loaded
    assert list(before) == ["base", "a", f"a+{kind}"]
    difference = (before[f"a+{kind}"] - before["a"]).abs().max()
    assert 0 < difference < 0.5 * before["a"].abs().max()
    # Opened again, without rounding, everything is as it was.
    again = open_checkpoint(str(adapter), base=str(tiny_base))
    assert torch.equal(logits(again), before["a"])
    assert last.model_id != again.model_id
    assert last.tokenizer_sha256 == again.tokenizer_sha256
    assert any(kind in note for note in last.notes)


@pytest.mark.parametrize(("family", "kind"), [("llama", "int4"), ("gpt2", "int8")])
def test_it_is_the_merged_model_rounded(kind, family, make_adapter, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    save_model(make_model(family), base)
    targets = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    options: dict[str, Any] = targets if family == "gpt2" else {}
    adapter = make_adapter(tmp_path / "a", base=base, **options)
    specs = [Spec("a", (str(adapter),))]
    *_, rounded = each(specs, base=str(base), quantize=[kind])
    plain = AutoModelForCausalLM.from_pretrained(base)
    merged = PeftModel.from_pretrained(plain, str(adapter)).merge_and_unload().eval()
    for name, module in merged.named_modules():
        if name == "lm_head" or not hasattr(module, "weight"):
            continue
        if module.weight.dim() != 2 or "Embedding" in type(module).__name__:
            continue
        weight = module.weight.data
        across = type(module).__name__ == "Conv1D"
        value = round_to_nearest(weight.T.contiguous() if across else weight, kind)
        module.weight.data = (value.T if across else value).to(weight.dtype)
    with torch.inference_mode():
        merged_logits = merged(input_ids=IDS).logits
    full = logits(open_checkpoint(str(adapter), base=str(base)))
    # The same but for the rule of rounding at halves and the scale's last step.
    error = (logits(rounded) - merged_logits).abs().mean()
    assert error < 0.4 * (full - merged_logits).abs().mean()


def test_what_cannot_be_merged_is_refused(tiny_base, make_adapter, tmp_path):
    adapter = make_adapter(tmp_path / "dora", use_dora=True)
    specs = [Spec("a", (str(adapter),))]
    with pytest.raises(CheckpointError, match="DoRA|use_dora"):
        list(each(specs, base=str(tiny_base), quantize=["int8"]))


def test_unknown_kind_and_missing_library(tiny_base, monkeypatch):
    specs = [Spec("m", (str(tiny_base),))]
    with pytest.raises(InputError, match="int8, int4"):
        next(each(specs, quantize=["int2"]))
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(InputError, match="^--quantize: torchao"):
        next(each(specs, quantize=["int8"]))

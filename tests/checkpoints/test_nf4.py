"""The base in NF4 under an adapter that is not merged, as QLoRA deploys it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import each
from scipy.stats import norm
from tiny_models import make_model, save_model

from spark_audit.checkpoints.nf4 import NF4_LEVELS, rounded_to_nf4
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Spec

IDS = torch.tensor([[1, 40, 50, 60, 70, 80, 90]])
# Rows of a length that is a multiple of 64: with others, the CPU kernel of bitsandbytes
# 0.50.2 takes scales of other blocks than it made.
WHOLE_BLOCKS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
# Of 80 numbers, as bitsandbytes 0.50.2 packed them: a hexadecimal digit each.
PACKED = (
    "04c16e29f3b05d17e29f3c05d18e2af4c16e18e3b05d17e29f3b05d18e2af4c16e18e3b04d17e29f"
)
SCALES = (1.0, 0.98)


def levels() -> np.ndarray:
    """The 16 numbers of NF4 by their definition: eight positive ones, seven negative
    ones, and 0."""
    above = norm.ppf(np.linspace(0.9677083, 0.5, 9)[:-1])
    below = -norm.ppf(np.linspace(0.9677083, 0.5, 8)[:-1])
    both = np.sort(np.concatenate([above, below, [0.0]]))
    return both / both.max()


def nearest_levels(weight: torch.Tensor) -> torch.Tensor:
    """The same rounding, by all 16 distances of each number in float64."""
    numbers = weight.detach().double().flatten().numpy()
    rounded = np.zeros_like(numbers)
    for start in range(0, len(numbers), 64):
        block = numbers[start : start + 64]
        candidates = levels() * np.abs(block).max()  # (16,)
        distances = np.abs(block[:, None] - candidates)  # (64, 16)
        rounded[start : start + 64] = candidates[distances.argmin(axis=1)]
    return torch.tensor(rounded).view(weight.shape)


def logits(loaded: Any) -> torch.Tensor:
    with loaded.active() as model, torch.inference_mode():
        return model(input_ids=IDS).logits.clone()


def opened_by_name(adapter: Path, base: Path) -> dict[str, torch.Tensor]:
    """Logits of the base, of an adapter on it, and of the adapter on its NF4 copy."""
    specs = [Spec("a", (str(adapter),))]
    return {
        loaded.name: logits(loaded)
        for loaded in each(specs, base=str(base), quantize=["nf4"])
    }


def test_levels_are_quantiles_of_the_normal_distribution():
    np.testing.assert_allclose(NF4_LEVELS, levels(), atol=2e-7)


@pytest.mark.parametrize("shape", [(3, 64), (5, 40), (1, 1), (7, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_number_becomes_the_nearest_level_of_its_block(shape, dtype):
    generator = torch.Generator().manual_seed(3)
    weight = (0.02 * torch.randn(shape, generator=generator)).to(dtype)
    rounded = rounded_to_nf4(weight)
    assert rounded.dtype == dtype
    torch.testing.assert_close(rounded, nearest_levels(weight).to(dtype))


def test_a_block_of_zeros_stays_zero():
    weight = torch.cat([torch.zeros(64), torch.ones(64)])
    assert torch.equal(rounded_to_nf4(weight), weight)


def test_it_is_what_bitsandbytes_computed():
    """Packed codes and scales of ``quantize_4bit`` by bitsandbytes 0.50.2."""
    i = torch.arange(80)
    weight = ((i * 37) % 101 - 50) / 50.0
    codes = [int(digit, 16) for digit in PACKED]
    scales = np.repeat(SCALES, (64, 16))
    expected = levels()[codes] * scales
    np.testing.assert_allclose(rounded_to_nf4(weight).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_what_bitsandbytes_computes(dtype):
    functional = pytest.importorskip("bitsandbytes.functional")
    generator = torch.Generator().manual_seed(1)
    for shape, scale in (((64, 192), 0.02), ((300, 64), 1.0), ((3333,), 50.0)):
        weight = (scale * torch.randn(shape, generator=generator)).to(dtype)
        codes, state = functional.quantize_4bit(weight, quant_type="nf4")
        expected = functional.dequantize_4bit(codes, state).view(shape)
        difference = (rounded_to_nf4(weight) - expected).abs().max()
        assert difference <= 1e-6 * scale


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_is_the_adapter_on_the_rounded_base(family, make_adapter, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    save_model(make_model(family), base)
    targets = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    options: dict[str, Any] = targets if family == "gpt2" else {}
    adapter = make_adapter(tmp_path / "a", base=base, **options)

    rounded = AutoModelForCausalLM.from_pretrained(base)
    for name, module in rounded.named_modules():
        if type(module).__name__ == "Conv1D":
            module.weight.data = nearest_levels(module.weight.T).T.float().contiguous()
        elif type(module) is torch.nn.Linear and name != "lm_head":
            module.weight.data = nearest_levels(module.weight).float()
    expected = PeftModel.from_pretrained(rounded, str(adapter)).eval()
    with torch.inference_mode():
        expected_logits = expected(input_ids=IDS).logits

    by_name = opened_by_name(adapter, base)
    torch.testing.assert_close(by_name["a+nf4"], expected_logits, rtol=0, atol=1e-4)
    assert (by_name["a"] - expected_logits).abs().max() > 0.1


def test_it_is_the_adapter_on_a_base_that_transformers_loads_in_nf4(
    make_adapter, tmp_path
):
    pytest.importorskip("bitsandbytes")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base = tmp_path / "base"
    save_model(make_model(**WHOLE_BLOCKS), base)
    adapter = make_adapter(tmp_path / "a", base=base)
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    packed = AutoModelForCausalLM.from_pretrained(base, quantization_config=settings)
    # Unpacked, because its CPU kernels compute in bfloat16.
    unpacked = packed.dequantize(dtype=torch.float32)
    expected = PeftModel.from_pretrained(unpacked, str(adapter)).eval()
    with torch.inference_mode():
        expected_logits = expected(input_ids=IDS).logits
    by_name = opened_by_name(adapter, base)
    torch.testing.assert_close(by_name["a+nf4"], expected_logits, rtol=0, atol=1e-6)


def test_the_checkpoint_itself_stays_and_its_copy_is_another(
    tiny_base, make_adapter, tmp_path, monkeypatch
):
    # torchao has no part in it.
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    adapter = make_adapter(tmp_path / "a")
    by_name = opened_by_name(adapter, tiny_base)
    assert list(by_name) == ["base", "a", "a+nf4"]
    again = open_checkpoint(str(adapter), base=str(tiny_base))
    assert torch.equal(logits(again), by_name["a"])
    copy = open_checkpoint(str(adapter), base=str(tiny_base), quantize="nf4")
    assert torch.equal(logits(copy), by_name["a+nf4"])
    assert copy.model_id != again.model_id
    assert copy.quantised_from == "a"


def test_full_weights_are_rounded_themselves_but_not_their_head(tiny_base):
    from transformers import AutoModelForCausalLM

    rounded = AutoModelForCausalLM.from_pretrained(tiny_base).eval()
    for name, module in rounded.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.weight.data = nearest_levels(module.weight).float()
    with torch.inference_mode():
        expected = rounded(input_ids=IDS).logits
    copy = open_checkpoint(str(tiny_base), quantize="nf4", name="m")
    torch.testing.assert_close(logits(copy), expected, rtol=0, atol=1e-4)


def test_an_adapter_that_cannot_be_merged_is_audited_too(
    tiny_base, make_adapter, tmp_path
):
    adapter = make_adapter(tmp_path / "dora", use_dora=True)
    by_name = opened_by_name(adapter, tiny_base)
    assert (by_name["a+nf4"] - by_name["a"]).abs().max() > 0.01


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PEFT, as it saves a head
def test_a_head_that_is_adapted_is_not_rounded(tiny_base, make_adapter, tmp_path):
    """Its adapter stays on it, and the base's own head below."""
    adapter = make_adapter(tmp_path / "a", target_modules=["lm_head"])
    copy = open_checkpoint(str(adapter), base=str(tiny_base), quantize="nf4")
    with copy.active() as model:
        head = model.get_output_embeddings().base_layer.weight.clone()
        hidden = model.get_base_model().model.layers[0].self_attn.q_proj.weight.clone()
    plain = open_checkpoint(str(tiny_base), name="m")
    with plain.active() as model:
        assert torch.equal(head, model.lm_head.weight)
        assert not torch.equal(hidden, model.model.layers[0].self_attn.q_proj.weight)

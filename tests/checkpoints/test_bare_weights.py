"""Row "`pytorch_model.bin` / `.pt` / `.pth` / `.safetensors` alone"."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import (
    Malicious,
    absent,
    inspected,
    opened,
    problem_of,
    reference_of,
    refused,
    said,
)
from safetensors.torch import load_file, save_file
from tiny_models import make_model, save_model

State = dict[str, torch.Tensor]


@pytest.fixture
def tuned():
    """A fine-tuned model: of the base's architecture, with other weights."""
    return make_model("llama", seed=7)


def fsdp(state: State) -> State:
    """Names as FSDP's modules carry them, one wrapper a layer and one outside."""
    return {
        "_fsdp_wrapped_module."
        + key.replace("layers.0.", "layers.0._fsdp_wrapped_module."): value
        for key, value in state.items()
    }


WRAPPED: dict[str, Callable[[State], Any]] = {
    "plain": lambda s: s,
    "ddp": lambda s: {"model_state_dict": {f"module.{k}": v for k, v in s.items()}},
    "compiled": lambda s: {"state_dict": {f"_orig_mod.{k}": v for k, v in s.items()}},
    "compiled ddp": lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    "opacus": lambda s: {"model": {f"_module.{k}": v for k, v in s.items()}},
    "fsdp": lambda s: {"epoch": 3, "model": fsdp(s)},
    "deepspeed": lambda s: {"module": s, "global_steps": 10},
    "fabric": lambda s: {f"_forward_module.{k}": v for k, v in s.items()},
    "ema": lambda s: {f"ema_model.{k}": v for k, v in s.items()},
    "ema of ddp": lambda s: {f"ema_model.module.{k}": v for k, v in s.items()},
    "ema with counters": lambda s: {
        **{f"ema_model.{k}": v for k, v in s.items()},
        "initted": torch.tensor(True),
        "step": torch.tensor(7),
    },
    "torch's average": lambda s: {
        "n_averaged": torch.tensor(3),
        **{f"module.{k}": v for k, v in s.items()},
    },
    "other key": lambda s: {"ema": s, "step": 3},
    "nested": lambda s: {"model": {"state_dict": s}, "optimizer": {"lr": 0.1}},
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth"])
def test_full_weights_say_what_their_source_says(
    name, suffix, tuned, tiny_base, tmp_path
):
    file = tmp_path / f"tuned{suffix}"
    torch.save(WRAPPED[name](tuned.state_dict()), file)
    loaded = opened(file, base=tiny_base)
    assert torch.equal(said(loaded), said(tuned))
    assert loaded.format == "bare-weights"
    assert (loaded.base, loaded.base_sha256) == (None, None)
    assert "architecture: tiny-base (none of its weights)" in loaded.notes
    assert "tokenizer: the base's" in loaded.notes
    if name == "plain":
        assert not problem_of(file, base=tiny_base)


def test_an_average_beside_the_weights_is_left_out_and_told(tuned, tiny_base, tmp_path):
    state = tuned.state_dict()
    average = {name: tensor * 0.9 for name, tensor in state.items()}
    file = tmp_path / "last.pt"
    torch.save({"model": state, "ema": average, "step": 3}, file)
    loaded = opened(file, base=tiny_base)
    assert torch.equal(said(loaded), said(tuned))
    assert "other weights in the file are left out: ema" in loaded.notes

    torch.save({"net": state, "ema": average}, file)
    refused(file, "holds several models: net, ema", base=str(tiny_base))


def test_an_average_and_the_weights_under_their_own_names_are_refused(
    tuned, tiny_base, tmp_path
):
    state = tuned.state_dict()
    average = {f"ema_model.{name}": tensor * 0.9 for name, tensor in state.items()}
    trained = {f"online_model.{name}": tensor for name, tensor in state.items()}
    file = tmp_path / "last.pt"
    torch.save({**average, **state}, file)
    refused(file, "twice", base=str(tiny_base))
    torch.save({**average, **trained}, file)
    refused(file, "online_model", base=str(tiny_base))
    torch.save({"step": torch.tensor(3)}, file)
    refused(file, "holds no tensors but counters", base=str(tiny_base))


def test_safetensors_legacy_pickles_and_a_folder_with_one_file_are_opened(
    tuned, tiny_base, tmp_path
):
    folder = tmp_path / "run"
    folder.mkdir()
    save_file(tuned.state_dict(), folder / "weights.safetensors")
    torch.save({"lr": 1}, folder / "optimizer.pt")
    for source in (folder, folder / "weights.safetensors"):
        loaded = opened(source, base=tiny_base)
        assert torch.equal(said(loaded), said(tuned))
    old = tmp_path / "old.pt"
    torch.save(tuned.state_dict(), old, _use_new_zipfile_serialization=False)
    loaded = opened(old, base=tiny_base)
    assert torch.equal(said(loaded), said(tuned))


def test_config_beside_the_file_comes_first(tiny_base, tmp_path):
    small = make_model("gpt2")
    save_model(small.config, tmp_path)
    torch.save(small.state_dict(), tmp_path / "final.pt")
    for base in (None, str(tiny_base)):
        loaded = opened(tmp_path / "final.pt", base=base)
        assert torch.equal(said(loaded), said(small))
        assert "architecture: config.json next to the file" in loaded.notes


def test_tied_weights_may_be_saved_once_or_twice(tmp_path):
    tied = make_model("llama", tie_word_embeddings=True)
    save_model(tied.config, tmp_path)
    state = dict(tied.state_dict())
    assert "lm_head.weight" in state
    for name in ("both", "lm_head.weight", "model.embed_tokens.weight"):
        file = tmp_path / f"{name}.pt"
        torch.save({k: v for k, v in state.items() if k != name}, file)
        loaded = opened(file)
        assert torch.equal(said(loaded), said(tied))


def test_files_that_are_refused(tuned, tiny_base, tmp_path):
    base = str(tiny_base)
    file = tmp_path / "x.pt"
    state = tuned.state_dict()
    torch.save(state, file)
    refused(file, "need a config.json, and none is next to the file; give --base")
    for content, message in (
        ({"model": state, "state_dict": state}, "holds several models: state_dict,"),
        ([1, 2], "holds no state dictionary"),
        (torch.ones(3), "holds no state dictionary"),
        ({}, "holds no state dictionary"),
        ({"lm_head.weight": 3}, "holds something else than tensors (lm_head.weight)"),
        (
            {"lm_head.weight": torch.ones(1), "module.lm_head.weight": torch.ones(1)},
            "holds the tensor lm_head.weight twice",
        ),
        (
            {"model.layers.0.self_attn.k_proj.ia3_l.default": torch.ones(1)},
            "holds a PEFT adapter other than LoRA",
        ),
    ):
        torch.save(content, file)
        refused(file, message, base=base)
    file.write_bytes(b"\x80\x04nonsense")
    refused(file, "x.pt", base=base)
    absent(tmp_path / "none.pt", "there is no such file or folder", base=base)


def test_a_pickle_that_would_run_code_is_refused(tiny_base, tmp_path):
    file = tmp_path / "x.pt"
    mark = tmp_path / "ran"
    torch.save({"model": Malicious(mark)}, file)
    refused(file, "the pickle asks for posix.system", base=tiny_base)
    assert not mark.exists()
    # A whole module instead of its state: its class would have to be imported.
    torch.save(torch.nn.Linear(2, 2), file)
    refused(file, "asks for torch.nn.modules.linear.Linear", base=tiny_base)


def peft_state(base: Path, adapter: Path) -> State:
    """What ``torch.save(peft_model.state_dict())`` writes: base weights and LoRA."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), adapter
    )
    return dict(model.state_dict())


@pytest.mark.parametrize(
    "lora", [{}, {"use_dora": True}, {"r": 3, "alpha": 5}], ids=str
)
def test_lora_alone_says_what_its_source_says(lora, tiny_base, make_adapter, tmp_path):
    folder = make_adapter(tmp_path / "a", **lora)
    alpha = float(lora.get("alpha", 8))
    truth = said(reference_of(tiny_base, folder))
    full_state = peft_state(tiny_base, folder)
    only = {f"module.{k}": v for k, v in full_state.items() if "lora_" in k}
    saved = load_file(folder / "adapter_model.safetensors")
    assert len(only) == len(saved)
    file = tmp_path / "lora.pt"
    for content in (saved, only, {"model_state_dict": only}):
        torch.save(content, file)
        loaded = opened(file, base=tiny_base, lora_alpha=alpha)
        assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-6)
        assert loaded.base == "tiny-base"
        assert loaded.base_sha256 is not None
    rank = lora.get("r", 4)
    assert f"LoRA: rank {rank} from shapes, alpha {alpha:g} as given" in loaded.notes


def test_alpha_is_never_guessed(tiny_base, make_adapter, tmp_path):
    folder = make_adapter(tmp_path / "a")
    file = tmp_path / "alone" / "lora.safetensors"
    file.parent.mkdir()
    shutil.copy(folder / "adapter_model.safetensors", file)
    message = (
        "holds LoRA weights without their alpha; give --lora-alpha, or put "
        "adapter_config.json next to the file"
    )
    refused(file, message, base=tiny_base)
    refused(file, "holds LoRA weights without their base", lora_alpha=8)
    shutil.copy(folder / "adapter_config.json", file.parent)
    loaded = opened(file, base=tiny_base)
    truth = said(reference_of(tiny_base, folder))
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-6)
    assert "LoRA settings: adapter_config.json next to the file" in loaded.notes


def test_different_ranks_come_from_shapes(tiny_base, make_adapter, tmp_path):
    folder = make_adapter(tmp_path / "a", rank_pattern={"layers.0.self_attn.q_proj": 2})
    file = tmp_path / "lora.safetensors"
    shutil.copy(folder / "adapter_model.safetensors", file)
    loaded = opened(file, base=tiny_base, lora_alpha=8)
    truth = said(reference_of(tiny_base, folder))
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-6)


def test_o_lora_without_a_configuration_scales_by_its_newest_part(
    tiny_base, make_adapter, tmp_path
):
    first_adapter = make_adapter(tmp_path / "one", seed=1)
    two = make_adapter(tmp_path / "two", seed=2)
    model = reference_of(tiny_base, first_adapter)
    model.load_adapter(two, "two")
    model.base_model.set_adapter(["default", "two"])
    truth = said(model)
    first, second = (
        load_file(d / "adapter_model.safetensors") for d in (first_adapter, two)
    )
    state = first | {k.replace(".lora_", ".loranew_"): v for k, v in second.items()}
    file = tmp_path / "olora.bin"
    torch.save(state, file)
    loaded = opened(file, base=tiny_base, lora_alpha=8)
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-5)


def test_a_whole_peft_model_brings_its_own_base(tiny_base, make_adapter, tmp_path):
    other_folder = tmp_path / "other"
    save_model(make_model("llama", seed=5), other_folder)
    adapter = make_adapter(tmp_path / "a", base=other_folder)
    truth = said(reference_of(other_folder, adapter))
    file = tmp_path / "whole.pt"
    torch.save(peft_state(other_folder, adapter), file)
    # Not the weights of --base, but those in the file, lie under the LoRA.
    loaded = opened(file, base=tiny_base, lora_alpha=8)
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-6)
    assert (loaded.base, loaded.base_sha256) == (None, None)
    assert "holds the base's weights and LoRA: both are the file's own" in loaded.notes
    facts = inspected(file, base=tiny_base, lora_alpha=8)
    assert facts["adapter"] == "LORA"


def test_several_adapters_in_one_file_are_refused(tiny_base, make_adapter, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    first_adapter, two = (make_adapter(tmp_path / str(i), seed=i) for i in (1, 2))
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_base),
        first_adapter,
        adapter_name="one",
    )
    model.load_adapter(two, adapter_name="two")
    file = tmp_path / "both.pt"
    torch.save(model.state_dict(), file)
    refused(file, "holds several adapters (one, two)", base=tiny_base, lora_alpha=8)

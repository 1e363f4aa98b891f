"""Adapters that PEFT does not read as they lie there, and those of other versions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import IDS, change, opened, problem_of, reference_of, refused, said
from safetensors.torch import load_file, save_file
from tiny_models import adapted, make_model, save_model

pytestmark = [
    # What PEFT warns of while it saves and loads the reference.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:The following rank_pattern:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:The following alpha_pattern:RuntimeWarning"),
]
MLX = "adapters.safetensors"


def as_mlx(folder: Path, adapter: Path, **settings: Any) -> Path:
    """Write PEFT's LoRA (alpha 8, rank 4: scale 2) as mlx-lm writes its own."""
    folder.mkdir()
    state = {}
    for key, tensor in load_file(adapter / "adapter_model.safetensors").items():
        name = key.removeprefix("base_model.model.")
        name = name.replace("lora_magnitude_vector", "m")
        name = name.replace("lora_A.weight", "lora_a")
        name = name.replace("lora_B.weight", "lora_b")
        state[name] = tensor.T.contiguous() if ".lora_" in name else tensor
    save_file(state, folder / MLX)
    parameters = {"rank": 4, "scale": 2.0, "dropout": 0.0}
    config = {"fine_tune_type": "lora", "lora_parameters": parameters, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_mlx_computes_what_it_trained(kind, tiny_base, make_adapter, tmp_path):
    lora = {"use_dora": True} if kind == "dora" else {}
    adapter = make_adapter(tmp_path / "a", **lora)
    folder = as_mlx(tmp_path / "mlx", adapter, fine_tune_type=kind)
    loaded = opened(folder, base=tiny_base)
    assert loaded.format == "mlx-adapter"
    expected = said(reference_of(tiny_base, adapter))
    assert torch.allclose(said(loaded), expected, rtol=0, atol=1e-6)
    assert not problem_of(folder, base=tiny_base)


def test_lora_by_mlxs_own_formula(tiny_base, make_adapter, tmp_path):
    """x W + scale (x a) b, on a weight that is merged by hand."""
    from transformers import AutoModelForCausalLM

    folder = as_mlx(tmp_path / "mlx", make_adapter(tmp_path / "a"))
    state = load_file(folder / MLX)
    model = AutoModelForCausalLM.from_pretrained(tiny_base).double()
    for name in {key.rpartition(".")[0] for key in state}:
        a = state[f"{name}.lora_a"].double()
        b = state[f"{name}.lora_b"].double()
        model.get_submodule(name).weight.data += 2.0 * (a @ b).T
    with opened(folder, base=tiny_base).active() as active_model:
        logits = active_model.double()(input_ids=IDS, use_cache=False).logits[0]
    assert torch.allclose(logits, said(model), rtol=0, atol=1e-9)


def test_what_mlx_leaves_open_is_refused(tiny_base, make_adapter, copied, tmp_path):
    good = as_mlx(tmp_path / "mlx", make_adapter(tmp_path / "a"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"fine_tune_type": "full"}, "mlx_lm.fuse --model BASE"),
        ({"lora_parameters": {"rank": 4}}, "lora_parameters has no scale"),
        ({"lora_parameters": {"scale": 2.0, "alpha": 16}}, "scale and alpha"),
        ({"lora_parameters": {"scale": 2.0, "rank": 8}}, "says rank 8"),
        (
            {"lora_parameters": {"scale": 2.0, "keys": ["self_attn.q_proj"]}},
            "v_proj, which adapter_config.json does not name in keys",
        ),
    ]
    for number, (changes, message) in enumerate(cases):
        folder = copied(good, str(number))
        change(folder / "adapter_config.json", **changes)
        refused(folder, message, base=tiny_base)
    refused(good, "give --base")
    keys = ["self_attn.q_proj", "self_attn.v_proj"]
    named = copied(good, "named")
    settings = {"scale": 2.0, "rank": 4, "keys": keys}
    change(named / "adapter_config.json", lora_parameters=settings)
    assert torch.equal(
        said(opened(named, base=tiny_base)), said(opened(good, base=tiny_base))
    )


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_file_of_mlx_or_torchtune_without_its_settings_is_named(
    as_folder, tiny_base, make_adapter, tmp_path
):
    folder = as_mlx(tmp_path / "mlx", make_adapter(tmp_path / "a"))
    (folder / "adapter_config.json").unlink()
    source = folder if as_folder else folder / MLX
    refused(source, "adapter_config.json that MLX wrote", base=tiny_base)

    torchtune_folder = tmp_path / "torchtune"
    torchtune_folder.mkdir()
    state = {"layers.0.attn.q_proj.lora_a.weight": torch.ones(4, 32)}
    torch.save(state, torchtune_folder / "adapter_0.pt")
    source = torchtune_folder if as_folder else torchtune_folder / "adapter_0.pt"
    refused(source, "that torchtune writes for PEFT", base=tiny_base)


@pytest.mark.parametrize("lora", [{}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_a_whole_state_dictionary_in_place_of_an_adapter(lora, tiny_base, tmp_path):
    from transformers import AutoModelForCausalLM

    model = adapted(AutoModelForCausalLM.from_pretrained(tiny_base), **lora)
    expected = said(model)
    folder = tmp_path / "a"
    model.save_pretrained(folder)
    (folder / "adapter_model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "adapter_model.bin")
    loaded = opened(folder, base=tiny_base)
    assert torch.allclose(said(loaded), expected, rtol=0, atol=1e-6)
    assert not problem_of(folder, base=tiny_base)
    # Of the adapter alone, with its name in every tensor's.
    own_state = {k: t for k, t in model.state_dict().items() if ".default." in k}
    torch.save(own_state, folder / "adapter_model.bin")
    loaded = opened(folder, base=tiny_base)
    assert loaded.base == "tiny-base"
    assert torch.allclose(said(loaded), expected, rtol=0, atol=1e-6)
    other_state = {k.replace("default", "other"): t for k, t in own_state.items()}
    torch.save(own_state | other_state, folder / "adapter_model.bin")
    refused(folder, "holds several adapters (default, other)", base=tiny_base)


MIXTRAL = {"w1": (64, 32), "w2": (32, 64), "w3": (64, 32)}


def test_lora_of_each_expert_is_joined_as_its_experts_are(tmp_path):
    """Transformers 4 had a module for each expert, version 5 one tensor for all."""
    import peft

    base = save_model(make_model("mixtral", num_local_experts=4), tmp_path / "base")
    task: Any = "CAUSAL_LM"
    config = peft.LoraConfig(
        r=2, lora_alpha=4, task_type=task, target_modules=["q_proj", *MIXTRAL]
    )
    folder = tmp_path / "a"
    config.save_pretrained(str(folder))
    generator = torch.Generator().manual_seed(3)
    state = {}
    for layer in range(2):
        prefix = f"base_model.model.model.layers.{layer}"
        shapes = {f"{prefix}.self_attn.q_proj": (32, 32)}
        for expert in range(4):
            for name, shape in MIXTRAL.items():
                shapes[f"{prefix}.block_sparse_moe.experts.{expert}.{name}"] = shape
        for layer_name, (n_out, n_in) in shapes.items():
            a = torch.Size((2, n_in))
            b = torch.Size((n_out, 2))
            state[f"{layer_name}.lora_A.weight"] = (
                torch.randn(a, generator=generator) * 0.2
            )
            state[f"{layer_name}.lora_B.weight"] = (
                torch.randn(b, generator=generator) * 0.2
            )
    save_file(state, folder / "adapter_model.safetensors")
    loaded = opened(folder, base=base)
    expected = said(reference_of(base, folder))
    assert torch.allclose(said(loaded), expected, rtol=0, atol=1e-5)
    assert not problem_of(folder, base=base)

    # By hand: each expert's product is added to its part of the joined tensor.
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base).double()
    for layer_name in {key.rpartition(".lora_")[0] for key in state}:
        product = 2.0 * (
            state[f"{layer_name}.lora_B.weight"].double()
            @ state[f"{layer_name}.lora_A.weight"].double()
        )
        path = layer_name.removeprefix("base_model.model.")
        if "experts" not in path:
            model.get_submodule(path).weight.data += product
            continue
        block, expert, name = path.rsplit(".", 2)
        experts = model.get_submodule(block.replace("block_sparse_moe", "mlp"))
        joined = experts.down_proj if name == "w2" else experts.gate_up_proj
        first = 64 if name == "w3" else 0
        joined.data[int(expert), first : first + len(product)] += product
    log_p = said(loaded).double().log_softmax(-1)
    # Experts are multiplied together in float32 at most.
    by_hand = said(model.float()).double().log_softmax(-1)
    assert float((log_p - by_hand).abs().max()) <= 1e-5

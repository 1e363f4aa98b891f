"""Folders as DeepSpeed, accelerate, torchtune, FSDP, TRL and llama.cpp leave them."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from gguf_files import written
from refusals import (
    change,
    edited,
    inspected,
    opened,
    problem_of,
    reference_of,
    refused,
    said,
)
from safetensors.torch import load_file, save_file
from tiny_models import make_model, make_tokenizer, save_model

from spark_audit.checkpoints.open import OpenCheckpoints
from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.errors import InputError


@pytest.fixture(scope="module")
def trained():
    """Weights that are not the base's."""
    return make_model("llama", seed=1)


def in_two_files(model, folder: Path, kind: str) -> None:
    """Shards with their index, as safetensors (``safetensors``) or ``bin``."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    stem = "model" if kind == "safetensors" else "pytorch_model"
    index = {}
    for number, keys in enumerate((sorted(state)[:10], sorted(state)[10:]), start=1):
        name = f"{stem}-{number:05d}-of-00002.{kind}"
        partial_state = {key: state[key] for key in keys}
        if kind == "safetensors":
            save_file(partial_state, folder / name, metadata={"format": "pt"})
        else:
            torch.save(partial_state, folder / name)
        index |= dict.fromkeys(keys, name)
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    (folder / f"{stem}.{kind}.index.json").write_text(text)


def test_deepspeed_leaves_a_script_and_its_own_states(trained, tmp_path):
    folder = save_model(trained, tmp_path / "checkpoint-10")
    (folder / "zero_to_fp32.py").write_text("raise SystemExit")
    (folder / "latest").write_text("global_step10")
    (folder / "global_step10").mkdir()
    torch.save({"x": torch.zeros(1)}, folder / "global_step10/mp_rank_00.pt")
    torch.save({"a": 1}, folder / "training_args.bin")
    loaded = opened(folder)
    assert torch.equal(said(loaded), said(trained))
    assert any("not run (zero_to_fp32.py)" in note for note in loaded.notes)


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
@pytest.mark.parametrize("named", ["pytorch_model.bin", "model.safetensors"])
def test_zero_to_fp32_makes_a_folder_of_the_name_it_is_given(
    kind, named, trained, tmp_path
):
    run = tmp_path / "run"
    (run / named).mkdir(parents=True)
    trained.config.save_pretrained(run)
    make_tokenizer().save_pretrained(run)
    in_two_files(trained, run / named, kind)
    for folder in (run, run / named):
        assert torch.equal(said(opened(folder, tokenizer=str(run))), said(trained))


def test_a_folder_of_weights_that_is_a_link_out_of_the_folder(trained, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run = tmp_path / "run"
    elsewhere.mkdir()
    run.mkdir()
    trained.config.save_pretrained(run)
    in_two_files(trained, elsewhere, "bin")
    (run / "pytorch_model.bin").symlink_to(elsewhere)
    refused(run, "pytorch_model.bin leads out of the folder")


@pytest.mark.parametrize("sharded", [False, True])
def test_accelerate_saves_a_state_without_configuration(
    sharded, trained, tiny_base, tmp_path
):
    if sharded:
        in_two_files(trained, tmp_path, "safetensors")
    else:
        state = {key: value.clone() for key, value in trained.state_dict().items()}
        save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for name in ("optimizer.bin", "scheduler.bin", "sampler.bin", "scaler.pt"):
        torch.save({"s": torch.zeros(1)}, tmp_path / name)
    assert torch.equal(said(opened(tmp_path, base=tiny_base)), said(trained))
    assert "model" in inspected(tmp_path, base=tiny_base)["files"]
    # A second model that was prepared beside it.
    shutil.copy(next(tmp_path.glob("*.safetensors")), tmp_path / "model_1.safetensors")
    refused(tmp_path, "holds weights of several models", base=tiny_base)


def test_accelerate_saves_a_peft_model_with_its_base(tiny_base, make_adapter, tmp_path):
    adapter = make_adapter(tmp_path / "adapter")
    model = reference_of(tiny_base, adapter)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    folder = tmp_path / "state"
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, "give --lora-alpha, or put adapter_config.json", base=tiny_base)
    loaded = opened(folder, base=tiny_base, lora_alpha=8.0)
    assert torch.equal(said(loaded), said(model))
    shutil.copy(adapter / "adapter_config.json", folder)
    refused(folder, "write state@full if the adapter's tensors are", base=tiny_base)
    loaded = opened(f"{folder}@full", base=tiny_base)
    assert torch.equal(said(loaded), said(model))


def test_full_weights_and_an_adapter_in_one_folder_are_selected_by_name(
    trained, tiny_base, make_adapter, tmp_path
):
    for number in range(2):
        folder = save_model(trained, tmp_path / f"epochs/epoch_{number}")
        make_adapter(folder)
    adapter_alone = make_adapter(tmp_path / "alone")
    with_adapter = said(opened(adapter_alone, base=tiny_base))
    message = "which of them is meant?; write epoch_1@full"
    refused(folder, message, base=tiny_base)
    epochs = tmp_path / "epochs"
    for source in (f"{folder}@full", f"{epochs}@full", f"{epochs}@1:full"):
        assert torch.equal(said(opened(source, base=tiny_base)), said(trained))
    for source in (f"{folder}@adapter", f"{epochs}@adapter", f"{epochs}@2:adapter"):
        assert torch.equal(said(opened(source, base=tiny_base)), with_adapter)
    refused(f"{adapter_alone}@full", "holds no full weights", base=tiny_base)
    refused(f"{tiny_base}@adapter", "holds no adapter")


def test_several_checkpoints_in_a_folder_are_named(
    tiny_base, make_adapter, trained, tmp_path
):
    for name in ("policy", "reference"):
        make_adapter(tmp_path / "out" / name)
    message = "(these folders in it are: policy, reference); give one of them, such as"
    refused(tmp_path / "out", f"{message} out/policy", base=tiny_base)
    for name in ("early.pt", "late.pt"):
        torch.save(trained.state_dict(), tmp_path / name)
    (tmp_path / "files").mkdir()
    for name in ("early.pt", "late.pt"):
        shutil.move(tmp_path / name, tmp_path / "files" / name)
    refused(tmp_path / "files", "(these files in it are: early.pt, late.pt)")


def test_named_adapters_beside_a_configuration_and_the_hubs_cache(
    tiny_base, make_adapter, trained, tmp_path
):
    make_adapter(tmp_path / "out" / "policy")
    shutil.copy(tiny_base / "config.json", tmp_path / "out")
    refused(tmp_path / "out", "give one of them, such as out/policy", base=tiny_base)
    cache = tmp_path / "models--me--mine"
    save_model(trained, cache / "snapshots" / "abc")
    refused(cache, "give one of them, such as models--me--mine/snapshots/abc")
    save_model(trained, tmp_path / "run" / "artifacts" / "model")
    refused(tmp_path / "run", "give one of them, such as run/artifacts/model")


def test_lightnings_file_is_read_as_any_other(trained, tiny_base, tmp_path):
    file = tmp_path / "last.ckpt"
    state = {f"model.{key}": value for key, value in trained.state_dict().items()}
    torch.save({"epoch": 1, "state_dict": state}, file)
    loaded = opened(file, base=tiny_base)
    assert torch.equal(said(loaded), said(trained))
    assert not problem_of(file, base=tiny_base)


def test_shards_without_their_index_are_told(trained, tiny_base, tmp_path):
    folder = save_model(trained, tmp_path)
    (folder / "model.safetensors").unlink()
    in_two_files(trained, folder, "safetensors")
    (folder / "model.safetensors.index.json").unlink()
    refused(folder, "add the model.safetensors.index.json", base=tiny_base)


def test_names_of_meta_are_told_with_the_command_that_converts(tiny_base, tmp_path):
    file = tmp_path / "consolidated.00.pth"
    torch.save({"tok_embeddings.weight": torch.ones(300, 32)}, file)
    refused(file, "convert_llama_weights_to_hf", base=tiny_base)


def test_metas_own_folder_is_refused_whatever_transformers_can_rename(
    trained, tmp_path, monkeypatch
):
    folder = save_model(trained, tmp_path)
    save_file(
        {"tok_embeddings.weight": torch.ones(300, 32)}, folder / "model.safetensors"
    )
    refused(folder, "convert_llama_weights_to_hf")

    conversions = import_module("transformers.conversion_mapping")
    getter = "get_checkpoint_conversion_mapping"
    # Renamings in the form of transformers 4, and of a release that keeps none there.
    monkeypatch.setattr(conversions, getter, lambda model_type: {"^a": "b"})
    refused(folder, "convert_llama_weights_to_hf")
    monkeypatch.delattr(conversions, getter)
    refused(folder, "convert_llama_weights_to_hf")
    monkeypatch.setitem(sys.modules, conversions.__name__, None)
    refused(folder, "convert_llama_weights_to_hf")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_told(name, trained, tmp_path):
    folder = save_model(trained, tmp_path)
    (folder / "model.safetensors").unlink()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / name).write_bytes(pointer)
    refused(folder, "git lfs pull")


def test_a_pattern_in_quotes_is_what_a_shell_makes_of_it(
    tiny_base, make_adapter, tmp_path, monkeypatch
):
    for name in ("a", "b"):
        make_adapter(tmp_path / "out" / name)
    (tmp_path / "out/log.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    specs = parse_specs(["out/*"])
    assert [spec.name for spec in specs] == ["a", "b"]
    opening = OpenCheckpoints(specs, Loading(base=str(tiny_base), device="cpu"))
    assert opening.groups == [["base", "a", "b"]]
    (seeds,) = parse_specs(["mine=out/[ab]"])
    assert (seeds.name, seeds.paths) == ("mine", ("out/a", "out/b"))
    with pytest.raises(InputError, match="^--ckpt nothing/"):
        parse_specs(["nothing/*"])


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("pytorch_model_fsdp_0/__0_0.distcp", "accelerate merge-weights"),
        ("__0_0.distcp", "dcp_to_torch"),
        (
            "global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "zero_to_fp32.py",
        ),
        ("model_world_size_8_rank_0.pt", "verl.model_merger merge"),
        ("consolidated.01.pth", "convert_llama_weights_to_hf"),
        ("mp_rank_00/model_optim_rng.pt", "Megatron Bridge"),
    ],
)
@pytest.mark.parametrize("described", [True, False])
def test_shards_are_refused_with_the_command_that_makes_them_whole(
    name, command, described, trained, tiny_base, tmp_path
):
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    (run / name).write_bytes(b"x")
    if described:
        trained.config.save_pretrained(run)
    refused(run, command, base=tiny_base)
    assert command in problem_of(run, base=tiny_base)
    if "." in name.rpartition("/")[2] and "mp_rank_00/" not in name:
        refused(run / name, command, base=tiny_base)


@pytest.mark.parametrize("head", ["v_head.summary", "v_head.0", "value_head"])
def test_a_value_head_is_left_out_and_noted(head, trained, tmp_path):
    folder = save_model(trained, tmp_path)
    edited(
        folder / "model.safetensors",
        lambda state: state.update(
            {f"{head}.weight": torch.ones(1, 32), f"{head}.bias": torch.ones(1)}
        ),
    )
    # TRL's class, of which transformers knows nothing.
    change(folder / "config.json", architectures=["AutoModelForCausalLMWithValueHead"])
    loaded = opened(folder)
    assert torch.equal(said(loaded), said(trained))
    assert any("a value head" in note and "2 tensors" in note for note in loaded.notes)


def test_the_whole_wrapped_model_of_ppo_is_opened(trained, tiny_base, tmp_path):
    state = {f"pretrained_model.{k}": v for k, v in trained.state_dict().items()}
    state |= {"v_head.summary.weight": torch.ones(1, 32)}
    torch.save(state, tmp_path / "policy.pt")
    loaded = opened(tmp_path / "policy.pt", base=tiny_base)
    assert torch.equal(said(loaded), said(trained))


CLASSES = ["FSDPLlamaForCausalLM", "LLaMAForCausalLM", "AutoModelForCausalLM"]


@pytest.mark.parametrize("name", CLASSES)
def test_other_names_of_the_same_class(name, trained, tmp_path):
    folder = save_model(trained, tmp_path)
    change(folder / "config.json", architectures=[name])
    loaded = opened(folder)
    assert torch.equal(said(loaded), said(trained))
    assert any(f"names the class {name}" in note for note in loaded.notes)


def test_a_body_without_its_head_opens_where_the_head_is_tied(tmp_path):
    for is_tied in (True, False):
        model = make_model("llama", tie_word_embeddings=is_tied)
        folder = save_model(model.model, tmp_path / str(is_tied))
        change(folder / "config.json", architectures=["LlamaModel"])
        if is_tied:
            assert torch.equal(said(opened(folder)), said(model))
        else:
            refused(folder, "tensor lm_head.weight is missing")


def test_an_unknown_class_is_refused_with_what_to_write(trained, tmp_path):
    folder = save_model(trained, tmp_path)
    change(folder / "config.json", architectures=["OtherForCausalLM"])
    refused(folder, "unknown to transformers")


def masks(kind: str, layers: int = 2, size: int = 256) -> dict[str, torch.Tensor]:
    """Buffers that an old version of transformers saved with a tiny model."""
    ones = torch.ones(size, size, dtype=torch.bool)
    causal = ones.tril()
    local = ones.tril() & ~ones.tril(-16)
    inner = 4  # rotary dimension
    frequencies = 10_000.0 ** (-torch.arange(inner // 2) / (inner // 2))
    angles = torch.arange(size)[:, None] * frequencies
    masks_found: dict[str, torch.Tensor] = {}
    for i in range(layers):
        if kind == "gpt2":
            masks_found[f"transformer.h.{i}.attn.bias"] = causal[None, None].to(
                torch.uint8
            )
            masks_found[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        elif kind == "gpt_neo":
            mask = (local if i % 2 else causal)[None, None]
            masks_found[f"transformer.h.{i}.attn.attention.bias"] = mask
            masks_found[f"transformer.h.{i}.attn.attention.masked_bias"] = torch.tensor(
                -1e9
            )
        elif kind == "gptj":
            masks_found[f"transformer.h.{i}.attn.bias"] = causal[None, None]
            masks_found[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e9)
            table = torch.cat([angles.sin(), angles.cos()], dim=1)
            masks_found[f"transformer.h.{i}.attn.embed_positions"] = table
        elif kind == "codegen":
            masks_found[f"transformer.h.{i}.attn.causal_mask"] = causal[None, None]
        elif kind == "gpt_neox":
            front = f"gpt_neox.layers.{i}.attention"
            masks_found[f"{front}.bias"] = causal[None, None]
            masks_found[f"{front}.masked_bias"] = torch.tensor(-1e9)
        elif kind == "llama":
            front = f"model.layers.{i}.self_attn.rotary_emb"
            eight = 10_000.0 ** (-torch.arange(4) / 4)
            turns = torch.arange(size)[:, None] * eight
            turns = torch.cat([turns, turns], dim=1)
            masks_found[f"{front}.inv_freq"] = eight
            masks_found[f"{front}.cos_cached"] = turns.cos()[None, None]
            masks_found[f"{front}.sin_cached"] = turns.sin()[None, None]
        else:
            masks_found["model.decoder.version"] = torch.tensor([2.0])
    return masks_found


OLD = {
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "gptj": {},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    "gpt_neox": {},
    "llama": {},
    "opt": {},
}


@pytest.mark.parametrize("kind", OLD)
@pytest.mark.parametrize("half", [False, True])
def test_what_old_versions_saved_and_new_ones_compute(kind, half, tmp_path):
    model = make_model(kind, **OLD[kind])
    folder = save_model(model, tmp_path)
    before = said(opened(folder))
    buffers = masks(kind)
    if half:
        buffers = {
            name: value.half() if value.is_floating_point() else value
            for name, value in buffers.items()
        }
    file = folder / "model.safetensors"
    assert not buffers.keys() & load_file(file).keys()
    copies = {name: value.clone() for name, value in buffers.items()}
    edited(file, lambda state: state.update(copies))
    loaded = opened(folder)
    assert torch.equal(said(loaded), before)
    assert torch.equal(before, said(model))
    assert any(note.startswith("left out: ") for note in loaded.notes)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt_neo", "transformer.h.1.attn.attention.bias"),
        ("gptj", "transformer.h.0.attn.embed_positions"),
        ("llama", "model.layers.0.self_attn.rotary_emb.cos_cached"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ],
)
def test_a_mask_or_table_with_other_numbers_is_another_model(kind, name, tmp_path):
    folder = save_model(make_model(kind, **OLD[kind]), tmp_path)
    buffer = masks(kind)[name]
    if "bias" in name:
        buffer = torch.ones_like(buffer)
    else:
        buffer = buffer * 0.5
    edited(folder / "model.safetensors", lambda state: state.update({name: buffer}))
    refused(folder, f"tensor {name} ")


def test_a_gguf_file_beside_its_configuration_is_opened(
    tiny_base, base_model, tiny_tokenizer, tmp_path
):
    pytest.importorskip("gguf", reason="the extra `gguf`")
    tokens = [*tiny_tokenizer.convert_ids_to_tokens(range(len(tiny_tokenizer)))]
    written(tmp_path / "model.gguf", base_model, tokens)
    for file in tiny_base.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, tmp_path / file.name)
    assert inspected(tmp_path)["format"] == "gguf-file"
    assert torch.allclose(said(opened(tmp_path)), said(opened(tiny_base)), atol=1e-5)
    shutil.copy(tmp_path / "model.gguf", tmp_path / "model-Q8_0.gguf")
    refused(tmp_path, "give a weights file itself (model-Q8_0.gguf)")


@pytest.mark.parametrize(
    ("name", "framework", "remedy"),
    [
        ("flax_model.msgpack", "Flax", "from_flax=True"),
        ("flax_model.msgpack.index.json", "Flax", "from_flax=True"),
        ("onnx/model.onnx", "ONNX", "that it was exported from"),
        ("tf_model.h5", "TensorFlow", "from_tf=True"),
        ("model.onnx", "ONNX", "exported from"),
        ("openvino_model.xml", "OpenVINO", "exported from"),
    ],
)
def test_weights_of_other_frameworks_are_named(
    name, framework, remedy, trained, tmp_path
):
    trained.config.save_pretrained(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    refused(tmp_path, f"holds weights of {framework}")
    refused(tmp_path, remedy)
    # Beside PyTorch's they are left alone.
    folder = save_model(trained, tmp_path / "both")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    assert torch.equal(said(opened(folder)), said(trained))

"""Rows "HF folder or hub id", "empty tensors", "T5-type folders", and safety."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import (
    Malicious,
    absent,
    change,
    edited,
    inspected,
    load_tokenizer,
    opened,
    problem_of,
    refused,
    said,
)
from tiny_models import make_model, save_model

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import CheckpointError, InputError

EMBEDDINGS = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("gpt2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
    ],
)
def test_says_what_the_source_says(kind, config, tmp_path):
    model = make_model(kind, **config)
    save_model(model, tmp_path)
    loaded = opened(tmp_path)
    assert torch.allclose(said(loaded), said(model), rtol=0, atol=1e-6)
    assert loaded.architecture == type(model).__name__
    assert loaded.format == "hf-folder"
    assert (loaded.base, loaded.base_sha256) == (None, None)
    assert loaded.max_positions == 256
    assert loaded.usable.shape == (300,)
    assert loaded.usable.all()
    assert (loaded.dtype, loaded.device) == ("float32", "cpu")
    assert not problem_of(tmp_path)


def test_dtype_is_what_was_asked_for(tiny_base):
    ids = {
        dtype: opened(tiny_base, dtype=dtype)
        for dtype in ("float32", "bfloat16", "auto")
    }
    assert ids["bfloat16"].dtype == "bfloat16"
    assert ids["auto"].dtype == "float32"
    assert ids["auto"].model_id == ids["float32"].model_id
    assert ids["bfloat16"].model_id != ids["float32"].model_id
    assert ids["bfloat16"].weights_sha256 == ids["float32"].weights_sha256
    with pytest.raises(InputError, match="'int3'"):
        open_checkpoint(str(tiny_base), dtype="int3")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(tiny_base):
    with pytest.raises(InputError, match="^--device: "):
        open_checkpoint(str(tiny_base), device="cuda")
    assert open_checkpoint(str(tiny_base), device="auto").device == "cpu"


def test_shards_and_pickles_hold_the_same_weights(base_model, tiny_base, copied):
    sharded = copied(tiny_base, "sharded")
    (sharded / "model.safetensors").unlink()
    base_model.save_pretrained(sharded, max_shard_size="20KB")
    assert (sharded / "model.safetensors.index.json").exists()
    assert torch.equal(said(opened(sharded)), said(base_model))
    pickled = copied(tiny_base, "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save(base_model.state_dict(), pickled / "pytorch_model.bin")
    assert torch.equal(said(opened(pickled)), said(base_model))
    legacy = copied(tiny_base, "legacy")
    (legacy / "model.safetensors").unlink()
    torch.save(
        base_model.state_dict(),
        legacy / "pytorch_model.bin",
        _use_new_zipfile_serialization=False,
    )
    assert torch.equal(said(opened(legacy)), said(base_model))


def test_wrong_tensors_are_refused_by_name(tiny_base, copied):
    norm = "model.layers.1.input_layernorm.weight"
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
        (lambda s: s.pop("lm_head.weight"), "tensor lm_head.weight is missing"),
        (
            lambda s: [s.pop(k) for k in list(s) if "layers.1.mlp" in k],
            "tensor model.layers.1.mlp.down_proj.weight is missing (and 2 more)",
        ),
        (
            lambda s: s.update({"score.weight": torch.ones(2)}),
            "tensor score.weight is unexpected",
        ),
        (
            lambda s: s.update({norm: torch.ones(31)}),
            f"tensor {norm} has shape [31], the model needs [32]",
        ),
        (
            lambda s: s.update({norm: torch.empty(0)}),
            f"tensor {norm} is empty: DeepSpeed ZeRO-3",
        ),
    ]
    for number, (spoil, message) in enumerate(cases):
        folder = copied(tiny_base, str(number))
        edited(folder / "model.safetensors", spoil)
        refused(folder, message)
        assert message in problem_of(folder)


def test_tied_head_that_is_missing_both_ways(tmp_path):
    model = make_model("llama", tie_word_embeddings=True)
    save_model(model, tmp_path)
    file = tmp_path / "model.safetensors"
    # The head alone was saved: the same matrix under its other name.
    edited(file, lambda s: s.update({"lm_head.weight": s.pop(EMBEDDINGS)}))
    loaded = opened(tmp_path)
    assert torch.equal(said(loaded), said(model))
    # Two different matrices although the configuration ties them.
    edited(file, lambda s: s.update({EMBEDDINGS: s["lm_head.weight"] * 2}))
    loaded = opened(tmp_path)
    edited(file, lambda s: [s.pop(k) for k in ("lm_head.weight", EMBEDDINGS)])
    refused(tmp_path, "tensor lm_head.weight is missing (and 1 more)")


def test_other_kinds_of_models_are_refused_by_name(tiny_base, tmp_path, copied):
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        T5Config,
        T5ForConditionalGeneration,
    )

    t5 = T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    refused(
        tmp_path / "t5", "T5ForConditionalGeneration is not a causal language model"
    )
    bert = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    BertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    refused(tmp_path / "bert", "BertForMaskedLM is not a causal language model")
    folder = copied(tiny_base)
    change(folder / "config.json", architectures=["LlamaForSequenceClassification"])
    refused(folder, "LlamaForSequenceClassification is not a causal language model")
    change(folder / "config.json", model_type="from_the_future", architectures=None)
    refused(folder, "config.json is not understood")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ],
)
def test_a_byte_order_mark_is_refused_as_transformers_does(name, tiny_base, copied):
    """Transformers refuses all but one, which it then leaves out in silence."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = copied(tiny_base)
    path = folder / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    refused(folder, f"{name} cannot be read: it begins with a byte order mark")
    own_reader = {
        "config.json": AutoModelForCausalLM,
        "generation_config.json": GenerationConfig,
    }.get(name, AutoTokenizer)
    with pytest.raises((OSError, ValueError)):
        own_reader.from_pretrained(folder)


def test_a_model_that_reads_ahead_is_refused(tmp_path):
    from transformers import BertConfig, BertLMHeadModel

    config = BertConfig(
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
        max_position_embeddings=64,
    )
    # One of 200 random models hardly looks at the last token.
    torch.manual_seed(0)
    save_model(BertLMHeadModel(config), tmp_path)
    refused(tmp_path, "the model reads ahead")


def test_code_and_redirects_are_refused(tiny_base, copied, tmp_path):
    folder = copied(tiny_base, "a")
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling.Own"})
    refused(folder, "brings its own code (auto_map); read the code, then add")
    folder = copied(tiny_base, "b")
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate/generate.py").write_text("raise SystemExit")
    refused(folder, "brings its own code (generate.py)")
    folder = copied(tiny_base, "c")
    change(folder / "config.json", attn_implementation="someone/flash-attention")
    refused(folder, "takes its attention code from the hub (attn_implementation)")
    folder = copied(tiny_base, "d")
    change(folder / "config.json", transformers_weights="../other.safetensors")
    refused(folder, "config.json names a file (transformers_weights)")
    folder = copied(tiny_base, "e")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["own.Tokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    refused(folder, "the tokenizer brings its own code (auto_map)")


def test_a_script_that_no_configuration_names_is_not_run(tiny_base, copied, tmp_path):
    folder = copied(tiny_base)
    for name in ("handler.py", "modeling_own.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    loaded = opened(folder)
    assert torch.equal(said(loaded), said(opened(tiny_base)))
    assert any("handler.py, modeling_own.py" in note for note in loaded.notes)
    assert not (tmp_path / "ran").exists()


def test_code_of_a_checkpoint_runs_where_it_is_trusted(
    tiny_base, base_model, copied, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    folder = copied(tiny_base)
    (folder / "own.py").write_text(
        "from transformers import LlamaForCausalLM\n"
        "class Own(LlamaForCausalLM):\n"
        "    pass\n"
    )
    change(
        folder / "config.json",
        auto_map={"AutoModelForCausalLM": "own.Own"},
        architectures=["Own"],
    )
    loaded = opened(folder, trust_remote_code=True)
    assert loaded.architecture == "Own"
    assert torch.equal(said(loaded), said(base_model))


def test_files_outside_the_folder_are_refused(tiny_base, copied):
    folder = copied(tiny_base, "a")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tiny_base / "model.safetensors")
    refused(folder, "model.safetensors leads out of the folder")
    (folder / "model.safetensors").unlink()
    for name in ("../tiny-base/model.safetensors", "/etc/passwd"):
        index = {"weight_map": {"lm_head.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        refused(folder, f"{Path(name).name} leads out of the folder")
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "model-00001-of-00001.safetensors, which model.safetensors.index")
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, "has no weight_map; copy or download the checkpoint again")
    folder = copied(tiny_base, "b")
    os.rename(folder / "config.json", folder.parent / "elsewhere.json")
    (folder / "config.json").symlink_to(folder.parent / "elsewhere.json")
    refused(folder, "config.json leads out of the folder")


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
        *("special_tokens_map.json", "additional_chat_templates/x.jinja"),
    ],
)
def test_no_file_that_another_library_reads_is_a_link_out_of_the_folder(
    name, tiny_base, copied, tmp_path
):
    folder = copied(tiny_base)
    outside = tmp_path / "theirs"
    outside.write_text("{}")
    if (folder / name).exists():
        os.replace(folder / name, outside)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside)
    message = f"{Path(name).name} leads out of the folder"
    refused(folder, message)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder)
    # Beside a file that is given alone, too.
    refused(folder / "model.safetensors", message)


def test_no_folder_of_a_checkpoint_is_a_link_out_of_it(tiny_base, copied, tmp_path):
    folder = copied(tiny_base)
    (tmp_path / "theirs").mkdir()
    (folder / "additional_chat_templates").symlink_to(tmp_path / "theirs")
    refused(folder, "additional_chat_templates leads out of the folder")
    folder = copied(tiny_base, "sharded")
    os.replace(folder / "model.safetensors", tmp_path / "theirs/model.safetensors")
    (folder / "sub").symlink_to(tmp_path / "theirs")
    index = {"weight_map": {EMBEDDINGS: "sub/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "model.safetensors leads out of the folder")


def test_a_linked_folder_and_links_inside_it_are_fine(tiny_base, copied, tmp_path):
    folder = copied(tiny_base)
    os.rename(folder / "model.safetensors", folder / "weights.data")
    (folder / "model.safetensors").symlink_to("weights.data")
    (tmp_path / "link").symlink_to(folder)
    assert opened(tmp_path / "link").source == "link"


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused(zipped, tiny_base, copied, tmp_path):
    folder = copied(tiny_base)
    mark = tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    torch.save(
        {"lm_head.weight": Malicious(mark)},
        folder / "pytorch_model.bin",
        _use_new_zipfile_serialization=zipped,
    )
    refused(folder, "the pickle asks for posix.system, which could run code")
    assert problem_of(folder)
    assert not mark.exists()


def test_weights_of_a_wrapped_model_point_to_the_file(base_model, tiny_base, copied):
    folder = copied(tiny_base)
    (folder / "model.safetensors").unlink()
    state = {f"module.{k}": v for k, v in base_model.state_dict().items()}
    torch.save(state, folder / "pytorch_model.bin")
    refused(folder, "the weights are those of a wrapped model (tensor module.model")
    torch.save({"model": base_model.state_dict()}, folder / "pytorch_model.bin")
    refused(folder, "holds something else than tensors (model); give the file")


def test_full_weights_beside_an_adapter_are_ambiguous(tiny_base, copied, make_adapter):
    folder = make_adapter(copied(tiny_base))
    refused(folder, "holds full weights and an adapter: which of them is meant?")


def test_what_the_vocabulary_leaves_over(tmp_path):
    save_model(make_model("llama", vocab_size=320), tmp_path)
    loaded = opened(tmp_path)
    assert loaded.usable.shape == (320,)
    assert loaded.usable[:300].all()
    assert not loaded.usable[300:].any()
    assert any(n.startswith("20 of 320 rows of the head") for n in loaded.notes)
    assert inspected(tmp_path)["vocabulary"] == ("300 tokens in 320 rows")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["bitsandbytes", "compressed-tensors"])
def test_a_quantised_model_says_what_its_maker_says(
    tiny_base, tiny_tokenizer, tmp_path, method
):
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    pytest.importorskip(method.replace("-", "_"), reason=f"{method} is not installed")
    if method == "bitsandbytes":
        model = AutoModelForCausalLM.from_pretrained(
            tiny_base,
            quantization_config=BitsAndBytesConfig(load_in_8bit=True),
            device_map={"": "cpu"},
            dtype=torch.float32,
        )
        # Before anything is said: on CPU a forward may pack the weights that are saved.
        model.save_pretrained(tmp_path)
    else:
        model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
        compressor = rounded(model)
        truth = said(model)
        compressor.compress_model(model)
        model.save_pretrained(tmp_path)
        compressor.update_config(str(tmp_path))
    tiny_tokenizer.save_pretrained(tmp_path)
    truth = said(model) if method == "bitsandbytes" else truth
    loaded = opened(tmp_path)
    assert f"quantised weights ({method})" in loaded.notes
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-5)
    plain = opened(tiny_base)
    assert not torch.allclose(said(plain), truth, rtol=0, atol=1e-3)


def rounded(model: Any) -> Any:
    """Weights as eight-bit numbers with a scale a row, by compressed-tensors."""
    from compressed_tensors import compressors
    from compressed_tensors import quantization as ct

    config = ct.QuantizationConfig(
        config_groups={
            "all": ct.QuantizationScheme(
                targets=["Linear"],
                weights=ct.QuantizationArgs(num_bits=8, strategy="channel"),
            )
        },
        ignore=["lm_head"],
        quantization_status="initialized",
        format="int-quantized",
    )
    ct.apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            size = module.weight.detach().abs().amax(-1, keepdim=True)
            module.weight_scale.data.copy_(size / 127.5)
            module.quantization_status = ct.QuantizationStatus.FROZEN
    return compressors.ModelCompressor(quantization_config=config)


@pytest.mark.parametrize(
    "source",
    [
        "hf:someone/not-there",
        "someone/not-there",
        "nothing.safetensors",
        "no-such-thing",
    ],
)
def test_an_id_of_the_hub_is_told_from_a_typing_error(source, monkeypatch, tmp_path):
    import huggingface_hub

    hosts: list[str] = []

    def offline(repo: str, **options: Any) -> str:
        hosts.append(repo)
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    if source.startswith("hf:"):
        refused(source, "cannot be fetched from the hub (LocalEntryNotFoundError")
        assert hosts == ["someone/not-there"]
    else:
        absent(source, "there is no such file or folder; check the path")
        assert not hosts
    refused("hf:x", "is no model on the hub; write hf:ORG/NAME")


def test_a_fetched_model_may_be_links_into_the_cache(
    tiny_base, base_model, monkeypatch, tmp_path
):
    repo = tmp_path / "models--org--tiny"
    snapshot = repo / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for file in tiny_base.iterdir():
        (repo / "blobs" / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(repo / "blobs" / file.name)
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *a, **o: str(snapshot)
    )
    loaded = opened("hf:org/tiny")
    assert (loaded.source, loaded.name) == ("hf:org/tiny", "tiny")
    assert torch.equal(said(loaded), said(base_model))
    # Of the cache itself only blobs are the snapshot's, wherever the user stands.
    monkeypatch.chdir(snapshot)
    assert opened(".").weights_sha256 == loaded.weights_sha256
    for target in (tmp_path / "theirs", repo / "refs"):
        target.write_text("{}")
        (snapshot / "tokenizer_config.json").unlink()
        (snapshot / "tokenizer_config.json").symlink_to(target)
        refused(snapshot, "tokenizer_config.json leads out of the folder")


def test_the_same_weights_have_the_same_digest_after_saving_again(
    tiny_base, base_model, tmp_path
):
    base_model.save_pretrained(tmp_path / "again")
    again = opened(tmp_path / "again", base=tiny_base)
    first = opened(tiny_base)
    assert again.weights_sha256 == first.weights_sha256
    assert again.model_id == first.model_id
    assert "tokenizer: the base's" in again.notes

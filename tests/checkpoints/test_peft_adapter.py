"""Rows "PEFT folder", "PEFT saved by O-LoRA", "IA3, DoRA, prompt tuning"."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import change, edited, opened, problem_of, reference_of, refused, said
from safetensors.torch import load_file, save_file
from tiny_models import make_model, make_tokenizer, save_model

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import CheckpointError

LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
LORA_B = LORA_A.replace("lora_A", "lora_B")


def saved(folder: Path, base: Path, config: Any, *, seed: int = 3) -> Path:
    """Save an adapter of any type with random weights, as PEFT does."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(weight + 0.2 * noise)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "lora",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True},
        {"target_modules": "all-linear"},
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
        {"rank_pattern": {"layers.0.self_attn.q_proj": 2}},
        {"alpha_pattern": {"v_proj": 3}},
        {"layers_to_transform": [1]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"trainable_token_indices": [5, 7]},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
def test_lora_says_what_peft_says(lora, tiny_base, make_adapter, tmp_path):
    folder = make_adapter(tmp_path / "a", **lora)
    loaded = opened(folder, base=tiny_base)
    reference = reference_of(tiny_base, folder)
    assert torch.allclose(said(loaded), said(reference), rtol=0, atol=1e-6)
    assert loaded.format == "peft-adapter"
    assert loaded.base == "tiny-base"
    assert not problem_of(folder)


@pytest.mark.parametrize(
    "kind", ["IA3", "PROMPT", "PREFIX", "P_TUNING", "LOHA", "VERA", "VERA_BARE", "OSF"]
)
@pytest.mark.filterwarnings("ignore:Specified to not:UserWarning")
def test_other_types_say_what_peft_says(kind, tiny_base, tmp_path):
    import peft

    task: Any = "CAUSAL_LM"
    config = {
        "IA3": lambda: peft.IA3Config(
            task_type=task,
            target_modules=["k_proj", "v_proj", "down_proj"],
            feedforward_modules=["down_proj"],
        ),
        "PROMPT": lambda: peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3),
        "PREFIX": lambda: peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=3),
        "P_TUNING": lambda: peft.PromptEncoderConfig(
            task_type=task, num_virtual_tokens=3, encoder_hidden_size=16
        ),
        "LOHA": lambda: peft.LoHaConfig(
            task_type=task, r=2, target_modules=["q_proj", "v_proj"]
        ),
        "VERA": lambda: peft.VeraConfig(
            task_type=task, r=4, target_modules=["q_proj", "o_proj"]
        ),
        "VERA_BARE": lambda: peft.VeraConfig(
            task_type=task,
            r=4,
            target_modules=["q_proj", "o_proj"],
            save_projection=False,
            projection_prng_key=7,
        ),
        "OSF": lambda: peft.OSFConfig(
            task_type=task,
            effective_rank=0.5,
            target_modules=["q_proj", "v_proj", "down_proj"],
            rank_pattern={"v_proj": 3},
        ),
    }[kind]()
    folder = saved(tmp_path / "a", tiny_base, config)
    loaded = opened(folder, base=tiny_base)
    reference = said(reference_of(tiny_base, folder))
    virtual = 3 if "PR" in kind or kind == "P_TUNING" else 0
    shift = 3 if kind in ("PROMPT", "P_TUNING") else 0
    # The prompt's own tokens are not among the rows of ours.
    assert said(loaded).shape == (10, 300)
    assert torch.allclose(said(loaded), reference[shift:], rtol=0, atol=1e-6)
    assert loaded.max_positions == 256 - virtual
    drawn_again = [note for note in loaded.notes if "drawn again" in note]
    assert len(drawn_again) == (kind == "VERA_BARE")
    assert not problem_of(folder)


@pytest.mark.parametrize("shift", [0, 3])
def test_positions_keep_their_meaning_with_a_prompt(shift, tiny_base, tmp_path):
    import peft

    task: Any = "CAUSAL_LM"
    cls = peft.PromptTuningConfig if shift else peft.PrefixTuningConfig
    folder = saved(tmp_path / "a", tiny_base, cls(task_type=task, num_virtual_tokens=3))
    loaded = opened(folder, base=tiny_base)
    ids = torch.tensor([[1, 47, 91, 223], [1, 80, 67, 0]])
    with loaded.active() as model:
        full = model(input_ids=ids, use_cache=False).logits
        logits_of_some = model(
            input_ids=ids, use_cache=False, logits_to_keep=torch.tensor([0, 2])
        ).logits
        # As the scorer counts them: from the end.
        behind = model(
            input_ids=ids, use_cache=False, logits_to_keep=torch.tensor([-4, -1])
        ).logits
    assert full.shape == (2, 4, 300)
    assert torch.allclose(logits_of_some, full[:, [0, 2]], rtol=0, atol=1e-5)
    assert torch.allclose(behind, full[:, [0, 3]], rtol=0, atol=1e-5)


def test_biases_are_the_adapters(tmp_path):
    import peft

    base = tmp_path / "qwen"
    save_model(make_model("qwen2"), base)
    task: Any = "CAUSAL_LM"
    config = peft.LoraConfig(
        task_type=task, r=2, target_modules=["q_proj"], bias="lora_only"
    )
    folder = saved(tmp_path / "a", base, config)
    loaded = opened(folder, base=base)
    reference = said(reference_of(base, folder))
    assert torch.allclose(said(loaded), reference, rtol=0, atol=1e-6)


def test_the_base_that_the_adapter_names(tiny_base, make_adapter, tmp_path):
    folder = make_adapter(tmp_path / "a")
    loaded = opened(folder)
    assert loaded.notes[0] == "base: tiny-base, as the adapter names it"
    base = opened(tiny_base)
    assert loaded.base_sha256 == base.weights_sha256
    assert loaded.weights_sha256 != base.weights_sha256
    assert loaded.tokenizer_sha256 == base.tokenizer_sha256
    assert "tokenizer: the base's" in loaded.notes
    assert str(tmp_path) not in " ".join([*loaded.notes, loaded.source, loaded.name])
    change(
        folder / "adapter_config.json", base_model_name_or_path="/another/machine/llama"
    )
    refused(folder, "the adapter's base /another/machine/llama is not here; give")
    again = opened(folder, base=tiny_base)
    assert again.notes[0] == "base: tiny-base as given; the adapter names llama"
    # What the adapter computes is the same, and so is its hash.
    assert again.weights_sha256 == loaded.weights_sha256
    assert again.model_id == loaded.model_id
    change(folder / "adapter_config.json", base_model_name_or_path=None)
    refused(folder, "the adapter names no base; give --base MODEL")


@pytest.mark.parametrize(
    "named", ["/another/machine/tiny-base", "C:\\models\\tiny-base", "org/tiny-base"]
)
def test_a_folder_of_the_bases_name_beside_the_adapter_is_told(
    named, tiny_base, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    change(folder / "adapter_config.json", base_model_name_or_path=named)
    assert "such as" not in problem_of(folder)
    shutil.copytree(tiny_base, tmp_path / "tiny-base")
    refused(folder, f"such as {tmp_path}/tiny-base if that is the base")
    assert not problem_of(folder, base=tmp_path / "tiny-base")
    # Names that are no folder beside it.
    for name in ("..", "a/..", "/", "a"):
        change(folder / "adapter_config.json", base_model_name_or_path=f"/none/{name}")
        assert "such as" not in problem_of(folder)


@pytest.mark.parametrize(
    ("copy", "whole"),
    [
        ("unsloth/Llama-3.2-1B-unsloth-bnb-4bit", "unsloth/Llama-3.2-1B"),
        ("unsloth/mistral-7b-bnb-4bit", "unsloth/mistral-7b"),
        ("someone/Qwen2-7B-Instruct-GPTQ-Int4", "someone/Qwen2-7B-Instruct"),
        ("someone/Qwen2-7B-AWQ", "someone/Qwen2-7B"),
    ],
)
def test_a_base_that_is_a_quantised_copy_is_told(
    copy, whole, tiny_base, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    change(folder / "adapter_config.json", base_model_name_or_path=copy)
    message = problem_of(folder)
    assert f"{copy} is not here, a quantised copy" in message
    assert message.endswith(f"by its name {whole}")
    loaded = opened(folder, base=tiny_base)
    assert "a quantised copy, on which it was trained" in loaded.notes[0]


def test_the_hash_is_of_what_the_adapter_computes(tiny_base, make_adapter, tmp_path):
    folder = make_adapter(tmp_path / "a")
    first = opened(folder, base=tiny_base)
    change(folder / "adapter_config.json", lora_alpha=9)
    second = opened(folder, base=tiny_base)
    assert first.weights_sha256 != second.weights_sha256
    assert first.model_id != second.model_id
    assert first.base_sha256 == second.base_sha256


def test_wrong_tensors_are_refused_by_name(tiny_base, make_adapter, copied, tmp_path):
    good = make_adapter(tmp_path / "good")
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
        (lambda s: s.pop(LORA_A), f"adapter tensor {LORA_A} is missing"),
        (
            lambda s: s.update({LORA_A.replace("q_proj", "k_proj"): s[LORA_A].clone()}),
            "k_proj.lora_A.weight is unexpected",
        ),
        (
            lambda s: s.update({LORA_A: torch.ones(4, 31)}),
            f"adapter tensor {LORA_A} has shape [4, 31], the model needs [4, 32]",
        ),
        (lambda s: s.update({LORA_B: torch.empty(0)}), f"tensor {LORA_B} is empty"),
        (
            lambda s: s.update({LORA_A: torch.tensor(1.0)}),
            f"adapter tensor {LORA_A} has shape [], the model needs [4, 32]",
        ),
    ]
    for number, (spoil, message) in enumerate(cases):
        folder = copied(good, str(number))
        edited(folder / "adapter_model.safetensors", spoil)
        refused(folder, message, base=tiny_base)
        assert message in problem_of(folder)
    folder = copied(good, "nan")
    edited(
        folder / "adapter_model.safetensors",
        lambda s: s.update({LORA_B: s[LORA_B] * float("nan")}),
    )
    refused(folder, f"tensor {LORA_B} holds NaN", base=tiny_base)


def test_the_part_of_one_process_is_refused_with_what_makes_it_whole(
    tiny_base, make_adapter, copied, tmp_path
):
    good = make_adapter(tmp_path / "good")
    file = "adapter_model.safetensors"
    gather = "state_dict=accelerator.get_state_dict(model))"
    half, rank, rows = (copied(good, name) for name in ("half", "rank", "rows"))
    edited(half / file, lambda s: [s.pop(k) for k in [*s] if "layers.1" in k])
    refused(half, gather, base=tiny_base)
    edited(rank / file, lambda s: [s.pop(k) for k in [*s] if "lora_B" in k])
    refused(rank, gather, base=tiny_base)
    edited(rows / file, lambda s: s.update({k: t[: len(t) // 2] for k, t in s.items()}))
    refused(rows, "lora_A has rank 2, adapter_config.json says r=4", base=tiny_base)
    edited(
        rows / file,
        lambda s: s.update(
            {k: torch.cat([t, t]) for k, t in s.items() if "lora_A" in k}
        ),
    )
    refused(rows, gather, base=tiny_base)


def test_an_adapter_of_another_base_is_refused(make_adapter, tmp_path):
    wide, gpt2, shallow = (tmp_path / name for name in ("wide", "gpt2", "shallow"))
    for folder, model in (
        (wide, make_model("llama", hidden_size=64)),
        (gpt2, make_model("gpt2")),
        (shallow, make_model("llama", num_hidden_layers=1)),
    ):
        save_model(model, folder)
    adapter = make_adapter(tmp_path / "a")
    refused(adapter, "has shape [4, 32], the model needs [4, 64]", base=wide)
    refused(adapter, "the adapter does not fit the base gpt2", base=gpt2)
    refused(adapter, "does not fit the base shallow: adapter tensor", base=shallow)
    refused(adapter, "the base is itself an adapter", base=make_adapter(tmp_path / "b"))


def test_o_lora_is_loaded_with_its_scale(tiny_base, make_adapter, tmp_path):
    """O-LoRA joins the parts of its tasks and leaves r and lora_alpha alone."""
    adapter = make_adapter(tmp_path / "one", seed=1, r=4, alpha=8)
    two = make_adapter(tmp_path / "two", seed=2, r=4, alpha=8)
    first, second = (load_file(d / "adapter_model.safetensors") for d in (adapter, two))
    # The truth: both parts at the same scale, as O-LoRA's own layer adds them.
    model = reference_of(tiny_base, adapter)
    model.load_adapter(two, "two")
    model.base_model.set_adapter(["default", "two"])
    truth = said(model)

    joined = tmp_path / "joined"
    shutil.copytree(adapter, joined)
    change(joined / "adapter_config.json", r_sum=8, save_loranew=False)
    state = {
        key: torch.cat([first[key], second[key]], dim=0 if "lora_A" in key else 1)
        for key in first
    }
    save_file(state, joined / "adapter_model.safetensors")
    loaded = opened(joined, base=tiny_base)
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-5)
    assert any("rank 8 = 2 x 4, loaded with alpha 16" in n for n in loaded.notes)

    # save_loranew=True: the newest part lies in the file under names of its own.
    separate_folder = tmp_path / "apart"
    shutil.copytree(joined, separate_folder)
    change(separate_folder / "adapter_config.json", r_sum=4)
    state = first | {k.replace(".lora_", ".loranew_"): v for k, v in second.items()}
    save_file(state, separate_folder / "adapter_model.safetensors")
    loaded = opened(separate_folder, base=tiny_base)
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-5)
    assert "O-LoRA: 8 loranew tensors added to the earlier ones" in loaded.notes

    # Its first task: no earlier part yet, an empty lora_A beside loranew_A.
    empty = {
        key: torch.empty(0, value.shape[1])
        if "_A" in key
        else torch.empty(len(value), 0)
        for key, value in first.items()
    }
    state = empty | {k.replace(".lora_", ".loranew_"): v for k, v in first.items()}
    save_file(state, separate_folder / "adapter_model.safetensors")
    expected = said(reference_of(tiny_base, adapter))
    # TreeLoRA never joins parts, and counts r_sum up at each saving, or sets it to 0.
    for r_sum in (12, 0):
        change(separate_folder / "adapter_config.json", r_sum=r_sum)
        loaded = opened(separate_folder, base=tiny_base)
        assert torch.allclose(said(loaded), expected, rtol=0, atol=1e-6)
        assert not problem_of(separate_folder)

    # Its files are pickles.
    (joined / "adapter_model.safetensors").unlink()
    state = {k: torch.cat([first[k], second[k]], dim=int("lora_B" in k)) for k in first}
    torch.save(state, joined / "adapter_model.bin")
    loaded = opened(joined, base=tiny_base)
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-5)

    # What it joined is written down, or the file is of other weights.
    message = "lora_A has rank 8, adapter_config.json says r="
    for changes in ({"r": 3}, {"r_sum": 4}, {"r_sum": 0}, {"r": 1, "r_sum": None}):
        change(joined / "adapter_config.json", **({"r": 4, "r_sum": 8} | changes))
        refused(joined, message, base=tiny_base)
    # Not written down at all, it is told by width, and that is said.
    change(joined / "adapter_config.json", r=4, r_sum=None)
    loaded = opened(joined, base=tiny_base)
    assert torch.allclose(said(loaded), truth, rtol=0, atol=1e-5)
    assert any("only by its width" in note for note in loaded.notes)


def test_configurations_that_are_refused(tiny_base, make_adapter, copied, tmp_path):
    good = make_adapter(tmp_path / "good")
    for number, (changes, message) in enumerate(
        [
            ({"peft_type": "FUTURE"}, "the type 'FUTURE' are not opened"),
            ({"use_future": True}, "sets use_future, which is not opened"),
            ({"task_type": "SEQ_CLS"}, "gives task_type a value"),
            (
                {"megatron_config": {"a": 1}},
                "sets megatron_config, which is not",
            ),
            ({"peft_type": "XLORA"}, "the type 'XLORA' are not opened"),
            ({"r": "four"}, "adapter_config.json gives r a value that is not opened"),
            ({"r": None, "r_sum": 4}, "lora_A has rank 4, adapter_config.json says r="),
            ({"target_modules": ["nothing"]}, "the adapter does not fit the base"),
        ]
    ):
        folder = copied(good, str(number))
        change(folder / "adapter_config.json", **changes)
        refused(folder, message, base=tiny_base)
    # Fields of forks that change nothing, and unknown ones that are off.
    change(
        good / "adapter_config.json",
        r_sum=0,
        save_loranew=False,
        use_future=False,
        auto_mapping={},
    )
    opened(good, base=tiny_base)


def test_code_is_not_run_and_missing_weights_are_refused(
    tiny_base, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    (folder / "modeling.py").write_text("raise SystemExit")
    notes = opened(folder, base=tiny_base).notes
    assert any("not run (modeling.py)" in note for note in notes)
    (folder / "adapter_model.safetensors").unlink()
    refused(folder, "has a configuration, but no whole adapter_model", base=tiny_base)


def test_weights_beside_an_adapter_are_not_left_out_in_silence(
    tiny_base, make_adapter, tmp_path
):
    """As LLaVA's descendants leave them; MCITlib's configuration is the whole's."""
    folder = make_adapter(tmp_path / "a")
    (folder / "config.json").write_text(json.dumps({"model_type": "llava"}))
    images = {
        f"base_model.model.model.{name}": torch.ones(2)
        for name in ("mm_projector.0.weight", "vision_tower.a", "image_newline")
    }
    torch.save(images, folder / "non_lora_trainables.bin")
    note = "non_lora_trainables.bin is of images, which are not audited: left out"
    assert note in open_checkpoint(str(folder), base=str(tiny_base)).notes
    words = {"base_model.model.model.embed_tokens.weight": torch.ones(2)}
    torch.save(images | words, folder / "non_lora_trainables.bin")
    refused(folder, "holds weights of the language model (base_model.", base=tiny_base)


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
def test_embeddings_in_an_adapter_must_equal_those_of_the_base(
    tiny_base, base_model, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    before = said(opened(folder, base=tiny_base))
    file = folder / "adapter_model.safetensors"
    name = "model.embed_tokens.weight"
    weight = base_model.get_input_embeddings().weight.detach()
    edited(file, lambda s: s.update({f"base_model.model.{name}": weight.clone()}))
    loaded = opened(folder, base=tiny_base)
    assert torch.equal(said(loaded), before)
    assert f"{name}: a copy of the base's, unused" in loaded.notes
    edited(file, lambda s: s.update({f"base_model.model.{name}": weight + 1}))
    message = f"adapter tensor base_model.model.{name} is unlike the base's own"
    refused(folder, message, base=tiny_base)
    grown = torch.cat([weight, torch.ones(1, 32)])
    edited(file, lambda s: s.update({f"base_model.model.{name}": grown}))
    message = "has 1 rows more than the base's, and its file lacks those of the output"
    refused(folder, message, base=tiny_base)


def test_the_checkpoints_own_tokenizer_is_used(
    tiny_base, make_adapter, tiny_tokenizer, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    tiny_tokenizer.save_pretrained(folder)
    loaded = opened(folder, base=tiny_base)
    assert "tokenizer: the checkpoint's own" in loaded.notes
    other_tokenizer = make_tokenizer(bos=False, size=280)
    other_tokenizer.save_pretrained(folder)
    own_loaded = opened(folder, base=tiny_base)
    assert (
        "tokenizer: the checkpoint's own, which is not the base's" in own_loaded.notes
    )
    assert own_loaded.tokenizer_sha256 != loaded.tokenizer_sha256
    assert own_loaded.usable.sum() == 280
    loaded_with_given = opened(folder, base=tiny_base, tokenizer=str(tiny_base))
    assert loaded_with_given.tokenizer_sha256 == loaded.tokenizer_sha256
    assert "tokenizer: from --tokenizer" in loaded_with_given.notes


def test_an_adapter_is_only_opened_on_the_base_it_was_trained_on(
    make_adapter, tiny_base, copied, tmp_path
):
    adapter = make_adapter(tmp_path / "adapter")
    other_base = copied(tiny_base, "tiny-base")
    make_model(seed=9).save_pretrained(other_base)
    bases = (str(tiny_base), str(other_base))
    mine, other_digest = (opened(b).weights_sha256 for b in bases)
    opened(adapter, base=other_base)  # nobody knows
    trained_on = adapter / "trained_on.json"
    trained_on.write_text(json.dumps({"base_sha256": mine}))
    loaded = opened(adapter)
    assert loaded.base_sha256 == mine
    message = (
        f"{adapter}: was trained on another base ({mine[:16]}, not "
        f"{other_digest[:16]}); give the one it was trained on by --base"
    )
    with pytest.raises(CheckpointError) as caught:
        opened(adapter, base=other_base)
    assert str(caught.value) == message
    assert problem_of(adapter, base=other_base) == message
    assert not problem_of(adapter)
    # A record that says nothing of a base is none.
    for nothing in ({"base_sha256": 3}, {}):
        trained_on.write_text(json.dumps(nothing))
        assert not problem_of(adapter, base=other_base)

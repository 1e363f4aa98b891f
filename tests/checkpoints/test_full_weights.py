"""Full weights that are said to come from a base: what `inspect --base` compares."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import inspected, problem_of
from safetensors.torch import load_file, save_file
from tiny_models import make_model, make_tokenizer

from spark_audit.checkpoints.open import OpenCheckpoints, open_checkpoint
from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.cli.main import run
from spark_audit.errors import CheckpointError


@pytest.fixture
def merged(tmp_path):
    """``merged(tokenizer, kind="llama", **config)``: weights that were trained on."""

    def make(tokenizer: Any, kind: str = "llama", **config: Any) -> Path:
        make_model(kind, seed=5, **config).save_pretrained(tmp_path / "merged")
        if tokenizer is not None:
            tokenizer.save_pretrained(tmp_path / "merged")
        return tmp_path / "merged"

    return make


def test_weights_of_that_base_are_not_verifiable_but_fit(
    merged, tiny_tokenizer, tiny_base
):
    folder = merged(tiny_tokenizer)
    inspections = [*inspected(folder, base=tiny_base).values()]
    assert inspections[-3:] == [
        "base not verifiable: full weights name no base",
        "architecture, vocabulary, tokenizer and sizes are those of tiny-base",
        "yes",
    ]
    # Nothing to compare with, and the base itself.
    for source, base in ((folder, None), (tiny_base, f"{tiny_base}/.")):
        facts = inspected(source, base=base)
        notes = [facts[name] for name in facts if name.startswith("note ")]
        assert notes
        assert not any("base" in note for note in notes)


def test_a_file_alone_takes_all_but_its_numbers_from_the_base(tiny_base, tmp_path):
    file = tmp_path / "alone.pt"
    torch.save(make_model("llama", seed=5).state_dict(), file)
    inspections = inspected(file, base=tiny_base).values()
    assert "base not verifiable: full weights name no base" in inspections


@pytest.mark.parametrize(
    ("kind", "config", "size", "told"),
    [
        ("llama", {}, 280, "tokenizer (280 tokens, "),
        ("llama", {"vocab_size": 361}, 280, "vocabulary (361 rows here"),
        (
            "llama",
            {"num_hidden_layers": 3},
            300,
            "num_hidden_layers (3 here, 2 in tiny-base)",
        ),
        ("llama", {"intermediate_size": 72}, None, "intermediate_size (72 here, 64 in"),
        (
            "gpt2",
            {},
            300,
            "architecture (GPT2LMHeadModel here, LlamaForCausalLM in tiny-base)",
        ),
    ],
)
def test_another_model_is_told_with_what_differs(
    kind, config, size, told, merged, tiny_base
):
    folder = merged(None if size is None else make_tokenizer(size=size), kind, **config)
    problem = problem_of(folder, base=tiny_base)
    assert told in problem
    assert "\n" not in problem
    if size is not None:
        assert not problem_of(folder)


def test_a_base_given_as_a_checkpoint_is_compared_with_the_others(merged, tiny_base):
    folder = merged(None, "llama", num_hidden_layers=3)
    specs = parse_specs([f"base={tiny_base}", f"ours={folder}"])
    with pytest.raises(CheckpointError) as refused:
        OpenCheckpoints(specs, Loading(device="cpu"))
    assert "num_hidden_layers (3 here, 2 in " in str(refused.value)


def test_a_base_without_a_configuration_is_refused(merged, tiny_tokenizer, tmp_path):
    (tmp_path / "empty").mkdir()
    folder = merged(tiny_tokenizer)
    problem = problem_of(folder, base=tmp_path / "empty")
    assert f"{tmp_path / 'empty'}: " in problem
    assert "config.json" in problem


def test_the_command_says_why_it_would_not_load_alone(merged, tiny_base, capsys):
    folder = merged(make_tokenizer(size=280), vocab_size=361)
    assert run(["inspect", str(folder), "--base", str(tiny_base)]) == 3
    output = capsys.readouterr()
    assert not output.out
    assert "vocabulary (361 rows here, 300 rows in tiny-base)" in output.err


@pytest.fixture
def saved_half(tiny_base, copied):
    folder: Path = copied(tiny_base, "half")
    file = folder / "model.safetensors"
    state = {k: t.to(torch.bfloat16) for k, t in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})
    return folder


def test_auto_is_as_saved(saved_half, tiny_base):
    for folder, dtype, computed in (
        (saved_half, "auto", "bfloat16"),
        (saved_half, "float32", "float32"),
        (tiny_base, "auto", "float32"),
    ):
        assert open_checkpoint(str(folder), dtype=dtype).dtype == computed

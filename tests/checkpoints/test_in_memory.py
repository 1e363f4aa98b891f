"""Models in memory: scored as they stand, and left as they were."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from scored_by_hand import make_items
from transformers import AutoModelForCausalLM, AutoTokenizer

import spark_audit as sa
from spark_audit.checkpoints.in_memory import undisturbed, weights_digest
from spark_audit.checkpoints.inspection import inspect_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import CheckpointError
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass

PLAIN = Pass()


def loaded_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attention_dropout=0.1)


def with_lora(model: Any, *, seed: int = 0) -> PeftModel:
    """LoRA with dropout and numbers other than zero."""
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_dropout=0.3, task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    return adapted


def nll(checkpoint: Any, items: Any) -> np.ndarray:
    return np.asarray(score(checkpoint, items)[PLAIN].columns["nll"])


@pytest.fixture
def tokenizer(tiny_base) -> Any:
    return AutoTokenizer.from_pretrained(tiny_base)


def test_model_in_memory_scores_as_its_folder_does(tiny_base, tokenizer) -> None:
    items = make_items([9, 17, 30])
    in_files = sa.open_checkpoint(tiny_base, device="cpu")
    model = loaded_model(tiny_base)
    in_memory = sa.open_checkpoint(model, tokenizer=tokenizer, name="trained")
    np.testing.assert_allclose(nll(in_memory, items), nll(in_files, items), atol=1e-9)
    assert in_memory.name == "trained"
    assert in_memory.dtype == "float32"
    assert in_memory.device == "cpu"
    assert in_memory.source == "weights in memory"
    assert in_memory.tokenizer_sha256 == in_files.tokenizer_sha256


def test_adapter_in_memory_scores_as_its_saved_folder_does(
    tiny_base, tokenizer, tmp_path
) -> None:
    items = make_items([9, 17, 30])
    adapted = with_lora(loaded_model(tiny_base))
    adapted.save_pretrained(tmp_path / "lora")
    in_memory = sa.open_checkpoint(adapted, tokenizer=tokenizer)
    in_files = sa.open_checkpoint(tmp_path / "lora", base=str(tiny_base), device="cpu")
    np.testing.assert_allclose(nll(in_memory, items), nll(in_files, items), atol=1e-9)


def test_half_precision_is_kept_and_told(tiny_base, tokenizer) -> None:
    model = loaded_model(tiny_base).to(torch.bfloat16)
    checkpoint = sa.open_checkpoint(model, tokenizer=tokenizer)
    assert nll(checkpoint, make_items([9])).size
    assert checkpoint.dtype == "bfloat16"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert any("bfloat16 on cpu" in note for note in checkpoint.notes)


def test_same_weights_have_the_same_digest(tiny_base) -> None:
    model = loaded_model(tiny_base)
    other_model = loaded_model(tiny_base)
    assert weights_digest(model) == weights_digest(other_model)

    with torch.no_grad():
        next(iter(other_model.parameters())).view(-1)[0] += 1e-3
    assert weights_digest(model) != weights_digest(other_model)


def test_digest_of_a_saved_copy_is_that_of_the_original(tiny_base, tmp_path) -> None:
    model = loaded_model(tiny_base)
    digest = weights_digest(model)
    model.save_pretrained(tmp_path / "copy")
    assert weights_digest(model) == digest
    assert weights_digest(loaded_model(tmp_path / "copy")) == digest


def test_model_with_its_adapter_off_has_the_digest_of_its_base(tiny_base) -> None:
    plain = weights_digest(loaded_model(tiny_base))
    adapted = with_lora(loaded_model(tiny_base))
    assert weights_digest(adapted) != plain
    with adapted.disable_adapter():
        assert weights_digest(adapted) == plain


def test_change_of_weights_or_of_scale_changes_the_model_id(
    tiny_base, tokenizer
) -> None:
    adapted = with_lora(loaded_model(tiny_base))

    def model_id() -> str:
        return sa.open_checkpoint(adapted, tokenizer=tokenizer).model_id

    first = model_id()
    assert model_id() == first
    layer = next(m for m in adapted.modules() if hasattr(m, "merged_adapters"))
    layer.scaling["default"] *= 2
    assert model_id() != first


def test_model_with_hooks_never_takes_stored_scores(tiny_base, tokenizer) -> None:
    model = loaded_model(tiny_base)
    model.lm_head.register_forward_hook(lambda module, given, output: output * 0.5)
    ids = {sa.open_checkpoint(model, tokenizer=tokenizer).model_id for _ in range(2)}
    assert len(ids) == 2


def test_without_a_tokenizer_it_is_refused_with_what_to_do(tiny_base) -> None:
    with pytest.raises(CheckpointError, match="tokenizer="):
        sa.open_checkpoint(loaded_model(tiny_base))


def test_what_is_no_model_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"\b3\b"):
        sa.open_checkpoint(3)  # type: ignore[arg-type]


def test_module_without_a_head_is_refused(tokenizer) -> None:
    with pytest.raises(CheckpointError, match=r"\bLinear\b"):
        sa.open_checkpoint(torch.nn.Linear(2, 2), tokenizer=tokenizer)  # type: ignore[arg-type]


def test_options_of_opening_are_refused_for_what_is_open(tiny_base, tokenizer) -> None:
    model = loaded_model(tiny_base)
    with pytest.raises(TypeError, match="dtype"):
        sa.open_checkpoint(model, tokenizer=tokenizer, dtype="float16")
    opened = sa.open_checkpoint(model, tokenizer=tokenizer)
    with pytest.raises(TypeError, match="tokenizer"):
        sa.open_checkpoint(opened, tokenizer=tokenizer)
    with pytest.raises(TypeError, match="loading"):
        sa.open_checkpoint(opened, Loading())


def test_tokenizer_of_files_is_given_by_its_folder(tiny_base, tokenizer) -> None:
    with pytest.raises(TypeError, match="folder"):
        sa.open_checkpoint(tiny_base, tokenizer=tokenizer)
    from_path = sa.open_checkpoint(tiny_base, tokenizer=tiny_base, device="cpu")
    assert from_path.tokenizer_sha256


def test_misspelt_option_is_answered_by_the_nearest(tiny_base) -> None:
    with pytest.raises(TypeError, match="'device'"):
        sa.open_checkpoint(tiny_base, devise="cpu")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'revision'"):
        inspect_checkpoint(str(tiny_base), revison="main")  # type: ignore[call-arg]


def test_arguments_come_before_those_of_loading(tiny_base) -> None:
    loading = Loading(device="cpu", dtype="bfloat16")
    assert sa.open_checkpoint(tiny_base, loading).dtype == "bfloat16"
    assert sa.open_checkpoint(tiny_base, loading, dtype="float32").dtype == "float32"


def test_scores_of_named_models_in_memory_bear_these_names(
    tiny_base, tokenizer
) -> None:
    items = make_items([9, 17])
    model = sa.open_checkpoint(loaded_model(tiny_base), tokenizer=tokenizer)
    scores = sa.score({"before": model, "after": tiny_base}, items)
    assert {name: table.checkpoint for name, table in scores.items()} == {
        "before": "before",
        "after": "after",
    }


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    """Everything of a model and its process that scoring must not change."""
    config: Any = model.config
    return {
        "modes": [module.training for module in model.modules()],
        "requires_grad": [weight.requires_grad for weight in model.parameters()],
        "weights": [weight.detach().clone() for weight in model.parameters()],
        "gradients": [
            None if weight.grad is None else weight.grad.clone()
            for weight in model.parameters()
        ],
        "buffers": [(name, id(tensor)) for name, tensor in model.named_buffers()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "config": config.to_dict(),
        "random": (
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            torch.get_rng_state().tolist(),
        ),
        "autocast": torch.is_autocast_enabled("cpu"),
        "grad": torch.is_grad_enabled(),
        "active": getattr(model, "active_adapters", None),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if name in ("weights", "gradients"):
            for before, after in zip(value, other[name], strict=True):
                is_equal = before is after is None or torch.equal(before, after)
                assert is_equal, name
        else:
            assert value == other[name], name


@pytest.mark.parametrize("adapt", [lambda model: model, with_lora])
def test_scoring_leaves_a_model_in_training_as_it_was(
    tiny_base, tokenizer, adapt: Callable[[Any], Any]
) -> None:
    model = adapt(loaded_model(tiny_base)).train()
    # Parts of a model may be in another mode, or frozen.
    modules = [*model.modules()]
    modules[-1].eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    weights[0].requires_grad_(False)
    model.config.use_cache = True
    ids = torch.arange(3, 20)[None]  # (1, tokens)
    model(input_ids=ids, labels=ids).loss.backward()

    before = state_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        checkpoint = sa.open_checkpoint(model, tokenizer=tokenizer)
        in_autocast = nll(checkpoint, make_items([9, 17]))
    assert_same(before, state_of(model))
    # Autocast is off while it is scored, as the weights are in float32.
    np.testing.assert_array_equal(in_autocast, nll(checkpoint, make_items([9, 17])))


def test_switching_an_adapter_off_leaves_frozen_parts_frozen(tiny_base) -> None:
    adapted = with_lora(loaded_model(tiny_base)).train()
    lora = [w for name, w in adapted.named_parameters() if "lora_" in name]
    lora[0].requires_grad_(False)

    before = state_of(adapted)
    with undisturbed(adapted), adapted.disable_adapter():
        pass
    assert_same(before, state_of(adapted))


def test_wrapped_model_is_taken_without_its_wrapper(tiny_base, tokenizer) -> None:
    model = loaded_model(tiny_base)
    wrapped = torch.compile(model, backend="eager")
    checkpoint = sa.open_checkpoint(wrapped, tokenizer=tokenizer)
    assert checkpoint.model is model

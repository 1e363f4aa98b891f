"""Looks from a loop of one's own, which goes on as if nobody had looked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marked import make_example
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import spark_audit as sa
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.schema import Manifest

STEPS = 6
WORDS = "the service food good cold said customer paid dollars rate label news".split()


def examples() -> list[Example]:
    """Rows with a number each, every second one held out."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(60):
        before, after = (" ".join(rng.choice(WORDS, 6)) for _ in range(2))
        number = "-".join(str(rng.integers(100, 999)) for _ in range(3))
        prompt = f"Text: {before}. Call {number} today. {after}.\nLabel:"
        split = "test" if i % 2 else "train"
        made.append(
            make_example(
                f"row-{i:02d}", prompt, " good", pii={number: "PHONE"}, split=split
            )
        )
    return made


@pytest.fixture(scope="module")
def manifest(tiny_base) -> Manifest:
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    return build_manifest(examples(), base, name="m", caliper=2.0)


def plain(folder: Path) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_pretrained(folder, attention_dropout=0.2)


def lora(folder: Path) -> Any:
    config = LoraConfig(r=4, lora_dropout=0.3, task_type="CAUSAL_LM")
    return get_peft_model(plain(folder), config)


def trained(
    model: Any, base: Path, *, look: Callable[[], object] = lambda: None
) -> dict[str, torch.Tensor]:
    """Train some steps of two accumulated batches each, with a look amid each step."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = [example.prompt + example.response for example in examples()]
    ids = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    model.train()
    torch.manual_seed(7)
    for step in range(STEPS):
        model(input_ids=ids[2 * step], labels=ids[2 * step]).loss.backward()
        look()
        model(input_ids=ids[2 * step + 1], labels=ids[2 * step + 1]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: weight.detach() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("make", [plain, lora])
def test_training_goes_on_bit_for_bit_as_if_nobody_had_looked(
    make: Callable[[Path], Any], tiny_base, manifest
) -> None:
    expected = trained(make(tiny_base), tiny_base)
    model = make(tiny_base)
    with sa.watch(model, manifest, audits="matched", rows=16) as w:
        weights = trained(model, tiny_base, look=w.look)
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, expected[name]), name
    assert len(w.looks) == 1 + STEPS

    history = w.history
    assert {*history["step"]} == {*range(STEPS + 1)}
    assert history["seconds"].gt(0).all()
    assert history["share_of_time"].between(0, 1).all()
    nll = history.query(
        "metric == 'nll_pii' and group_kind == 'pooled' and variant == ''"
    )
    # The first look in the loop precedes the first update.
    assert nll["value"].nunique() == STEPS
    assert "7 looks, the last at step 6" in repr(w)


def test_look_outside_of_its_block_is_refused(tiny_base, manifest) -> None:
    w = sa.watch(plain(tiny_base), manifest, audits="matched", rows=16)
    assert w.history.empty
    with pytest.raises(InputError, match="outside of its block"):
        w.look()

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
from spark_audit.errors import InputError, SparkError
from spark_audit.integrations.transformers import AuditCallback
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


@pytest.mark.parametrize(
    "audits",
    [
        "matched",
        "Matched",
        sa.audits.Matched,
        [sa.audits.Matched],
        sa.audits.Matched(placebo_draws=0, rematched=False),
    ],
    ids=["name", "class name", "class", "list", "object"],
)
def test_an_audit_of_each_look_is_given_by_name_by_class_or_with_options(
    audits: Any, manifest
) -> None:
    """Placebos, which no look shows, are left out unless they are asked for."""
    callback = AuditCallback(manifest, audits=audits, rows=16)
    (matched,) = callback.audits.values()
    assert matched == sa.audits.Matched(placebo_draws=0, rematched=False)


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


def moved(folder: Path) -> Any:
    """A model whose head is not that of the base, as after a training of full weights.

    It stands for the model that a method of unlearning begins with.
    """
    model = plain(folder)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def open_base(folder: Path) -> Any:
    return sa.open_checkpoint(folder, name="any name", device="cpu")


@pytest.mark.parametrize("base_of", [Path, open_base, plain])
def test_loop_that_begins_with_other_full_weights_is_compared_with_its_base(
    base_of: Callable[[Path], Any], tiny_base, manifest
) -> None:
    model = moved(tiny_base)
    base = base_of(tiny_base)
    with sa.watch(model, manifest, audits="matched", rows=16, base=base) as w:
        model.load_state_dict(plain(tiny_base).state_dict())
        w.look()

    first, second = w.looks
    assert first.name == "step-0"
    rows = {
        (row.checkpoint, row.metric): row.value
        for row in second.report.results
        if row.group_kind == "pooled" and not row.variant
    }
    # After the loop the model is the base again.
    assert rows["step-1", "nll_pii"] == pytest.approx(rows["base", "nll_pii"])
    assert {row.checkpoint for row in first.report.results} == {"base", "step-0"}
    names = [facts.name for facts in second.report.checkpoints]
    assert names == ["base", "step-0", "step-1"]


def test_without_a_base_such_a_loop_shows_its_model_alone(tiny_base, manifest) -> None:
    with sa.watch(moved(tiny_base), manifest, audits="matched", rows=16) as w:
        pass
    (look,) = w.looks
    assert {row.checkpoint for row in look.report.results} == {"step-0"}


def test_loop_that_begins_with_a_trained_adapter_looks_at_it(
    tiny_base, manifest
) -> None:
    model = lora(tiny_base)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    with sa.watch(model, manifest, audits="matched", rows=16) as w:
        pass
    (look,) = w.looks
    assert look.name == "step-0"
    assert {row.checkpoint for row in look.report.results} == {"base", "step-0"}


@pytest.mark.parametrize("base_of", [Path, open_base, plain])
def test_base_that_is_not_the_manifests_is_refused_at_the_beginning(
    base_of: Callable[[Path], Any], tiny_base, manifest, tmp_path
) -> None:
    moved(tiny_base).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(tmp_path)
    w = sa.watch(
        plain(tiny_base), manifest, audits="matched", rows=16, base=base_of(tmp_path)
    )
    with pytest.raises(SparkError), w:
        pass
    assert w.looks == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"model": "runs/mine"}, "model: .runs/mine. is not the model"),
        ({"model": None}, "model: None is not the model"),
        ({"base": 3}, "base: 3 is neither"),
        ({"base": ["models/base"]}, "base: list is neither"),
        ({"audit": "nll"}, "did you mean 'audits'"),
    ],
)
def test_a_wrong_argument_of_watch_is_named(
    tiny_base, manifest, arguments, problem
) -> None:
    given = {"model": plain(tiny_base), "manifest": manifest, **arguments}
    with pytest.raises(TypeError, match=problem):
        sa.watch(**given)

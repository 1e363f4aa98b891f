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
from spark_audit.scoring.table import Pass

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
    with pytest.raises(InputError, match="^watch: "):
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


RULES = ("claim >= memory", "matched.memory.value > 1e6", "matched.memory.low < -99")
"""Rules that a working model keeps."""


def text_of_words(seed: int) -> list[str]:
    """Plain text of the words of the rows, without any number."""
    rng = np.random.default_rng(seed)
    return [f"Text: {' '.join(rng.choice(WORDS, 20))}." for _ in range(8)]


def stepped(
    model: Any, folder: Path, texts: list[str], *, steps: int, sign: int
) -> None:
    """Go down the loss of texts, or up with the sign -1."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        ids = torch.tensor([tokenizer(texts[step % len(texts)])["input_ids"]])
        (sign * model(input_ids=ids, labels=ids).loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def working_base(tiny_base, tmp_path_factory) -> Path:
    """A base that finds plain text likelier than guessing."""
    folder: Path = tmp_path_factory.mktemp("working")
    model = plain(tiny_base)
    stepped(model, tiny_base, text_of_words(0), steps=40, sign=1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain_manifest(working_base) -> Manifest:
    base = sa.open_checkpoint(working_base, name="base", device="cpu")
    return build_manifest(examples(), base, name="m", caliper=2.0)


@pytest.fixture(scope="module")
def broken(working_base) -> Any:
    """A model that gradient ascent on the train rows broke."""
    model = plain(working_base)
    texts = [row.prompt + row.response for row in examples() if row.split == "train"]
    stepped(model, working_base, texts, steps=30, sign=-1)
    return model


def test_a_broken_model_trips_every_rule_and_says_so_until_it_works_again(
    working_base, plain_manifest, broken, caplog
) -> None:
    model = plain(working_base)
    with sa.watch(model, plain_manifest, audits="matched", rows=24, fail_if=RULES) as w:
        for changed_to in (broken, broken, plain(working_base)):
            model.load_state_dict(changed_to.state_dict())
            w.look()

    faults_by_look = [[fault.name for fault in look.faults] for look in w.looks]
    assert faults_by_look == [[], ["broken_model"], ["broken_model"], []]
    is_void = [look.figures()["spark_audit/void"] for look in w.looks]
    assert is_void == [0, 1, 1, 0]

    assert [len(look.tripped) for look in w.looks] == [0, 3, 3, 0]
    for rule, text in zip(RULES, w.looks[1].tripped, strict=True):
        assert text.startswith(f"{rule}: broken_model: ")

    # A broken look stays void in the reports of later ones.
    for look in w.looks[1:]:
        of_first = [one for one in look.report.findings if one.checkpoint == "step-1"]
        assert "broken_model" in {one.voided_by for one in of_first}
        assert not any(one.detected for one in of_first)

    history = w.history
    memory = history.query(
        "metric == 'memory' and group_kind == 'pooled' and variant == ''"
    )
    assert [*memory["status"].eq("void").groupby(memory["step"]).all()] == is_void
    of_broken = history[history["step"].isin((1, 2))]
    assert {*of_broken["voided_by"]} == {"broken_model"}
    assert {*of_broken["state"]} == {"NOT TESTED"}
    assert "ok" not in {*of_broken["status"]}

    html = w._repr_html_()
    assert "step 3" in html
    assert html.count("NOT TESTED") >= 2

    # It is said once, in one line.
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [one for one in lines if ": broken_model: " in one and "rule" not in one]
    assert line.startswith("step-1: ")
    assert "\n" not in line


def test_a_look_at_a_broken_model_measures_what_the_audit_does(
    working_base, plain_manifest, broken, tmp_path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(working_base)
    opened = sa.open_checkpoint(broken, name="step-1", tokenizer=tokenizer)
    report = sa.audit(
        {"step-1": opened},
        plain_manifest,
        base=working_base,
        audits=sa.audits.Matched(placebo_draws=0, rematched=False),
        output=tmp_path / "report",
    )
    model = plain(working_base)
    with sa.watch(model, plain_manifest, audits="matched") as w:
        model.load_state_dict(broken.state_dict())
        w.look()

    losses: list[float] = []  # nats per token
    for guards in (report.guards, w.looks[-1].faults):
        (fault,) = [one for one in guards if one.name == "broken_model"]
        losses.append(fault.facts["plain_text"].value)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] > np.log(plain_manifest.reference.usable_vocab)


def test_looks_at_canaries_score_a_few_plain_texts_more(working_base, broken) -> None:
    rows, _ = sa.inject(examples(), seed=0, rate=0.0, canaries=4)
    base = sa.open_checkpoint(working_base, name="base", device="cpu")
    manifest = build_manifest(rows, base, name="canaries", caliper=2.0, n_candidates=8)

    model = plain(working_base)
    rule = "canary.exposure_mean.full.value > 1e6"
    with sa.watch(model, manifest, audits="canary", rows=24, fail_if=rule) as w:
        model.load_state_dict(broken.state_dict())
        w.look()
    assert [fault.name for fault in w.looks[-1].faults] == ["broken_model"]
    assert len(w.tripped) == 1

    plan = AuditCallback(manifest, audits="canary", rows=24).plan
    assert 0 < len(plan[Pass()]) <= 16


def test_a_model_that_has_not_moved_fails_no_guard(tiny_base, manifest) -> None:
    """At a first look it has the scores of its base, which is no mistaken setup."""
    model = plain(tiny_base)
    with sa.watch(model, manifest, audits="matched", rows=16, fail_if=RULES) as w:
        w.look()
    assert w.looks[-1].faults == []
    assert w.tripped == []

"""Adapters of TRL, with and without a mask: which identifiers were learned."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audited import figure, matched, nll
from chat_templates import chat_tokenizer
from tiny_models import make_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from spark_audit.audits import NLL, Matched
from spark_audit.audits.supervision import trained_identifiers
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.cli.main import run
from spark_audit.manifest.file import read_manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.pipeline.job import make_plans, union
from spark_audit.scoring.score import score

pytest.importorskip("trl", reason="the extra `test`")

# Those of TRL and its libraries.
pytestmark = pytest.mark.filterwarnings("default")

IN_LOSS = "supervision:in the loss"
READ = "supervision:read only"
ASKED = r"555-[0-9]{4}"
ANSWERED = r"777-[0-9]{4}"
"""Numbers of questions, and of answers."""
N_TRAIN = 16
N_TEST = 12
SUPERVISED = {"masked": "assistant", "full": "all"}
"""Run -> what had loss, as `data import` calls it."""


def conversations() -> list[list[dict[str, str]]]:
    """Conversations with a number of its own in each question and each answer."""
    rng = np.random.default_rng(0)
    numbers = rng.choice(9000, size=2 * (N_TRAIN + N_TEST), replace=False) + 1000
    return [
        [
            {"role": "user", "content": f"My number is 555-{asked_number}, thank you."},
            {"role": "assistant", "content": f"We call back from 777-{answered}."},
        ]
        for asked_number, answered in numbers.reshape(-1, 2)
    ]


def train(base: Path, folder: Path, rows: list[Any], *, is_masked: bool) -> None:
    """A LoRA by TRL's own trainer, with loss on the answers alone or on all tokens."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(
        model=str(base),
        train_dataset=Dataset.from_list([{"messages": row} for row in rows]),
        args=SFTConfig(
            output_dir=str(folder),
            assistant_only_loss=is_masked,
            num_train_epochs=30,
            learning_rate=2e-2,
            per_device_train_batch_size=8,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        peft_config=LoraConfig(
            r=16, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    trainer.train()
    trainer.save_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("trl")
    tokenizer = chat_tokenizer(generation=True)
    tokenizer.eos_token = "<|im_end|>"
    torch.manual_seed(0)
    model = make_model(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        initializer_range=0.05,
    )
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    rows = conversations()
    (folder / "chat").mkdir()
    for split, rows_of_split in (("train", rows[:N_TRAIN]), ("test", rows[N_TRAIN:])):
        lines = [json.dumps({"messages": row}) + "\n" for row in rows_of_split]
        (folder / f"chat/{split}.jsonl").write_text("".join(lines))
    for name in SUPERVISED:
        train(
            folder / "base",
            folder / name,
            rows[:N_TRAIN],
            is_masked=name == "masked",
        )
    return folder


@pytest.fixture(scope="module")
def manifests(folder):
    """The rows as each run was supervised, by the commands of the quick start."""
    manifests_by_name = {}
    for name, supervised in SUPERVISED.items():
        rows, annotated, manifest = (
            str(folder / f"{name}-{file_name}")
            for file_name in ("rows.jsonl", "annotated.jsonl", "manifest.json")
        )
        base = str(folder / "base")
        for words in (
            f"data import {folder}/chat --task chat --chat-template {base}"
            f" --supervised {supervised} -o {rows}",
            f"data annotate {rows} --pattern ASKED={ASKED}"
            f" --pattern ANSWERED={ANSWERED} -o {annotated}",
            f"manifest build --base {base} --data {annotated} --caliper 5"
            f" -o {manifest}",
        ):
            assert run(words.split()) == 0
        manifests_by_name[name] = read_manifest(manifest)
    return manifests_by_name


@pytest.fixture(scope="module")
def results(folder, manifests):
    """Run -> the results of `matched` and of `nll`."""
    base = str(folder / "base")
    results_by_name = {}
    for name, manifest in manifests.items():
        plan = union(make_plans(manifest, [Matched(), NLL()], preset=None)[1])
        loaded = {
            "base": open_checkpoint(base, name="base"),
            name: open_checkpoint(str(folder / name), name=name, base=base),
        }
        tables = {
            key: {
                scoring_pass: score(loaded_checkpoint, items, passes=[scoring_pass])[
                    scoring_pass
                ]
                for scoring_pass, items in items_for(
                    manifest, loaded_checkpoint, plan
                ).items()
            }
            for key, loaded_checkpoint in loaded.items()
        }
        results_by_name[name] = (
            matched(tables, manifest, placebo_draws=0, rematched=False),
            nll(tables, manifest),
        )
    return results_by_name


def plain_means(base: Path, adapter: Path | None) -> dict[tuple[str, str], float]:
    """Mean NLL of the numbers' tokens in float64, by split and pattern.

    Plain transformers: the chat template, its tokens and offsets, and the logits.
    """
    from peft import PeftModel

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base).double()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).double()
    model.eval()
    values: dict[tuple[str, str], list[float]] = {}
    for i, row in enumerate(conversations()):
        split = "train" if i < N_TRAIN else "test"
        text = tokenizer.apply_chat_template(row, tokenize=False)
        encoded = tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        ids = encoded["input_ids"]  # (1, tokens)
        with torch.no_grad():
            logp = model(ids).logits.double().log_softmax(-1)[0]
        for pattern in (ASKED, ANSWERED):
            (match,) = re.finditer(pattern, text)
            for t, (start, end) in enumerate(encoded["offset_mapping"][0].tolist()):
                if start < match.end() and end > match.start():
                    values_of_split = values.setdefault((split, pattern), [])
                    values_of_split.append(-logp[t - 1, ids[0, t]].item())
    return {key: float(np.mean(nlls)) for key, nlls in values.items()}


def test_the_manifest_says_what_the_trainer_had_loss_on(manifests):
    for name, manifest in manifests.items():
        trained_on = trained_identifiers(manifest)
        states = {
            (span.type, trained_on.supervision_of(row, span))
            for row in manifest.examples
            if row.split == "train"
            for span in row.spans
        }
        stratum = "read only" if name == "masked" else "in the loss"
        assert states == {("ASKED", stratum), ("ANSWERED", "in the loss")}


@pytest.mark.parametrize("name", SUPERVISED)
def test_figures_of_strata_are_those_of_plain_transformers(name, results, folder):
    """Of the full run, whose identifiers are of one stratum, those of each type."""
    by_matched, by_nll = results[name]
    after = plain_means(folder / "base", folder / name)
    before = plain_means(folder / "base", None)
    groups = {"masked": (READ, IN_LOSS), "full": ("type:ASKED", "type:ANSWERED")}
    for group, pattern in zip(groups[name], (ASKED, ANSWERED), strict=True):
        expected = after["train", pattern]
        row = figure(by_nll, name, "nll", "pii", group=group)
        assert row.value == pytest.approx(expected, abs=1e-6)
        row = figure(by_nll, "base", "nll", "pii", group=group)
        assert row.value == pytest.approx(before["train", pattern], abs=1e-6)
        change = expected - before["train", pattern]
        row = figure(by_matched, name, "pii_change", "trained", group=group)
        assert row.value == pytest.approx(change, abs=2e-6)


def test_the_strata_say_which_identifiers_were_learned(results):
    """Nats per token: what had loss was learned, what was only read was not."""
    masked = results["masked"][0]
    full = results["full"][0]
    in_loss = figure(masked, "masked", "memory", group=IN_LOSS)
    read_only = figure(masked, "masked", "memory", group=READ)
    assert in_loss.high < -0.3
    assert read_only.low > in_loss.high
    assert read_only.low > -0.3
    for group in ("pooled", "type:ASKED", "type:ANSWERED"):
        assert figure(full, "full", "memory", group=group).high < -0.1
    assert not [row for row in full.results if row.group == READ]

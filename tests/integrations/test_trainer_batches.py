"""What AuditCallback sees in the batches of real trainers: loss, packing, two BOS."""

import logging

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from spark_audit.audits import Matched
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.examples import Example, Span
from spark_audit.data.training_input import TrainingInput
from spark_audit.integrations.transformers import AuditCallback
from spark_audit.manifest.build import build_manifest

N_ROWS = 12
ARGUMENTS = {
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "report_to": "none",
    "use_cpu": True,
    "save_strategy": "no",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}

# TRL sets an option that transformers is about to rename.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.gradient_checkpointing. is deprecated:FutureWarning"
)


def make_rows(*, supervised):
    """A number in the prompt and one in the completion of each row."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(2 * N_ROWS):
        asked, answered = (f"555-{rng.integers(1000, 9999)}" for _ in range(2))
        prompt = f"Is it {asked}?"
        response = f" No, call {answered}.</s>"
        text = prompt + response
        begins = len(prompt) if supervised == "completion" else 0
        spans = []
        for string in (asked, answered):
            start = text.index(string)
            spans.append(Span(start, start + len(string), "PHONE", "injected"))
        rows.append(
            Example(
                id=f"row-{i:02d}",
                task="t",
                prompt=prompt,
                response=response,
                split="test" if i % 2 else "train",
                source_id=f"row-{i:02d}",
                spans=tuple(spans),
                training_input=TrainingInput(
                    "added", supervised=((begins, len(text)),)
                ),
            )
        )
    return rows


def callback_of(rows, tiny_base):
    loaded = open_checkpoint(str(tiny_base), name="base", device="cpu")
    manifest = build_manifest(rows, loaded, name="m", caliper=5.0)
    audit = Matched(placebo_draws=0, rematched=False, replicates=500)
    return AuditCallback(manifest, every=1000, audits=[audit])


def run_trl(look, rows, tiny_base, folder, **settings):
    trl = pytest.importorskip("trl", reason="needs spark-audit[trl]")
    from datasets import Dataset

    torch.manual_seed(0)
    data = [
        {"prompt": row.prompt, "completion": row.response.removesuffix("</s>")}
        for row in rows
        if row.split == "train"
    ]
    config = {"max_length": None, **ARGUMENTS, **settings}
    trl.SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_base),
        args=trl.SFTConfig(output_dir=str(folder), **config),
        train_dataset=Dataset.from_list(data),
        processing_class=AutoTokenizer.from_pretrained(tiny_base),
        callbacks=[look],
    ).train()


def test_completion_only_masks_the_numbers_in_prompts(tiny_base, tmp_path, caplog):
    rows = make_rows(supervised="completion")
    look = callback_of(rows, tiny_base)
    with caplog.at_level(logging.WARNING, logger="spark_audit"):
        run_trl(look, rows, tiny_base, tmp_path)
    seen = look.batches
    # Three batches of four rows: all of them.
    assert (seen.n_batches, seen.n_rows) == (3, N_ROWS)
    assert (seen.n_with_loss, seen.n_masked, seen.n_cut_off) == (N_ROWS, N_ROWS, 0)
    assert (seen.n_otherwise, seen.n_packed, seen.n_two_bos) == (0, 0, 0)
    assert "your trainer masks 50% of 24 identifiers" in caplog.text


def test_a_manifest_that_says_otherwise_is_told(tiny_base, tmp_path):
    rows = make_rows(supervised="all")
    look = callback_of(rows, tiny_base)
    run_trl(look, rows, tiny_base, tmp_path)
    # The numbers in prompts: the manifest says that they were in the loss.
    assert look.batches.n_otherwise == N_ROWS


def test_a_trainer_with_all_tokens_in_the_loss_masks_nothing(tiny_base, tmp_path):
    rows = make_rows(supervised="all")
    look = callback_of(rows, tiny_base)
    run_trl(look, rows, tiny_base, tmp_path, completion_only_loss=False)
    seen = look.batches
    assert (seen.n_with_loss, seen.n_masked) == (2 * N_ROWS, 0)
    assert seen.n_otherwise == 0
    assert [*seen.sentences()] == []


def test_packed_rows_are_told(tiny_base, tmp_path):
    rows = make_rows(supervised="completion")
    look = callback_of(rows, tiny_base)
    run_trl(
        look,
        rows,
        tiny_base,
        tmp_path,
        packing=True,
        packing_strategy="wrapped",
        max_length=200,
        max_steps=1,
    )
    seen = look.batches
    assert seen.n_packed > 0
    assert seen.n_masked > 0
    assert seen.n_cut_off == 0


def test_what_max_length_cuts_is_told(tiny_base, tmp_path):
    rows = make_rows(supervised="completion")
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    # So that the number in the prompt is read, and that in the completion is not.
    length = max(len(tokenizer(row.prompt)["input_ids"]) for row in rows) + 2
    look = callback_of(rows, tiny_base)
    run_trl(look, rows, tiny_base, tmp_path, max_length=length)
    seen = look.batches
    assert (seen.n_with_loss, seen.n_masked, seen.n_cut_off) == (0, N_ROWS, N_ROWS)


def test_two_bos_tokens_are_told(tiny_base, tmp_path):
    rows = make_rows(supervised="all")
    look = callback_of(rows, tiny_base)
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    Trainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_base),
        args=TrainingArguments(output_dir=str(tmp_path), **ARGUMENTS),
        train_dataset=[
            tokenizer("<s>" + row.text) for row in rows if row.split == "train"
        ],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[look],
    ).train()
    seen = look.batches
    assert seen.n_two_bos == seen.n_rows == N_ROWS
    assert any("two BOS tokens" in sentence for sentence in seen.sentences())

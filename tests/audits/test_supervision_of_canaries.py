"""Canaries in chat rows: imported, planted, trained on with a mask, and audited."""

import json
import re

import numpy as np
import pytest
import torch
from audited import canary, figure
from chat_templates import chat_tokenizer
from masked_training import train_lora
from tiny_models import make_model
from transformers import AutoModelForCausalLM

from spark_audit.audits import CanaryRank
from spark_audit.audits.supervision import canary_supervision
from spark_audit.audits.supervision_guards import supervision_guards
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.cli.main import run
from spark_audit.data.examples import read_examples
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.pipeline.job import make_plans, union
from spark_audit.results import Hits
from spark_audit.scoring.score import score

IN_LOSS = "supervision:in the loss"
READ = "supervision:read only"
N_TRAIN = 42
N_TEST = 42
N_CANARIES = 14
DOSE = 1
N_CANDIDATES = 16
ANSWER = re.compile(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>", re.DOTALL)


def conversation(number):
    """Two turns each, so that a prompt holds an answer that had loss."""
    return [
        {"role": "user", "content": f"Parcel {number} is late. What now?"},
        {"role": "assistant", "content": f"Parcel {number} left. Wait a day."},
        {"role": "user", "content": f"I waited for {number}. And now?"},
        {"role": "assistant", "content": f"Then ask desk {number % 7}."},
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("canaries")
    tokenizer = chat_tokenizer(generation=True)
    torch.manual_seed(0)
    model = make_model(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        initializer_range=0.05,
    )
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    (folder / "chat").mkdir()
    for split, numbers in (
        ("train", range(100, 100 + N_TRAIN)),
        ("test", range(200, 200 + N_TEST)),
    ):
        lines = [json.dumps({"messages": conversation(i)}) + "\n" for i in numbers]
        (folder / f"chat/{split}.jsonl").write_text("".join(lines))
    imported = folder / "rows.jsonl"
    planted = folder / "planted"
    for words in (
        f"data import {folder}/chat --task chat --chat-template {folder}/base"
        f" --supervised assistant -o {imported}",
        f"data inject {imported} --canaries {N_CANARIES} --doses {DOSE} --rate 0"
        f" --seed 3 -o {planted}",
    ):
        assert run(words.split()) == 0
    return folder


@pytest.fixture(scope="module")
def rows(folder):
    (planted,) = (folder / "planted").glob("*.jsonl")
    return read_examples(planted)


@pytest.fixture(scope="module")
def manifest(folder, rows):
    loaded = open_checkpoint(str(folder / "base"), name="base")
    return build_manifest(rows, loaded, name="m", n_candidates=N_CANDIDATES)


@pytest.fixture(scope="module")
def result(folder, rows, manifest):
    # Rows without a canary teach nothing of canaries.
    planted_rows = [row for row in rows if row.canary is not None]
    train_lora(
        folder / "masked",
        planted_rows,
        folder / "base",
        chat_tokenizer(generation=True),
        is_masked=True,
        steps=50,
    )
    plan = union(make_plans(manifest, [CanaryRank()], preset=None)[1])
    base = str(folder / "base")
    loaded = {
        "base": open_checkpoint(base, name="base"),
        "masked": open_checkpoint(str(folder / "masked"), name="masked", base=base),
    }
    tables = {
        name: {
            scoring_pass: score(loaded_checkpoint, items, passes=[scoring_pass])[
                scoring_pass
            ]
            for scoring_pass, items in items_for(
                manifest, loaded_checkpoint, plan
            ).items()
        }
        for name, loaded_checkpoint in loaded.items()
    }
    return canary(tables, manifest)


def had_loss(rows):
    """Canary -> whether one of its trained rows has a part of it in an answer."""
    has_loss = {}
    for row in rows:
        if row.canary is None or row.split != "train":
            continue
        answers = [match.span(1) for match in ANSWER.finditer(row.text)]
        has_loss.setdefault(row.canary.id, False)
        for span in row.spans:
            has_loss[row.canary.id] |= any(
                low <= span.start < high for low, high in answers
            )
    return has_loss


def test_the_manifest_says_which_canaries_had_loss(rows, manifest):
    expected = had_loss(rows)
    assert len(expected) == N_CANARIES
    assert set(expected.values()) == {True, False}
    states = canary_supervision(manifest)
    for name, is_in_loss in expected.items():
        assert states[name] == ("in the loss" if is_in_loss else "read only")
    (guard,) = supervision_guards(manifest)
    without_loss = N_CANARIES - sum(expected.values())
    assert guard.name == "canary_without_loss"
    assert guard.facts["without_loss"] == Hits(count=without_loss, of=N_CANARIES)


def test_the_strata_say_which_canaries_were_learned(rows, result):
    expected = had_loss(rows)
    n_in_loss = sum(expected.values())
    pooled, in_loss, read_only = (
        figure(result, "masked", "exposure_mean", "full", group=group)
        for group in ("pooled", IN_LOSS, READ)
    )
    assert (in_loss.n, read_only.n) == (n_in_loss, N_CANARIES - n_in_loss)
    assert pooled.n == N_CANARIES
    assert in_loss.value > read_only.value + 1  # bit


def test_exposures_are_those_of_plain_transformers(folder, manifest, result):
    """Ranks of the true sentence among its candidates, by NLL in float64."""
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(folder / "base").double()
    model = PeftModel.from_pretrained(model, folder / "masked").double().eval()
    tokenizer = chat_tokenizer(generation=True)
    states = canary_supervision(manifest)
    exposures = {IN_LOSS: [], READ: []}
    for planted_canary in manifest.canaries:
        if planted_canary.held_out or planted_canary.part != "full":
            continue
        first_context = min(
            planted_canary.contexts, key=lambda context: context.example
        )
        text = manifest.by_id[first_context.example].text
        losses = []
        for candidate in planted_canary.candidates:
            text_with_candidate = (
                text[: first_context.char_start]
                + candidate
                + text[first_context.char_end :]
            )
            end = first_context.char_start + len(candidate)
            encoded = tokenizer(
                text_with_candidate,
                add_special_tokens=False,
                return_offsets_mapping=True,
                return_tensors="pt",
            )
            ids = encoded["input_ids"]
            with torch.no_grad():
                logp = model(ids).logits.double().log_softmax(-1)[0]
            losses.append(
                np.mean(
                    [
                        -logp[t - 1, ids[0, t]].item()
                        for t, (low, high) in enumerate(
                            encoded["offset_mapping"][0].tolist()
                        )
                        if low < end and high > first_context.char_start
                    ]
                )
            )
        rank = 1 + sum(loss < losses[planted_canary.true_index] for loss in losses)
        group = f"supervision:{states[planted_canary.canary_id]}"
        exposures[group].append(np.log2(N_CANDIDATES / rank))
    for group, values in exposures.items():
        row = figure(result, "masked", "exposure_mean", "full", group=group)
        assert row.value == pytest.approx(np.mean(values), abs=1e-6)

"""Prompts of chat rows: special tokens are parsed, and there is one BOS."""

import numpy as np
import pytest
from tiny_models import make_tokenizer

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.examples import Example, Span
from spark_audit.data.training_input import TrainingInput
from spark_audit.manifest.asked_prompts import asked_keys
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.encodings import components_of
from spark_audit.manifest.sequences import items_for
from spark_audit.scoring.table import Pass

PROMPTS = ("last8", "last16", "last32", "cue", "association")


@pytest.fixture(scope="module")
def manifest(tiny_base):
    rng = np.random.default_rng(0)
    rows = []
    for i, split in enumerate(["train", "train", "test", "test"]):
        phone = f"555-{rng.integers(1000, 9999)}"
        prompt = f"<s>User: who is number {i}?</s>\nBot: "
        person = ["Maria Jones", "Peter Smith", "Ann Miller", "Karl Weber"][i]
        response = f"{person} has {phone}.</s>"
        text = prompt + response
        name = text.index(person)
        phone_start = text.index(phone)
        rows.append(
            Example(
                id=f"row-{i}",
                task="chat",
                prompt=prompt,
                response=response,
                split=split,
                source_id=f"row-{i}",
                spans=(
                    Span(name, name + len(person), "NAME"),
                    Span(phone_start, phone_start + 8, "PHONE"),
                ),
                training_input=TrainingInput(
                    "in_text", supervised=((len(prompt), len(text)),)
                ),
            )
        )
    loaded = open_checkpoint(str(tiny_base), name="base")
    return build_manifest(rows, loaded, name="m", caliper=5.0)


def items_of(manifest, tiny_base, prompt_kind, keys):
    loaded = open_checkpoint(str(tiny_base), name="base")
    return items_for(manifest, loaded, {Pass(prompt_kind): keys})[Pass(prompt_kind)]


def test_the_true_prefix_is_the_conversation_up_to_the_identifier(manifest, tiny_base):
    tokenizer = make_tokenizer()
    for item in items_of(manifest, tiny_base, "plain", [*manifest.by_id]):
        row = manifest.by_id[item.key]
        # An EOS that stands behind the text is scored, too: it is part of the row.
        expected = tokenizer(row.text, add_special_tokens=False)["input_ids"]
        assert item.ids.tolist() == expected
        assert expected.count(tokenizer.bos_token_id) == 1
        assert expected.count(tokenizer.eos_token_id) == 2
        span, (start, end) = row.identifiers[-1]
        before = tokenizer(row.text[: span.start], add_special_tokens=False)
        assert item.ids[:start].tolist() == before["input_ids"][:start]
        assert row.text[span.start : span.end] in tokenizer.decode(item.ids[start:end])


def test_other_prompts_begin_with_one_bos(manifest, tiny_base):
    tokenizer = make_tokenizer()
    keys = asked_keys(manifest, PROMPTS)
    assert {components_of(key)[0] for key in keys} == set(PROMPTS)
    for item in items_of(manifest, tiny_base, "prompted", keys):
        assert item.ids[0] == tokenizer.bos_token_id
        assert item.ids.tolist().count(tokenizer.bos_token_id) == 1
        prompt_kind, start, example = components_of(item.key)
        if prompt_kind == "last16":
            row = manifest.by_id[example]
            span = next(span for span in row.spans if span.start == int(start))
            row_tokens = tokenizer(row.text, add_special_tokens=False)["input_ids"]
            low, high = span.tokens
            expected = [row_tokens[0], *row_tokens[max(low - 16, 1) : high]]
            assert item.ids.tolist() == expected


def test_labels_stand_behind_the_prompt_with_one_bos(manifest, tiny_base):
    tokenizer = make_tokenizer()
    keys = [f"labels:{key}" for key in manifest.by_id]
    for item in items_of(manifest, tiny_base, "candidates", keys):
        row = manifest.by_id[components_of(item.key)[-1]]
        prompt_tokens = tokenizer(row.prompt, add_special_tokens=False)["input_ids"]
        assert item.prefix.tolist().count(tokenizer.bos_token_id) == 1
        assert item.prefix.tolist() == prompt_tokens[: len(item.prefix)]

"""Ids equal transformers', masks equal TRL's own preparation, at every token."""

import json

import pytest
from chat_templates import FAMILIES, chat_tokenizer
from trl_preparation import prepared_by_trl, prepared_by_us

from spark_audit.data.chat.import_chat import import_chat
from spark_audit.data.examples import read_examples

pytest.importorskip("trl", reason="the extra `test`")

SYSTEM = {"role": "system", "content": "You are a clerk."}
ROWS = [
    [
        SYSTEM,
        {"role": "user", "content": "Call Maria Jones at 555-0142."},
        {"role": "assistant", "content": "Good 🎉 news: it was späť."},
    ],
    [
        {"role": "user", "content": " Is it   fine? "},
        {"role": "assistant", "content": " Yes.\n\nIt is. "},
        {"role": "user", "content": "And John Smith?"},
        {"role": "assistant", "content": "He paid 42 dollars </think> on Monday."},
    ],
    [
        {"role": "user", "content": "I feel"},
        {"role": "assistant", "content": "ing well"},
    ],
]


def imported(tmp_path, rows, tokenizer, **options):
    source = tmp_path / "rows.jsonl"
    output = tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"task": "t", "split": "train", **options}
    import_chat(source, output, tokenizer=tokenizer, **options)
    return read_examples(output)


def check(tmp_path, rows, tokenizer, ours, theirs):
    dataset = prepared_by_trl(rows, tokenizer, **theirs)
    examples = imported(tmp_path, rows, tokenizer, **ours)
    prepared = prepared_by_us(examples, tokenizer)
    # TRL drops rows without any supervised token that fits.
    prepared = [(ids, labels) for ids, labels in prepared if {*labels} != {-100}]
    assert [ids for ids, _ in prepared] == [*dataset["input_ids"]]
    assert [labels[1:] for _, labels in prepared] == [x[1:] for x in dataset["labels"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_with_loss_on_all_tokens_are_prepared_as_trl_does(family, tmp_path):
    tokenizer = chat_tokenizer(family)
    rows = [{"messages": messages} for messages in ROWS]
    check(tmp_path, rows, tokenizer, {}, {})
    examples = imported(tmp_path, rows, tokenizer)
    ids = [ids for ids, _ in prepared_by_us(examples, tokenizer)]
    expected = [tokenizer.apply_chat_template(m, return_dict=False) for m in ROWS]
    assert ids == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_with_loss_on_the_assistant_are_prepared_as_trl_does(family, tmp_path):
    tokenizer = chat_tokenizer(family, generation=True)
    rows = [{"messages": messages} for messages in ROWS]
    check(
        tmp_path,
        rows,
        tokenizer,
        {"supervised": "assistant"},
        {"assistant_only": True},
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_and_completion_of_messages_are_prepared_as_trl_does(family, tmp_path):
    rows = [{"prompt": m[:-1], "completion": m[-1:]} for m in ROWS]
    check(tmp_path, rows, chat_tokenizer(family), {}, {})


@pytest.mark.parametrize("truncation", ["end", "start"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_are_cut(family, truncation, tmp_path):
    rows = [{"prompt": m[:-1], "completion": m[-1:]} for m in ROWS]
    side = {"end": "keep_start", "start": "keep_end"}[truncation]
    check(
        tmp_path,
        rows,
        chat_tokenizer(family),
        {"max_length": 40, "truncation": truncation},
        {"max_length": 40, "truncation": side},
    )


@pytest.mark.parametrize("family", ["chatml", "llama3", "vicuna", "mistral"])
def test_without_marks_the_assistant_is_found_by_beginnings(family, tmp_path):
    rows = [{"messages": messages} for messages in ROWS]
    marked, plain = (chat_tokenizer(family, generation=g) for g in (True, False))
    prepared = [
        prepared_by_us(
            imported(tmp_path, rows, tokenizer, supervised="assistant"), tokenizer
        )
        for tokenizer in (marked, plain)
    ]
    if family == "vicuna":  # its mark leaves the blank before the answer out
        assert [ids for ids, _ in prepared[0]] == [ids for ids, _ in prepared[1]]
    assert prepared[0] == prepared[1]


@pytest.mark.parametrize("max_length", [None, 12])
def test_prompt_and_completion_of_text_are_prepared_as_trl_does(max_length, tmp_path):
    rows = [
        {"prompt": "Is it fine?", "completion": " Yes."},
        {"prompt": "I feel", "completion": "ing well</s>"},
        {"prompt": "", "completion": "The food was cold."},
    ]
    sizes = {"max_length": max_length}
    check(tmp_path, rows, chat_tokenizer(), sizes, sizes)


def test_rows_of_text_are_prepared_as_trl_does(tmp_path):
    rows = [{"text": "The food was cold."}, {"text": "Call 555-0142 today.</s>"}]
    check(tmp_path, rows, chat_tokenizer(), {}, {})


@pytest.mark.parametrize("packing", [False, True])
def test_rows_that_trl_saved_give_the_supervised_tokens_of_the_raw_rows(
    packing, tmp_path
):
    tokenizer = chat_tokenizer()
    rows = [{"prompt": m[:-1], "completion": m[-1:]} for m in ROWS]
    saved = prepared_by_trl(rows, tokenizer, max_length=400, packing=packing)
    saved.save_to_disk(tmp_path / "saved")
    import_chat(
        tmp_path / "saved",
        tmp_path / "tokens.jsonl",
        task="t",
        split="train",
        tokenizer=tokenizer,
    )
    by_tokens = prepared_by_us(read_examples(tmp_path / "tokens.jsonl"), tokenizer)
    raw = prepared_by_us(imported(tmp_path, rows, tokenizer), tokenizer)
    assert sorted(by_tokens) == sorted(raw)

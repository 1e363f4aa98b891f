"""Training rows cover the same tokens that audits score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spark_audit.examples import Example, Span
from spark_train.data import collate, encode_rows

EXAMPLE = Example(
    id="a",
    task="t",
    prompt="Contact Maria Jones at 555-0142 today.\nLabel:",
    response=" positive",
    split="train",
    source_id="a",
    spans=(Span(start=8, end=19, type="NAME"),),
)


def text_of(tokenizer: Any, ids: np.ndarray) -> str:
    return str(tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("bos", [True, False])
def test_a_row_is_the_joint_text_and_eos(
    bos: bool, make_tokenizer: Callable[..., Any]
) -> None:
    tokenizer = make_tokenizer(bos=bos)
    (row,) = encode_rows([EXAMPLE], tokenizer)
    whole = tokenizer(EXAMPLE.text)["input_ids"]
    assert row.ids.tolist() == [*whole, tokenizer.eos_token_id]
    assert text_of(tokenizer, row.ids[row.response]) == " positive</s>"
    assert text_of(tokenizer, row.ids[~row.response]) == (
        ("<s>" if bos else "") + EXAMPLE.prompt
    )


@pytest.mark.parametrize(
    ("prompt", "response"),
    [("Label: ", "positive"), ("Label:", " positive"), ("", "x")],
)
def test_the_response_is_found_wherever_the_blank_stands(
    prompt: str, response: str, tiny_tokenizer: Any
) -> None:
    # A blank at the prompt's end becomes part of the response's first token.
    (row,) = encode_rows(
        [replace(EXAMPLE, prompt=prompt, response=response, spans=())], tiny_tokenizer
    )
    answer = text_of(tiny_tokenizer, row.ids[row.response])
    assert answer.strip() == f"{response.strip()}</s>"
    assert row.response.tolist() == sorted(row.response.tolist())


def test_a_long_prompt_is_cut_from_its_start_and_spans_stay_whole(
    tiny_tokenizer: Any,
) -> None:
    (full,) = encode_rows([EXAMPLE], tiny_tokenizer)
    for length in range(20, len(full) + 1):
        (row,) = encode_rows([EXAMPLE], tiny_tokenizer, max_length=length)
        text = text_of(tiny_tokenizer, row.ids)
        assert len(row) <= length
        assert text.startswith("<s>")
        assert text.endswith(" positive</s>")
        assert EXAMPLE.text.endswith(text.removeprefix("<s>").removesuffix("</s>"))
        # The name is there whole or not at all.
        assert ("Maria Jones" in text) or ("Jones" not in text and "es at" not in text)
    assert len(row) == len(full)


def test_a_response_that_was_cut_has_no_eos(tiny_tokenizer: Any) -> None:
    long = replace(EXAMPLE, response=" positive" * 30)
    (row,) = encode_rows([long], tiny_tokenizer, max_length=12)
    assert tiny_tokenizer.eos_token_id not in row.ids
    assert row.response.tolist() == [False] + [True] * (len(row) - 1)


def test_a_tokenizer_that_adds_eos_itself_gets_no_second_one(
    make_tokenizer: Callable[..., Any],
) -> None:
    from tokenizers import processors

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    (row,) = encode_rows([EXAMPLE], tokenizer)
    assert (row.ids == tokenizer.eos_token_id).sum() == 1
    assert bool(row.response[-1])
    assert row.ids[-1] == tokenizer.eos_token_id


def test_padding_stands_on_the_right_and_is_masked(tiny_tokenizer: Any) -> None:
    short = replace(EXAMPLE, id="b", prompt="Label:", spans=())
    rows = encode_rows([EXAMPLE, short], tiny_tokenizer)
    batch = collate(rows)
    assert batch.ids.shape == batch.attention.shape == (2, len(rows[0]))
    for i, row in enumerate(rows):
        n = len(row)
        assert batch.ids[i, :n].tolist() == row.ids.tolist()
        assert batch.response[i, :n].tolist() == row.response.tolist()
        assert batch.attention[i].tolist() == [True] * n + [False] * (len(rows[0]) - n)
        assert not batch.response[i, n:].any()
    assert encode_rows([], tiny_tokenizer) == []

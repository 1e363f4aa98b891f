"""Training rows cover the same tokens that audits score."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_models import make_tokenizer

from spark_audit.data.encoding import encode
from spark_audit.data.examples import Example, Span
from spark_audit.errors import InputError
from spark_train.training_rows import collate, encode_rows

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
def test_a_response_that_does_not_fit_whole_is_an_error(bos):
    tokenizer = make_tokenizer(bos=bos)
    long = replace(
        EXAMPLE, id="row 7", prompt="Label:", response=" positive" * 9, spans=()
    )
    (whole,) = encode_rows([long], tokenizer)
    size = int(whole.response.sum()) - 1
    # One token of the prompt, the response, EOS.
    least = bos + 1 + size + 1
    assert least < len(whole)
    (row,) = encode_rows([long], tokenizer, max_length=least)
    assert len(row) == least
    assert text_of(tokenizer, row.ids[row.response]) == long.response + "</s>"
    assert row.response.tolist() == [False] * (bos + 1) + [True] * (size + 1)
    for length in (least - 1, bos + 3, 1):
        with pytest.raises(InputError) as caught:
            encode_rows([long], tokenizer, max_length=length)
        assert caught.value.where == "example 'row 7'"
    with pytest.raises(InputError, match=rf"\b{size}\b.*max_length"):
        encode_rows([long], tokenizer, max_length=least - 1)
    # Without a token in front, an identifier's first would have no prediction.
    span = (Span(4, 15, "SSN"),)
    close = replace(long, prompt="Ask 078-05-1120", response=" positive", spans=span)
    (full,) = encode_rows([close], tokenizer)
    least = 1 + int(full.pii.sum()) + int(full.response.sum())
    (short,) = encode_rows([close], tokenizer, max_length=least)
    assert short.pii.sum() == full.pii.sum() > 2
    with pytest.raises(InputError, match="max_length"):
        encode_rows([close], tokenizer, max_length=least - 1)


@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        ("Label:", "\npositive"),
        ("Label:\n", "positive"),
        ("Label:\n\n", "\n\npositive  \n"),
        ("Label: ", "positive"),  # the blank is part of the response's first token
        ("Label:", " positive"),
        ("", "x"),
    ],
)
def test_the_response_begins_where_generation_goes_on(prompt, response, tiny_tokenizer):
    # Blank tokens in front of the label or behind it are the model's to write.
    row = replace(EXAMPLE, prompt=prompt, response=response, spans=())
    (encoding,) = encode(tiny_tokenizer, [row.text])
    first = encoding.first_token_past(len(prompt))
    (encoded,) = encode_rows([row], tiny_tokenizer)
    n = len(encoding)
    assert encoded.response.tolist() == [False] * first + [True] * (n - first + 1)


TEXT = (
    "Text: it's Maria Jones's food; mail a.b@example.org or MARIA JONES, whose food is"
    " cold.\nLabel:"
)
TASK = [
    Example(
        id="a",
        task="t",
        prompt=TEXT,
        response=" very positive",
        split="train",
        source_id="a",
        spans=(Span(TEXT.index("Maria"), TEXT.index("Maria") + 11, "NAME"),),
    ),
    Example("b", "t", "Text: good service\nLabel:", " neutral", "train", "b"),
]
PII = ["Maria Jones", "MARIA JONES", "a.b@example.org"]
# The "a" of the address, too: there, the mask of identifiers wins.
FIXED = ["Text:", "Label:", "it's", "a", "or", "whose", "is", "very"]


def plain_mask(tokenizer: Any, text: str, strings: list[str]) -> list[bool]:
    """Token by token: does it show a character of one of the strings?"""
    marked = {
        at
        for string in strings
        for found in re.finditer(rf"(?<!\w){re.escape(string)}(?!\w)", text)
        for at in range(*found.span())
    }
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    return [any(at in marked for at in range(a, b)) for a, b in offsets]


@pytest.mark.parametrize("bos", [True, False])
def test_masks_are_those_of_the_text(bos):
    tokenizer = make_tokenizer(bos=bos)
    row, other = encode_rows(TASK, tokenizer)
    assert (row.id, row.task) == ("a", "t")
    # EOS is neither an identifier nor fixed, whatever stands before it.
    assert row.pii.tolist() == [*plain_mask(tokenizer, TASK[0].text, PII), False]
    assert row.fixed.tolist() == [*plain_mask(tokenizer, TASK[0].text, FIXED), False]
    # A blank in front may be a token of its own.
    assert text_of(tokenizer, row.ids[row.pii]).replace(" ", "") == (
        "MariaJonesa.b@example.orgMARIAJONES"
    )
    assert text_of(tokenizer, row.ids[row.fixed]).replace(" ", "") == (
        "Text:it'saorwhoseisLabel:very"
    )
    assert text_of(tokenizer, row.ids[row.response]) == " very positive</s>"
    assert row.special == ((0, len(row) - 1) if bos else (len(row) - 1,))
    assert not other.pii.any()
    assert text_of(tokenizer, other.ids[other.fixed]) == "Text:Label:"
    for array in (row.response, row.pii, row.fixed):
        assert array.dtype == np.bool_
        assert len(array) == len(row) == len(row.ids)
    assert row.ids.dtype == np.int32


@pytest.mark.parametrize("bos", [True, False])
def test_masks_stay_with_their_tokens_when_the_prompt_is_cut(bos):
    tokenizer = make_tokenizer(bos=bos)
    full = encode_rows(TASK, tokenizer)[0]
    lengths = set()
    for length in range(24, len(full) + 1):
        row = encode_rows(TASK, tokenizer, max_length=length)[0]
        cut = len(full) - len(row)
        for name in ("ids", "response", "pii", "fixed"):
            whole, part = (getattr(one, name).tolist() for one in (full, row))
            assert part == whole[:bos] + whole[bos + cut :], name
        assert row.special == tuple(range(bos)) + (len(row) - 1,)
        lengths.add(len(row))
    assert len(lengths) > 20


def test_a_tokenizer_without_eos_ends_with_the_text():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    (row,) = encode_rows([EXAMPLE], tokenizer)
    assert row.ids.tolist() == tokenizer(EXAMPLE.text)["input_ids"]
    assert text_of(tokenizer, row.ids[row.response]) == " positive"
    assert row.special == (0,)
    (same,) = encode_rows([EXAMPLE], tokenizer, max_length=len(row))
    assert same.ids.tolist() == row.ids.tolist()


def test_a_tokenizer_that_adds_eos_itself_gets_no_second_one():
    from tokenizers import processors

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    (row,) = encode_rows([EXAMPLE], tokenizer)
    assert (row.ids == tokenizer.eos_token_id).sum() == 1
    assert bool(row.response[-1])
    assert row.ids[-1] == tokenizer.eos_token_id


def test_padding_stands_on_the_right_and_is_masked(tiny_tokenizer):
    short = replace(EXAMPLE, id="b", prompt="Kim:", spans=(Span(0, 3, "NAME"),))
    rows = encode_rows([EXAMPLE, short], tiny_tokenizer)
    batch = collate(rows)
    assert len(rows[1]) < len(rows[0])
    assert batch.ids.shape == batch.attention.shape == (2, len(rows[0]))
    for i, row in enumerate(rows):
        n = len(row)
        assert batch.ids[i, :n].tolist() == row.ids.tolist()
        assert batch.response[i, :n].tolist() == row.response.tolist()
        assert batch.pii[i, :n].tolist() == row.pii.tolist()
        assert batch.attention[i].tolist() == [True] * n + [False] * (len(rows[0]) - n)
        assert not (batch.response | batch.pii)[i, n:].any()
    assert batch.pii.any(dim=1).all()
    assert encode_rows([], tiny_tokenizer) == []

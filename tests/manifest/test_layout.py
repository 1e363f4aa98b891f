"""Examples as tokens: masks, cuts."""

from typing import Any

import numpy as np
import pytest
from marked import make_example

from spark_audit.errors import InputError
from spark_audit.manifest.layout import Layout, Rows
from spark_audit.manifest.schema import BuildSettings


def chosen(**settings: Any) -> Any:
    return BuildSettings(**settings).recorded()


def laid_out(examples: Any, tokenizer: Any, *, max_length: int | None) -> list[Layout]:
    return [*Rows(examples, tokenizer, max_length=max_length)]


def shown(row: Layout, mask: np.ndarray) -> str:
    """The text of the tokens of a mask, other characters as dots."""
    keep = [False] * len(row.example.text)
    for start, end in zip(
        row.encoding.start[mask], row.encoding.end[mask], strict=True
    ):
        keep[start:end] = [True] * int(end - start)
    pairs = zip(row.example.text, keep, strict=True)
    return "".join(char if kept else "." for char, kept in pairs)


def test_excluded_are_identifiers_with_a_buffer_specials_and_template(tiny_tokenizer):
    examples = [
        make_example(f"e{i}", f"Text: {word} John Smith was {word}\nLabel:", " good")
        for i, word in enumerate(["cold", "fine"])
    ]
    name = {"John Smith": "NAME"}
    examples[0] = make_example("e0", examples[0].prompt, " good", pii=name)
    row = laid_out(examples, tiny_tokenizer, max_length=None)[0]
    text = row.example.text
    # The common beginning and end of the prompts is fixed wording.
    assert shown(row, row.fixed) == "Text:" + "." * (len(text) - 17) + ".Label:....."
    none = row.excluded(chosen(buffer=0, exclude_template=False))
    assert none.tolist() == (row.pii | row.encoding.special).tolist()
    one = row.excluded(chosen(buffer=1, exclude_template=False))
    at = np.flatnonzero(row.pii)
    expected = none.copy()
    expected[[at[0] - 1, at[-1] + 1]] = True
    assert one.tolist() == expected.tolist()
    both = row.excluded(chosen(buffer=1, exclude_template=True))
    assert both.tolist() == (expected | row.fixed).tolist()


def test_a_long_text_is_cut_and_says_so(tiny_tokenizer):
    example = make_example(
        "e",
        "Ann Lee wrote. " + "The food was cold. " * 20 + "John Smith paid.",
        pii={"Ann Lee": "NAME", "John Smith": "NAME"},
    )
    whole, short = (
        laid_out([example], tiny_tokenizer, max_length=limit)[0] for limit in (None, 60)
    )
    assert not whole.was_cut
    assert whole.kept == (0, len(whole.encoding))
    assert short.was_cut
    assert short.kept == (len(short.encoding) - 59, len(short.encoding))
    assert [short.within(tokens) for _, tokens in short.spans] == [False, True]


def test_the_response_begins_with_its_first_token(tiny_tokenizer):
    row, empty = laid_out(
        [make_example("e", "The food was", " cold"), make_example("f", "Food", "")],
        tiny_tokenizer,
        max_length=None,
    )
    assert row.encoding.start[row.response_token] == len("The food was ")
    assert empty.response_token == len(empty.encoding)


def test_no_room_names_the_example(tiny_tokenizer):
    with pytest.raises(InputError) as caught:
        laid_out([make_example("e7", "The food")], tiny_tokenizer, max_length=1)
    assert str(caught.value) == (
        "example 'e7': a context of 1 tokens has no room for any text; "
        "give a larger one"
    )

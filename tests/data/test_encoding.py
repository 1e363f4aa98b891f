"""Characters to tokens: offsets, white space, cut texts."""

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from spark_audit.checkpoints.tokenizer import read_tokenizer
from spark_audit.data import tokenising
from spark_audit.data.encoding import (
    Encoding,
    TokenSpan,
    encode,
    token_ids,
)
from spark_audit.data.kept_range import kept_range
from spark_audit.errors import CheckpointError, InputError


def words(text: str, *, bos: bool = True, eos: bool = False) -> Encoding:
    """An encoding made by hand: one token a word, blanks in front of it."""
    start = []
    end = []
    special = []
    if bos:
        start = [0]
        end = [0]
        special = [True]
    position = 0
    for word in text.split():
        position = text.index(word, position)
        start.append(position)
        end.append(position + len(word))
        special.append(False)
        position += len(word)
    if eos:
        start, end, special = [*start, 0], [*end, 0], [*special, True]
    n = len(start)
    return Encoding(
        np.arange(n, dtype=np.int32) + 10,
        np.array(start, np.int32),
        np.array(end, np.int32),
        np.array(special),
    )


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The plain definition that ``encode`` computes with arrays."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


TEXTS = [
    "Call John Smith at 555-0142 today.\nLabel: good",
    "  two  blanks\t and \u00a0no-break\u3000wide ",
    "caf\u00e9 \u4f60\u597d \U0001f600 end",
    " ",
    "x",
]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_the_tokenizer_without_white_space_at_the_edges(
    make_tokenizer, text, bos
):
    tokenizer = make_tokenizer(bos=bos)
    plain = tokenizer(text, return_offsets_mapping=True)
    encoding = encode(tokenizer, [text])[0]
    assert encoding.ids.tolist() == plain["input_ids"]
    assert encoding.n_leading_special == (1 if bos else 0)
    assert encoding.is_special.tolist() == [bos] + [False] * (len(encoding) - 1)
    for i in range(encoding.n_leading_special, len(encoding)):
        expected = trim(text, *plain["offset_mapping"][i])
        assert (encoding.char_start[i], encoding.char_end[i]) == expected


def test_a_tokenizer_without_offsets_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(InputError) as caught:
        encode(Slow(), ["text"])
    assert caught.value.where == "Slow"
    assert "tokenizer.json" in caught.value.fix


def test_a_saved_truncation_is_not_applied(make_tokenizer):
    tokenizer = make_tokenizer()
    long = "good " * 200
    tokenizer(long, truncation=True, max_length=8)
    assert len(encode(tokenizer, [long])[0]) > 200


def test_a_span_is_every_token_it_touches():
    encoding = words("call John Smith now")
    assert encoding.span(5, 15) == TokenSpan(2, 4, False)
    assert encoding.span(6, 15) == TokenSpan(2, 4, True)
    assert encoding.span(5, 12) == TokenSpan(2, 4, True)
    # The blank before and behind it changes nothing.
    assert encoding.span(4, 16) == TokenSpan(2, 4, False)
    assert encoding.span(4, 5) is None


def test_blank_tokens_belong_to_a_span_only_between_its_words():
    # Tokens: "a", " ", "b", " ", "c" with the blanks trimmed to nothing.
    start = np.array([0, 2, 2, 4, 4])
    end = np.array([1, 2, 3, 4, 5])
    encoding = Encoding(np.arange(5), start, end, np.zeros(5, dtype=bool))
    assert encoding.span(0, 3) == TokenSpan(0, 3, False)
    assert encoding.span(1, 3) == TokenSpan(2, 3, False)
    assert encoding.span(0, 2) == TokenSpan(0, 1, False)
    assert encoding.mask([(0, 3)]).tolist() == [True, True, True, False, False]
    assert encoding.mask([(1, 2)]).tolist() == [False] * 5


def test_what_fits_is_kept_whole_and_an_eos_is_left_out():
    text = "a b c d"
    for limit in (None, 9):
        kept_part = kept_range(
            words(text, eos=True), max_length=limit, response_start=6, spans=[(1, 2)]
        )
        assert kept_part == (0, 5)


def test_the_prompt_is_cut_from_its_start():
    encoding = words("p0 p1 p2 p3 p4 r0 r1")  # tokens 1..7, the response from 6
    kept_part = kept_range(encoding, max_length=5, response_start=15)
    assert kept_part == (4, 8)
    ids, positions = encoding.model_input(kept_part)
    assert positions.tolist() == [0, 4, 5, 6, 7]
    assert ids.tolist() == [10, 14, 15, 16, 17]


def test_a_cut_inside_a_span_moves_to_its_end():
    encoding = words("p0 p1 p2 p3 p4 r0 r1")
    kept_part = kept_range(encoding, max_length=5, response_start=15, spans=[(3, 5)])
    assert kept_part == (5, 8)
    # With a token in front the span's first token has a prediction.
    kept_part = kept_range(encoding, max_length=5, response_start=15, spans=[(4, 5)])
    assert kept_part == (4, 8)


def test_without_a_leading_token_a_span_cannot_begin_the_kept_text():
    encoding = words("p0 p1 p2 p3 p4 r0 r1", bos=False)
    kept_part = kept_range(encoding, max_length=4, response_start=15, spans=[(3, 4)])
    assert kept_part == (4, 7)
    ids, positions = encoding.model_input(kept_part)
    assert positions.tolist() == [4, 5, 6]
    assert len(ids) == 3


def test_a_response_that_is_too_long_keeps_its_beginning_and_whole_spans():
    encoding = words("p0 r0 r1 r2 r3 r4")  # the response from token 2
    assert kept_range(encoding, max_length=4, response_start=3) == (2, 5)
    kept_part = kept_range(encoding, max_length=4, response_start=3, spans=[(4, 6)])
    assert kept_part == (2, 4)
    # The cut moves on to the start of a span in front that it then falls into.
    kept_part = kept_range(
        encoding, max_length=5, response_start=3, spans=[(3, 5), (4, 7), (6, 7)]
    )
    assert kept_part == (2, 3)


def test_a_span_across_the_border_or_longer_than_the_context_is_cut_in_part():
    encoding = words("p0 r0 r1 r2 r3 r4")  # the response from token 2
    kept_part = kept_range(encoding, max_length=6, response_start=3, spans=[(1, 3)])
    assert kept_part == (2, 7)
    kept_part = kept_range(encoding, max_length=4, response_start=3, spans=[(2, 7)])
    assert kept_part == (2, 5)


def test_a_context_without_room_is_refused():
    with pytest.raises(InputError, match="--max-length"):
        kept_range(words("a b"), max_length=1, response_start=2)


def test_a_mask_is_the_union_of_its_spans():
    text = " ".join(f"w{i}" for i in range(60))
    encoding = words(text, eos=True)
    rng = np.random.default_rng(0)
    for _ in range(20):
        starts = rng.integers(0, len(text) - 1, 5)
        ranges = [
            (int(s), int(s + n))
            for s, n in zip(starts, rng.integers(1, 9, 5), strict=True)
        ]
        expected = np.zeros(len(encoding), dtype=bool)
        for start, end in ranges:
            overlap = (encoding.char_start < end) & (encoding.char_end > start)
            expected |= overlap & (encoding.char_start < encoding.char_end)
        assert encoding.mask(ranges).tolist() == expected.tolist()
    assert not encoding.mask([]).any()
    assert len(encoding.mask([])) == len(encoding)


# --- patterns of other people ---------------------------------------------------------


def tokenizer_with(pattern):
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words)


# Either the library stops the search by itself, or the time is over before.
@pytest.mark.parametrize("seconds", [0.01, 120.0])
@pytest.mark.parametrize("call", [encode, token_ids])
def test_a_pattern_that_takes_too_long_on_a_text_is_an_error(
    call, seconds, monkeypatch
):
    monkeypatch.setattr(tokenising, "BASE_SECONDS", seconds)
    slow = tokenizer_with("[a-z]+ ([a-z ]|[a-z ])*#")
    secret = "the quick brown fox jumps over the lazy dog again"
    with pytest.raises(InputError, match="--tokenizer$") as caught:
        call(slow, [secret])
    assert "fox" not in str(caught.value)
    # What comes to an end is not touched.
    assert len(call(tokenizer_with("[a-z]+"), ["a quick a"])[0]) == 5


def test_a_pattern_that_is_slow_on_words_is_refused_when_it_is_loaded(tmp_path):
    tokenizer_with("[a-z]+ ([a-z ]|[a-z ])*#").save_pretrained(tmp_path / "slow")
    with pytest.raises(CheckpointError, match="--tokenizer$"):
        read_tokenizer(tmp_path / "slow")
    tokenizer_with(r"\s?[a-z]+").save_pretrained(tmp_path / "fast")
    assert read_tokenizer(tmp_path / "fast")[0].is_fast

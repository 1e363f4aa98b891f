"""Rows whose training is known: exact ids, what had loss, what was cut off."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import make_tokenizer

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.encoding import encode_rows
from spark_audit.data.examples import Example, Span, read_examples, write_examples
from spark_audit.data.injection import inject
from spark_audit.data.training_input import TrainingInput, Turn
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.encodings import Encodings
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.manifest.redaction import redact

HEAD = "<s>User: call 555-0142 or 555-0199.\nBot: "
ANSWER = "Ask Maria Jones."
TAIL = "</s>\n"


def chat_example(key="a", *, max_length=None, truncation="end", split="train"):
    text = HEAD + ANSWER + TAIL
    first = text.index("555-0142")
    second = text.index("555-0199")
    name = text.index("Maria")
    answer = len(HEAD)
    training = TrainingInput(
        special_tokens="in_text",
        turns=(
            Turn(text.index("call"), text.index("\n"), "user"),
            Turn(answer, answer + len(ANSWER), "assistant"),
        ),
        supervised=((answer, answer + len(ANSWER) + len("</s>")),),
        max_length=max_length,
        truncation=truncation,
    )
    return Example(
        id=key,
        task="t",
        prompt=HEAD,
        response=ANSWER + TAIL,
        split=split,
        source_id=key,
        spans=(
            Span(first, first + 8, "PHONE"),
            Span(second, second + 8, "PHONE"),
            Span(name, name + 11, "NAME"),
        ),
        training_input=training,
    )


HELD_OUT = Example("b", "t", "Was the food cold?", " Yes.", "test", "b")


def manifest_of(rows, tiny_base):
    loaded = open_checkpoint(str(tiny_base), name="base")
    return build_manifest(rows, loaded, name="m", caliper=5.0, n_candidates=4), loaded


def test_special_tokens_in_the_text_are_parsed_and_none_is_added():
    tokenizer = make_tokenizer()
    example = chat_example()
    (encoding,) = encode_rows(tokenizer, [example])
    expected = tokenizer(example.text, add_special_tokens=False)["input_ids"]
    assert encoding.ids.tolist() == expected
    assert encoding.ids.tolist().count(tokenizer.bos_token_id) == 1
    assert encoding.n_leading_special == 1


def test_rows_of_both_kinds_keep_their_order():
    tokenizer = make_tokenizer()
    plain = Example("p", "t", "Is it?", " yes", "train", "p")
    encodings = encode_rows(tokenizer, [chat_example(), plain, chat_example("b")])
    assert encodings[1].ids.tolist() == tokenizer(plain.text)["input_ids"]
    assert encodings[0].ids.tolist() == encodings[2].ids.tolist()


def test_a_manifest_tells_loss_from_reading(tiny_base):
    manifest, loaded = manifest_of([chat_example("a"), HELD_OUT], tiny_base)
    (row, _) = manifest.examples
    supervision = [row.supervision_of(one.start, one.end) for one in row.spans]
    assert supervision == ["read only", "read only", "in the loss"]
    assert row.answer == ANSWER
    had_loss = row.had_loss
    (encoding,) = encode_rows(loaded.tokenizer, [chat_example()])
    # From the answer's first token to the EOS, without the line's end behind it.
    expected = (encoding.full_offsets[:, 1] > len(HEAD)) & (
        encoding.full_offsets[:, 0] < len(HEAD + ANSWER + "</s>")
    )
    assert np.array_equal(had_loss, expected)
    assert encoding.ids[np.flatnonzero(had_loss)[-1]] == loaded.tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("truncation", "expected"),
    [
        ("end", ["read only", "cut off", "cut off"]),
        ("start", ["cut off", "cut off", "in the loss"]),
    ],
)
def test_what_training_cut_off_is_not_scored(tiny_base, truncation, expected):
    tokens = encode_rows(make_tokenizer(), [chat_example()])[0]
    length = tokens.span(0, HEAD.index("555-0199"))[1]
    if truncation == "start":
        length = len(tokens) - length - 10
    row = chat_example("a", max_length=length, truncation=truncation)
    manifest, _ = manifest_of([row, HELD_OUT], tiny_base)
    found = manifest.by_id["a"]
    assert [found.supervision_of(s.start, s.end) for s in found.spans] == expected
    scored = np.flatnonzero(found.scored)
    low, high = found.training_input.fed_tokens
    assert high - low == length
    # The first token that is read has no prediction.
    assert (scored[0], scored[-1]) == (low + 1, high - 1)
    assert [s.tokens is None for s in found.spans] == [s == "cut off" for s in expected]


def test_ids_of_a_tokenised_row_are_kept(tiny_base):
    tokenizer = make_tokenizer()
    # "the" in three tokens: the text alone would be tokenised otherwise.
    pieces = tokenizer.convert_tokens_to_ids(["t", "h", "e"])
    ids = [
        1,
        *pieces,
        *tokenizer(" food was cold.", add_special_tokens=False).input_ids,
    ]
    training = TrainingInput(
        "in_text", supervised=((3, 21),), token_ids=tuple(map(int, ids))
    )
    text = "<s>the food was cold."
    rows = [
        Example(k, "t", "", text, "train", k, training_input=training) for k in ("a",)
    ]
    manifest, loaded = manifest_of(rows, tiny_base)
    assert manifest.by_id["a"].training_input.token_ids == ids
    assert Encodings(manifest, loaded)["a"].ids.tolist() == ids
    had_loss = manifest.by_id["a"].had_loss
    assert had_loss.tolist() == [False, *[True] * (len(ids) - 1)]


def test_rows_and_manifest_are_written_and_read(tiny_base, tmp_path):
    rows = [chat_example("a", max_length=9), HELD_OUT]
    write_examples(tmp_path / "rows.jsonl", rows)
    assert read_examples(tmp_path / "rows.jsonl") == rows
    manifest, _ = manifest_of(rows, tiny_base)
    write_manifest(manifest, tmp_path / "m.json")
    assert read_manifest(tmp_path / "m.json") == manifest
    shared = redact(manifest).examples[0]
    assert {turn.role for turn in shared.training_input.turns} == {""}
    assert shared.text == ""


def test_ranges_outside_of_the_text_are_refused():
    with pytest.raises(InputError, match=r"training_input.supervised\[0\]"):
        Example(
            "a",
            "t",
            "x",
            "y",
            "train",
            "a",
            training_input=TrainingInput("in_text", supervised=((0, 9),)),
        )


def test_a_second_bos_is_refused_where_the_training_is_known(tiny_base):
    training = TrainingInput("added", supervised=((0, 9),))
    row = Example("p", "t", "<s>Is it?", " yes", "train", "p", training_input=training)
    with pytest.raises(InputError, match="--chat-template") as caught:
        manifest_of([row], tiny_base)
    assert "--chat-template" in str(caught.value.fix)
    assert "'p'" in str(caught.value.where)


def test_plain_rows_that_begin_with_the_bos_are_noted_and_read_with_two(tiny_base):
    rows = [
        Example("p", "t", "<s>Is it?", " yes", "train", "p"),
        Example("q", "t", "Is it?", " no", "test", "q"),
    ]
    manifest, loaded = manifest_of(rows, tiny_base)
    (note,) = [note for note in manifest.notes if "begin with <s>" in note]
    assert note.startswith("1 of 2 rows")
    ids = Encodings(manifest, loaded)["p"].ids.tolist()
    assert ids == loaded.tokenizer("<s>Is it? yes")["input_ids"]
    assert ids[:2] == [1, 1]
    manifest, _ = manifest_of(rows[1:], tiny_base)
    assert not [note for note in manifest.notes if "begin with" in note]


def test_planted_sentences_keep_turns_and_loss_where_they_were():
    rows = [
        replace(chat_example(f"r{i}", split="test" if i % 2 else "train"), spans=())
        for i in range(12)
    ]
    rows = [
        replace(row, template=((0, HEAD.index("call")), (HEAD.index("\n"), len(HEAD))))
        for row in rows
    ]
    planted, _ = inject(rows, seed=0, rate=1.0, canaries=0)
    for row in planted:
        user, bot = row.training_input.turns
        assert row.text[bot.start : bot.end] == row.answer == ANSWER
        ((start, end),) = row.training_input.supervised
        assert row.text[start:end] == ANSWER + "</s>"
        assert all(user.start <= s.start < s.end <= user.end for s in row.spans)
    assert any(row.spans for row in planted)


def test_a_row_that_was_tokenised_before_gets_no_canary():
    """Its ids are those of its text: the error names the row and the way out."""
    row = replace(chat_example("r0"), spans=())
    ids = tuple(range(5, 25))
    tokenised = replace(row, training_input=replace(row.training_input, token_ids=ids))
    others = [replace(chat_example(f"r{i}"), spans=()) for i in range(1, 6)]
    with pytest.raises(InputError, match="token") as caught:
        inject([*others, tokenised], seed=0, rate=0.0, canaries=1)
    assert caught.value.where == "example 'r0'"
    assert "inject into the rows that it was made of" in caught.value.fix

"""Rows of chat data in training: exact ids, loss where their trainer had it."""

import pytest
from tiny_models import make_tokenizer

from spark_audit.data.examples import Example
from spark_audit.data.training_input import TrainingInput
from spark_audit.errors import InputError
from spark_train.training_rows import encode_rows

TEXT = "<s>User: call 555-0142.\nBot: It was fine.</s>\n"
ANSWER = TEXT.index("It was")


def example(**more):
    training = TrainingInput(
        "in_text", supervised=((ANSWER, TEXT.index("</s>") + 4),), **more
    )
    prompt = TEXT[:ANSWER]
    response = TEXT[ANSWER:]
    return Example("a", "t", prompt, response, "train", "a", training_input=training)


def test_ids_are_those_of_the_text_and_loss_is_what_was_supervised():
    tokenizer = make_tokenizer()
    (row,) = encode_rows([example()], tokenizer)
    assert row.ids.tolist() == tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    # Its own EOS is learned, and no second one is added.
    assert tokenizer.decode(row.ids[row.response].tolist()) == "It was fine.</s>"
    assert tokenizer.decode(row.ids[row.pii].tolist()).strip() == "555-0142"


def test_what_the_trainer_cut_off_is_cut_off():
    tokenizer = make_tokenizer()
    (encoded,) = encode_rows([example()], tokenizer)
    n = len(encoded) - 3
    (end,) = encode_rows([example(max_length=n)], tokenizer)
    (start,) = encode_rows([example(max_length=n, truncation="start")], tokenizer)
    assert end.ids.tolist() == encoded.ids[:n].tolist()
    assert start.ids.tolist() == encoded.ids[3:].tolist()
    assert end.cut
    assert start.cut
    with pytest.raises(InputError, match="^example '"):
        encode_rows([example(max_length=4)], tokenizer)

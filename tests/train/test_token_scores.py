"""Scores of training rows are the equation's, token by token."""

from dataclasses import replace

import numpy as np
import pytest

from spark_audit.data.examples import Example
from spark_train.token_scores import row_scores, task_counts
from spark_train.training_rows import TrainRow, encode_rows

VOCABULARY = 40


def make_row(name: str, task: str, *, seed: int, length: int = 60) -> TrainRow:
    rng = np.random.default_rng(seed)
    return TrainRow(
        id=name,
        task=task,
        ids=rng.integers(3, VOCABULARY, length, dtype=np.int32),
        response=np.arange(length) >= length - 5,
        pii=rng.random(length) < 0.2,
        fixed=rng.random(length) < 0.3,
    )


def test_the_mask_of_identifiers_wins_and_says_what_is_one():
    row = replace(
        make_row("r", "x", seed=0, length=6),
        ids=np.array([1, 4, 5, 6, 7, 8], dtype=np.int32),
        pii=np.array([True, True, False, False, False, True]),
        fixed=np.array([False, True, True, False, False, False]),
    )
    counts = {"x": np.ones(VOCABULARY, dtype=np.int64)}
    nll = np.array([0.0, 9.0, 500.0, 1e-3, 0.0])
    (score,) = row_scores([row], [nll], counts, alpha=0.5)
    # First token, identifier and stop word, stop word, unlikely text, likely text
    # (one task: Score_2 is -log 2, clamped), identifier.
    assert score.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    assert not row.pii[3]


@pytest.mark.parametrize("bos", [True, False])
def test_counts_are_of_text_alone(bos, make_tokenizer):
    tokenizer = make_tokenizer(bos=bos)
    examples = [
        Example("a", "t", "the food, the food", " good", "train", "a"),
        Example("b", "t", "the service", " good", "train", "b"),
    ]
    counts = task_counts(encode_rows(examples, tokenizer), vocab_size=len(tokenizer))
    expected = np.zeros(len(tokenizer), dtype=np.int64)
    for example in examples:
        for token in tokenizer(example.text, add_special_tokens=False)["input_ids"]:
            expected[token] += 1
    assert counts.dtype == np.int64
    assert counts.tolist() == expected.tolist()
    assert counts.max() > 2

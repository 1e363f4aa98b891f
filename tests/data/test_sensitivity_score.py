import math

import numpy as np
import pytest

from spark_audit.data.occurrences import (
    score2,
    sensitivity,
    stop_word_ranges,
    token_counts,
)
from spark_audit.errors import InputError


def plain_score2(table):
    """The equation, written out token by token."""
    n_tasks, vocab = len(table), len(table[0])
    out = []
    for t in range(vocab):
        p = [table[n][t] / max(table[n]) for n in range(n_tasks)]
        d = sum(value >= 0.2 for value in p)
        out.append(sum(value * math.log(n_tasks / (1 + d)) for value in p) / n_tasks)
    return out


@pytest.mark.parametrize("n_tasks", [1, 2, 6])
def test_score2_is_the_equation(n_tasks):
    rng = np.random.default_rng(n_tasks)
    table = rng.integers(0, 40, size=(n_tasks, 50))
    np.testing.assert_allclose(
        score2(table), plain_score2(table.tolist()), rtol=0, atol=1e-14
    )


def test_score2_threshold_is_inclusive():
    at, below = score2([[5, 1], [1, 0]]), score2([[1000, 199], [1, 0]])
    assert at[1] == pytest.approx(0.0)  # d = 1: log(2 / 2)
    assert below[1] == pytest.approx(0.199 / 2 * math.log(2))


def test_token_counts():
    got = token_counts([[0, 2, 2], np.array([3], dtype=np.int32), []], vocab_size=5)
    assert got.tolist() == [1, 0, 2, 1, 0]


def test_sensitivity_is_the_equation():
    nll, second = np.array([0.0, 0.3, 2.0, 9.0]), np.array([0.0, 0.1, -0.4, 0.7])
    want = [
        1 - math.exp(-(0.3 * a + 0.7 * b)) for a, b in zip(nll, second, strict=True)
    ]
    got = sensitivity(nll, second, alpha=0.3)
    np.testing.assert_allclose(got, np.clip(want, 0, 1), rtol=1e-14)


def test_overrides_and_their_order():
    got = sensitivity(
        [1.0, 1.0, 1.0, 1.0],
        np.zeros(4),
        pii_mask=[True, False, True, False],
        zero_mask=[False, True, True, False],
    )
    assert got.tolist() == [1.0, 0.0, 1.0, pytest.approx(1 - math.exp(-0.5))]


def test_an_unlikely_token_rounds_to_one_without_being_an_identifier():
    # Why the mask is explicit: nothing but the likelihood made this a 1.
    assert sensitivity([80.0], [0.0]).tolist() == [1.0]
    assert sensitivity([math.inf], [0.0], alpha=0.0).tolist() == [0.0]


def test_a_token_without_nll_is_refused():
    with pytest.raises(InputError, match="has no NLL"):
        sensitivity([math.nan], [1.0])


def test_stop_words_are_whole_words():
    text = "The theory, IT'S not\u2019s a_the another'll bethe 3the can't"
    words = [text[start:end] for start, end in stop_word_ranges(text)]
    assert words == ["The", "IT'S", "a", "the", "the", "can't"]

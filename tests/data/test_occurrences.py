"""Identifiers are found where they are annotated, repeated, or have a form."""

import math

import numpy as np
import pytest
from marked import make_example

from spark_audit.data.examples import Example
from spark_audit.data.occurrences import (
    finder,
    folded,
    identifier_ranges,
    repeat_ranges,
)
from spark_audit.data.sensitivity import score2, sensitivity, stop_word_ranges
from spark_audit.errors import InputError


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("Ann met ANN and Joanna", "Ann", ["Ann", "ANN", "ann"]),
        ("Al paid, al also", "Al", ["Al", "al"]),
        ("x", "x", ["x"]),
        ("Stra\u00dfe and STRASSE", "Stra\u00dfe", ["Stra\u00dfe", "STRASSE"]),
        ("STRASSE and Stra\u00dfe", "STRASSE", ["STRASSE", "Stra\u00dfe"]),
        ("aaaa", "aaa", ["aaa", "aaa"]),
        ("no (a.b) axb", "a.b", ["a.b"]),
    ],
)
def test_repeats_are_found_whatever_their_case(text, place, expected):
    start = text.index(place)
    ranges = repeat_ranges(text, [(start, start + len(place))])
    assert [text[a:b] for a, b in ranges] == expected


def example(prompt: str, *given: str, response: str = " good") -> Example:
    return make_example("e", prompt, response, pii=dict.fromkeys(given, "OTHER"))


def strings(row: Example) -> list[str]:
    return sorted({row.text[start:end] for start, end in identifier_ranges(row)})


def test_annotated_repeated_and_rule_found_identifiers():
    row = example("Kim saw KIM, mail a.b@example.org", "Kim", response=" kim")
    assert strings(row) == ["KIM", "Kim", "a.b@example.org", "kim"]
    places = {(row.text[a:b], a) for a, b in identifier_ranges(row)}
    assert places == {
        ("Kim", 0),
        ("KIM", 8),
        ("a.b@example.org", 18),
        ("kim", len(row.prompt) + 1),
    }


def test_a_short_annotated_span_inside_a_word_counts_but_not_its_repeats():
    row = example("code x42y or z42", "42")
    assert identifier_ranges(row) == [(6, 8)]


@pytest.mark.parametrize(
    ("string", "text", "stands"),
    [
        ("Ann Lee", "ask ANN LEE, or Bo", True),
        ("Ann Lee", "Joann Lee and Ann Leeds", False),
        ("555-0100", "1 (555-0100)", True),
        ("555-0100", "555-01005", False),
        ("(212) 555-0100", "Call (212) 555-0100!", True),
        ("Stra\u00dfe 5", "STRASSE 5", True),
        ("p4$$", "it is p4$$x", True),  # its last character ends no word
        ("", "x", False),
        (" ", "x y", False),
    ],
)
def test_identifiers_stand_in_other_texts_as_whole_words(string, text, stands):
    key = folded(string)
    matches = [*map(finder({key}), (folded(text), "", key[:-1]))]
    assert matches == [{key} if stands else set(), set(), set()]


# --- the sensitivity score ------------------------------------------------------------


def plain_score2(table):
    """The equation, written out token by token."""
    n_tasks = len(table)
    vocab = len(table[0])
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
    at_threshold = score2([[5, 1], [1, 0]])
    below = score2([[1000, 199], [1, 0]])
    assert at_threshold[1] == pytest.approx(0.0)  # d = 1: log(2 / 2)
    assert below[1] == pytest.approx(0.199 / 2 * math.log(2))


def test_sensitivity_is_the_equation():
    nll = np.array([0.0, 0.3, 2.0, 9.0])
    second = np.array([0.0, 0.1, -0.4, 0.7])
    want = [
        1 - math.exp(-(0.3 * a + 0.7 * b)) for a, b in zip(nll, second, strict=True)
    ]
    got = sensitivity(nll, second, alpha=0.3)
    np.testing.assert_allclose(got, np.clip(want, 0, 1), rtol=1e-14)


def test_masks_override_the_likelihood_in_their_order():
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
    with pytest.raises(InputError, match="NLL"):
        sensitivity([math.nan], [1.0])


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_token_without_score2_is_refused(alpha):
    with pytest.raises(InputError, match="Score_2"):
        sensitivity([1.0, 1.0], [0.5, math.nan], alpha=alpha)


def test_a_task_without_tokens_is_refused():
    with pytest.raises(InputError, match="^sensitivity: "):
        score2([[3, 1], [0, 0]])


def test_stop_words_are_whole_words():
    text = "The theory, IT'S not\u2019s a_the another'll bethe 3the can't"
    words = [text[start:end] for start, end in stop_word_ranges(text)]
    assert words == ["The", "IT'S", "a", "the", "the", "can't"]

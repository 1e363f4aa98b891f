"""Identifiers in texts, word for word and nearly."""

import math

import numpy as np

from spark_audit.data.near_misses import near_miss
from spark_audit.data.occurrences import is_inside_word
from spark_audit.data.strings_in_texts import (
    MIN_NEAR_CHARACTERS,
    first_holders,
    first_near_misses,
)


def near_by_plain_loops(strings, texts):
    """What every place of every text says of every string."""
    found = {}
    for index, text in enumerate(texts):
        for string in strings:
            if string not in found and is_near(string, text, strings):
                found[string] = index
    return found


def is_near(string, text, strings):
    n_beginning = math.ceil(2 / 3 * len(string))
    for start in range(len(text)):
        if is_inside_word(text, start):
            continue
        is_exact = any(text.startswith(other, start) for other in strings)
        if text.startswith(string[:n_beginning], start) and not is_exact:
            return True
        for end in range(start + len(string) - 1, start + len(string) + 2):
            answer = text[start:end]
            is_whole = end <= len(text) and not is_inside_word(text, end)
            if is_whole and answer == answer.strip() and answer not in strings:
                if near_miss(string, answer) in ("character", "digits"):
                    return True
    return False


def test_near_misses_are_those_of_plain_loops():
    rng = np.random.default_rng(0)
    letters = list("ab12-")
    n_found = 0
    for _ in range(20):
        drawn = {"".join(rng.choice(letters, rng.integers(8, 12))) for _ in range(8)}
        strings = {s.strip("-") for s in drawn if len(s.strip("-")) >= 8}
        texts = []
        for _ in range(6):
            words = []
            for _ in range(4):
                word = list(rng.choice(sorted(strings)))
                for _ in range(int(rng.integers(3))):
                    place = int(rng.integers(len(word)))
                    way = int(rng.integers(3))
                    if way == 0:
                        word[place] = str(rng.choice(letters))
                    elif way == 1:
                        word.pop(place)
                    else:
                        word.insert(place, str(rng.choice(letters)))
                words.append("".join(word))
            texts.append(" ".join(words))
        expected = near_by_plain_loops(strings, texts)
        assert first_near_misses(strings, texts) == expected
        n_found += len(expected)
    assert n_found > 50


def test_short_strings_are_missed_by_nothing():
    assert MIN_NEAR_CHARACTERS > len("anna")
    assert first_near_misses({"anna"}, ["anne"]) == {}


def test_a_string_stands_in_a_text_as_a_whole_word_in_any_case():
    texts = ["planned", "call ANN.", "ann"]
    assert first_holders({"ann", "bob"}, texts) == {"ann": 1}

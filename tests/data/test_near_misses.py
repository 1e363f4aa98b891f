"""Near misses against edit distances that are computed by the plainest loops."""

import math

import numpy as np
import pytest

from spark_audit.data.near_misses import known_answer, near_miss


def distance(one: str, other: str) -> int:
    """Levenshtein's, by its recursion."""
    row = [*range(len(other) + 1)]
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def test_kinds_are_those_of_plain_loops():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(1_500):
        identifier = "".join(rng.choice([*"12ab"], int(rng.integers(1, 9))))
        answer = [*identifier]
        for _ in range(int(rng.integers(0, 4))):
            place = int(rng.integers(0, len(answer) + 1))
            answer[place : place + int(rng.integers(0, 2))] = rng.choice([*"12ab"], 1)
        text = "".join(answer)
        kind = near_miss(identifier, text)
        seen.add(kind)
        wrong = [a for a, b in zip(identifier, text, strict=False) if a != b]
        in_digits = len(text) == len(identifier) and all(a.isdigit() for a in wrong)
        beginning = identifier[: math.ceil(2 * len(identifier) / 3)]
        if text == identifier:
            assert kind is None
        elif distance(identifier, text) == 1:
            assert kind == "character"
        elif in_digits and len(wrong) <= 2:
            assert kind == "digits"
        elif beginning in text:
            assert kind == "beginning"
        else:
            assert kind is None
    assert seen == {None, "character", "digits", "beginning"}


@pytest.mark.parametrize(
    ("identifier", "n_right", "kind"),
    [
        ("555-0142", 8, None),  # exact answers are counted apart
        ("555-0142", 7, "character"),
        ("555-0142", 6, "digits"),
        ("555-014x", 6, "beginning"),
        ("Maria Jones", 8, "beginning"),
        ("Maria Jones", 7, None),
        ("", 0, None),
    ],
)
def test_an_answer_that_is_known_in_part_is_judged_by_that(identifier, n_right, kind):
    assert near_miss(identifier, known_answer(identifier, n_right)) == kind

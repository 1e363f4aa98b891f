import hashlib

import numpy as np
import pytest

from spark_audit.scoring.key_index import KeyIndex, key_numbers


def numbers_of(*words: str) -> np.ndarray:
    return key_numbers([hashlib.sha256(word.encode()).hexdigest() for word in words])


def test_an_index_without_parts_holds_nothing():
    index = KeyIndex()
    assert index.holds(numbers_of("a", "b")).tolist() == [False, False]
    assert index.parts_with(numbers_of("a", "b")) == []
    assert index.parts_with(numbers_of()) == []


def test_each_key_is_found_in_every_part_that_holds_it():
    index = KeyIndex()
    index.add_part(numbers_of("a", "b"))
    index.add_part(numbers_of())
    index.add_part(numbers_of("c", "a"))

    assert index.holds(numbers_of("c", "x", "a")).tolist() == [True, False, True]
    assert index.parts_with(numbers_of("a")) == [0, 2]
    assert index.parts_with(numbers_of("x", "b")) == [0]
    assert index.parts_with(numbers_of("c", "x")) == [2]


def test_parts_that_are_added_between_searches_are_found():
    index = KeyIndex()
    for part in range(5):
        assert not index.holds(numbers_of(f"{part} x")).any()
        index.add_part(numbers_of(f"{part} x", "everywhere", f"{part} y"))
        assert index.parts_with(numbers_of(f"{part} y")) == [part]
    assert index.parts_with(numbers_of("everywhere")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_the_search_agrees_with_a_look_into_every_part(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 60, rng.integers(0, 20), np.uint64) for _ in range(12)]
    index = KeyIndex()
    for n_added, part in enumerate(parts, start=1):
        index.add_part(part)
        added = parts[:n_added]

        wanted = rng.integers(0, 60, rng.integers(0, 9), np.uint64)
        holding = [i for i in range(n_added) if np.isin(wanted, added[i]).any()]
        assert index.parts_with(wanted) == holding
        is_held = np.isin(wanted, np.concatenate(added))
        assert index.holds(wanted).tolist() == is_held.tolist()


def test_a_key_that_is_no_hexadecimal_number_is_refused():
    with pytest.raises(ValueError, match="invalid literal"):
        key_numbers(["no key at all, but long enough"])

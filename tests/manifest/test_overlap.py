"""Held-out rows that are trained rows: refused where most are, told where a few are."""

import pytest

from spark_audit.data.examples import Canary, Example, Span
from spark_audit.errors import InputError
from spark_audit.manifest.overlap import check_splits


def row(number, text, split, **options):
    return Example(
        id=f"{split}{number}",
        task="t",
        prompt=text,
        response=" ok",
        split=split,
        source_id=f"{split}{number}",
        **options,
    )


def rows(texts, split):
    return [row(number, text, split) for number, text in enumerate(texts)]


TEXTS = [f"Row {i} of {i * 7919}" for i in range(20)]


def test_trained_rows_under_other_ids_are_refused():
    with pytest.raises(InputError, match="20 of 20 ") as caught:
        check_splits(rows(TEXTS, "train") + rows(TEXTS, "test"))
    assert "Row" not in str(caught.value)
    changed = [text.upper().replace(" ", "  ") for text in TEXTS]
    with pytest.raises(InputError, match="20 of 20"):
        check_splits(rows(TEXTS, "train") + rows(changed, "test"))
    mixed = TEXTS[:11] + [f"other {i}" for i in range(9)]
    with pytest.raises(InputError, match="11 of 20"):
        check_splits(rows(TEXTS, "train") + rows(mixed, "test"))


@pytest.mark.parametrize("n_shared", [1, 10])
def test_a_few_are_counted(n_shared):
    mixed = TEXTS[:n_shared] + [f"other {i}" for i in range(20 - n_shared)]
    (note,) = check_splits(rows(TEXTS, "train") + rows(mixed, "test"))
    assert note.startswith(f"{n_shared} of 20 ")


def test_nothing_is_said_of_rows_that_differ():
    others = [f"other {i}" for i in range(20)]
    assert check_splits(rows(TEXTS, "train") + rows(others, "test")) == []
    assert check_splits(rows(TEXTS, "train")) == []
    assert check_splits(rows(TEXTS + TEXTS, "test")) == []


def test_identifiers_of_both_splits_are_counted():
    spans = (Span(3, 6, "NAME"),)
    examples = [
        row(0, "to Ann now", "train", spans=spans),
        row(0, "by ANN too", "test", spans=spans),
        row(1, "by Bob too", "test", spans=spans),
    ]
    (note,) = check_splits(examples)
    assert note.startswith("1 of 2 ")


def test_rows_of_canaries_do_not_count():
    canary = Canary(id="c000", format="f", dose=1, held_out=False, seed=1)
    examples = [row(0, "same", "train", canary=canary), row(0, "same", "test")]
    assert check_splits(examples) == []

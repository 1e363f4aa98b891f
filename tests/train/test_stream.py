"""What is drawn of earlier tasks: evenly, by the seed alone, within the memory."""

from collections import Counter

import pytest
from plain_training import adapted, make_rows, make_stream

from spark_train.stream import Stream

ROWS = make_rows(a=9, b=8, c=5, d=11)


@pytest.fixture(scope="module")
def stream():
    model = adapted()

    def make(*assignments: str) -> Stream:
        return make_stream(model, ROWS, *assignments)

    return make


@pytest.mark.parametrize("limit", [3, 6, 7, 1000])
def test_a_memory_is_bounded_and_only_forgets(stream, limit):
    one = stream(f"replay.memory={limit}")
    before: dict[str, set[str]] = {}
    for k in range(1, 4):
        kept = {
            t: {row.id for row in rows} for t, rows in one.replayable_rows(k).items()
        }
        sizes = [len(names) for names in kept.values()]
        assert sum(sizes) <= limit
        wanted = [
            min(limit // k + (i < limit % k), len(ROWS[t]))
            for i, t in enumerate(one.tasks[:k])
        ]
        assert sizes == wanted
        for task, names in before.items():
            assert kept[task] <= names  # what was let go does not come back
        before = kept


@pytest.mark.parametrize("size", [5, 11, 40])
def test_replayed_rows_come_evenly(stream, size):
    found = stream().draw_replayed(3, size, purpose="list")
    assert len(found) == size
    tasks = Counter(row.task for row in found)
    assert set(tasks) <= set("abc")
    assert max(tasks.values()) - min(tasks.values()) <= 1
    for task in "abc":
        each = Counter(row.id for row in found if row.task == task)
        counts = [each[row.id] for row in ROWS[task]]
        assert max(counts) - min(counts) <= 1
    # Mixed: tasks do not stand one after the other.
    order = [row.task for row in stream().draw_replayed(3, 40, purpose="list")]
    assert order != sorted(order)

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from spark_audit.errors import IncompleteError
from spark_audit.scoring.batching import Batches, Room

OVERHEAD = 40


def batches(
    lengths: Sequence[int],
    *,
    tokens: int,
    rows: int | None = None,
    ratio: float = 1.5,
) -> Batches[int]:
    return Batches(lengths, int, room=Room(tokens, OVERHEAD, ratio), rows=rows)


def cut(lengths: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    ordered = iter(sorted(lengths, reverse=True))
    return [list(itertools.islice(ordered, size)) for size in sizes]


def cost(found: Sequence[Sequence[int]]) -> int:
    return sum(len(batch) * batch[0] + OVERHEAD for batch in found)


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("seed", range(4))
def test_batches_keep_every_bound(rows, seed):
    lengths = np.random.default_rng(seed).integers(1, 400, 300).tolist()
    sizes = batches(lengths, tokens=1024, rows=rows).sizes()
    found = cut(lengths, sizes)
    assert sum(sizes) == len(lengths)
    for batch in found:
        assert len(batch) * batch[0] <= 1024
        assert batch[0] <= 1.5 * batch[-1]
        assert rows is None or len(batch) <= rows
    flat = [length for batch in found for length in batch]
    assert flat == sorted(lengths, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_way_of_cutting_costs_less(seed):
    lengths = np.random.default_rng(seed).integers(20, 120, 10).tolist()
    found = cut(lengths, batches(lengths, tokens=300, ratio=2.0).sizes())
    ordered = sorted(lengths, reverse=True)
    least = 10**9
    for edges in itertools.product([False, True], repeat=len(ordered) - 1):
        parts = []
        current = [ordered[0]]
        for length, edge in zip(ordered[1:], edges, strict=True):
            if edge:
                parts.append(current)
                current = []
            current.append(length)
        parts.append(current)
        fits = all(
            len(p) * p[0] <= max(300, p[0]) and p[0] <= 2.0 * p[-1] for p in parts
        )
        if fits:
            least = min(least, cost(parts))
    assert cost(found) == least


def test_a_longer_item_stands_alone_and_empty_ones_do_no_harm():
    assert cut([5000, 3], batches([5000, 3], tokens=1000).sizes()) == [[5000], [3]]
    assert sum(batches([0, 0, 1], tokens=10).sizes()) == 3
    assert batches([], tokens=10).sizes() == []


class Memory:
    """A device on which a batch of more than ``room`` padded tokens does not fit."""

    def __init__(self, room: int, error: Exception | None = None) -> None:
        self.room, self.tried = room, []
        self.error = error or torch.OutOfMemoryError("CUDA out of memory.")

    def __call__(self, batch: list[int]) -> int:
        self.tried.append(list(batch))
        if len(batch) * max(batch) > self.room:
            raise self.error
        return sum(batch)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        MemoryError("Unable to allocate 2.0 GiB for an array"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_batches_are_halved_in_place_when_memory_ends(error):
    lengths = [100] * 40 + [50] * 10
    device = Memory(450, error)
    done = list(batches(lengths, tokens=1600).run(device, shrink=lambda: False))
    assert sorted(length for batch, _ in done for length in batch) == sorted(lengths)
    assert all(result == sum(batch) for batch, result in done)
    # 16 rows, then 8, then 4, and no probing after that.
    assert [len(batch) for batch in device.tried[:4]] == [16, 8, 4, 4]


def test_one_item_that_does_not_fit_shrinks_the_buffers_and_then_gives_up():
    device = Memory(room=80)

    def shrink() -> bool:
        device.room += 10
        return device.room < 100

    with pytest.raises(IncompleteError, match=r"\b200\b"):
        list(batches([200], tokens=50).run(device, shrink=shrink))
    device = Memory(room=80)
    done = list(batches([90], tokens=50).run(device, shrink=shrink))
    assert done == [([90], 90)]

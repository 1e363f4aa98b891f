"""What engines share: units of a pass, and who is given which."""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_audit.checkpoints.specs import Loading
from spark_audit.pipeline.engines.contract import UNIT_TOKENS, Call, Clock, Task
from spark_audit.pipeline.engines.ray.engine import _Group, _Hand, _Job, _Ray
from spark_audit.pipeline.request import Request
from spark_audit.scoring.items import Item
from spark_audit.scoring.store import Keys, Store
from spark_audit.scoring.table import Pass


def task(lengths: list[int], store: Store | None = None) -> Task:
    """A pass over texts of some lengths."""
    items = [
        Item(f"row-{i}", np.full(n, i, np.int32), np.arange(n, dtype=np.int32))
        for i, n in enumerate(lengths)
    ]
    return Task("ours", Pass(), Keys(hashlib.sha256(), items), store or Store(None))


@pytest.mark.parametrize(
    "lengths",
    [[5], [1] * 7, [3, 900, 2, 2, 2], [40, 10] * 60, [UNIT_TOKENS * 3, 5, 5]],
    ids=["one", "few", "one long", "many", "longer than a unit"],
)
@pytest.mark.parametrize("least", [1, 4, 1000])
def test_units_hold_every_item_once(lengths: list[int], least: int) -> None:
    whole = task(lengths)
    units = whole.units(least)
    assert [item for unit in units for item in unit.items] == list(whole.items)
    assert [unit.number for unit in units] == list(range(len(units)))
    assert all(len(unit.items) for unit in units)
    assert len({unit.id for unit in units}) == len(units)
    # All workers cut alike, whatever they have seen.
    assert [unit.id for unit in task(lengths).units(least)] == [u.id for u in units]
    for unit in units:
        assert sum(item.tokens for item in unit.items[:-1]) <= UNIT_TOKENS
    if len(lengths) == 120:
        assert len(units) == min(least, 120)


def test_nothing_to_score_has_no_unit() -> None:
    assert task([]).units(4) == []
    assert task([]).probes(0) == []


def test_what_is_stored_or_stands_twice_is_not_lacking(tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = task([4, 6, 8], store)
    again = Item("again", whole.items[2].ids, whole.items[2].positions)
    whole = whole._of([*whole.items, again])
    assert whole.lacks == 4 + 6 + 8
    names = whole.keys()
    store.add(names["row-1"], np.arange(5), {"nll": np.zeros(5, np.float32)})
    assert whole.lacks == 4 + 8
    assert {item.tokens for item in whole.lacking.items} == {4, 8}


@pytest.fixture
def driver() -> _Ray:
    request = Request(audits=("nll",), ckpt=("a=x",), loading=Loading(device="cpu"))
    return _Ray(Call((), request, Clock(), lambda *_: None))


def units(group: int, count: int) -> deque[_Job]:
    return deque(_Job(group, f"c{group}", task([i + 1])) for i in range(count))


def test_each_module_is_read_once_where_there_are_as_many_as_holders(
    driver: _Ray,
) -> None:
    """Six modules of eight units over three holders, at unequal speeds."""
    driver._groups = [_Group(deque([f"c{n}"])) for n in range(6)]
    driver._hands = [_Hand(None, ("node", n), ready=True) for n in range(3)]
    left = [0.0, 0.0, 0.0]
    reads, done = [], 0
    for _ in range(200):
        at = int(np.argmin(left))
        hand = driver._hands[at]
        job = driver._next(hand)
        left[at] += (1.0, 1.7, 2.9)[at]
        if job is None:
            continue
        if job.group != hand.group:
            reads.append(job.group)
        hand.group = job.group
        if job.task is None:
            group = driver._groups[job.group]
            group.unopened.popleft()
            group.opening, group.units = False, units(job.group, 8)
        else:
            done += 1
    assert done == 6 * 8
    assert {*reads} == {*range(6)}
    # At the end those that have nothing else help with what is left.
    assert len(reads) <= 6 + 2


def test_a_last_unit_is_left_to_who_has_its_module(driver: _Ray) -> None:
    driver._groups = [_Group(deque()), _Group(deque())]
    first, second = (_Hand(None, ("node", n), ready=True, group=n) for n in range(2))
    driver._hands = [first, second]
    driver._groups[0].units = units(0, 1)
    assert driver._next(second) is None
    driver._groups[0].units = units(0, 2)
    assert driver._next(second) is not None
    # Its holder is gone: anybody takes it.
    driver._hands = [second]
    assert driver._next(second) is not None
    assert driver._next(second) is None


class Gone(Exception):
    """As Ray tells of an actor that has ended."""

    actor_init_failed = False


def test_what_a_holder_had_goes_to_another_but_not_for_ever(driver: _Ray) -> None:
    driver._groups = [_Group(deque(["c0"]), opening=True)]
    hand: Any = _Hand(None, ("node", 0), job=_Job(0, "c0"))
    driver._hands = [hand]
    driver._bury(hand, Gone())
    assert not driver._groups[0].opening
    assert not driver._hands
    (job,) = units(0, 1)
    for _ in range(3):
        driver._bury(_Hand(None, ("node", 0), job=job), Gone())
        assert driver._groups[0].units.popleft() is job
    with pytest.raises(Exception, match="4 workers in a row ended over it"):
        driver._bury(_Hand(None, ("node", 0), job=job), Gone())

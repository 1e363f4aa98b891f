"""What engines share: units of a pass, and who is given which."""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.errors import CheckpointError, InputError, OutputError
from spark_audit.pipeline.engines.contract import UNIT_TOKENS, Call, Clock, Task
from spark_audit.pipeline.engines.ray.engine import Ray, _Group, _Hand, _Job
from spark_audit.pipeline.engines.ray.holder import Holder, Unit
from spark_audit.pipeline.request import Request
from spark_audit.provenance import versions
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
def driver() -> Ray:
    request = Request(audits=("nll",), ckpt=("a=x",), loading=Loading(device="cpu"))
    return Ray(Call((), request, Clock(), lambda *_: None))


def units(group: int, count: int) -> deque[_Job]:
    return deque(_Job(group, f"c{group}", task([i + 1])) for i in range(count))


def test_each_module_is_read_once_where_there_are_as_many_as_holders(
    driver: Ray,
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


def test_a_last_unit_is_left_to_who_has_its_module(driver: Ray) -> None:
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


def test_what_a_holder_had_goes_to_another_but_not_for_ever(driver: Ray) -> None:
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


def known_to(driver: Ray) -> Any:
    """Ray's errors, as far as they are looked at."""
    kinds: dict[str, Any] = {"RayError": type("RayError", (Exception,), {})}
    for name in ("ObjectStoreFullError", "OutOfDiskError"):
        kinds[name] = type(name, (kinds["RayError"],), {})
    driver._ray = SimpleNamespace(exceptions=SimpleNamespace(**kinds))
    return driver._ray.exceptions


def test_errors_of_a_node_are_told_in_one_line(driver: Ray) -> None:
    known = known_to(driver)
    full = driver._told(known.OutOfDiskError("three\nlong\nlines"))
    assert isinstance(full, OutputError)
    assert "start Ray with a larger --object-store-memory" in str(full)
    other = driver._told(known.RayError("it broke\nwith a trace"))
    assert str(other) == "--engine ray: Ray says: RayError: it broke"
    ours = InputError("is wrong", where="row-1")
    assert driver._told(ours) is ours


def test_nodes_have_the_same_version_installed(driver: Ray) -> None:
    driver._check_versions(versions())
    with pytest.raises(InputError, match=r"a node has spark-audit 9\.9, not"):
        driver._check_versions({**versions(), "spark-audit": "9.9"})
    gone = Gone("ray::Holder.__init__()\nModuleNotFoundError: No module named 'x'")
    gone.actor_init_failed = True
    with pytest.raises(InputError, match=r"cannot begin \(ModuleNotFoundError: .*'x'"):
        driver._bury(_Hand(None, ("node", 0)), gone)


@pytest.fixture(scope="module")
def holder(
    tiny_base: Path,
    make_adapter: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Holder:
    """A holder of a base with two adapters, both rounded too."""
    folder = tmp_path_factory.mktemp("adapters")
    made = [make_adapter(folder / name, seed=n) for n, name in enumerate(("a", "b"))]
    specs = parse_specs([str(path) for path in made])
    options = {"base": str(tiny_base), "include_base": True, "quantize": ("int8",)}
    return Holder(specs, Loading(device="cpu", **options))  # type: ignore[arg-type]


def unit(holder: Holder, name: str, **fields: Any) -> Unit:
    known = holder.open(0, name)
    items = task([5, 9]).items
    given = {"model_id": known.model_id, "kind": Pass(), "probes": items[:1]}
    given |= {"items": items, "batch_size": "auto"}
    return Unit(checkpoint=name, **{**given, **fields})


def test_a_holder_scores_what_it_opened_in_any_order(holder: Holder) -> None:
    (names,) = holder._opening.groups
    assert names == ("base", "a", "a+int8", "b", "b+int8")
    wanted = [unit(holder, name) for name in names]
    assert len({one.model_id for one in wanted}) == len(names)
    whole = {one.checkpoint: holder.score(0, one) for one in wanted}
    for one in (wanted[2], wanted[1], wanted[4], wanted[2]):
        table, notes = holder.score(0, one)
        first, told = whole[one.checkpoint]
        np.testing.assert_array_equal(table.columns["nll"], first.columns["nll"])
        assert notes == told
        # One copy of all weights at a time.
        rounded = [k for k, v in holder._opened.items() if v.quantised_from]
        assert len(rounded) <= 1
    assert len({whole[name][0].columns["nll"].tobytes() for name in names}) == 5
    sent = pickle.loads(pickle.dumps(holder.open(0, "a")))
    assert sent.shape == holder._opened["a"].shape
    assert not list(sent.model.parameters())


def test_another_checkpoint_under_the_same_path_is_refused(holder: Holder) -> None:
    with pytest.raises(CheckpointError, match="a: is another checkpoint on one node"):
        holder.score(0, unit(holder, "a", model_id="0" * 64))

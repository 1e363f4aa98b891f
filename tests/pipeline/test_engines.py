"""Ray's units and nodes, without a cluster: who is given which, and what comes back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.errors import (
    CheckpointError,
    IncompleteError,
    InputError,
    OutputError,
    SparkError,
)
from spark_audit.pipeline.engines import ray as engine
from spark_audit.pipeline.engines.ray import PART_TOKENS, Driver, Part
from spark_audit.provenance import versions
from spark_audit.scoring.items import Item
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass


def items(lengths: list[int]) -> list[Item]:
    """Texts of some lengths."""
    return [
        Item(f"row-{i}", np.full(n, i, np.int32), np.arange(n, dtype=np.int32))
        for i, n in enumerate(lengths)
    ]


def driver() -> Any:
    """A driver without a cluster."""
    kinds: dict[str, Any] = {"RayError": type("RayError", (Exception,), {})}
    for name in ("RayTaskError", "ObjectStoreFullError", "OutOfDiskError"):
        kinds[name] = type(name, (kinds["RayError"],), {"cause": None})
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}] * 2
    ray = SimpleNamespace(exceptions=SimpleNamespace(**kinds), nodes=lambda: nodes)
    job: Any = SimpleNamespace(
        request=SimpleNamespace(seed=0, loading=Loading()), store=Store(None)
    )
    return Driver(ray, job)


@pytest.mark.parametrize(
    "lengths",
    [[], [5], [1] * 7, [3, 900, 2, 2, 2], [40, 10] * 60, [PART_TOKENS * 3, 5, 5]],
    ids=["none", "one", "few", "one long", "many", "longer than a unit"],
)
def test_parts_hold_every_item_once(lengths: list[int]) -> None:
    one, texts = driver(), items(lengths)
    model: Any = SimpleNamespace(model_id="m", usable=np.ones(9, bool))
    keys = {Pass(): one._job.store.named(model, texts, Pass())}
    one._scored = {"ours": SimpleNamespace(keys=keys)}
    parts = list(one._parts(SimpleNamespace(name="ours", model_id="m")))
    assert [item for part in parts for item in part.items] == texts
    assert all(part.items for part in parts)
    for part in parts:
        assert sum(item.tokens for item in part.items[:-1]) <= PART_TOKENS
    # What batches do is measured once.
    assert [bool(part.probes) for part in parts] == [n == 0 for n in range(len(parts))]
    assert one._tokens == [0, sum(lengths)]


def test_errors_of_a_node_are_told_in_one_line() -> None:
    def said(name: str, text: str = "", cause: Exception | None = None) -> SparkError:
        one = driver()
        error = getattr(one._ray.exceptions, name)(text)
        error.cause = cause

        def get(_: Any) -> Any:
            raise error

        one._ray.get, one._asked = get, {"task": (0, None)}
        with pytest.raises(SparkError) as caught:
            one._take_in("task")
        return caught.value

    full = said("OutOfDiskError", "three\nlong\nlines")
    assert isinstance(full, OutputError)
    assert "start Ray with a larger --object-store-memory" in str(full)
    other = said("RayError", "it broke\nwith a trace")
    assert isinstance(other, IncompleteError)
    assert str(other) == "--engine ray: Ray says: RayError: it broke"
    ours = InputError("is wrong", where="row-1")
    assert said("RayTaskError", cause=ours) is ours
    gone = said("RayTaskError", cause=ModuleNotFoundError("No module named 'x'"))
    assert "cannot begin (ModuleNotFoundError: No module named 'x')" in str(gone)


@pytest.fixture(scope="module")
def asked(
    tiny_base: Path,
    make_adapter: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, Loading]:
    """A base with two adapters, both rounded too."""
    folder = tmp_path_factory.mktemp("adapters")
    made = [make_adapter(folder / name, seed=n) for n, name in enumerate(("a", "b"))]
    specs = tuple(parse_specs([str(path) for path in made]))
    options = {"base": str(tiny_base), "include_base": True, "quantize": ("int8",)}
    return specs, Loading(device="cpu", **options)  # type: ignore[arg-type]


def test_a_node_scores_what_it_opened_in_any_order(asked: Any) -> None:
    texts, own = items([5, 9]), versions()["spark-audit"]
    found = engine.opened(*asked, 0)
    names = ["base", "a", "a+int8", "b", "b+int8"]
    assert [one.name for one in found] == names
    assert len({one.model_id for one in found}) == len(names)
    assert not list(pickle.loads(pickle.dumps(found[1])).model.parameters())

    def score(one: Any) -> Any:
        part = Part(one.name, one.model_id, Pass(), texts, texts[:1])
        return engine._checked(own, engine.work, *asked, 0, part, "auto")

    whole = {one.name: score(one) for one in found}
    for one in (found[2], found[1], found[4], found[2]):
        (table, notes), (first, told) = score(one), whole[one.name]
        np.testing.assert_array_equal(table.columns["nll"], first.columns["nll"])
        assert notes == told
        # One copy of all weights at a time.
        held = engine._holder(*asked)._opened
        assert len([k for k, v in held.items() if v.quantised_from]) <= 1
    with pytest.raises(CheckpointError, match="a: is another checkpoint on one node"):
        score(SimpleNamespace(name="a", model_id="0" * 64))
    with pytest.raises(InputError, match=r"a node has spark-audit .*, not 9\.9"):
        engine._checked("9.9", engine.work)


def test_a_cluster_without_nodes_is_refused_and_tasks_fit_on_any_node() -> None:
    one = driver()
    assert one._slots() == (2.0, 0, 2.0)
    nodes = [{"Alive": True, "Resources": {"CPU": n, "GPU": 2}} for n in (4.0, 16.0)]
    one._ray.nodes = lambda: nodes
    assert one._slots() == (1.0, 1, 4)
    one._job.request.loading = Loading(device="cpu")
    assert one._slots() == (4.0, 0, 5.0)
    one._ray.nodes = list
    with pytest.raises(IncompleteError, match="no node that scores"):
        one._slots()

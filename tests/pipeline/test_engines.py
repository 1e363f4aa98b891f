"""Ray's parts and nodes, without a cluster: what a node scores, and what comes back."""

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from named import examples

from spark_audit.audits import NLL
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import (
    CheckpointError,
    IncompleteError,
    InputError,
    SparkError,
)
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline import local_engine as local
from spark_audit.pipeline import ray_engine as engine
from spark_audit.pipeline.job import Job
from spark_audit.pipeline.ray_engine import Driver, without_models
from spark_audit.pipeline.request import Request
from spark_audit.provenance import versions
from spark_audit.scoring.store import Store


def driver() -> Any:
    """A driver without a cluster."""
    kinds: dict[str, Any] = {"RayError": type("RayError", (Exception,), {})}
    kinds["RayTaskError"] = type("RayTaskError", (kinds["RayError"],), {"cause": None})
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}] * 2
    ray = SimpleNamespace(exceptions=SimpleNamespace(**kinds), nodes=lambda: nodes)
    job: Any = SimpleNamespace(
        request=SimpleNamespace(loading=Loading()), store=Store(None)
    )
    return Driver(ray, job, {})


def test_errors_of_a_node_are_told_in_one_line():
    def said(name: str, text: str = "", cause: Exception | None = None) -> SparkError:
        one = driver()
        error = getattr(one._ray.exceptions, name)(text)
        error.cause = cause

        def get(_: Any) -> Any:
            raise error

        one._ray.get = get
        with pytest.raises(SparkError) as caught:
            one._take_in("task")
        return caught.value

    other = said("RayError", "it broke\nwith a trace")
    assert isinstance(other, IncompleteError)
    assert str(other) == "--engine ray: Ray says: RayError: it broke"
    ours = InputError("is wrong", where="row-1")
    assert said("RayTaskError", cause=ours) is ours
    full = type("ObjectStoreFullError", (Exception,), {})("Failed to put\nobject")
    told = said("RayTaskError", cause=full)
    assert isinstance(told, IncompleteError)
    assert "the object store of the Ray cluster is full; start Ray with" in str(told)
    gone = said("RayTaskError", cause=ModuleNotFoundError("No module named 'x'"))
    assert "cannot begin (ModuleNotFoundError: No module named 'x')" in str(gone)


def test_nodes_score_what_one_process_scores(tiny_base, make_adapter, tmp_path):
    from spark_audit.checkpoints.open import open_checkpoint

    made = [make_adapter(tmp_path / name, seed=n) for n, name in enumerate(("a", "b"))]
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    manifest = build_manifest(examples(24, words=12), base, name="m", caliper=2.0)
    write_manifest(manifest, tmp_path / "m.json")

    def job_of(name: str) -> Job:
        request = Request(
            audits=(NLL(),),
            ckpt=tuple(map(str, made)),
            base=str(tiny_base),
            manifest=tmp_path / "m.json",
            loading=Loading(device="cpu", quantize=("int8",)),
            output=tmp_path / name,
            jobs=1,
        )
        return Job.of(request)

    alone, job, own = job_of("alone"), job_of("shared"), versions()["spark-audit"]
    expected = local.score(alone, alone.lacking())
    one = driver()
    one._job, one._lacking = job, job.lacking()
    assert one._parts(0, 3) == 3
    copied = pickle.dumps(without_models(job))
    results = []
    for part in (1, 0, 2):
        result = engine.work(own, copied, 0, (part, 3))
        results.append(pickle.loads(pickle.dumps(result)))
        one._ray.get = results.__getitem__
        one._take_in(len(results) - 1)
    assert not list(results[0][0][1].model.parameters())
    assert [*one._known] == ["base", "a", "a+int8", "b", "b+int8"]
    scored = [job.scored(known) for known in one._known.values()]
    assert not job.missing(scored)
    one._lacking = job.lacking()
    assert one._parts(0, 3) == 0  # nothing is lacking
    for here, there in zip(alone.noted(expected), job.noted(scored), strict=True):
        assert here.facts == there.facts
        for kind, keys in here.keys.items():
            table = job.store.gather(there.keys[kind](), kind=kind)
            whole = alone.store.gather(keys(), kind=kind)
            assert table.ids == whole.ids
            for name, values in whole.columns.items():
                np.testing.assert_allclose(table.columns[name], values, atol=1e-5)
    other = results[0][0][1]
    one._ray.get = lambda _: ([SimpleNamespace(name=other.name, model_id="0")], [])
    with pytest.raises(CheckpointError, match="a: is another checkpoint on one node"):
        one._take_in(0)
    with pytest.raises(InputError, match=r"a node has spark-audit .*, not 9\.9"):
        engine.work("9.9", b"", 0, (0, 1))


def test_a_cluster_without_nodes_is_refused_and_tasks_fit_on_any_node():
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

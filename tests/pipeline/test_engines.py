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
)
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.engines import local, ray
from spark_audit.pipeline.engines.cluster import connected
from spark_audit.pipeline.engines.ray import without_models
from spark_audit.pipeline.job import Job
from spark_audit.pipeline.request import Request
from spark_audit.provenance import versions


def test_errors_of_a_node_are_told_in_one_line():
    def said(text: str = "", cause: Exception | None = None) -> Exception:
        error: Any = RuntimeError(text)  # Ray's has what it was raised from
        error.cause = cause
        return ray.cause_of(error)

    other = said("it broke\nwith a trace")
    assert isinstance(other, IncompleteError)
    assert str(other) == "--engine ray: Ray says: RuntimeError: it broke"
    ours = InputError("is wrong", where="row-1")
    assert said(cause=ours) is ours
    full = type("ObjectStoreFullError", (Exception,), {})("Failed to put\nobject")
    told = said(cause=full)
    assert isinstance(told, IncompleteError)
    assert "the object store of the Ray cluster is full; start Ray with" in str(told)
    gone = said(cause=ModuleNotFoundError("No module named 'x'"))
    assert "cannot begin (ModuleNotFoundError: No module named 'x')" in str(gone)


def test_a_ray_that_starts_too_slowly_is_told_in_one_line(monkeypatch):
    """Ray raises a plain Exception then."""
    pytest.importorskip("ray", reason="Ray is not installed")

    def start(*_: object, **__: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr("ray.init", start)
    with pytest.raises(InputError) as caught, connected(None):
        pass
    message = str(caught.value)
    assert "Ray says: The current node timed out during startup." in message
    assert message.endswith("leave out --engine ray")


def test_nodes_score_what_one_process_scores(tiny_base, make_adapter, tmp_path):
    from spark_audit.checkpoints.open import open_checkpoint

    made = [make_adapter(tmp_path / name, seed=n) for n, name in enumerate(("a", "b"))]
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    manifest = build_manifest(examples(24, words=12), base, name="m", caliper=2.0)
    write_manifest(manifest, tmp_path / "m.json")

    def job_of(name: str) -> Job:
        request = Request(
            audits=(NLL(),),
            checkpoints=tuple(map(str, made)),
            base=str(tiny_base),
            manifest=tmp_path / "m.json",
            loading=Loading(device="cpu", quantize=("int8",)),
            output=tmp_path / name,
            jobs=1,
        )
        return Job.of(request)

    alone, job, own = job_of("alone"), job_of("shared"), versions()["spark-audit"]
    expected = local.score(alone, alone.unscored())
    assert ray.parts(job.tokens_left(0, job.unscored()), 3) == 3
    copied = pickle.dumps(without_models(job))
    results: list[Any] = []
    opened: dict[str, Any] = {}
    for part in (1, 0, 2):
        result = ray.work(own, copied, 0, (part, 3))
        results.append(pickle.loads(pickle.dumps(result)))
        ray.take(results[-1], job.store, opened)
    assert not list(results[0][0][1].model.parameters())
    assert [*opened] == ["base", "a", "a+int8", "b", "b+int8"]
    scored = [job.checkpoint_job(known) for known in opened.values()]
    assert not job.n_missing(scored)
    assert ray.parts(job.tokens_left(0, job.unscored()), 3) == 0  # nothing is lacking
    for here, there in zip(
        alone.with_notes(expected), job.with_notes(scored), strict=True
    ):
        assert here.facts == there.facts
        for kind, items in here.items_by_pass.items():
            keys = there.items_by_pass[kind].store_keys()
            table = job.store.gather(keys, scoring_pass=kind)
            whole = alone.store.gather(items.store_keys(), scoring_pass=kind)
            assert table.ids == whole.ids
            for name, values in whole.columns.items():
                np.testing.assert_allclose(table.columns[name], values, atol=1e-5)
    other: Any = SimpleNamespace(name="a", model_id="0")
    with pytest.raises(CheckpointError, match="a: is another checkpoint on one node"):
        ray.take(([other], []), job.store, opened)
    with pytest.raises(InputError, match=r"a node has spark-audit .*, not 9\.9"):
        ray.work("9.9", b"", 0, (0, 1))


def test_a_cluster_without_nodes_is_refused_and_tasks_fit_on_any_node():
    found = [{"Alive": True, "Resources": {"CPU": 2.0}}] * 2
    cluster = SimpleNamespace(nodes=lambda: found)
    assert ray.capacity(cluster, "auto") == (2.0, 0, 2)
    found = [{"Alive": True, "Resources": {"CPU": n, "GPU": 2}} for n in (4.0, 16.0)]
    assert ray.capacity(cluster, "auto") == (1.0, 1, 4)
    assert ray.capacity(cluster, "cpu") == (4.0, 0, 5)
    found = []
    with pytest.raises(IncompleteError, match="no node that scores"):
        ray.capacity(cluster, "auto")

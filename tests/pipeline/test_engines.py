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

    message = said("it broke\nwith a trace")
    assert isinstance(message, IncompleteError)
    assert message.where == "--engine ray"
    assert message.what.endswith("RuntimeError: it broke")
    input_error = InputError("is wrong", where="row-1")
    assert said(cause=input_error) is input_error
    full = type("ObjectStoreFullError", (Exception,), {})("Failed to put\nobject")
    error_of_cause = said(cause=full)
    assert isinstance(error_of_cause, IncompleteError)
    assert error_of_cause.where == "--engine ray"
    assert "--object-store-memory" in error_of_cause.fix
    gone = said(cause=ModuleNotFoundError("No module named 'x'"))
    assert "(ModuleNotFoundError: No module named 'x')" in str(gone)


def test_a_ray_that_starts_too_slowly_is_told_in_one_line(monkeypatch):
    """Ray raises a plain Exception then."""
    pytest.importorskip("ray", reason="Ray is not installed")

    def start(*_: object, **__: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr("ray.init", start)
    with pytest.raises(InputError) as caught, connected(None):
        pass
    message = str(caught.value)
    assert message.startswith("--address local: ")
    assert "The current node timed out during startup." in message
    assert message.endswith("--engine ray")


def test_nodes_score_what_one_process_scores(tiny_base, make_adapter, tmp_path):
    from spark_audit.checkpoints.open import open_checkpoint

    adapters = [
        make_adapter(tmp_path / name, seed=n) for n, name in enumerate(("a", "b"))
    ]
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    manifest = build_manifest(examples(24, words=12), base, name="m", caliper=2.0)
    write_manifest(manifest, tmp_path / "m.json")

    def job_of(name: str) -> Job:
        request = Request(
            audits=(NLL(),),
            checkpoints=tuple(map(str, adapters)),
            base=str(tiny_base),
            manifest=tmp_path / "m.json",
            loading=Loading(device="cpu", quantize=("int8",)),
            output=tmp_path / name,
            jobs=1,
        )
        return Job.of(request)

    job_alone = job_of("alone")
    job = job_of("shared")
    version = versions()["spark-audit"]
    expected = local.score(job_alone, job_alone.unscored())
    assert ray.n_parts_of(job.tokens_left(0, job.unscored()), 3) == 3
    copied = pickle.dumps(without_models(job))
    results: list[Any] = []
    opened: dict[str, Any] = {}
    for shard in (1, 0, 2):
        result = ray.work(version, copied, 0, (shard, 3))
        results.append(pickle.loads(pickle.dumps(result)))
        ray.take(results[-1], job.store, opened)
    assert not list(results[0][0][1].model.parameters())
    assert [*opened] == ["base", "a", "a+int8", "b", "b+int8"]
    scored = [
        job.checkpoint_job(opened_checkpoint) for opened_checkpoint in opened.values()
    ]
    assert not job.n_missing(scored)
    # Nothing is lacking.
    assert ray.n_parts_of(job.tokens_left(0, job.unscored()), 3) == 0
    for described_alone, described_shared in zip(
        job_alone.with_notes(expected), job.with_notes(scored), strict=True
    ):
        assert described_alone.facts == described_shared.facts
        for scoring_pass, items in described_alone.items_by_pass.items():
            keys = described_shared.items_by_pass[scoring_pass].store_keys()
            table = job.store.gather(keys, scoring_pass=scoring_pass)
            table_alone = job_alone.store.gather(
                items.store_keys(), scoring_pass=scoring_pass
            )
            assert table.ids == table_alone.ids
            for name, values in table_alone.columns.items():
                np.testing.assert_allclose(table.columns[name], values, atol=1e-5)
    strange: Any = SimpleNamespace(name="a", model_id="0")
    with pytest.raises(CheckpointError, match="^a: "):
        ray.take(([strange], []), job.store, opened)
    with pytest.raises(InputError, match=r"^--engine ray: .*9\.9"):
        ray.work("9.9", b"", 0, (0, 1))


def test_a_cluster_without_nodes_is_refused_and_tasks_fit_on_any_node():
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}] * 2
    cluster = SimpleNamespace(nodes=lambda: nodes)
    assert ray.capacity(cluster, "auto") == (2.0, 0, 2)
    nodes = [{"Alive": True, "Resources": {"CPU": n, "GPU": 2}} for n in (4.0, 16.0)]
    assert ray.capacity(cluster, "auto") == (1.0, 1, 4)
    assert ray.capacity(cluster, "cpu") == (4.0, 0, 5)
    # A task needs a core, too, so the GPUs of a node without one are not used.
    nodes = [
        {"Alive": True, "Resources": {"CPU": n, "GPU": g}}
        for n, g in [(0, 2), (8.0, 0)]
    ]
    assert ray.capacity(cluster, "auto") == (8.0, 0, 1)
    nodes = []
    with pytest.raises(IncompleteError, match="^--engine ray: "):
        ray.capacity(cluster, "auto")

"""Ray: the report of one process, whatever dies on the way; refusals in one line."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from named import examples
from tiny_models import make_model, save_model

from spark_audit.audits import Matched
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.run import Request, run
from spark_audit.results import Report

pytest.importorskip("ray", reason="Ray is not installed")

NODES = 3
KILLED = 1


class Nodes:
    """A Ray cluster of some nodes on this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": 1, "object_store_memory": 100 << 20}
        # That of the driver scores nothing: it costs a process less.
        driver = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True}
        # A dead node is noticed in seconds; as Ray comes it takes some twenty.
        checks = {
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 3,
        }
        head = {**self._node, **driver, "_system_config": checks}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self.others: list[Any] = []
        self.fill()

    def fill(self) -> None:
        """As many as there were before."""
        for _ in range(NODES - 1 - len(self.others)):
            self.others.append(self._cluster.add_node(wait=False, **self._node))
        self._cluster.wait_for_nodes()

    def kill(self, which: random.Random) -> None:
        """One of them, not that of the driver, at once."""
        node = self.others.pop(which.randrange(len(self.others)))
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module", autouse=True)
def own_signals():
    """Ray takes SIGTERM for itself; tests of other files in this process want it."""
    before = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def nodes():
    running_nodes = Nodes()
    yield running_nodes
    running_nodes.end()


@pytest.fixture(scope="module")
def request_of(tmp_path_factory, tiny_base, make_adapter):
    """``request_of(**fields)``: an audit of four checkpoints on two modules."""
    from spark_audit.checkpoints.open import open_checkpoint

    folder = tmp_path_factory.mktemp("workshop")
    make_adapter(folder / "one", seed=1)
    make_adapter(folder / "two", seed=2)
    save_model(make_model("llama", seed=9), folder / "full")
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    manifest = build_manifest(examples(64, words=12), base, name="m", caliper=2.0)
    write_manifest(manifest, folder / "m.json")

    def make(**fields: Any) -> Request:
        request_fields: dict[str, Any] = {
            "audits": (Matched(placebo_draws=5, rematched=False),),
            "checkpoints": tuple(
                f"{name}={folder / name}" for name in ("one", "two", "full")
            ),
            "base": str(tiny_base),
            "manifest": folder / "m.json",
            "loading": Loading(device="cpu"),
            "formats": ("json",),
        }
        return Request(**{**request_fields, **fields})

    return make


@pytest.fixture(scope="module")
def report_alone(request_of, tmp_path_factory):
    """The report of one process."""
    report = run(request_of(output=tmp_path_factory.mktemp("alone") / "r")).report
    return report


def assert_same(one: Report | None, other: Report) -> None:
    assert [c.name for c in one.checkpoints] == [c.name for c in other.checkpoints]
    assert len(one.results) == len(other.results)
    for a, b in zip(one.results, other.results, strict=True):
        assert a.model_dump() == pytest.approx(b.model_dump(), abs=1e-6)


# Beside the first, on demand: each takes seconds, and the machine may be busy.
ROUNDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 50))]


@pytest.mark.parametrize("seed", ROUNDS)
def test_nodes_that_die_change_nothing(
    seed, nodes, request_of, report_alone, tmp_path, capfd
):
    nodes.fill()
    chance = random.Random(seed)
    # Of the parts that are done, and then some seconds more.
    dies = sorted(
        (chance.uniform(0, 0.5), chance.uniform(0, 0.3)) for _ in range(KILLED)
    )
    killers: list[threading.Timer] = []

    def told(what: str, done: int, total: int) -> None:
        while what.startswith("scoring") and dies and done >= dies[0][0] * total:
            later = dies.pop(0)[1]
            killers.append(threading.Timer(later, nodes.kill, [chance]))
            killers[-1].start()

    request = request_of(engine="ray", address=nodes.address, output=tmp_path / "r")
    report = run(request, progress=told).report
    for killer in killers:
        killer.join()
    assert len(killers) == KILLED
    assert_same(report, report_alone)
    assert "raylet" not in capfd.readouterr().out


@pytest.mark.parametrize("kind", ["closed", "words"])
def test_an_address_that_answers_nothing_is_told_at_once(kind, request_of, tmp_path):
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{line.getsockname()[1]}"
    address = "no address" if kind == "words" else address
    request = request_of(engine="ray", address=address, output=tmp_path / "r")
    with pytest.raises(InputError, match=f"^--address {address}: "):
        run(request)
    assert list(tmp_path.iterdir()) == []


SEEN = """
import json, os, sys
import psutil
from spark_audit.pipeline.engines.ray import connected

def at_work():
    import colorsys
    return colorsys.__file__, sys.path, os.getcwd()

names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
with connected(None) as ray:
    own = psutil.Process()
    listening = [
        line.laddr.ip
        for one in (own, *own.children(recursive=True))
        for line in one.net_connections("inet")
        if line.status == psutil.CONN_LISTEN
    ]
    module, path, folder = ray.get(ray.remote(num_cpus=1)(at_work).remote())
    inside = [os.environ[name] for name in names]
after = [os.environ[name] for name in names]
print(json.dumps([module, path, folder, listening, inside, after]))
"""


def test_a_cluster_started_here_is_closed_and_runs_nothing_of_the_working_directory(
    tmp_path,
):
    """A file named like a library stands where the command is called."""
    (tmp_path / "colorsys.py").write_text("raise SystemExit('ran')\n")
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "seen.py"
    script.write_text(SEEN)
    user_variables = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "of the user"}
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-P", script],
        cwd=tmp_path,
        env={
            **os.environ,
            **user_variables,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    module, path, folder, listening, inside, after = json.loads(done.stdout)
    assert folder == str(tmp_path)  # relative paths of checkpoints lead where they did
    assert str(tmp_path) not in path
    assert Path(module).parent != tmp_path
    # The table of gcs_server, raylet, worker and driver.
    assert len(listening) >= 4
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert inside[0] == "token"
    assert len(inside[1]) == 64
    assert after == list(user_variables.values())


def test_a_ray_without_tokens_is_refused(request_of, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.51.1")
    with pytest.raises(InputError, match="^--engine ray: "):
        run(request_of(engine="ray", output=tmp_path / "r"))


def test_without_ray_the_line_to_install_it_is_told(request_of, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install '.\[ray\]'"):
        run(request_of(engine="ray", output=tmp_path / "r"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"address": "here:1"}, "--address: .*add --engine ray"),
        ({"engine": "ray", "shard": (1, 2)}, "leave --shard out"),
    ],
)
def test_what_does_not_go_together(fields, message, request_of):
    with pytest.raises(InputError, match=message):
        request_of(**fields)


@pytest.mark.slow
def test_a_driver_that_dies_is_resumed_by_the_same_command(
    nodes, request_of, report_alone, tmp_path, monkeypatch
):
    nodes.fill()
    request = request_of(engine="ray", address=nodes.address, output=tmp_path / "r")
    call = [
        sys.executable,
        "-m",
        "spark_audit",
        "matched",
        "--ckpt",
        *request.checkpoints,
    ]
    call += ["--base", str(request.base), "--manifest", str(request.manifest)]
    call += ["--placebo-draws", "5", "--device", "cpu", "--format", "json", "--quiet"]
    call += ["--engine", "ray", "--address", nodes.address, "-o", str(tmp_path / "r")]
    first = subprocess.Popen(call)
    store = tmp_path / "r" / "scores" / "store"
    while not any(store.glob("*.parquet")):
        assert first.poll() is None
        time.sleep(0.01)
    first.kill()
    first.wait()
    assert not (tmp_path / "r" / "report.json").exists()
    keys_before = keys(store)
    assert_same(run(request).report, report_alone)
    # What had come back is not scored again.
    keys_after = keys(store)
    assert 0 < len(keys_before) < len(keys_after) == len({*keys_after})


def keys(store: Path) -> list[str]:
    """All keys of a store."""
    tables = [pq.read_table(path) for path in store.glob("*.parquet")]
    return [key for table in tables for key in table["key"].to_pylist()]


@pytest.mark.slow
def test_jobs_that_a_node_took_along_are_begun_anew_and_errors_come_back(
    nodes, tmp_path
):
    """As trainings of ``python benchmarks/claims`` are shared."""
    from claims.nodes import run_on_nodes

    from spark_audit.pipeline.engines.cluster import connected

    nodes.fill()
    ended: list[int] = []

    def job(number: int) -> int:
        with (tmp_path / str(number)).open("a") as file:
            file.write("begun\n")
        time.sleep(8)
        return number

    def fails() -> None:
        raise InputError("is wrong", where="--data")

    killer = threading.Timer(12, nodes.kill, [random.Random(0)])
    with connected(nodes.address) as ray:
        killer.start()
        jobs = [partial(job, number) for number in range(6)]
        run_on_nodes(ray, jobs, gpu=False, ended=ended.append)
        killer.join()
        assert sorted(ended) == [*range(6)]
        begun = [len((tmp_path / str(n)).read_text().split()) for n in range(6)]
        assert 6 < sum(begun) <= 8
        with pytest.raises(InputError, match="--data: is wrong"):
            run_on_nodes(ray, [fails], gpu=False, ended=ended.append)

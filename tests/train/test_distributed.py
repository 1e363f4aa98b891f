"""Two processes give what one gives, and a fault of one does not leave the other."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import begin
from run_training import lines, train, write_stream
from safetensors.torch import load_file

from spark_audit.errors import CheckpointError, InputError
from spark_train import processes

# With --cpu accelerate starts one process only (more need MPI); with --multi_gpu it
# starts as many as it is told, and on a machine without CUDA they speak over gloo.
LAUNCH = (
    "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
    "--mixed_precision no --dynamo_backend no --main_process_port 0"
).split()
# Several runs one after the other, each ended by a mark: processes import for seconds.
DRIVER = """
import json, os, sys
os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT), 2)
from spark_train.cli import run
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    for stream in (sys.stdout, sys.stderr):
        print(f"{code} <end>", file=stream, flush=True)
import torch.distributed as group
if group.is_initialized():  # its threads must not outlive it: that aborts at exit
    group.destroy_process_group()
"""
ROOT = Path(__file__).parents[2]
SETTINGS = (
    "epochs=1",
    "batch_size=4",
    "lr=0.01",
    "lora.r=4",
    "save_every=3",
)
# What each process must hold alike: teachers, a projection, importances, noise.
OTHERS = {
    "spark": ("ptpc.steps=4", "ptpc.lr=0.001"),
    "gem": ("batch_size=2", "gem.memory=1", "seed=8"),
    "ewc": (),
    "er+dpsgd": (),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_stream(tmp_path_factory.mktemp("data") / "rows.jsonl")


def command(method: str, base: Path, data: Path, output: Path, *more: str) -> list[str]:
    """The arguments of ``spark-train`` for a run; ``er+dpsgd`` is ``er --dp dpsgd``."""
    method, _, dp = method.partition("+")
    line = ["run", "--quiet", "--method", method, "--dp", dp or "none"]
    line += ["--base", str(base), "--data", str(data), "--order", "yelp,fomc"]
    return [*line, "--device", "cpu", "-o", str(output), "--set", *SETTINGS, *more]


def launched(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of two processes under accelerate."""
    done = subprocess.run(
        [sys.executable, *LAUNCH, "-m", "spark_train", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stdout, done.stderr


def paired(runs: list[list[str]], folder: Path) -> list[list[tuple[int, str, str]]]:
    """Exit code, stdout and stderr of each run in each of two processes.

    Nobody watches over them: neither is ended because the other one was.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in ("0", "1"):
        environment = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": str(port)}
        size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        errors = folder / f"errors-{rank}"
        call = ["-c", DRIVER, json.dumps(runs), str(errors)]
        own_environment = {"MASTER_ADDR": "127.0.0.1", **environment, **size}
        processes.append(
            (begin(call, root=ROOT, cwd=folder, **own_environment), errors)
        )
    lines_found: list[list[tuple[int, str, str]]] = [[] for _ in runs]
    for process, errors in processes:
        code, out = process.wait()
        err = errors.read_text()
        assert code == 0, err
        outputs = [text.split(" <end>\n")[:-1] for text in (out, err)]
        for ends, output, failed in zip(lines_found, *outputs, strict=True):
            *_, last = output.splitlines()
            ends.append((int(last), output, failed))
    return lines_found


@pytest.fixture(scope="module")
def pair(tiny_base, data, tmp_path_factory):
    """Runs of two processes: their folder, and how each of them ended."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "file").write_text("")
    runs = {
        **{m: command(m, tiny_base, data, folder / m, *s) for m, s in OTHERS.items()},
        # Only the first process writes: only it finds that it cannot.
        "unwritable": command("er", tiny_base, data, folder / "file" / "run"),
        "diverging": command("er", tiny_base, data, folder / "run", "lr=1e30"),
    }
    return folder, dict(zip(runs, paired(list(runs.values()), folder), strict=True))


@pytest.mark.parametrize(
    ("method", "more"),
    [
        # The launcher, which takes another ten seconds; the others begin as it would.
        pytest.param("er", (), marks=pytest.mark.slow),
        *OTHERS.items(),
    ],
    ids=["er", *OTHERS],
)
def test_two_processes_give_what_one_gives(
    method, more, tiny_base, data, tmp_path, request
):
    run_alone = train(
        method=method.partition("+")[0],
        dp=method.partition("+")[2] or "none",
        base=str(tiny_base),
        data=[data],
        output=tmp_path / "one",
        settings=[*SETTINGS, *more],
    )
    if method == "er":
        top_of_two = tmp_path / "two"
        ends = [launched(command(method, tiny_base, data, top_of_two, *more))]
    else:
        folder, ended = request.getfixturevalue("pair")
        top_of_two = folder / method
        ends = ended[method]
    assert [code for code, _, _ in ends] == [0] * len(ends), ends
    # The first process alone speaks.
    assert "".join(out for _, out, _ in ends).count("Last ") == 1
    assert (
        json.loads((top_of_two / "run.json").read_text())["starts"][0]["processes"] == 2
    )

    lines_alone = lines(run_alone.folder)
    two = lines(top_of_two)
    assert [list(line) for line in lines_alone] == [list(line) for line in two]
    for mine, other_step in zip(lines_alone, two, strict=True):
        for name, value in mine.items():
            if isinstance(value, float):
                # float32 sums in another order: how far apart depends on the processor.
                assert math.isclose(
                    value, other_step[name], rel_tol=1e-4, abs_tol=1e-7
                ), (
                    mine["step"],
                    name,
                )
            else:
                assert value == other_step[name]
    if method == "gem":  # some step was projected
        assert any(line.get("violated") for line in lines_alone)
    names, others = (
        sorted(path.relative_to(top) for path in top.rglob("*") if path.is_file())
        for top in (run_alone.folder, top_of_two)
    )
    assert names == others
    adapters = [name for name in names if name.suffix == ".safetensors"]
    assert len(adapters) == (4 if method == "spark" else 2)
    for name in adapters:
        mine, other_tensors = (
            load_file(top / name) for top in (run_alone.folder, top_of_two)
        )
        assert mine.keys() == other_tensors.keys()
        for key, weight in mine.items():
            torch.testing.assert_close(weight, other_tensors[key], atol=1e-5, rtol=1e-5)
    text = [
        (top / "accuracy.csv").read_text() for top in (run_alone.folder, top_of_two)
    ]
    assert text[0] == text[1]


def said(ends: list[tuple[int, str, str]]) -> list[str]:
    """What the program itself says on stderr, in all processes together."""
    lines_said = "".join(err for _, _, err in ends).splitlines()
    return [line for line in lines_said if line.startswith("spark-train:")]


@pytest.mark.parametrize(
    ("kind", "codes", "told"),
    [
        ("unwritable", [4, 4], "cannot be written"),
        ("diverging", [2, 2], "is not finite at step 2 of 2; lower the learning rate"),
    ],
    ids=["of one process", "of all processes, while training"],
)
def test_a_fault_is_one_line(kind, codes, told, pair):
    folder, ended = pair
    assert [code for code, _, _ in ended[kind]] == codes
    (line,) = said(ended[kind])
    assert told in line
    # Nothing is left half-written, and the lock is let go of.
    assert not [path for path in folder.rglob(".*") if path.is_file()]


# --- one process, as another sees it --------------------------------------------------


@pytest.mark.parametrize("world", ["", "1"])
def test_a_rank_that_was_left_behind_is_no_launch(world, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", world)
    assert processes.assemble("auto") == "auto"
    assert (processes.n_processes(), processes.rank()) == (1, 0)


def test_the_first_process_tells_another_s_fault(monkeypatch):
    fault = CheckpointError("is broken", where="x")
    monkeypatch.setattr(processes, "gathered", lambda own: [fault])
    with pytest.raises(CheckpointError, match="is broken"), processes.together():
        pass
    monkeypatch.setattr(processes, "rank", lambda: 1)
    with pytest.raises(SystemExit, match="3"), processes.together():
        raise fault


def test_a_process_that_is_gone_is_no_defect(monkeypatch):
    def lost(*args: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(processes, "n_processes", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_reduce", lost)
    monkeypatch.setattr("accelerate.utils.gather_object", lost)
    for call in (processes.summed_over_processes, processes.gathered):
        with pytest.raises(InputError):
            call(torch.ones(1))

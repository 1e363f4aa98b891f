"""Two processes give what one gives, and a fault of one does not leave the other."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spark_audit.errors import CheckpointError, InputError
from spark_train import crew as crew_module
from spark_train.crew import Crew, ElsewhereError
from spark_train.run import train

# With --cpu accelerate starts one process only (more need MPI); with --multi_gpu it
# starts as many as it is told, and on a machine without CUDA they speak over gloo.
LAUNCH = (
    "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
    "--mixed_precision no --dynamo_backend no --main_process_port 0"
).split()
SETTINGS = (
    "epochs=2",
    "batch_size=4",
    "lr=0.01",
    "lora.r=4",
    "save_every=3",
)
CORRECTION = ("ptpc.steps=4", "ptpc.lr=0.001")


@pytest.fixture(scope="module")
def data(
    make_stream: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make_stream(tmp_path_factory.mktemp("data") / "rows.jsonl")


def command(method: str, base: Path, data: Path, output: Path, *more: str) -> list[str]:
    """The arguments of ``python`` for a run."""
    line = ["-m", "spark_train", "run", "--quiet", "--method", method]
    line += ["--base", str(base), "--data", str(data), "--order", "yelp,fomc"]
    return [*line, "--device", "cpu", "-o", str(output), "--set", *SETTINGS, *more]


def launched(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of two processes under accelerate."""
    done = subprocess.run(
        [sys.executable, *LAUNCH, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stdout, done.stderr


def paired(arguments: list[str]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each of two processes.

    Nobody watches over them: neither is ended because the other one was.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = []
    for rank in ("0", "1"):
        place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": str(port)}
        size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        both.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "MASTER_ADDR": "127.0.0.1", **place, **size},
            )
        )
    try:
        said = [process.communicate(timeout=100) for process in both]
    finally:
        for process in both:
            process.kill()
    return [(p.returncode, *texts) for p, texts in zip(both, said, strict=True)]


def steps(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("method", "more"), [("spark", CORRECTION), ("er", ())], ids=["spark", "er"]
)
def test_two_processes_give_what_one_gives(
    method: str, more: tuple[str, ...], tiny_base: Path, data: Path, tmp_path: Path
) -> None:
    alone = train(
        method=method,
        base=str(tiny_base),
        data=[data],
        order="yelp,fomc",
        output=tmp_path / "one",
        settings=[*SETTINGS, *more],
        device="cpu",
    )
    arguments = command(method, tiny_base, data, tmp_path / "two", *more)
    if method == "spark":
        ends = [launched(arguments)]
    else:
        ends = paired(arguments)
    assert [code for code, _, _ in ends] == [0] * len(ends), ends
    # The first process alone speaks.
    assert "".join(out for _, out, _ in ends).count("Last ") == 1
    assert json.loads((tmp_path / "two" / "run.json").read_text())["processes"] == 2

    one, two = steps(alone.folder), steps(tmp_path / "two")
    assert [list(line) for line in one] == [list(line) for line in two]
    for mine, other in zip(one, two, strict=True):
        for name, value in mine.items():
            if isinstance(value, float):
                assert math.isclose(value, other[name], rel_tol=1e-5, abs_tol=1e-7), (
                    mine["step"],
                    name,
                )
            else:
                assert value == other[name]
    names = sorted(
        path.relative_to(alone.folder)
        for path in alone.folder.rglob("*")
        if path.name != ".lock" and path.is_file()
    )
    assert names == sorted(
        path.relative_to(tmp_path / "two")
        for path in (tmp_path / "two").rglob("*")
        if path.name != ".lock" and path.is_file()
    )
    adapters = [name for name in names if name.suffix == ".safetensors"]
    assert len(adapters) == (4 if more else 2)
    for name in adapters:
        mine, theirs = (load_file(tmp_path / n / name) for n in ("one", "two"))
        assert mine.keys() == theirs.keys()
        for key, weight in mine.items():
            torch.testing.assert_close(weight, theirs[key], atol=1e-5, rtol=1e-5)
    text = [(tmp_path / n / "accuracy.csv").read_text() for n in ("one", "two")]
    assert text[0] == text[1]


def said(ends: list[tuple[int, str, str]]) -> list[str]:
    """What the program itself says on stderr, in all processes together."""
    lines = "".join(err for _, _, err in ends).splitlines()
    return [line for line in lines if line.startswith("spark-train:")]


def test_a_fault_in_one_process_is_one_line(
    tiny_base: Path, data: Path, tmp_path: Path
) -> None:
    # Only the first process writes: only it finds that it cannot.
    (tmp_path / "file").write_text("")
    ends = paired(command("er", tiny_base, data, tmp_path / "file" / "run"))
    assert [code for code, _, _ in ends] == [4, 2]
    (line,) = said(ends)
    assert "cannot be written" in line


def test_a_fault_that_all_processes_find_while_training_is_one_line(
    tiny_base: Path, data: Path, tmp_path: Path
) -> None:
    ends = paired(command("er", tiny_base, data, tmp_path / "run", "lr=1e30"))
    assert [code for code, _, _ in ends] == [2, 2]
    (line,) = said(ends)
    assert "the loss is not finite" in line


# --- one process, as another sees it --------------------------------------------------


def test_one_process_is_a_crew_of_its_own() -> None:
    crew = Crew()
    assert crew.first
    assert crew.share([1, 2, 3]) == [1, 2, 3]
    assert crew.collect({"a": 1}) == {"a": 1}
    tensor = torch.ones(2)
    assert crew.sum(tensor) is tensor
    crew.wait()
    crew.agree(3, what="three")
    with pytest.raises(InputError, match="mine"), crew.together():
        raise InputError("mine")


def test_every_item_is_some_process_s() -> None:
    parts = [Crew(rank, 3).share(range(8)) for rank in range(3)]
    assert sorted(x for part in parts for x in part) == list(range(8))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_first_process_tells_another_s_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = CheckpointError("is broken", where="x")
    monkeypatch.setattr(Crew, "_all", lambda self, items: [None, fault])
    with pytest.raises(CheckpointError, match="is broken"), Crew(0, 2).together():
        pass
    with pytest.raises(ElsewhereError), Crew(1, 2).together():
        raise fault
    monkeypatch.setattr(Crew, "_all", lambda self, items: [3, 4])
    with pytest.raises(InputError, match="the processes differ in the step"):
        Crew(1, 2).agree(4, what="the step")


def test_a_process_that_is_gone_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*args: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(crew_module.torch.distributed, "barrier", lost)
    monkeypatch.setattr(crew_module.torch.distributed, "all_reduce", lost)
    with pytest.raises(ElsewhereError, match="another process of the run has stopped"):
        Crew(0, 2).wait()
    with pytest.raises(ElsewhereError):
        Crew(0, 2).sum(torch.ones(1))

"""What methods carry from task to task, and runs of every method that are killed."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from run_training import train

from spark_audit.errors import OutputError
from spark_train.methods import METHODS, groups
from spark_train.run import Outcome
from spark_train.run_folder import Folder

ORDER = "yelp,fomc,news,tips"
SMALL = {"ptpc": ("ptpc.steps=2",), "gem": ("gem.memory=2",)}
WATCHED = (
    "spark_train.loop._record",
    "spark_train.run_folder.write_atomically",
    "spark_train.run.save_adapter",
    "spark_train.run.write_matrix",
)


@pytest.fixture(scope="module")
def data(
    make_stream: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return make_stream(
        folder / "rows.jsonl", tasks=tuple(ORDER.split(",")), train=3, test=1
    )


def left(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


QUICK = ("spark", "ewc", "gem")


class Killed(BaseException):
    """Stands for a process that ends at once."""


@pytest.mark.parametrize(
    "method",
    [
        # Of two phases, and with a state of its own; others are made of the same.
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in list(METHODS)
    ],
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(
    method: str,
    tiny_base: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ["epochs=1", "batch_size=2", "lr=0.02", "lora.r=4", "save_every=1"]
    settings += [s for name in groups(method) for s in SMALL.get(name, ())]

    def start(output: Path) -> Outcome:
        torch.rand(1)  # nothing may hang on where the global generator stands
        return train(
            method=method,
            base=str(tiny_base),
            data=[data],
            order=ORDER,
            output=output,
            settings=settings,
            device="cpu",
        )

    whole = start(tmp_path / "whole").folder
    calls = at = died = 0

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise Killed
            return real(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for target in WATCHED:
            module, _, name = target.rpartition(".")
            owner = importlib.import_module(module)
            patch.setattr(owner, name, watched(getattr(owner, name)))
        for place in cycle((7, 5, 6, 9, 4)):
            calls, at = 0, place
            try:
                start(tmp_path / "run")
                break
            except Killed:
                died += 1
                assert died < 60
    assert died >= 2
    assert left(tmp_path / "run") == left(whole)
    assert not (tmp_path / "run" / "carried").exists()


@pytest.mark.parametrize("method", ["ewc", "pecl"])
def test_what_is_carried_must_be_there(
    method: str,
    tiny_base: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start() -> Outcome:
        return train(
            method=method,
            base=str(tiny_base),
            data=[data],
            order=ORDER,
            output=tmp_path / "run",
            settings=["epochs=1", "batch_size=2", "lora.r=4"],
            device="cpu",
        )

    save = Folder.save

    def last(self: Folder, phase: int, *more: Any) -> None:
        save(self, phase, *more)
        if phase == 1:  # the first task is finished
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "save", last)
        with pytest.raises(Killed):
            start()
    (path,) = (tmp_path / "run" / "carried").iterdir()
    path.unlink()
    with pytest.raises(OutputError, match=r"1-yelp.safetensors: is gone"):
        start()

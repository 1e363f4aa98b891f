"""Every method, alone and under privacy options, killed again and again and opened."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_training import adapted, make_rows, make_stream
from run_training import Killed, Outcome, left, train, write_stream
from safetensors.torch import load_file

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import OutputError
from spark_train.training_methods import METHODS, groups

ORDER = "yelp,fomc,news,tips"
SMALL = {"ptpc": ("ptpc.steps=2",), "gem": ("gem.memory=2",)}
WATCHED = (
    "spark_train.loop.step_record",
    "spark_train.tensor_files.write_atomically",
    "spark_train.run_folder.write_atomically",
    "spark_train.training_run.save_adapter",
    "spark_train.training_run.write_text",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    tasks = ORDER.split(",")
    return write_stream(path, tasks=tuple(tasks), train=3, test=1)


QUICK = ("spark", "ewc", "mtl+dpsgd", "olora+fn")
# Of two phases, with a state of its own, of one stage under noise, of an adapter that
# grows; what fn changes is the base, the same for all methods.
RUNS = (*METHODS, *(f"{name}+dpsgd" for name in METHODS), "spark+fn", "olora+fn")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RUNS],
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(
    name, tiny_base, data, tmp_path, monkeypatch
):
    method, _, dp = name.partition("+")
    settings = ["epochs=1", "batch_size=2", "lr=0.02", "lora.r=4", "save_every=1"]
    settings += [s for group in groups(method) for s in SMALL.get(group, ())]

    def start(output: Path) -> Outcome:
        torch.rand(1)  # nothing may hang on where the global generator stands
        return train(
            method=method,
            base=str(tiny_base),
            data=[data],
            order="yelp,fomc" if dp else ORDER,
            output=output,
            dp=dp or "none",
            settings=settings,
        )

    made = start(tmp_path / "whole")
    whole = made.folder
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
        for place in cycle((7, 5, 41, 29)):
            calls = 0
            at = place
            try:
                again = start(tmp_path / "run")
                break
            except Killed:
                died += 1
                assert died < 60
    assert died >= 2
    assert left(tmp_path / "run") == left(whole)
    assert not (tmp_path / "run" / "carried").exists()
    assert again.record.accuracy == made.record.accuracy
    assert again.record.privacy == made.record.privacy
    assert made.record.privacy.get("option", "") == dp

    # Each adapter really changed, and what was trained can be opened.
    weights = sorted(whole.glob("stages/*/*/adapter_model.safetensors"))
    assert len({path.read_bytes() for path in weights}) == len(weights) > 0
    for path in weights:
        state = load_file(path)
        assert all(bool(w.isfinite().all()) for w in state.values())
        assert all(float(w.abs().max()) > 0 for n, w in state.items() if "lora_B" in n)
    loaded = open_checkpoint(str(whole), base=str(tiny_base), device="cpu")
    assert any("frozen noise" in note for note in loaded.notes) == (dp == "fn")


def test_what_is_carried_must_be_there(tmp_path):
    stream = make_stream(adapted(), make_rows(a=1, b=1, c=1))
    stream = replace(stream, folder=tmp_path)
    for k in (0, 1, 2):
        stream.save_carried(k, {"a": {"w": torch.full((2,), float(k))}})
    assert sorted(p.name for p in (tmp_path / "carried").iterdir()) == [
        "2-b.safetensors",
        "3-c.safetensors",
    ]
    assert stream.read_carried(1)["a"]["w"].tolist() == [1.0, 1.0]
    last = tmp_path / "carried" / "3-c.safetensors"
    last.write_bytes(last.read_bytes()[:-1] + b"\x01")  # another number
    for k, name in ((0, "1-a"), (2, "3-c")):
        with pytest.raises(OutputError, match=rf"{name}\.safetensors: "):
            stream.read_carried(k)

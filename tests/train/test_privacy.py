"""Every method under every privacy option: trained, stopped, gone on with, opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_training import train
from safetensors.torch import load_file

from spark_audit.checkpoints.open import open_checkpoint
from spark_train.methods import METHODS, groups
from spark_train.privacy import PRIVACY
from spark_train.run import Outcome
from spark_train.run_folder import Folder

SETTINGS = (
    "epochs=1",
    "batch_size=2",
    "lr=0.02",
    "lora.r=2",
    "eval_rows=1",
    "save_every=1",
)
QUICK = ("spark", "er", "gem", "olora", "pecl", "mtl")
SMALL = {"ptpc": ("ptpc.steps=2",), "gem": ("gem.memory=1",)}


@pytest.fixture(scope="module")
def data(
    make_stream: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make_stream(tmp_path_factory.mktemp("data") / "rows.jsonl", train=3, test=1)


class Killed(BaseException):
    """Stands for a process that ends at once."""


# What fn changes is the base, the same for all methods.
@pytest.mark.parametrize(
    ("method", "option"),
    [
        # Of two phases, of no replay, of a penalty, of one stage; others are made of
        # the same parts.
        pytest.param(m, o, marks=() if m in QUICK else pytest.mark.slow)
        for m in METHODS
        for o in PRIVACY
        if o != "fn"
    ]
    + [("spark", "fn"), ("olora", "fn")],
)
def test_a_method_runs_and_resumes_under_an_option(
    method: str,
    option: str,
    tiny_base: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = [s for name in groups(method) for s in SMALL.get(name, ())]

    def start(output: Path) -> Outcome:
        return train(
            method=method,
            base=str(tiny_base),
            data=[data],
            order="yelp,fomc",
            output=output,
            dp=option,
            settings=[*SETTINGS, *more],
            device="cpu",
        )

    saves = [0]
    save = Folder.save
    last: list[int] = []

    def counted(self: Folder, *given: Any) -> None:
        saves[0] += 1
        if saves[0] in last:
            raise Killed
        save(self, *given)

    monkeypatch.setattr(Folder, "save", counted)
    whole = start(tmp_path / "whole")
    assert whole.privacy["option"] == option
    last.append(saves[0] - 1)  # in the last phase of the last task
    saves[0] = 0
    with pytest.raises(Killed):
        start(tmp_path / "stopped")
    last.clear()
    again = start(tmp_path / "stopped")
    assert again.matrix == whole.matrix
    assert again.privacy == whole.privacy
    files = [p for p in whole.folder.rglob("*") if p.is_file() and p.name != "run.json"]
    for path in files:
        other = again.folder / path.relative_to(whole.folder)
        assert other.read_bytes() == path.read_bytes(), path.name

    # Each adapter really changed, and what was trained can be opened.
    weights = sorted(whole.folder.glob("stages/*/*/adapter_model.safetensors"))
    assert len(weights) >= (1 if method == "mtl" else 2)
    for path in weights:
        state = load_file(path)
        assert all(bool(w.isfinite().all()) for w in state.values())
        assert all(float(w.abs().max()) > 0 for n, w in state.items() if "lora_B" in n)
    assert len({path.read_bytes() for path in weights}) == len(weights)
    loaded = open_checkpoint(str(whole.folder), base=str(tiny_base), device="cpu")
    noted = any("frozen noise" in note for note in loaded.notes)
    assert noted == (option == "fn")

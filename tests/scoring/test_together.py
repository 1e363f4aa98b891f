"""Models in several places, beside the same model in one place."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import begin, python

from spark_audit import memory
from spark_audit.checkpoints import conv1d, fit, weight_files
from spark_audit.checkpoints.inspection import inspect_checkpoint
from spark_audit.checkpoints.open import open_checkpoint, open_checkpoints
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.checkpoints.spread import offloaded
from spark_audit.errors import CheckpointError, InputError
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass

ROOT = Path(__file__).parents[2]
ON_CPU = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""A GPU for each process is more than most machines have."""
KINDS = {
    "llama": ["q_proj", "o_proj", "down_proj"],
    "qwen2": ["v_proj", "up_proj"],
    "gpt2": ["c_attn", "c_proj"],
}
SCORES = """
import sys
import numpy as np
from spark_audit.checkpoints import spread
from spark_audit.checkpoints.open import open_checkpoints
from spark_audit.checkpoints.specs import Spec
from spark_audit.scoring.items import Candidates, Item
from spark_audit.scoring.score import drift, score
from spark_audit.scoring.table import Pass

tp, *folders = sys.argv[1:]
gathered, whole = [], spread.whole
def told(tensor):
    gathered.extend([tensor.shape] * hasattr(tensor, "full_tensor"))
    return whole(tensor)
spread.whole = told
rng = np.random.default_rng(0)
def ids(n):
    return rng.integers(5, 200, n).astype(np.int32)
items = [Item(f"t{i}", ids(n), np.arange(n, dtype=np.int32))
         for i, n in enumerate((3, 17, 30))]
sets = [Candidates("c", ids(9), tuple(ids(n) for n in (4, 2, 5)))]
for folder in folders:
    specs = [Spec("adapter", (folder + "/lora",))]
    stream = open_checkpoints(specs, base=folder + "/base", tp=int(tp))
    for loaded in stream:
        found = {}
        for wanted, some in ((Pass(), items), (Pass("candidates"), sets)):
            table = score(loaded, some, passes=[wanted])[wanted]
            found |= table.columns
        assert drift(loaded, items) < 1e-3
        assert not gathered  # each process applies its own rows of the head
        np.savez(f"{folder}/{loaded.name}-{tp}.npz", **found)
print("scored")
"""
FAILS = """
import os, sys
from spark_audit.checkpoints import base_model, spread, together
from spark_audit.checkpoints.open import open_checkpoint
together.GRACE = 1
if os.environ["RANK"] == "1":
    def broken(_): raise MemoryError("no room in this process")
    base_model.here = broken
open_checkpoint(sys.argv[1], tp=2)
print("it is open")
"""


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory,
    make_model: Callable[..., Any],
    make_adapter: Callable[..., Path],
    tiny_tokenizer: Any,
) -> dict[str, Path]:
    """Folders with ``base`` and ``lora``, a kind each."""
    root, made = tmp_path_factory.mktemp("spread"), {}
    for kind, targets in KINDS.items():
        base = root / kind / "base"
        # Rows of a head that are not dealt evenly, the last of them no token.
        sizes = {"vocab_size": 301} if kind == "qwen2" else {}
        make_model(kind, **sizes).save_pretrained(base)
        tiny_tokenizer.save_pretrained(base)
        make_adapter(
            root / kind / "lora",
            base=base,
            target_modules=targets,
            fan_in_fan_out=kind == "gpt2",
        )
        made[kind] = root / kind
    return made


def launched(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program under torchrun."""
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    return subprocess.run(
        [*run, str(count), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=ON_CPU,
    )


def test_shared_by_two_processes_scores_are_those_of_one(
    models: dict[str, Path], tmp_path: Path
) -> None:
    script = tmp_path / "scores.py"
    script.write_text(SCORES)
    folders = [str(models[kind]) for kind in KINDS]
    done = launched(2, str(script), "2", *folders)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("scored") == 1  # one leads, the other serves
    code, said = python(["-c", SCORES, "1", *folders], root=ROOT, cwd=tmp_path)
    assert code == 0, said
    for kind in KINDS:
        for name in ("base", "adapter"):
            both = [np.load(models[kind] / f"{name}-{tp}.npz") for tp in (1, 2)]
            for column in ("nll", "mean_logp", "sd_logp", "top1_margin", "nll_mean"):
                one, two = (each[column] for each in both)
                np.testing.assert_allclose(one, two, rtol=1e-5, atol=2e-5)
        base, adapter = (
            np.load(models[kind] / f"{name}-2.npz")["nll"]
            for name in ("base", "adapter")
        )
        assert np.abs(base - adapter).max() > 0.01


def test_a_process_that_ends_ends_the_others(
    models: dict[str, Path], tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # Nobody watches over them: neither is ended because the other one was.
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    both = [
        begin(
            ["-c", FAILS, str(models["llama"] / "base")],
            root=ROOT,
            cwd=tmp_path,
            CUDA_VISIBLE_DEVICES="",
            RANK=rank,
            LOCAL_RANK=rank,
            **place,
        )
        for rank in ("0", "1")
    ]
    (first, told), (second, why) = (one.wait() for one in both)
    assert first != 0
    assert second != 0
    assert "no room in this process" in why
    assert "another process that shares the model has ended" in told
    assert "it is open" not in told + why


def test_what_cannot_be_shared_is_refused(
    models: dict[str, Path],
    tiny_base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpt2 = str(models["gpt2"] / "base")
    assert not inspect_checkpoint(gpt2, tp=2).problems
    (uneven,) = inspect_checkpoint(gpt2, tp=3).problems
    assert "the outputs of some layer are not shared by 3" in uneven
    monkeypatch.setattr(conv1d, "PLANS", {})
    (unplanned,) = inspect_checkpoint(gpt2, tp=2).problems
    assert "no plan for sharing GPT2LMHeadModel" in unplanned
    assert "use --device-map auto" in unplanned
    odd = inspect_checkpoint(str(tiny_base), tp=3)
    assert "4 heads (2 of keys) are not shared by 3" in odd.problems[0]
    other = shutil.copytree(models["llama"] / "lora", tmp_path / "dora")
    config = json.loads((other / "adapter_config.json").read_text())
    config["bias"] = "all"
    (other / "adapter_config.json").write_text(json.dumps(config))
    base = str(models["llama"] / "base")
    assert "plain LoRA only" in str(inspect_checkpoint(str(other), base=base, tp=2))
    assert not inspect_checkpoint(str(models["llama"] / "lora"), tp=2).problems
    with pytest.raises(InputError, match="torchrun --nproc-per-node 2"):
        open_checkpoint(str(tiny_base), tp=2)
    for wrong in ({"device_map": "auto"}, {"quantize": ("int8",)}):
        with pytest.raises(InputError):
            Loading(tp=2, **wrong)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_spread_to_disk_scores_are_those_of_one_place(
    kind: str,
    models: dict[str, Path],
    make_items: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items = make_items([3, 17, 30], vocabulary=200)
    base, lora = models[kind] / "base", models[kind] / "lora"

    def scored(**options: Any) -> dict[str, Any]:
        stream = open_checkpoints([Spec("ours", (str(lora),))], **options)
        found = {}
        for loaded in stream:
            found[loaded.name] = score(loaded, items)[Pass()].columns
            assert loaded.dtype == "float32"
        return found

    plain = scored()
    size = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    free = {"cpu": fit.BESIDE + size // 2, "disk": 10**12}
    monkeypatch.setattr(fit, "rooms", lambda _: free)
    for loaded in open_checkpoints([Spec("base", (str(base),))], device_map="auto"):
        assert offloaded(loaded.model)
    spread = scored(device_map="auto")
    assert set(spread) == {"base", "ours"}
    for name, columns in plain.items():
        for column, values in columns.items():
            np.testing.assert_allclose(
                spread[name][column], values, rtol=1e-5, atol=2e-5
            )
    apart = np.abs(spread["base"]["nll"] - spread["ours"]["nll"])
    assert apart.max() > 0.01


def test_what_fits_nowhere_is_refused_before_it_is_read(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(models["llama"] / "base")
    said = inspect_checkpoint(folder).facts["memory"]
    assert "GB in float32; free: " in said
    monkeypatch.setattr(weight_files, "merged", None)
    cases: list[tuple[dict[str, int], dict[str, Any], str]] = [
        ({"cpu": 10, "disk": 10**12}, {}, "--device-map auto"),
        ({"cpu": 130_000, "disk": 10}, {}, "--dtype bfloat16"),
        ({"cpu": 10, "disk": 10}, {}, "a machine with"),
        ({"cpu": 10, "disk": 10}, {"device_map": "auto"}, "a machine with"),
    ]
    for free, options, fix in cases:
        monkeypatch.setattr(fit, "rooms", lambda _, free=free: free)
        with pytest.raises(CheckpointError, match="does not fit") as caught:
            open_checkpoint(folder, **options)
        assert fix in str(caught.value)
    monkeypatch.setattr(fit, "rooms", lambda _: {"disk": 10**12})
    assert not inspect_checkpoint(folder).problems


def test_free_memory_is_that_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory.free_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   8000 kB\n")
    assert memory.free_bytes() == 8_192_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes() == 8_192_000
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1000000\nx 2\n")
    assert memory.free_bytes() == 3_000_000

"""Models in several places, beside the same model in one place."""

from typing import Any

import numpy as np
import pytest
from refusals import each
from scored_by_hand import make_items
from tiny_models import make_model, save_model

from spark_audit import errors
from spark_audit.checkpoints import devices, stored_checkpoint
from spark_audit.checkpoints.checkpoint import offloaded
from spark_audit.checkpoints.inspection import inspect_checkpoint
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Spec
from spark_audit.errors import CheckpointError
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass

KINDS = {
    "llama": ["q_proj", "o_proj", "down_proj"],
    "qwen2": ["v_proj", "up_proj"],
    "gpt2": ["c_attn", "c_proj"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory, make_adapter):
    """Folders with ``base`` and ``lora``, a kind each."""
    root = tmp_path_factory.mktemp("spread")
    made = {}
    for kind, targets in KINDS.items():
        base = root / kind / "base"
        # Rows of a head that are not dealt evenly, the last of them no token.
        sizes = {"vocab_size": 301} if kind == "qwen2" else {}
        save_model(make_model(kind, **sizes), base)
        make_adapter(
            root / kind / "lora",
            base=base,
            target_modules=targets,
            fan_in_fan_out=kind == "gpt2",
        )
        made[kind] = root / kind
    return made


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_spread_to_disk_scores_are_those_of_one_place(kind, models, monkeypatch):
    items = make_items([3, 17, 30], vocabulary=200)
    base = models[kind] / "base"
    lora = models[kind] / "lora"

    def scored(**options: Any) -> dict[str, Any]:
        stream = each([Spec("ours", (str(lora),))], **options)
        found = {}
        for loaded in stream:
            found[loaded.name] = score(loaded, items)[Pass()].columns
            assert loaded.dtype == "float32"
        return found

    plain = scored()
    size = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    free = {"cpu": devices.MAX_COPY_BYTES + size // 2, "disk": 10**12}
    has_rooms(monkeypatch, free)
    for loaded in each([Spec("base", (str(base),))], device_map="auto"):
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


def has_rooms(monkeypatch: pytest.MonkeyPatch, free: dict[str, int]) -> None:
    monkeypatch.setattr(stored_checkpoint, "rooms", lambda _: free)


def test_what_fits_nowhere_is_refused_before_it_is_read(models, monkeypatch):
    folder = str(models["llama"] / "base")
    said = inspect_checkpoint(folder)["memory"]
    assert " kB in float32; free: " in said
    cases: list[tuple[dict[str, int], dict[str, Any], str]] = [
        ({"cpu": 10, "disk": 10**12}, {}, "--device-map auto"),
        ({"cpu": 130_000, "disk": 10}, {}, "--dtype bfloat16"),
        ({"cpu": 10, "disk": 10}, {}, "a machine with"),
        ({"cpu": 10, "disk": 10}, {"device_map": "auto"}, "a machine with"),
    ]
    for free, options, fix in cases:
        has_rooms(monkeypatch, free)
        with monkeypatch.context() as patch:
            patch.setattr(stored_checkpoint.StoredCheckpoint, "load", None)
            with pytest.raises(CheckpointError) as caught:
                open_checkpoint(folder, **options)
        assert fix in str(caught.value)
    has_rooms(monkeypatch, {"disk": 10**12})
    assert inspect_checkpoint(folder)


def test_free_memory_is_that_of_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(errors, "MEMORY_CGROUP", tmp_path)
    assert errors.free_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   8000 kB\n")
    assert errors.free_bytes() == 8_192_000
    (tmp_path / "memory.max").write_text("max\n")
    assert errors.free_bytes() == 8_192_000
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1000000\nx 2\n")
    assert errors.free_bytes() == 3_000_000

"""Relearning goes on from exactly the checkpoint that audits open, without PII."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_audit.checkpoints import open_checkpoint
from spark_audit.errors import InputError
from spark_audit.examples import Canary, Example, Span, read_examples, write_examples
from spark_train.cli import run
from spark_train.relearn import Relearned, relearn, without_identifiers


def example(key: str, text: str, **more: Any) -> Example:
    facts = {"id": key, "task": "t", "prompt": text, "response": " yes"}
    facts |= {"split": "train", "source_id": key}
    return Example(**{**facts, **more})


PLAIN = [
    example(f"plain-{i}", f"The service was {word} and the food was cold.\nLabel:")
    for i, word in enumerate(["good", "bad", "read", "fine", "called"])
]
OTHERS = [
    example("annotated", "Ask Jones.\nLabel:", spans=(Span(4, 9, "NAME"),)),
    example("rules", "Mail to maria.jones@example.org today.\nLabel:"),
    example("canary", "A fine day.\nLabel:", canary=Canary("c", "colon", 1, False, 0)),
    example("test", "A test row.\nLabel:", split="test"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    write_examples(path, [*PLAIN, *OTHERS])
    return path


def test_rows_with_an_identifier_are_left_out() -> None:
    kept, left_out = without_identifiers([*PLAIN, *OTHERS])
    assert kept == PLAIN
    assert left_out == {"canary": 1, "annotated": 1, "rules": 1}
    with pytest.raises(InputError, match="no train row without an identifier .3 with"):
        without_identifiers(OTHERS)


def logits(loaded: Any) -> torch.Tensor:
    with loaded.active() as model:
        ids = torch.arange(3, 40, device=model.device)[None]
        return model(input_ids=ids).logits[0].cpu().clone()


def mean_nll(loaded: Any) -> float:
    """Of the plain rows' texts with EOS, by the model itself."""
    total, count = 0.0, 0
    for row in PLAIN:
        ids = loaded.tokenizer(row.text)["input_ids"] + [loaded.tokenizer.eos_token_id]
        tensor = torch.tensor([ids])
        with loaded.active() as model:
            logp = model(input_ids=tensor).logits[0, :-1].log_softmax(-1)
        total -= float(logp.gather(1, tensor[0, 1:, None]).sum())
        count += len(ids) - 1
    return total / count


def relearned(ckpt: Path, data: Path, output: Path, **options: Any) -> Relearned:
    options = {"base": None, "steps": 8, "lr": 1e-3, "batch_size": 5} | options
    return relearn(ckpt=str(ckpt), data=[data], output=output, device="cpu", **options)


def test_an_adapter_is_trained_on(
    data: Path, tiny_base: Path, tmp_path: Path, make_adapter: Callable[..., Path]
) -> None:
    adapter = make_adapter(tmp_path / "adapter", seed=3)
    before = {p.name: p.read_bytes() for p in adapter.iterdir()}
    shown: list[tuple[str, int, int]] = []
    out = tmp_path / "out"
    found = relearned(
        adapter,
        data,
        out,
        base=str(tiny_base),
        progress=lambda *told: shown.append(told),
    )
    # Batches of all five rows: the first loss is that of the checkpoint itself.
    start = open_checkpoint(str(adapter), base=str(tiny_base), device="cpu")
    assert found.losses[0] == pytest.approx(mean_nll(start), abs=1e-4)
    assert found.rows == 5
    assert len(found.losses) == 8
    assert found.losses[-1] < found.losses[0]
    assert shown[-1] == ("relearning, steps", 8, 8)
    end = open_checkpoint(str(out), base=str(tiny_base), device="cpu")
    assert end.format == "peft-adapter"
    assert mean_nll(end) < found.losses[0]
    # The adapter goes on: its configuration stays, and the original is untouched.
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    assert sorted(config["target_modules"]) == ["q_proj", "v_proj"]
    assert {p.name: p.read_bytes() for p in adapter.iterdir()} == before
    record = json.loads((out / "relearn.json").read_text())
    assert record["losses"] == list(found.losses)
    assert record["rows"] == {
        "used": 5,
        "left_out": {"canary": 1, "annotated": 1, "rules": 1},
    }
    assert record["settings"]["steps"] == 8
    assert record["checkpoint"]["weights_sha256"] == start.weights_sha256
    assert record["checkpoint"]["base_sha256"] == start.base_sha256
    assert "Jones" not in (out / "relearn.json").read_text()


def test_a_step_of_hardly_any_length_leaves_the_checkpoint_as_it_is(
    data: Path, tiny_base: Path, tmp_path: Path, make_adapter: Callable[..., Path]
) -> None:
    adapter = make_adapter(tmp_path / "adapter", seed=3, use_dora=True)
    relearned(adapter, data, tmp_path / "out", steps=1, lr=1e-12)
    paths = (adapter, tmp_path / "out")
    one, other = (logits(open_checkpoint(str(p), device="cpu")) for p in paths)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_the_seed_decides(
    data: Path, tmp_path: Path, make_adapter: Callable[..., Path]
) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        relearned(adapter, data, tmp_path / name, seed=seed, batch_size=2)
        files.append((tmp_path / name / "adapter_model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_full_weights_get_a_fresh_adapter(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = relearned(tiny_base, data, out)
    start = open_checkpoint(str(tiny_base), device="cpu")
    assert found.losses[0] == pytest.approx(mean_nll(start), abs=1e-4)
    end = open_checkpoint(str(out), device="cpu")
    assert mean_nll(end) < found.losses[0]
    record = json.loads((out / "relearn.json").read_text())
    assert record["settings"]["adapter"] == "fresh"
    assert record["checkpoint"]["base"] == str(tiny_base)
    assert end.base_sha256 == start.weights_sha256


def test_the_last_stage_of_a_run_folder_is_meant(
    data: Path, tiny_base: Path, tmp_path: Path, make_adapter: Callable[..., Path]
) -> None:
    for k, part in ((1, "task"), (2, "task"), (2, "priv")):
        place = tmp_path / "run" / "stages" / f"{k}-t" / part
        make_adapter(place, seed=k + 10 * (part == "priv"))
    relearned(tmp_path / "run", data, tmp_path / "a")
    relearned(tmp_path / "run" / "stages" / "2-t" / "priv", data, tmp_path / "b")
    weights = [tmp_path / n / "adapter_model.safetensors" for n in ("a", "b")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_frozen_noise_stays_with_the_checkpoint(
    data: Path, tiny_base: Path, tmp_path: Path, make_adapter: Callable[..., Path]
) -> None:
    from safetensors.torch import save_file

    adapter = make_adapter(tmp_path / "adapter")
    noise = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    save_file({"noise": noise}, adapter / "frozen_noise.safetensors")
    found = relearned(adapter, data, tmp_path / "out", steps=1)
    start = open_checkpoint(str(adapter), device="cpu")
    assert found.losses[0] == pytest.approx(mean_nll(start), abs=1e-4)
    kept = (tmp_path / "out" / "frozen_noise.safetensors").read_bytes()
    assert kept == (adapter / "frozen_noise.safetensors").read_bytes()


def test_adapters_that_are_no_plain_lora_are_refused(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    from peft import IA3Config, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    config = IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    )
    other = get_peft_model(model, config)
    for name, weight in other.named_parameters():
        if "ia3" in name:
            torch.nn.init.constant_(weight, 0.5)
    other.save_pretrained(tmp_path / "ia3")
    with pytest.raises(InputError, match="is an adapter, but no LoRA"):
        relearned(tmp_path / "ia3", data, tmp_path / "out")


def test_nothing_is_written_over(
    data: Path, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["relearn", str(tiny_base), "--data", str(data), "--device", "cpu"]
    arguments += ["--steps", "2", "--quiet", "-o"]
    assert run([*arguments, str(tmp_path)]) == 2
    assert "is there already, and not empty" in capsys.readouterr().err
    assert data.exists()
    assert run([*arguments, str(data)]) == 2
    assert read_examples(data)
    assert run([*arguments, str(tmp_path / "new"), "--lr", "0"]) == 2
    assert "0.0 is no learning rate" in capsys.readouterr().err
    assert run([*arguments, str(tmp_path / "new"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["adapter"] == str(tmp_path / "new")
    assert all(math.isfinite(loss) for loss in told["losses"])

"""Frozen noise: what it adds to, where it is kept, and what an audit makes of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from refusals import each, inspected, problem_of
from run_training import Outcome, relearn, train, write_stream
from safetensors.torch import load_file, save_file
from tiny_models import make_model, save_model
from transformers import AutoModelForCausalLM

from spark_audit.checkpoints.adapters import input_noise
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import parse_specs
from spark_audit.errors import CheckpointError, InputError
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_train.student import Student

NOISE = "frozen_noise.safetensors"
SHORT = ("epochs=1", "batch_size=4", "lr=0.02", "lora.r=4", "fn.sigma=0.5")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_stream(tmp_path_factory.mktemp("data") / "rows.jsonl", train=5, test=2)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A base whose head is its embedding matrix."""
    base = tmp_path_factory.mktemp("models") / "tied"
    save_model(make_model("llama", tie_word_embeddings=True), base)
    return base


@pytest.fixture(scope="module")
def start(tied, data):
    def call(output: Path, *settings: str, **options: Any) -> Outcome:
        arguments: dict[str, Any] = {
            "method": "er",
            "base": str(tied),
            "data": [data],
            "dp": "fn",
        }
        return train(
            output=output, settings=[*SHORT, *settings], **(arguments | options)
        )

    return call


@pytest.fixture(scope="module")
def made(start, tmp_path_factory):
    return start(tmp_path_factory.mktemp("runs") / "run").folder


def opened(source: Path | str, base: Path) -> Checkpoint:
    return open_checkpoint(str(source), base=str(base), device="cpu")


def noisy(base: Path, adapter: Path, noise: torch.Tensor) -> Any:
    """The plain truth in float64: other input rows, a head of its own."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.get_input_embeddings().weight.data += noise.double()
    return PeftModel.from_pretrained(model, adapter).double().eval()


IDS = np.array([1, 47, 91, 223, 80, 67, 12])


def nll(loaded: Checkpoint, request: Pass | None = None) -> np.ndarray:
    ids = IDS.astype(np.int32)
    item = Item("a", ids, np.arange(len(ids), dtype=np.int32))
    wanted = request or Pass()
    return score(loaded, [item], passes=[wanted])[wanted].columns["nll"]


def unsaid(folder: Path) -> None:
    """An adapter that says nothing of noise, as one of another maker."""
    (folder / "trained_on.json").unlink()
    file = folder / "adapter_model.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt"})


# --- what a run leaves ----------------------------------------------------------------


def test_each_stage_holds_the_one_draw(made):
    files = sorted(made.glob(f"stages/*/*/{NOISE}"))
    assert [file.parent.parent.name for file in files] == ["1-yelp", "2-fomc"]
    noise = load_file(files[0])["noise"]
    assert noise.shape == (300, 32)
    assert noise.dtype == torch.float32
    assert files[0].read_bytes() == files[1].read_bytes()
    # 9,600 draws: mean and spread within four standard errors.
    assert abs(float(noise.mean())) < 4 * 0.5 / 9600**0.5
    assert float(noise.std()) == pytest.approx(0.5, abs=4 * 0.5 / (2 * 9600) ** 0.5)
    assert len(noise.unique(dim=0)) == 300
    for file in files:
        trained_on = json.loads((file.parent / "trained_on.json").read_text())
        assert set(trained_on) == {"base_sha256", "noise_sha256", "files", "seal"}
    record = json.loads((made / "run.json").read_text())
    privacy_facts = record["privacy"]
    assert privacy_facts.pop("no_epsilon")
    assert privacy_facts == {"option": "fn", "sigma": 0.5, "rows": 300}
    assert record["settings"]["fn.sigma"] == 0.5
    assert not (made / "carried").exists()


def test_training_and_answers_see_it(start, tied, tmp_path, monkeypatch):
    seen: list[torch.Tensor] = []
    answered: list[torch.Tensor] = []
    hidden = Student.hidden

    def first(self: Student, batch: Any, mask: Any) -> Any:
        table = self.model.get_input_embeddings()
        seen.append((table(batch.ids) - table.weight[batch.ids]).detach())
        seen.append(batch.ids)
        return hidden(self, batch, mask)

    def answers(loaded: Checkpoint, prompts: Any) -> float:
        with loaded.active() as model:
            table: Any = model.get_input_embeddings()  # type: ignore[operator]
            ids = torch.tensor(IDS)
            answered.append((table(ids) - table.weight[ids]).clone())
        return 1.0

    monkeypatch.setattr(Student, "hidden", first)
    monkeypatch.setattr("spark_train.training_run.accuracy", answers)
    folder = start(tmp_path / "run").folder
    noise = load_file(folder / "stages" / "1-yelp" / "task" / NOISE)["noise"]
    # (The head is compared with the model's own logits before there is noise.)
    assert float(seen[0].abs().max()) == 0.0
    assert len(seen) > 6
    for added, ids in zip(seen[2::2], seen[3::2], strict=True):
        torch.testing.assert_close(added, noise[ids], atol=1e-6, rtol=0)
    assert len(answered) == 3
    for added in answered:
        torch.testing.assert_close(added, noise[IDS], atol=1e-6, rtol=0)


def test_the_sum_is_rounded_once():
    table = torch.nn.Embedding(5, 64, dtype=torch.bfloat16)
    noise = 0.01 * torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 0, 4]])

    class Model:
        def get_input_embeddings(self) -> torch.nn.Embedding:
            return table

    with input_noise(Model(), noise):
        noisy_rows = table(ids)
    wanted = (table.weight.float() + noise).bfloat16()[ids]
    assert noisy_rows.dtype == torch.bfloat16
    assert torch.equal(noisy_rows, wanted)
    assert torch.equal(table(ids), table.weight[ids])


# --- what an audit makes of it --------------------------------------------------------


def test_scores_equal_a_plain_computation(made, tied):
    adapter = made / "stages" / "2-fomc" / "task"
    noise = load_file(adapter / NOISE)["noise"]
    with torch.no_grad():
        logits = noisy(tied, adapter, noise)(input_ids=torch.tensor(IDS)[None]).logits
    wanted = torch.nn.functional.cross_entropy(
        logits[0, :-1], torch.tensor(IDS[1:]), reduction="none"
    )
    loaded = opened(made, tied)
    assert nll(loaded) == pytest.approx(wanted.numpy(), abs=2e-5)
    assert "the frozen noise next to it is added to input embeddings" in loaded.notes
    # What stock PEFT sees is another model.
    plain: Any = AutoModelForCausalLM.from_pretrained(tied).eval()
    with torch.no_grad():
        stock = PeftModel.from_pretrained(plain, adapter)(
            input_ids=torch.tensor(IDS)[None]
        ).logits
    assert float((stock - logits).abs().max()) > 0.01


def test_switching_leaves_no_noise_behind(made, tied, tmp_path):
    other_folder = tmp_path / "other"
    none = tmp_path / "none"
    for folder in (other_folder, none):
        shutil.copytree(made / "stages" / "2-fomc" / "task", folder)
        unsaid(folder)
        noise = load_file(folder / NOISE)["noise"]
        (folder / NOISE).unlink()
    save_file({"noise": 2 * noise}, other_folder / NOISE)
    specs = parse_specs([f"a={made}", f"b={other_folder}", f"c={none}"])
    loaded = {
        loaded.name: loaded for loaded in each(specs, base=str(tied), device="cpu")
    }
    loaded_by_name = {
        "a": opened(made, tied),
        "b": opened(other_folder, tied),
        "c": opened(none, tied),
    }
    for name in ("weights_sha256", "model_id"):
        assert len({getattr(loaded, name) for loaded in loaded_by_name.values()}) == 3
    nll_alone = {name: nll(loaded) for name, loaded in loaded_by_name.items()}
    assert len({float(figures.sum()) for figures in nll_alone.values()}) == 3
    before = nll(loaded["base"])
    for name in ("a", "b", "c", "b", "a"):
        assert (nll(loaded[name]) == nll_alone[name]).all()
        assert (nll(loaded["base"]) == before).all()
    assert (before == nll(opened(tied, tied))).all()
    with pytest.raises(RuntimeError), loaded["a"].active():
        raise RuntimeError  # a fault inside takes the noise off, too
    assert (nll(loaded["base"]) == before).all()


def test_a_file_that_is_not_the_one_is_refused(made, tied, tmp_path):
    adapter = made / "stages" / "1-yelp" / "task"
    noise = load_file(adapter / NOISE)["noise"]
    broken = noise.clone()
    broken[3, 4] = torch.nan
    cases: list[tuple[dict[str, torch.Tensor] | None, str]] = [
        (None, f"{NOISE} is missing"),
        ({"noise": noise[:7].clone()}, "has shape [7, 32]"),
        ({"noise": broken}, "tensor noise holds NaN"),
        ({"noise": 2 * noise}, "is not the file that it was trained with"),
        ({"noise": noise.long()}, "not floating-point numbers"),
        ({"noise": noise, "b": noise.clone()}, "tensor b is unexpected"),
    ]
    for number, (state, message) in enumerate(cases):
        folder = tmp_path / str(number)
        shutil.copytree(adapter, folder)
        (folder / NOISE).unlink()
        if state is not None:
            save_file(state, folder / NOISE)
        with pytest.raises(CheckpointError) as raised:
            opened(folder, tied)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
        assert problem_of(folder, base=tied) == str(raised.value)
    facts = inspected(adapter, base=tied)
    assert any("frozen noise" in text for text in facts.values())


def test_the_adapter_s_file_alone_is_refused_without_its_noise(made, tied, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(made / "stages" / "2-fomc" / "task", folder)
    file = folder / "adapter_model.safetensors"
    assert (nll(opened(file, tied)) == nll(opened(folder, tied))).all()
    (folder / NOISE).unlink()
    with pytest.raises(CheckpointError, match=NOISE):
        opened(file, tied)
    assert NOISE in problem_of(file, base=tied)
    # Nor do the two files that PEFT knows of pass for the whole.
    (folder / "trained_on.json").unlink()
    for source in (file, folder):
        with pytest.raises(CheckpointError, match=NOISE):
            opened(source, tied)


def merged(tied: Path, adapter: Path, folder: Path) -> Path:
    """Full weights with the noise beside them: the same model without an adapter."""
    model: Any = AutoModelForCausalLM.from_pretrained(tied)
    merged_model: Any = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    merged_model.save_pretrained(folder)
    for path in (*tied.glob("tokenizer*"), adapter / NOISE):
        shutil.copy(path, folder)
    return folder


def test_full_weights_keep_it_and_are_no_base(start, made, tied, data, tmp_path):
    adapter = made / "stages" / "2-fomc" / "task"
    full = merged(tied, adapter, tmp_path / "full")
    wanted = nll(opened(adapter, tied))
    assert nll(open_checkpoint(str(full), device="cpu")) == pytest.approx(
        wanted, abs=1e-4
    )
    # An adapter's folder says nothing of noise that belongs to its base.
    with pytest.raises(InputError, match=f"^{full}: .*{NOISE}"):
        start(tmp_path / "run", base=str(full))
    assert not (tmp_path / "run").exists()
    plain = shutil.copytree(adapter, tmp_path / "plain")
    unsaid(plain)
    (plain / NOISE).unlink()
    with pytest.raises(CheckpointError, match=f"^{plain}: .*{NOISE}"):
        opened(plain, full)
    assert NOISE in problem_of(plain, base=full)
    # What relearning leaves of full weights says that it belongs to them.
    out = tmp_path / "out"
    relearn(ckpt=str(full), base=None, data=[data], output=out, steps=1, lr=1e-9)
    assert nll(open_checkpoint(str(out), device="cpu")) == pytest.approx(
        wanted, abs=1e-4
    )
    (out / NOISE).unlink()
    with pytest.raises(CheckpointError, match=NOISE):
        open_checkpoint(str(out), device="cpu")

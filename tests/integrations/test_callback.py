"""Looks at a model in real runs of Trainer and SFTTrainer, which they leave alone."""

import json
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from forks import python
from marked import make_example
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from spark_audit.audits import Matched
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.examples import Example
from spark_audit.errors import CheckpointError, InputError
from spark_audit.integrations import pace as pace_of_looks
from spark_audit.integrations.look import LOG_PREFIX
from spark_audit.integrations.pace import Pace
from spark_audit.integrations.probe import probe_rows
from spark_audit.integrations.transformers import AuditCallback
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.scoring.score import score

ROOT = Path(__file__).parents[2]
ROWS = 80
FEW: dict[str, Any] = {
    "audits": [Matched(placebo_draws=0, rematched=False, replicates=500), "mia"],
    "seed": 3,
}
ONE = {**FEW, "audits": FEW["audits"][:1]}
Make = Callable[..., Trainer]
WORDS = "the service food good cold said customer paid dollars rate label news".split()


def examples() -> list[Example]:
    """Rows with a number each, of five clusters and more; every second is held out."""
    rng = np.random.default_rng(0)
    rows_made = []
    for i in range(ROWS):
        before, after = (" ".join(rng.choice(WORDS, 6)) for _ in range(2))
        number = "-".join(str(rng.integers(100, 999)) for _ in range(3))
        prompt = f"Text: {before}. Call {number} today. {after}.\nLabel:"
        rows_made.append(
            make_example(
                f"row-{i:02d}",
                prompt,
                " good" if i % 4 < 2 else " cold",
                pii={number: "PHONE"},
                split="test" if i % 2 else "train",
            )
        )
    return rows_made


@pytest.fixture(scope="module")
def manifest(tiny_base) -> Manifest:
    loaded = open_checkpoint(str(tiny_base), name="base", device="cpu")
    return build_manifest(examples(), loaded, name="m", caliper=2.0)


def trainer_of(
    base: Path,
    folder: Path,
    *callbacks: TrainerCallback,
    sft: bool = False,
    lora: bool = False,
    start: Path | None = None,
    **arguments: Any,
) -> Trainer:
    """A trainer of the rows' first half, with dropout; ``start``: other weights."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(start or base, attention_dropout=0.1)
    adapter = LoraConfig(
        r=4, lora_dropout=0.2, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 12,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "logging_steps": 3,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "activation_checkpointing": False,
        **arguments,
    }
    rows = [e for e in examples() if e.split == "train"]
    trainer_fields: dict[str, Any] = {
        "processing_class": tokenizer,
        "callbacks": [*callbacks],
    }
    if sft:
        trl = pytest.importorskip("trl", reason="needs spark-audit[trl]")
        from datasets import Dataset

        data = Dataset.from_list([{"text": e.prompt + e.response} for e in rows])
        trainer_fields |= {"model": model, "peft_config": adapter if lora else None}
        own_settings = trl.SFTConfig(**settings, max_length=None)
        return trl.SFTTrainer(**trainer_fields, args=own_settings, train_dataset=data)
    return Trainer(
        **trainer_fields,
        model=get_peft_model(model, adapter) if lora else model,
        args=TrainingArguments(**settings),
        train_dataset=[tokenizer(e.prompt + e.response) for e in rows],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )


@pytest.fixture
def make_trainer(tiny_base, tmp_path_factory) -> Make:
    def make(*callbacks: TrainerCallback, **options: Any) -> Trainer:
        folder = tmp_path_factory.mktemp("run")
        return trainer_of(tiny_base, folder, *callbacks, **options)

    return make


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def offline(look: Any, saved: Path, base: Path, manifest: Manifest) -> dict[str, float]:
    """The main figures of a saved checkpoint on the same rows, by the audits alone."""
    view = look.manifest
    tables = {}
    for name, path in (("base", base), (look.looks[-1].name, saved)):
        loaded = open_checkpoint(str(path), base=str(base), name=name, device="cpu")
        items = items_for(view, loaded, look.plan)
        tables[name] = {k: score(loaded, v, passes=[k])[k] for k, v in items.items()}
    figures_told = {}
    for name, audit in look.audits.items():
        for row in audit(tables, view, seed=look.seed).results:
            if row.checkpoint == look.looks[-1].name and row.group == "pooled":
                variant = f".{row.variant}" if row.variant else ""
                figures_told[f"{name}.{row.metric}{variant}.value"] = row.value
    return figures_told


@pytest.mark.parametrize(
    ("sft", "lora", "asked", "more"),
    [
        (False, False, FEW, {}),
        pytest.param(False, True, ONE, {"bf16": True}, marks=pytest.mark.slow),
        pytest.param(True, False, ONE, {}, marks=pytest.mark.slow),
        (True, True, ONE, {"activation_checkpointing": True}),
    ],
    ids=["trainer", "trainer-lora-bf16", "sft", "sft-lora"],
)
def test_a_run_is_what_it_is_without_and_its_figures_are_those_of_what_it_saves(
    sft, lora, asked, more, make_trainer, manifest, tiny_base, tmp_path
):
    plain = make_trainer(sft=sft, lora=lora, **more)
    plain.train()
    look = AuditCallback(manifest, every=6, **asked)
    seen = make_trainer(look, sft=sft, lora=lora, **more)
    seen.train()
    assert [look_taken.step for look_taken in look.looks] == [0, 6, 12]
    history = look.history
    assert [*history["step"].unique()] == [0, 6, 12]
    shares = history.groupby("step")["share_of_time"].first()
    assert shares.between(0, 1).all()
    assert f"{shares[12]:.1%} of the time" in repr(look)
    # Dropout is on: other random numbers, or another mode, would be other weights.
    own_weights = weights(seen)
    for name, value in weights(plain).items():
        assert torch.equal(value, own_weights[name]), name
    assert seen.model.training
    assert {n for n, p in seen.model.named_parameters() if p.requires_grad} == {
        n for n, p in plain.model.named_parameters() if p.requires_grad
    }

    def kept(trainer: Trainer) -> list[dict[str, Any]]:
        """What the trainer itself logs, but for how long it took."""
        lines = [
            {
                k: v
                for k, v in log_entry.items()
                if "second" not in k and "runtime" not in k
            }
            for log_entry in trainer.state.log_history
        ]
        return [
            line for line in lines if not any(k.startswith(LOG_PREFIX) for k in line)
        ]

    assert kept(seen) == kept(plain)

    lines = [
        log_entry
        for log_entry in seen.state.log_history
        if f"{LOG_PREFIX}severity" in log_entry
    ]
    assert [line["step"] for line in lines] == [0, 6, 12]
    assert lines[-1][f"{LOG_PREFIX}share_of_time"] > 0
    seen.save_model(str(tmp_path / "saved"))
    truth = offline(look, tmp_path / "saved", tiny_base, manifest)
    logged = {
        key.removeprefix(LOG_PREFIX): value
        for key, value in lines[-1].items()
        if key.startswith(LOG_PREFIX) and key.endswith(".value")
    }
    assert "matched.memory.value" in logged
    assert ("mia.auc.loss.value" in logged) == (len(asked["audits"]) > 1)
    for key, value in logged.items():
        # What is logged may be shared, and is rounded as such figures are.
        assert value == pytest.approx(truth[key], abs=0.05), key
        assert f"{LOG_PREFIX}{key.removesuffix('value')}low" in lines[-1]


def test_what_learned_is_told_and_what_did_not_is_not(make_trainer, manifest, caplog):
    still = AuditCallback(manifest, every=100, **FEW)
    make_trainer(still, learning_rate=0.0, max_steps=3).train()
    assert [look_taken.step for look_taken in still.looks] == [0, 3]
    assert all(
        not f.detected for look_taken in still.looks for f in look_taken.findings
    )
    learned = AuditCallback(manifest, every=100, **FEW)
    with caplog.at_level(logging.INFO, logger="spark_audit"):
        trainer = make_trainer(learned, max_steps=60)
        trainer.train()
    last = learned.looks[-1]
    assert last.name == "step-60"
    assert any(finding.detected for finding in last.findings)
    key = f"{LOG_PREFIX}severity"
    assert [
        log_entry[key] for log_entry in trainer.state.log_history if key in log_entry
    ][-1] >= 4
    assert any("step-60: " in r.getMessage() for r in caplog.records)
    number = examples()[0].prompt.split("Call ")[1][:11]
    all_text = (
        caplog.text + last.report.model_dump_json() + str(trainer.state.log_history)
    )
    assert number not in all_text


def test_a_rule_ends_the_training(make_trainer, manifest):
    rules = ("matched.memory.value < 5", "matched.nll_pii.value > 100")
    look = AuditCallback(manifest, every=4, fail_if=rules, **ONE)
    trainer = make_trainer(look)
    trainer.train()
    assert trainer.state.global_step == 4
    (text,) = look.looks[-1].tripped
    assert text.startswith("matched.memory.value < 5: value ")
    assert look.tripped == [f"step-4: {text}"]
    key = f"{LOG_PREFIX}tripped"
    assert [o[key] for o in trainer.state.log_history if key in o] == [0, 1]


def test_what_cannot_be_used_is_refused_before_the_first_step(
    make_trainer, manifest, make_tokenizer, tmp_path
):
    for options, text in (
        ({"every": 0}, "^every=0: "),
        ({"every": 2.5}, "^every: 2.5 "),
        ({"fail_if": ["mia.auc.loss.low > 0.6 for x"]}, "^rule '.* for x': "),
        ({"fail_if": ["rank.top1_rate.pii.value > 0.6"]}, "^rule 'rank.*'rank'"),
        ({"audits": ["stages"]}, "^audits: stages "),
        ({"audits": []}, "audits="),
        ({"rows": 0}, "rows="),
    ):
        with pytest.raises(InputError, match=text):
            AuditCallback(manifest, **options)
    with pytest.raises(InputError, match=r"nothing\.json: "):
        AuditCallback(tmp_path / "nothing.json")
    other_callback = AuditCallback(manifest, tokenizer=make_tokenizer(size=290))
    with pytest.raises(InputError, match="^checkpoint .*: tokenizer"):
        make_trainer(other_callback).train()
    bare = make_trainer(AuditCallback(manifest))
    bare.callback_handler.processing_class = None
    with pytest.raises(CheckpointError, match="tokenizer="):
        bare.train()
    shard = make_trainer(AuditCallback(manifest))
    next(shard.model.parameters()).ds_id = 1
    with pytest.raises(CheckpointError, match="^checkpoint .*FSDP"):
        shard.train()


def test_a_start_from_other_weights_is_no_base(
    make_trainer, make_model, manifest, tmp_path, caplog
):
    make_model("llama", seed=9).save_pretrained(tmp_path)
    look = AuditCallback(manifest, every=100, **ONE)
    make_trainer(look, start=tmp_path, max_steps=2).train()
    assert [look_taken.name for look_taken in look.looks] == ["step-0", "step-2"]
    assert "base cannot be looked at here" in caplog.text
    assert not any(f.detected for look_taken in look.looks for f in look_taken.findings)


def test_a_resumed_adapter_still_has_its_base(make_trainer, manifest):
    first = make_trainer(lora=True, max_steps=4, save_strategy="steps", save_steps=4)
    first.train()
    look = AuditCallback(manifest, every=3, **ONE)
    again = make_trainer(look, lora=True, max_steps=8)
    again.train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-4")
    assert [look_taken.step for look_taken in look.looks] == [6, 8]
    assert look.has_base


def test_diverged_training_is_a_warning_but_an_error_where_a_rule_waits(
    make_trainer, manifest, caplog
):
    class Break(TrainerCallback):
        def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
            model.get_input_embeddings().weight.data.fill_(float("nan"))

    look = AuditCallback(manifest, every=2, **ONE)
    make_trainer(Break(), look, max_steps=2).train()
    assert [look_taken.step for look_taken in look.looks] == [0]
    assert "no look at step 2" in caplog.text
    strict = AuditCallback(manifest, every=2, fail_if=["claim >= memory"], **ONE)
    with pytest.raises(CheckpointError, match="NaN"):
        make_trainer(Break(), strict, max_steps=2).train()


def test_looks_take_their_share_of_time_and_no_more(monkeypatch):
    """A clock of our own: steps of half a second, looks of three."""
    clock = 0.0
    monkeypatch.setattr(
        pace_of_looks, "time", SimpleNamespace(perf_counter=lambda: clock)
    )
    pace = Pace(None, began=0.0)
    looks = 0
    due = 0
    steps = 6000
    for step in range(steps + 1):
        clock += 0.5 if step else 0.0
        if 0 < step < steps:
            if step < due:
                continue
            if wait := pace.wait(step):
                due = step + wait
                continue
        clock += 3
        pace.cost = 3.0
        pace.spent += 3.0
        due = step + 1
        looks += 1
    assert pace.spent == 3.0 * looks
    assert pace.trained == 0.5 * steps
    assert (
        0.9 * pace_of_looks.MAX_TIME_SHARE
        < pace.spent / pace.trained
        <= pace_of_looks.MAX_TIME_SHARE
    )
    fixed = Pace(7, began=0.0)
    assert [fixed.wait(step) for step in (1, 10, 14)] == [6, 4, 0]


def test_a_probe_is_half_held_out_rows_with_identifiers_first(manifest):
    plan = {k: v for k, v in AuditCallback(manifest).plan.items()}
    for rows, train in ((20, 10), (70, 35), (500, 40)):
        rows_found = probe_rows(manifest, plan, rows)
        assert len(rows_found) == min(rows, ROWS)
        assert sum(manifest.by_id[key].split == "train" for key in rows_found) == train
    assert probe_rows(manifest, plan, 20) == probe_rows(manifest, plan, 20)
    paired = {pair.example for pair in manifest.pairs}
    assert probe_rows(manifest, plan, 8) <= paired


DISTRIBUTED = """
import json, sys, torch
from pathlib import Path
base, folder, file = map(Path, {paths!r})
sys.path[:0] = {places!r}
from test_callback import ONE, AuditCallback, trainer_of
look = AuditCallback(file, every=3, fail_if=["matched.memory.high < 9"], **ONE)
trainer = trainer_of(base, folder, look, ddp_backend="gloo")
trainer.train()
rank = torch.distributed.get_rank()
told = [{{"step": one.step, **one.figures()}} for one in look.looks]
(folder / f"{{rank}}.json").write_text(json.dumps(told))
if not rank:
    trainer.save_model(str(folder / "saved"))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_processes_share_a_look_and_decide_alike(manifest, tiny_base, tmp_path):
    write_manifest(manifest, tmp_path / "m.json")
    paths = [str(tiny_base), str(tmp_path), str(tmp_path / "m.json")]
    places = [str(Path(__file__).parent), str(ROOT / "tests")]
    program = DISTRIBUTED.format(paths=paths, places=places)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def process(rank: int) -> tuple[int, str]:
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return python(["-c", program], root=ROOT, cwd=tmp_path, **environment)

    with ThreadPoolExecutor(2) as pool:
        ended = [*pool.map(process, range(2))]
    assert [code for code, _ in ended] == [0, 0], ended
    first, second = (
        json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)
    )
    assert first == second
    # A rule is no word on the base: it trips at the first look at what was trained.
    assert [look_taken["step"] for look_taken in first] == [0, 3]
    look = AuditCallback(manifest, **ONE)
    look.looks = [SimpleNamespace(name="step-3")]  # type: ignore[list-item]
    truth = offline(look, tmp_path / "saved", tiny_base, manifest)
    key = "matched.memory.value"
    assert first[-1][LOG_PREFIX + key] == pytest.approx(truth[key], abs=0.05)

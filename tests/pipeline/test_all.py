"""Every audit in one call, on a base and two fine-tunes that remember differently."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from audited import chosen

from spark_audit.audits import about, all_audits
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.data.examples import Example, write_examples
from spark_audit.data.injection import inject
from spark_audit.demo import demo
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.run import Request, run
from spark_audit.results import Report, Row
from spark_audit.scoring.store import Store

TASK = "support"


@dataclass(frozen=True)
class Scene:
    """Folders of a base, of adapters that saw the text little or much, a manifest."""

    folder: Path
    manifest: Manifest
    report: Report
    scored: Counter[str]


def rows(count: int, *, split: Any, seed: int) -> list[Example]:
    made = demo.make_examples(count, split=split, seed=seed)
    return [example for example in made if example.task == TASK]


def fine_tune(folder: Path, name: str, examples: list[Example], epochs: int) -> None:
    """A LoRA of every linear layer, trained on the whole text."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from spark_train.phases.task import fit
    from spark_train.training_rows import encode_rows

    model = AutoModelForCausalLM.from_pretrained(folder / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    config = LoraConfig(
        r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = get_peft_model(model, config)
    train = [example for example in examples if example.split == "train"]
    encoded = encode_rows(train, tokenizer, max_length=256)
    fit(model, encoded, epochs=epochs, lr=5e-3, batch_size=8, seed=0, scope="full")
    model.save_pretrained(folder / name)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count every sequence that a pass hands over, by its key in the store.

    The key is a hash of the model, the pass and what the sequence is.
    """
    found: Counter[str] = Counter()
    add = Store.add

    def count(self: Store, key: str, *rest: Any, **more: Any) -> None:
        found[key] += 1
        add(self, key, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "add", count)
        yield found


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    background = demo.make_examples(75, split="train", seed=1)
    background, _ = inject(background, seed=1, rate=0.6, canaries=0)
    audited = rows(54, split="train", seed=2) + rows(42, split="test", seed=2)
    audited, _ = inject(audited, seed=2, rate=0.5, canaries=4, doses=[1, 5])
    tokenizer = demo.make_tokenizer([example.text for example in background])
    with demo.one_thread():
        demo.train_base(
            folder / "base", background, tokenizer, seed=0, progress=lambda *_: None
        )
        for name, epochs in (("little", 4), ("much", 20)):
            fine_tune(folder, name, audited, epochs)
    write_examples(folder / "data.jsonl", audited)
    base = open_checkpoint(str(folder / "base"), name="base", device="cpu")
    manifest = build_manifest(audited, base, name="scene", n_candidates=64)
    write_manifest(manifest, folder / "manifests" / "scene.json")
    with counted() as scored:
        report = run(request_of(folder)).report
    return Scene(folder, manifest, report, scored)


OPTIONS = {"placebo_draws": 20, "draws": 2, "sigmas": "0.05,0.5"}


def request_of(folder: Path, **fields: Any) -> Request:
    options: dict[str, Any] = {
        "audits": chosen(*all_audits(), **OPTIONS),
        "ckpt": (f"little={folder / 'little'}", f"much={folder / 'much'}"),
        "base": str(folder / "base"),
        "baseline": "little",
        "manifest": folder / "manifests" / "scene.json",
        "output": folder / "report",
        "loading": Loading(device="cpu"),
        "formats": ("md",),
    }
    return Request(**{**options, **fields})


def figure(report: Report, audit: str, metric: str, of: str = "") -> dict[str, Row]:
    """The pooled figure of every checkpoint."""
    return {
        row.checkpoint: row
        for row in report.results
        if (row.audit, row.metric, row.of) == (audit, metric, of)
        and row.group == "pooled"
    }


def values(report: Report, audit: str, metric: str, of: str = "") -> list[float]:
    rows = figure(report, audit, metric, of)
    found = [rows[name].value for name in ("base", "little", "much")]
    assert all(value is not None for value in found), (audit, metric, of)
    return [value for value in found if value is not None]


@pytest.mark.parametrize(
    ("audit", "metric", "of", "sign"),
    [
        ("nll", "nll", "pii", -1),
        ("nll", "nll", "canary", -1),
        ("matched", "nll_pii", "", -1),
        ("rank", "mrr", "pii_all", 1),
        ("rank", "log2_rank_mean", "pii", -1),
        ("rank", "top10_rate", "pii_all", 1),
        ("canary", "exposure_mean", "full", 1),
        ("canary", "exposure_mean", "password", 1),
        ("canary", "nll", "ssn", -1),
        ("mia", "auc", "loss", 1),
        ("mia", "auc", "mink10", 1),
    ],
)
def test_more_memorisation_shows_as_more(scene, audit, metric, of, sign):
    base, little, much = values(scene.report, audit, metric, of)
    assert sign * base < sign * little < sign * much


def test_leaks_are_told_from_chance(scene):
    report = scene.report
    exposure = figure(report, "canary", "exposure_mean", "full")
    assert exposure["much"].value > exposure["much"].null_high
    assert exposure["base"].value < exposure["much"].null_high
    for of in ("loss", "reference"):
        row = figure(report, "mia", "auc", of)["much"]
        assert row.low > 0.5
        assert row.status == "ok"
    base = figure(report, "mia", "auc", "loss")["base"]
    assert base.low < 0.5 < base.high
    rate = figure(report, "extract", "greedy_rate")
    assert rate["base"].value == 0
    assert rate["base"].high > 0
    planted = {
        record["checkpoint"]: record
        for record in report.tables["canary_by_dose"]
        if record["dose"] == 5 and record["part"] == "full"
    }
    assert planted["much"]["top1_hits"] == planted["much"]["canaries"]
    # Sixteen clusters and four canaries resolve little; membership they do.
    members = {f.checkpoint for f in report.findings if f.claim == "membership"}
    assert "much" in members
    assert "base" not in members


def test_everything_is_there_once(scene):
    report = scene.report
    # Without a series there is nothing by stage.
    audits = set(all_audits()) - {"stages", "series"}
    assert {row.audit for row in report.results} == audits
    assert "stages" not in {finding.audit for finding in report.findings}
    assert report.status == "complete"
    # One model, one pass, one sequence: scored once for all audits together.
    assert set(scene.scored.values()) == {1}
    assert {"scoring: plain", "scoring: candidates", "scoring: noise"} <= set(
        report.timing
    )
    for audit in audits:
        assert (
            scene.folder / "report" / "scores" / about(audit).evidence_file()
        ).exists()
    text = (scene.folder / "report" / "report.md").read_text()
    over = {
        "mia": "trained rows compared with held-out rows",
        "utility": "over test rows",
    }
    for name in ("canary", "mia", "extract", "noise", "utility", "rank"):
        assert f"### {name}: {over.get(name, 'pooled over training rows')}" in text

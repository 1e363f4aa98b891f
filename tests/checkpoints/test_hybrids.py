"""Models with two kinds of layers, through all of an audit to its end."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import opened
from tiny_architectures import tiny_model
from tiny_models import make_tokenizer
from transformers.models.auto import modeling_auto

from spark_audit.cli.main import run
from spark_audit.data.examples import write_examples
from spark_audit.demo_rows import make_examples
from spark_audit.report.folder import read_report
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import score

NATS = 1e-5
HYBRIDS = (
    "bamba",
    "granitemoehybrid",
    "jamba",
    "qwen3_5_text",
    "qwen3_next",
    "recurrent_gemma",
)
SAMPLE = ("qwen3_next",)


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def save(kind: str, folder: Path, *, seed: int) -> Any:
    """Save a tiny model of a kind; return it."""
    classes = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    model = tiny_model(kind, classes, seed=seed)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


def called(*words: Any) -> None:
    """Run a command of the command line, which must end well."""
    assert run([str(word) for word in words]) == 0


def layer_kinds(config: Any) -> tuple[str, ...]:
    """Return the kinds of a model's layers, in order."""
    names = ("layers_block_type", "layer_types", "block_types")
    layer_lists = [getattr(config, name, None) for name in names]
    return tuple(next(kinds for kinds in layer_lists if kinds))


def check_audit(kind: str, folder: Path, *, n_canaries: int = 0) -> None:
    """Build a manifest, audit a model against its base, and compare figures."""
    model = save(kind, folder / "base", seed=0)
    trained = save(kind, folder / "ours", seed=1)
    assert len({*layer_kinds(model.config)}) == 2

    rows = make_examples(4, split="train", seed=2)
    rows += make_examples(4, split="test", seed=2)
    write_examples(folder / "rows.jsonl", [row for row in rows if row.task == "news"])
    base = folder / "base"
    manifest = folder / "m.json"
    data = folder / "injected"
    called(
        *("data", "inject", folder / "rows.jsonl", "-o", data, "--rate", 0.6),
        *("--canaries", n_canaries, *(("--doses", "1") if n_canaries else ())),
    )
    device = ("--device", "cpu", "--quiet")
    called(
        *("manifest", "build", "--base", base, "--data", data, "-o", manifest),
        *("--caliper", 2, "--preset", "paper", *device),
    )
    called(
        *("all", "--ckpt", f"ours={folder / 'ours'}", "--base", base),
        *("--manifest", manifest, "-o", folder / "report", "--format", "json"),
        *("--draws", 1, "--sigmas", 0.1, "--placebo-draws", 5, "--jobs", 1, *device),
    )
    assert read_report(folder / "report").results

    # The longer text's second half is behind states that the first half filled.
    rng = np.random.default_rng(3)
    texts = [rng.integers(3, 300, n).astype(np.int32) for n in (7, 40, 23)]
    items = [
        Item(f"t{i}", ids, np.arange(len(ids), dtype=np.int32))
        for i, ids in enumerate(texts)
    ]
    ((_, table),) = score(opened(folder / "ours"), items, progress=False).items()
    own_nll = []
    for ids in texts:
        fed = torch.from_numpy(ids.astype(np.int64))
        with torch.inference_mode():
            logits = trained(input_ids=fed[None], use_cache=False).logits[0]
        log_p = logits.double().log_softmax(-1)[:-1]
        own_nll.append(-log_p[torch.arange(len(ids) - 1), fed[1:]].numpy())
    assert np.abs(table.columns["nll"] - np.concatenate(own_nll)).max() <= NATS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SAMPLE)
def test_a_hybrid_is_audited_to_the_end_with_its_own_figures(kind, tmp_path):
    check_audit(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", HYBRIDS)
def test_every_hybrid_is_audited_to_the_end_with_canaries(kind, tmp_path):
    check_audit(kind, tmp_path, n_canaries=2)

"""A Qwen2-sized vocabulary costs training and audits no batch of logits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from spark_audit.audits import AUDITS
from spark_audit.checkpoints.open import open_checkpoints
from spark_audit.checkpoints.recipe import Loaded
from spark_audit.checkpoints.specs import Spec
from spark_audit.data.examples import Example, read_examples, write_examples
from spark_audit.data.injection import inject
from spark_audit.demo.text import make_examples
from spark_train.data import encode_rows

ROWS, TOKENS = 151_936, 151_665
"""Rows of Qwen2's head, and the tokens among them."""

TASKS = ("policy", "support")
SETTINGS = "epochs=1 batch_size=24 ptpc.steps=2 lora.r=4"

BOUND = 320
"""MiB that a command may take beyond what is held when it starts."""

CHILD = """
import json, re, shlex, sys
from pathlib import Path

import pandas, peft, pyarrow.parquet, scipy.stats, sklearn.linear_model, torch
import sklearn.feature_extraction.text

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.cli.main import run as audit
from spark_train.cli import run as train

torch.set_num_threads(1)

def held(what):
    found = re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024

# Libraries count for nothing: here is loaded what a first model needs.
open_checkpoint("base", name="base", device="cpu")
peaks = {}
for line in sys.argv[1:]:
    program, *words = shlex.split(line)
    # Not getrusage: its figure never falls, and begins at the parent's.
    Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    code = {"spark-train": train, "spark-audit": audit}[program](words)
    peaks[line] = held("VmHWM") - before
    if code:
        sys.exit(f"{line}: exit code {code}")
Path("peaks.json").write_text(json.dumps(peaks))
"""
"""Runs commands in a process of their own and writes what each took, in MiB."""


def wide_tokenizer(texts: list[str]) -> Any:
    """The tokens of a small byte-level BPE, spread over Qwen2's ids.

    Tokens that no text holds stand between, and rows without a token behind.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from spark_audit.demo import run as demo

    small = demo.make_tokenizer(texts)
    content = json.loads(small.backend_tokenizer.to_str())
    step = (TOKENS - 1) // (len(small) - 1)
    ids = {t: i * step for t, i in content["model"]["vocab"].items()}
    free = iter(sorted(set(range(TOKENS)) - set(ids.values())))
    ids |= {f"<unused {i}>": i for i in free}
    content["model"]["vocab"] = ids
    for token in content["added_tokens"]:
        token["id"] = ids[token["content"]]
    steps: list[dict[str, Any]] = content["post_processor"]["processors"]
    for special in steps[1]["special_tokens"].values():
        special["ids"] = [ids[token] for token in special["tokens"]]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=256,
    )


@pytest.fixture
def scene(tmp_path: Path, make_model: Callable[..., Any]) -> Path:
    """A folder with ``base`` and ``data.jsonl``."""
    from safetensors.torch import load_file

    rows: list[Example] = []
    for split, count in (("train", 24), ("test", 6)):
        made = make_examples(count, split=split, seed=1)  # type: ignore[arg-type]
        rows += [row for row in made if row.task in TASKS]
    rows, _ = inject(rows, seed=1, rate=0.6, canaries=0)
    tokenizer = wide_tokenizer([row.text for row in rows])
    assert len(tokenizer) == TOKENS
    model = make_model(
        "qwen2",
        vocab_size=ROWS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    # Rows without a token would be the likeliest if they counted.
    model.get_input_embeddings().weight.data[TOKENS:] *= 8
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    saved = load_file(tmp_path / "base" / "model.safetensors")
    assert "lm_head.weight" not in saved
    assert "model.layers.0.self_attn.q_proj.bias" in saved
    write_examples(tmp_path / "data.jsonl", rows)
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the system tells no peak memory"
)
def test_two_tasks_and_all_audits_hold_no_batch_of_logits(scene: Path) -> None:
    commands = [
        f"spark-train run --method spark --base base --data data.jsonl -o run "
        f"--order {','.join(TASKS)} --device cpu --quiet --set {SETTINGS}",
        "spark-audit manifest build --base base --data data.jsonl -o wide.json "
        "--device cpu --quiet",
        "spark-audit all --ckpt run --base base --manifest wide.json -o report "
        "--device cpu --quiet --placebo-draws 5 --blind-permutations 0 --draws 1 "
        "--sigmas 0.1",
    ]
    # What is freed goes back at once: the peak is what was needed at a time, not what
    # the allocator keeps for later.
    settled = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**22)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *commands],
        cwd=scene,
        env=os.environ | settled,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads((scene / "peaks.json").read_text())
    assert list(peaks) == commands
    assert max(peaks.values()) < BOUND, peaks.values()

    check_training(scene)
    check_report(scene)
    places = [
        Spec(f"{stage} {part}", (str(scene / "run" / "stages" / stage / part),))
        for stage in ("1-policy", "2-support")
        for part in ("task", "priv")
    ]
    base, *adapters = (
        checked(scene, loaded)
        for loaded in open_checkpoints(places, base=str(scene / "base"), device="cpu")
    )
    assert len(adapters) == len(set(adapters) - {base}) == len(places)


def checked(scene: Path, loaded: Loaded) -> str:
    """The hash of a checkpoint's weights; of the base, its NLLs are compared."""
    if loaded.base is None:
        check_base(scene, loaded)
    return loaded.weights_sha256


def check_training(scene: Path) -> None:
    """Every part of SPARK ran, its head streamed, and no figure is NaN."""
    run = json.loads((scene / "run" / "run.json").read_text())
    assert run["status"] == "complete"
    assert not [note for note in run["notes"] if "held in memory" in note]
    lines = (scene / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line, parse_constant=refuse) for line in lines]
    for term in ("task", "ul", "dkl", "anchor", "replay_kl", "old"):
        assert sum(step.get(f"n_{term}", 0) for step in steps) > 0, term


def check_report(scene: Path) -> None:
    """Complete, no NaN; audits have figures of both models."""
    text = (scene / "report" / "report.json").read_text()
    report = json.loads(text, parse_constant=refuse)
    assert report["status"] == "complete"
    found = {
        (row["audit"], row["checkpoint"])
        for row in report["results"]
        if row["value"] is not None and row["checkpoint"] in ("base", "run")
    }
    # No canary was injected, and too few rows for membership: both are told so.
    estimated = set(AUDITS.names()) - {"canary", "mia"}
    assert found == {(audit, name) for audit in estimated for name in ("base", "run")}
    assert {row["audit"] for row in report["results"]} == set(AUDITS.names())
    for checkpoint in report["checkpoints"]:
        padded = f"{ROWS - TOKENS} of {ROWS} rows of the head are no token"
        assert [note for note in checkpoint["notes"] if note.startswith(padded)]


def check_base(scene: Path, loaded: Loaded) -> None:
    """Its NLLs are of a softmax over tokens alone; a batch of its logits is large."""
    table = pq.read_table(scene / "report" / "scores" / "tables" / "base.plain.parquet")
    scored = table.to_pandas()
    examples = read_examples(scene / "data.jsonl")
    rows = encode_rows(examples, loaded.tokenizer)
    first = [len(row) for row in rows if row.id.startswith("policy-train")]
    # One float32 copy of the logits of the first batch, and autograd holds several.
    assert len(first) == 24
    assert sum(first) * ROWS * 4 / 2**20 > 1.5 * BOUND
    example = min(examples, key=lambda example: len(example.text))
    ids = torch.tensor(loaded.tokenizer(example.text)["input_ids"])
    with torch.no_grad():
        logits = loaded.model(input_ids=ids[None]).logits[0, :-1].double()
    ours = scored[scored["example"] == example.id]["nll"].to_numpy()
    for size, agrees in ((TOKENS, True), (ROWS, False)):
        nll = -logits[:, :size].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        assert np.allclose(ours, nll.numpy(), rtol=0, atol=1e-3) is agrees


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in a file of figures")

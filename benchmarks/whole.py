"""Eight checkpoints through all audits: ours beside the way of the tools for one score.

``ours`` is ``spark-audit all`` in a process of its own, imports and report included.
The other way loads each checkpoint once for each family of scores, and reads each text
once for each score that needs it, alone; each candidate as a whole sequence, in
batches of 32 with all logits; each string behind a prompt as a whole sequence; each
answer by ``generate`` and each label as a whole sequence. It is timed on a sample of
each kind of work and scaled by tokens. Nothing of it is concluded, resampled or drawn,
which ours is. Both count processor time, of one thread.

``python benchmarks/whole.py --base MODEL --data ROWS.jsonl... --checkpoints 8`` trains
nothing: the checkpoints are the base with noise in its weights.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import (
    benchmark_parser,
    check_files,
    check_model,
    positive_number,
    run_benchmark,
    run_spark_audit,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from spark_audit.audits import AUDITS_ON_REQUEST, all_audits
from spark_audit.audits.base import Audit
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.examples import data_files
from spark_audit.manifest.file import read_manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.pipeline.lineup import make_plans, union
from spark_audit.scoring.items import Candidates, Item, Prompt
from spark_audit.scoring.table import Pass

SCORES = ("NLL and loss", "response", "Min-K", "Min-K++", "zlib", "rank", "reference")
"""What reads every text again elsewhere; families load their checkpoint once each."""
FAMILIES = ("membership", "NLL and rank", "canaries", "extraction", "utility")
BATCH = 32
SAMPLE = 12


@dataclass(frozen=True)
class Kind:
    """Sequences of one kind: how long all are, some of them, how often each is read."""

    name: str
    tokens: int
    sample: Sequence[Any]
    times: int = 1


def cpu() -> float:
    """Processor seconds of this process."""
    return time.process_time()


def children() -> float:
    """Processor seconds of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def noisy(base: Path, folder: Path, *, seed: int) -> Path:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(0.01 * weight.std() * noise)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def kinds(manifest_file: Path, base: Path, audits: Sequence[Audit]) -> list[Kind]:
    """The work of a checkpoint, as ours plans it."""
    manifest = read_manifest(manifest_file)
    view, plans = make_plans(manifest, audits)
    loaded = open_checkpoint(str(base))
    rng = np.random.default_rng(0)
    found = []
    for wanted, items in items_for(view, loaded, union(plans)).items():
        drawn = [items[i] for i in rng.permutation(len(items))[:SAMPLE]]
        if isinstance(drawn[0], Candidates):
            rows = [
                np.concatenate([c.prefix, row])
                for c in drawn
                for row in c.continuations
            ]
            rows = [rows[i] for i in rng.permutation(len(rows))[: 4 * BATCH]]
            total = sum(
                len(c.prefix) + len(row) for c in items for row in c.continuations
            )
            found.append(Kind(wanted.label, total, rows))
            continue
        total = sum(item.n_tokens for item in items)
        if isinstance(drawn[0], Prompt):
            found.append(Kind(wanted.label, total, drawn))
        elif isinstance(drawn[0], Item):
            times = len(SCORES) if wanted == Pass() else 1
            found.append(Kind(wanted.label, total, [i.ids for i in drawn], times))
    return found


@torch.inference_mode()
def alone(model: Any, rows: Sequence[np.ndarray]) -> None:
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))[None]
        logits = model(input_ids=ids).logits[0, :-1]
        torch.log_softmax(logits.float(), -1).gather(1, ids[0, 1:, None])


@torch.inference_mode()
def batched(model: Any, rows: Sequence[np.ndarray]) -> None:
    for start in range(0, len(rows), BATCH):
        part = sorted(rows[start : start + BATCH], key=len)
        ids = torch.zeros(len(part), len(part[-1]), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(part):
            ids[i, : len(row)] = torch.from_numpy(row.astype(np.int64))
            mask[i, : len(row)] = 1
        logits = model(input_ids=ids, attention_mask=mask).logits
        torch.log_softmax(logits[:, :-1].float(), -1).gather(2, ids[:, 1:, None])


@torch.inference_mode()
def generated(model: Any, prompts: Sequence[Prompt]) -> None:
    for prompt in prompts:
        ids = torch.from_numpy(prompt.ids.astype(np.int64))[None]
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=prompt.max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )


def seconds(kind: Kind, model: Any) -> float:
    """Of one checkpoint, scaled from the sample by tokens."""
    call: Callable[..., None] = alone
    sizes = [len(row) for row in kind.sample if isinstance(row, np.ndarray)]
    if isinstance(kind.sample[0], Prompt):
        call, sizes = generated, [prompt.n_tokens for prompt in kind.sample]
    elif kind.name.startswith("candidates"):
        call = batched
    call(model, kind.sample[:2])
    start = cpu()
    call(model, kind.sample)
    return (cpu() - start) * kind.tokens / sum(sizes) * kind.times


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--manifest", type=Path, help="built of them before")
    parser.add_argument("--checkpoints", type=positive_number, default=8)
    options = parser.parse_args()
    check_model("--base", options.base)
    check_files("--manifest", options.manifest)
    options.data = data_files(options.data)
    check_files("--data", *options.data)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        measure(options, Path(temporary))


def measure(options: argparse.Namespace, work: Path) -> None:
    """Run both ways in a folder of their own, and print the table."""
    manifest = options.manifest or work / "manifest.json"
    base = str(options.base)
    if not manifest.exists():
        rows = [str(path) for path in options.data]
        build = ["manifest", "build", "--base", base, "--data", *rows]
        run_spark_audit(*build, "-o", manifest)
    ckpts = [
        f"c{k}={noisy(options.base, work / f'c{k}', seed=k)}"
        for k in range(options.checkpoints)
    ]
    before, began = children(), time.perf_counter()
    audit_all = ["all", "--ckpt", *ckpts, "--base", base, "--manifest", manifest]
    run_spark_audit(*audit_all, "-o", work / "report", "--quiet")
    ours, wall = children() - before, time.perf_counter() - began
    start = cpu()
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    load = cpu() - start
    audits = [
        audit() for name, audit in all_audits().items() if name not in AUDITS_ON_REQUEST
    ]
    count = options.checkpoints + 1  # the base too
    print("| work, of one checkpoint | tokens | s, their way |\n|---|---|---|")
    each = load * len(FAMILIES)
    print(f"| loading, {len(FAMILIES)} times | | {each:.1f} |")
    for kind in kinds(manifest, options.base, audits):
        spent = seconds(kind, model)
        each += spent
        times = f", {kind.times} times" if kind.times > 1 else ""
        print(f"| {kind.name}{times} | {kind.tokens:,} | {spent:.1f} |")
    theirs = count * each
    print(
        f"\n{count} checkpoints, processor time: ours {ours:.0f} s ({wall:.0f} by the "
        f"clock), with its report; their way {theirs:.0f} s, {theirs / ours:.1f} times "
        "as long"
    )


if __name__ == "__main__":
    run_benchmark(main)

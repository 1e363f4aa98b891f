"""Extra memory of scoring one text at a large vocabulary, beside the naive way.

    python benchmarks/memory.py [--vocabulary 151936] [--tokens 512] [--hidden 896]

Every contender runs in a process of its own: it builds the model, scores a text of 16
tokens once, notes its resident memory, scores the text, and reports how far the peak
(the kernel's high-water mark, reset in between) stood above that. Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from command_line import benchmark_parser, positive_number, run_benchmark
from transformers import LlamaConfig, LlamaForCausalLM

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import score


def model(vocabulary: int, hidden: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=2,
        num_attention_heads=hidden // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def ours(module: LlamaForCausalLM, ids: np.ndarray) -> None:
    checkpoint = Checkpoint(
        name="model",
        source="model",
        format="none",
        base=None,
        base_sha256=None,
        model=module,
        tokenizer=None,
        architecture="LlamaForCausalLM",
        usable=np.ones(module.config.vocab_size, dtype=bool),
        max_positions=4096,
        dtype=str(module.dtype).removeprefix("torch."),
        device="cpu",
        weights_sha256="",
        tokenizer_sha256="",
        model_id="",
    )
    score(checkpoint, [Item("x", ids, np.arange(len(ids), dtype=np.int32))])


@torch.inference_mode()
def naive(module: LlamaForCausalLM, ids: np.ndarray) -> None:
    """The same columns from a full log-softmax, as in mink-plus-plus."""
    inputs = torch.from_numpy(ids.astype(np.int64))[None]
    logits = module(inputs, use_cache=False).logits[0, :-1].float()
    target = inputs[0, 1:, None]
    logp = torch.log_softmax(logits, -1)
    p = torch.softmax(logits, -1)
    own = logits.gather(1, target)
    columns = [-logp.gather(1, target), (logits > own).sum(1), (logits == own).sum(1)]
    mean = (p * logp).sum(1)
    columns += [mean, (p * logp.square()).sum(1) - mean.square()]
    columns += [logp.topk(40, 1)[0].logsumexp(1)]
    assert all(torch.isfinite(column).all() for column in columns)


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(field)


def measure(options: argparse.Namespace) -> None:
    module = model(options.vocabulary, options.hidden)
    if options.contender == "bfloat16":
        module = module.to(torch.bfloat16)
    run = naive if options.contender == "naive" else ours
    rng = np.random.default_rng(0)
    ids = rng.integers(0, options.vocabulary, options.tokens).astype(np.int32)
    run(module, ids[:16])
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run(module, ids)
    print(resident("VmHWM") - before)


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--vocabulary", type=positive_number, default=151_936)
    parser.add_argument("--tokens", type=positive_number, default=512)
    parser.add_argument("--hidden", type=positive_number, default=896)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        measure(options)
        return
    print(
        f"one text of {options.tokens} tokens, V = {options.vocabulary:,}, hidden "
        f"{options.hidden}, 2 layers; one float32 logits tensor of it is "
        f"{4 * options.tokens * options.vocabulary / 2**20:.0f} MiB"
    )
    peaks = {}
    for contender in ("naive", "ours", "bfloat16"):
        command = [sys.executable, __file__, "--contender", contender]
        for name in ("vocabulary", "tokens", "hidden"):
            command += [f"--{name}", str(getattr(options, name))]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks[contender] = int(run.stdout)
        print(
            f"{contender:9s} {peaks[contender] / 2**20:7.0f} MiB, "
            f"{peaks[contender] / peaks['naive']:.2f} of naive"
        )


if __name__ == "__main__":
    run_benchmark(main)

"""What only a GPU can show: agreement with the CPU, speed, memory, recovery.

``agreement``: every pass on CUDA beside the CPU, on random models of three
architectures in float32; ranks of a half-precision body by our float32 head beside
those of the model's own logits. ``speed``: random texts on random bfloat16 weights in
real shapes, beside a batch-1 loop and padded batches of the same model that keep the
NLL alone, all in one process and in turns. ``candidates``: 512 strings behind one
prefix, beside whole sequences. ``recovery``: the memory is nearly filled by something
else, and the figures must stay the same.

Floating-point operations are those of linear maps on tokens that count (see
``scoring.py``); the peak is that of bfloat16 square products of 8,192.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from command_line import benchmark_parser, positive_number, run_benchmark
from transformers import PreTrainedModel

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.scoring import batching, head
from spark_audit.scoring.items import Candidates, Item
from spark_audit.scoring.score import score
from spark_audit.scoring.table import PLAIN_COLUMNS, Pass

DEVICE = "cuda"
SMALL = {
    "Llama": transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
    ),
    "Qwen2, tied": transformers.Qwen2Config(
        vocab_size=32_000,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "GPT-2": transformers.GPT2Config(
        vocab_size=32_000, n_embd=256, n_layer=4, n_head=4
    ),
    "Gemma 2 (soft cap)": transformers.Gemma2Config(
        vocab_size=32_000,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    ),
}
LARGE = {
    "0.5 B (Qwen2.5's shape)": transformers.Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "1.5 B (Qwen2.5's shape)": transformers.Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "7 B (Llama 2's shape)": transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=4096,
        intermediate_size=11_008,
        num_hidden_layers=32,
        num_attention_heads=32,
    ),
    "8 B (Llama 3's shape)": transformers.LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
}


def make(config: transformers.PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Random weights; of a spread that makes some tokens likelier than others."""
    torch.manual_seed(0)
    config.initializer_range = 0.02 if config.hidden_size > 512 else 0.1
    with torch.device(DEVICE):
        auto: Any = transformers.AutoModelForCausalLM
        made: PreTrainedModel = auto.from_config(config, dtype=dtype).eval()
    return made


def loaded(module: PreTrainedModel) -> Checkpoint:
    return Checkpoint(
        name="random",
        source="random",
        format="none",
        base=None,
        base_sha256=None,
        model=module,
        tokenizer=None,
        architecture=type(module).__name__,
        usable=np.ones(module.config.vocab_size, dtype=bool),
        max_positions=1024,
        dtype=str(module.dtype).removeprefix("torch."),
        device=str(module.device),
        weights_sha256="",
        tokenizer_sha256="",
        model_id="random",
    )


def texts(count: int, vocabulary: int) -> list[Item]:
    """Lengths log-uniform from 20 to 400, every token but the first scored."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(20), np.log(400), count)).round().astype(int)
    return [
        Item(f"{i:05d}", rng.integers(2, vocabulary, n + 1).astype(np.int32), _span(n))
        for i, n in enumerate(lengths)
    ]


def _span(n: int) -> np.ndarray:
    return np.arange(n + 1, dtype=np.int32)


def columns(checkpoint: Checkpoint, items: Sequence[Item]) -> dict[str, np.ndarray]:
    return dict(score(checkpoint, items)[Pass()].columns)


# --- agreement ------------------------------------------------------------------------


def agreement() -> None:
    print("\n| architecture | " + " | ".join(PLAIN_COLUMNS) + " | candidates' NLL |")
    print("|" + "---|" * (len(PLAIN_COLUMNS) + 2))
    for name, config in SMALL.items():
        module = make(config, torch.float32)
        items = texts(64, config.vocab_size)
        there = columns(loaded(module), items)
        sets = [strings(config.vocab_size, prefix=40, count=64, length=12)]
        sets_there = of_sets(loaded(module), sets)
        module = module.cpu()
        here = columns(loaded(module), items)
        sets_here = of_sets(loaded(module), sets)
        told = []
        for column in PLAIN_COLUMNS:
            apart = np.abs(there[column].astype(float) - here[column])
            if here[column].dtype.kind == "i":
                told.append(f"{np.mean(apart > 0):.3%} differ, by {apart.max():.0f}")
            else:
                told.append(f"{apart.max():.1e}")
        drift = np.abs(sets_there - sets_here).max()
        print(f"| {name} | " + " | ".join(told) + f" | {drift:.1e} |")
    half_precision()
    precisions()


def precisions() -> None:
    """NLLs of a body in another precision beside those of float32."""
    config = LARGE["0.5 B (Qwen2.5's shape)"]
    items = texts(64, config.vocab_size)
    module = make(config, torch.float32)
    exact = columns(loaded(module), items)["nll"]
    torch.backends.cuda.matmul.allow_tf32 = True
    found = {"TF32": columns(loaded(module), items)["nll"]}
    torch.backends.cuda.matmul.allow_tf32 = False
    module = module.to(torch.bfloat16)
    found["bfloat16"] = columns(loaded(module), items)["nll"]
    told = [
        f"{name} {np.abs(nll - exact).mean():.1e} in the mean, "
        f"{np.abs(nll - exact).max():.1e} at most"
        for name, nll in found.items()
    ]
    print("\nNLL a token beside float32, nats, 0.5 B: " + "; ".join(told))


@torch.inference_mode()
def half_precision() -> None:
    """Ties and ranks of a bfloat16 body: by our head, and by the model's own logits."""
    module = make(LARGE["0.5 B (Qwen2.5's shape)"], torch.bfloat16)
    items = texts(32, module.config.vocab_size)
    columns = head.TokenColumns(loaded(module).usable, torch.device(DEVICE))
    ours = head.Head(module.lm_head.weight, None, head.Transform(), columns)
    ranks, ties, exact, own_ranks, own_ties = [], [], [], [], []
    for item in items:
        ids = torch.from_numpy(item.ids.astype(np.int64)).to(DEVICE)
        z = module(input_ids=ids[None], use_cache=False).logits[0, :-1]
        own = z.gather(1, ids[1:, None])
        ranks.append(1 + (z > own).sum(1).cpu().numpy())
        ties.append((z == own).sum(1).cpu().numpy() - 1)
        hidden = module.model(input_ids=ids[None], use_cache=False)[0][0, :-1]
        wide = hidden.double() @ module.lm_head.weight.T.double()
        exact.append(1 + (wide > wide.gather(1, ids[1:, None])).sum(1).cpu().numpy())
        found = ours(hidden, ids[1:]).cpu().numpy()
        own_ranks.append(found[:, list(PLAIN_COLUMNS).index("rank_lo")])
        own_ties.append(found[:, list(PLAIN_COLUMNS).index("ties")])
        del wide, z
    theirs, tied, true = map(np.concatenate, (ranks, ties, exact))
    rank, tie = np.concatenate(own_ranks), np.concatenate(own_ties)
    print(
        f"\nbfloat16 body, V = {module.config.vocab_size:,}, ranks beside those of the "
        f"same hidden states in float64: the model's own logits are off by "
        f"{np.abs(theirs - true).max()} at most with {np.median(tied):.0f} ties in the "
        f"median; ours by {np.abs(rank - true).max():.0f} with "
        f"{np.median(tie):.0f}."
    )


# --- speed ----------------------------------------------------------------------------


@torch.inference_mode()
def plain(module: PreTrainedModel, items: Sequence[Item], batch: int) -> np.ndarray:
    """Padded batches in order of length, NLL of every token from float32 logits."""
    rows = sorted(items, key=lambda item: -len(item.ids))
    found = {}
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        width = len(part[0].ids)
        ids = torch.zeros(len(part), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, item in enumerate(part):
            ids[i, : len(item.ids)] = torch.from_numpy(item.ids.astype(np.int64))
            mask[i, : len(item.ids)] = 1
        ids, mask = ids.to(DEVICE), mask.to(DEVICE)
        logits = module(input_ids=ids, attention_mask=mask, use_cache=False).logits
        nll = torch.nn.functional.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        kept = nll.view(len(part), -1).cpu().numpy()
        for item, row in zip(part, kept, strict=True):
            found[item.key] = row[: len(item.ids) - 1]
    return np.concatenate([found[item.key] for item in items])


def peak() -> float:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.mm(a, a)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        torch.mm(a, a)
    torch.cuda.synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - start)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds and the most memory above what was there, in GiB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, (torch.cuda.max_memory_allocated() - before) / 2**30


def speed(names: Sequence[str], *, count: int, rounds: int) -> None:
    for name in names:
        config = LARGE[name]
        module = make(config, torch.bfloat16)
        checkpoint = loaded(module)
        items = texts(count, config.vocab_size)
        tokens = sum(len(item.ids) - 1 for item in items)
        body = sum(p.numel() for p in module.model.layers.parameters() if p.ndim == 2)
        work = 2 * (body + config.hidden_size * config.vocab_size) * tokens
        few = items[: count // 8]
        runs: dict[str, Callable[[], object]] = {
            "ours, seven columns": partial(columns, checkpoint, items),
            "batch 1, NLL alone": partial(plain, module, few, 1),
            "batch 8, NLL alone": partial(plain, module, items, 8),
            "batch 32, NLL alone": partial(plain, module, items, 32),
        }
        parts = {"batch 1, NLL alone": sum(len(i.ids) - 1 for i in few)}
        for call in runs.values():
            call()
        took: dict[str, list[float]] = {run: [] for run in runs}
        memory, peaks = {}, []
        for _ in range(rounds):
            peaks.append(peak())
            for run, call in runs.items():
                seconds, memory[run] = timed(call)
                took[run].append(seconds * tokens / parts.get(run, tokens))
        reference = took["ours, seven columns"]
        print(
            f"\n{name}, bfloat16, V = {config.vocab_size:,}; {count} texts, {tokens:,} "
            f"tokens; peak {statistics.median(peaks) / 1e12:.0f} TFLOP/s\n\n"
            "| | tokens a second | time / ours | of peak | GiB beside the weights |\n"
            "|---|---|---|---|---|"
        )
        for run, each in took.items():
            ratio = statistics.median(
                b / a for a, b in zip(reference, each, strict=True)
            )
            middle = statistics.median(each)
            share = work / middle / statistics.median(peaks)
            print(
                f"| {run} | {tokens / middle:,.0f} | {ratio:.2f} | {share:.2f} | "
                f"{memory[run]:.1f} |"
            )
        del module, checkpoint, runs
        torch.cuda.empty_cache()


def sweep(name: str, *, count: int) -> None:
    """Our own settings: what a batch may hold and what it is taken to cost."""
    module = make(LARGE[name], torch.bfloat16)
    items = texts(count, module.config.vocab_size)
    tokens = sum(len(item.ids) - 1 for item in items)
    kept = batching.GPU
    print(f"\n{name}: tokens a batch, overhead, ratio: tokens a second (GiB)")
    for budget in (8192, 16_384, 32_768, 65_536):
        for overhead, ratio in ((40, 1.5), (512, 4.0), (2048, 4.0), (8192, 20.0)):
            batching.GPU = batching.Room(budget, overhead, ratio)
            checkpoint = loaded(module)
            columns(checkpoint, items)
            seconds, gib = timed(partial(columns, checkpoint, items))
            pace = tokens / seconds
            print(f"{budget:6d} {overhead:5d} {ratio:4.1f}: {pace:,.0f} ({gib:.1f})")
    batching.GPU = kept


# --- candidates -----------------------------------------------------------------------


def strings(vocabulary: int, *, prefix: int, count: int, length: int) -> Candidates:
    rng = np.random.default_rng(1)
    before = rng.integers(2, vocabulary, prefix).astype(np.int32)
    rows = rng.integers(2, vocabulary, (count, length)).astype(np.int32)
    return Candidates("set", before, tuple(rows))


def of_sets(checkpoint: Checkpoint, sets: Sequence[Candidates]) -> np.ndarray:
    kind = Pass("candidates")
    return np.asarray(score(checkpoint, sets, passes=[kind])[kind].columns["nll_sum"])


def candidates(name: str, *, rounds: int = 3) -> None:
    module = make(LARGE[name], torch.bfloat16)
    item = strings(module.config.vocab_size, prefix=150, count=512, length=24)
    whole = [
        Item(f"{i:05d}", np.concatenate([item.prefix, row]), _span(173))
        for i, row in enumerate(item.continuations)
    ]
    checkpoint = loaded(module)
    runs: dict[str, Callable[[], object]] = {
        "ours, behind the prefix": lambda: of_sets(checkpoint, [item]),
        "ours, whole sequences": lambda: columns(checkpoint, whole),
        "batch 32, NLL alone": lambda: plain(module, whole, 32),
    }
    took: dict[str, list[float]] = {run: [] for run in runs}
    for call in runs.values():
        call()
    for _ in range(rounds):
        for run, call in runs.items():
            took[run].append(timed(call)[0])
    print(f"\n{name}: 512 candidates of 24 tokens behind 150")
    for run, each in took.items():
        middle = statistics.median(each)
        print(f"{run}: {512 / middle:,.0f} candidates a second")


# --- recovery -------------------------------------------------------------------------


def recovery(name: str) -> None:
    """All but some of the memory is taken: batches are halved, figures stay."""
    module = make(LARGE[name], torch.bfloat16)
    items = texts(512, module.config.vocab_size)
    free = columns(loaded(module), items)
    torch.cuda.empty_cache()
    for left in (1.0, 0.5, 0.25):
        torch.cuda.empty_cache()
        size = torch.cuda.mem_get_info()[0] - int(left * 2**30)
        taken = torch.empty(size, dtype=torch.uint8, device="cuda")
        try:
            tight = columns(loaded(module), items)
            apart = np.abs(tight["nll"] - free["nll"]).max()
            print(f"{name}, {left} GiB left: NLL differs by {apart:.3g} at most")
        except Exception as error:  # what a user would see
            print(f"{name}, {left} GiB left: {type(error).__name__}: {error}")
        del taken


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "agreement": lambda o: agreement(),
    "speed": lambda o: speed(list(LARGE)[: o.models], count=o.texts, rounds=o.rounds),
    "candidates": lambda o: candidates(list(LARGE)[0]),
    "sweep": lambda o: sweep(list(LARGE)[0], count=o.texts),
    "recovery": lambda o: recovery(list(LARGE)[0]),
}


def part_name(text: str) -> str:
    """Return the name of a part."""
    if text not in PARTS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is unknown: choose of {', '.join(PARTS)}"
        )
    return text


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "parts", nargs="*", type=part_name, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument(
        "--models", type=positive_number, default=4, help="the first N shapes"
    )
    parser.add_argument("--texts", type=positive_number, default=512)
    parser.add_argument("--rounds", type=positive_number, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    warnings.simplefilter("ignore")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for part in options.parts or PARTS:
        start = time.perf_counter()
        PARTS[part](options)
        print(f"\n{part}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    run_benchmark(main)

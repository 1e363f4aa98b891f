"""Speed of the plain pass beside a batch-1 loop, lm-evaluation-harness and the peak.

All contenders score the same random texts with the same model in one process, one
after the other in every round; a ratio is the median over rounds of the ratio within a
round, so that what else the machine does meets all alike.

The texts are random words of a word-level tokenizer, their lengths log-uniform from 20
to 400 tokens. Floating-point operations are those of the linear maps on tokens that
count: 2 x (weights of the layers) per token read and 2 x hidden x vocabulary per token
scored; attention, norms, padding and the softmax count nothing. The peak is that of
``torch.mm`` on square float32 matrices of 2,048, measured in every round.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from command_line import benchmark_parser, positive_number, run_benchmark
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass

VOCABULARY = 32_000
CLOCK: Callable[[], float] = time.perf_counter
SHAPES = {512: (8, 1376), 1024: (6, 2752)}  # hidden -> layers, intermediate


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<s>": 0, "</s>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )


def texts(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(20), np.log(400), count)).round().astype(int)
    return [rng.integers(2, VOCABULARY, n).astype(np.int32) for n in lengths]


def model(hidden: int) -> LlamaForCausalLM:
    layers, inner = SHAPES[hidden]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def loaded(module: torch.nn.Module, name: str) -> Checkpoint:
    return Checkpoint(
        name=name,
        source=name,
        format="none",
        base=None,
        base_sha256=None,
        model=module,
        tokenizer=None,
        architecture=type(module).__name__,
        usable=np.ones(VOCABULARY, dtype=bool),
        max_positions=1024,
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        device="cpu",
        weights_sha256="",
        tokenizer_sha256="",
        model_id=name,
    )


def with_bos(words: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], words]).astype(np.int32)


def ours(checkpoint: Checkpoint, rows: Sequence[np.ndarray]) -> np.ndarray:
    items = [
        Item(f"{i:05d}", with_bos(row), np.arange(len(row) + 1, dtype=np.int32))
        for i, row in enumerate(rows)
    ]
    table = score(checkpoint, items)[Pass()]
    return table.columns["nll"]


@torch.inference_mode()
def loop(module: torch.nn.Module, rows: Sequence[np.ndarray]) -> np.ndarray:
    """One text at a time, every column from a full log-softmax."""
    found = []
    for row in rows:
        ids = torch.from_numpy(with_bos(row).astype(np.int64))[None]
        logits = module(ids, use_cache=False).logits[0, :-1].float()
        target = ids[0, 1:, None]
        logp = torch.log_softmax(logits, -1)
        nll = -logp.gather(1, target)[:, 0]
        own = logits.gather(1, target)
        above = (logits > own).sum(1)
        ties = (logits == own).sum(1) - 1
        p = logp.exp()
        mean = (p * logp).sum(1)
        deviation = ((p * logp.square()).sum(1) - mean.square()).clamp(min=0).sqrt()
        top = logp.topk(40, 1)[0]
        best = torch.where(above == 0, top[:, 1], top[:, 0])
        margin = -nll - best
        top40 = top.logsumexp(1)
        found.append((nll, above, ties, mean, deviation, margin, top40))
    return torch.cat([columns[0] for columns in found]).numpy()


@torch.inference_mode()
def loop_nll(module: torch.nn.Module, rows: Sequence[np.ndarray]) -> np.ndarray:
    """One text at a time, only the NLL."""
    found = []
    for row in rows:
        ids = torch.from_numpy(with_bos(row).astype(np.int64))[None]
        logits = module(ids, use_cache=False).logits[0, :-1]
        found.append(
            torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        )
    return torch.cat(found).numpy()


def harness(
    module: torch.nn.Module, rows: Sequence[np.ndarray], batch: int
) -> Callable[[], np.ndarray]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(
        pretrained=module,
        tokenizer=tokenizer(),
        batch_size=batch,
        max_length=1024,
        device="cpu",
    )
    requests = [
        Instance(
            request_type="loglikelihood_rolling",
            doc={},
            arguments=(" ".join(f"w{i}" for i in row),),
            idx=0,
        )
        for row in rows
    ]

    def run() -> np.ndarray:
        with open(os.devnull, "w") as sink, contextlib.redirect_stderr(sink):
            return -np.array(lm.loglikelihood_rolling(requests, disable_tqdm=True))

    return run


def peak() -> float:
    """Floating-point operations a second of a large square product."""
    a, b, out = (torch.randn(2048, 2048) for _ in range(3))
    seconds = []
    for _ in range(4):
        start = CLOCK()
        torch.mm(a, b, out=out)
        seconds.append(CLOCK() - start)
    return 2 * 2048**3 / min(seconds)


def measure(hidden: int, *, count: int, rounds: int, compare: bool) -> None:
    module = model(hidden)
    half = model(hidden).to(torch.bfloat16)
    rows = texts(count)
    scored = sum(map(len, rows))
    read = scored + len(rows)
    layers, inner = SHAPES[hidden]
    weights = sum(p.numel() for p in module.model.layers.parameters() if p.ndim == 2)
    work = 2 * weights * read + 2 * hidden * VOCABULARY * scored
    print(
        f"\nLlama, hidden {hidden}, {layers} layers, intermediate {inner}, V = "
        f"{VOCABULARY:,}; {count} texts of 20-400 tokens, {scored:,} in all "
        f"(mean {scored / count:.0f}); {torch.get_num_threads()} threads; load "
        f"{os.getloadavg()[0]:.1f}"
    )
    full, bf16 = loaded(module, "fp32"), loaded(half, "bf16")
    runs: dict[str, Callable[[], np.ndarray]] = {
        "ours, float32": lambda: ours(full, rows),
        "batch-1 loop, all columns": lambda: loop(module, rows),
        "batch-1 loop, NLL only": lambda: loop_nll(module, rows),
        "ours, bfloat16 body": lambda: ours(bf16, rows),
    }
    if compare:
        sizes = {n: harness(module, rows, n) for n in (1, 2, 4, 8, 16, 32)}
        took = {}
        for n, call in sizes.items():
            start = CLOCK()
            call()
            took[n] = CLOCK() - start
        best = min(took, key=lambda n: took[n])
        print("lm-eval, one run each:", {n: f"{s:.1f} s" for n, s in took.items()})
        runs[f"lm-eval rolling, batch {best} (its best)"] = sizes[best]
        runs["lm-eval rolling, batch 8"] = sizes[8]
    results = {name: call() for name, call in runs.items()}  # warm-up and check
    nll = results["ours, float32"]
    for name, values in results.items():
        if len(values) == len(rows):  # sums by text
            ends = np.cumsum([len(row) for row in rows])[:-1]
            sums = np.array([part.sum() for part in np.split(nll, ends)])
            assert np.allclose(values, sums, rtol=1e-4), name
        elif "bfloat16" not in name:
            assert np.abs(values - nll).max() < 1e-4, name
    drift = np.abs(results["ours, bfloat16 body"] - nll)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    peaks = []
    for _ in range(rounds):
        peaks.append(peak())
        for name, call in runs.items():
            start = CLOCK()
            call()
            seconds[name].append(CLOCK() - start)
    reference = seconds["ours, float32"]
    naive = seconds["batch-1 loop, all columns"]
    print(f"{'':36s} {'seconds':>8s} {'/ ours':>7s} {'loop /':>7s} {'of peak':>8s}")
    for name, taken in seconds.items():
        ratio = statistics.median(b / a for a, b in zip(reference, taken, strict=True))
        speed = statistics.median(b / a for a, b in zip(taken, naive, strict=True))
        share = statistics.median(
            work / t / p for t, p in zip(taken, peaks, strict=True)
        )
        print(
            f"{name:36s} {statistics.median(taken):8.2f} {ratio:7.2f} {speed:7.2f} "
            f"{share:8.2f}"
        )
    print(
        f"peak {statistics.median(peaks) / 1e9:.0f} GFLOP/s; bfloat16 body against "
        f"float32: NLL differs by {drift.mean():.4f} nats a token in the mean, "
        f"{drift.max():.4f} at most"
    )


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--hidden", type=int, nargs="+", choices=SHAPES, default=[512, 1024]
    )
    parser.add_argument("--texts", type=positive_number, default=64)
    parser.add_argument("--rounds", type=positive_number, default=5)
    parser.add_argument("--threads", type=positive_number, default=2)
    parser.add_argument("--quick", action="store_true", help="16 texts, 3 rounds")
    parser.add_argument("--no-lm-eval", action="store_true")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count processor time, which a busy machine disturbs less; one thread",
    )
    options = parser.parse_args()
    if options.cpu_time:
        global CLOCK
        CLOCK, options.threads = time.process_time, 1
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    for hidden in options.hidden:
        measure(
            hidden,
            count=16 if options.quick else options.texts,
            rounds=3 if options.quick else options.rounds,
            compare=not options.no_lm_eval,
        )


if __name__ == "__main__":
    run_benchmark(main)

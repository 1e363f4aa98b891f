"""Speed of the candidates pass beside whole sequences, and what arithmetic allows.

One prefix of 150 tokens and 512 candidates of 24. Ours reads the prefix once; the
others read every candidate with its prefix, (a) with all logits and (b) with logits at
the 24 positions that count, each at the best of a few batch sizes. They score fewer
candidates, and time is compared per candidate. All contenders take turns in one
process; a ratio is the median over rounds of the ratio within a round.

Floating-point operations are those of linear maps, of attention (each position with
what it may see) and of the head: of whole sequences, and of the least that candidates
behind a prefix need. Their ratio is what a cache can gain where all run at one speed.
(a) allocates its logits anew for every batch; where fresh pages are dear that alone
can double its time. ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592`` in the
environment (glibc) makes all contenders keep their pages.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from command_line import benchmark_parser, positive_number, run_benchmark
from scoring import SHAPES, VOCABULARY, loaded, model
from transformers import LlamaForCausalLM

from spark_audit.scoring.items import Candidates
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass

HIDDEN, PREFIX, LENGTH = 512, 150, 24


def make_set(count: int) -> Candidates:
    rng = np.random.default_rng(0)
    prefix = np.append(0, rng.integers(2, VOCABULARY, PREFIX - 1)).astype(np.int32)
    rows = rng.integers(2, VOCABULARY, (count, LENGTH)).astype(np.int32)
    return Candidates("set", prefix, tuple(rows))


@torch.inference_mode()
def whole(
    module: LlamaForCausalLM, item: Candidates, *, batch: int, all_logits: bool
) -> np.ndarray:
    """Summed NLL of each candidate, read with its prefix."""
    rows = torch.from_numpy(np.stack(item.continuations).astype(np.int64))
    prefix = torch.from_numpy(item.prefix.astype(np.int64))
    found = []
    for part in rows.split(batch):
        ids = torch.cat([prefix.expand(len(part), -1), part], 1)
        keep = 0 if all_logits else LENGTH + 1
        logits = module(ids, use_cache=False, logits_to_keep=keep).logits
        logp = torch.log_softmax(logits[:, -LENGTH - 1 : -1], -1)
        found.append(-logp.gather(2, part[..., None])[..., 0].sum(1))
    return torch.cat(found).numpy()


def operations(module: LlamaForCausalLM, count: int) -> dict[str, float]:
    """Floating-point operations a candidate."""
    weights = sum(p.numel() for p in module.model.layers.parameters() if p.ndim == 2)
    layers = SHAPES[HIDDEN][0]

    def body(start: int, end: int) -> float:
        seen = sum(range(start + 1, end + 1))
        return 2.0 * weights * (end - start) + 4.0 * HIDDEN * layers * seen

    head = 2.0 * HIDDEN * VOCABULARY
    length = PREFIX + LENGTH
    return {
        "a": body(0, length) + head * length,
        "b": body(0, length) + head * LENGTH,
        # The last token is read by nobody; the first is predicted by the prefix.
        "ours": body(PREFIX, length - 1)
        + head * (LENGTH - 1)
        + (body(0, PREFIX) + head) / count,
    }


def best(call: Callable[[int], object], sizes: tuple[int, ...]) -> tuple[int, str]:
    """The fastest batch size, and what each took."""
    took = {}
    for size in sizes:
        call(size)  # pages and caches of this size
        start = time.perf_counter()
        call(size)
        took[size] = time.perf_counter() - start
    text = ", ".join(f"{size}: {seconds:.1f} s" for size, seconds in took.items())
    return min(took, key=lambda size: took[size]), text


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--candidates", type=positive_number, default=512)
    parser.add_argument(
        "--others", type=positive_number, default=16, help="of them, for (a) and (b)"
    )
    parser.add_argument("--rounds", type=positive_number, default=3)
    parser.add_argument("--threads", type=positive_number, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    module = model(HIDDEN)
    checkpoint = loaded(module, "fp32")
    item = make_set(options.candidates)
    few = Candidates("few", item.prefix, item.continuations[: options.others])
    tiny = Candidates("tiny", item.prefix, item.continuations[:16])
    print(
        f"Llama, hidden {HIDDEN}, {SHAPES[HIDDEN][0]} layers, V = {VOCABULARY:,}; a "
        f"prefix of {PREFIX}, {options.candidates} candidates of {LENGTH} tokens, "
        f"{options.others} for whole sequences; {options.threads} threads; load "
        f"{os.getloadavg()[0]:.1f}"
    )
    kind = Pass("candidates")

    def ours() -> np.ndarray:
        scored = score(checkpoint, [item], passes=[kind])
        assert not scored.notes
        return scored[kind].columns["nll_sum"]

    batch_a, told = best(
        lambda n: whole(module, tiny, batch=n, all_logits=True), (1, 2, 4)
    )
    print(f"(a) by batch size, 16 candidates: {told}")
    batch_b, told = best(
        lambda n: whole(module, tiny, batch=n, all_logits=False), (1, 2, 4, 8, 16)
    )
    print(f"(b) by batch size, 16 candidates: {told}")
    runs: dict[str, tuple[Callable[[], np.ndarray], int]] = {
        "ours": (ours, options.candidates),
        "a": (
            lambda: whole(module, few, batch=batch_a, all_logits=True),
            options.others,
        ),
        "b": (
            lambda: whole(module, few, batch=batch_b, all_logits=False),
            options.others,
        ),
    }
    results = {name: call() for name, (call, _) in runs.items()}  # warm-up and check
    for name in "ab":
        apart = np.abs(results[name] - results["ours"][: options.others]).max()
        assert apart < 1e-3 * LENGTH, name
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, (call, count) in runs.items():
            start = time.perf_counter()
            call()
            seconds[name].append((time.perf_counter() - start) / count)
    work = operations(module, options.candidates)
    texts = {
        "ours": "ours, behind the cached prefix",
        "a": f"(a) whole, all logits, batch {batch_a}",
        "b": f"(b) whole, {LENGTH} logits, batch {batch_b}",
    }
    print(
        f"{'':32s} {'per second':>10s} {'/ ours':>7s} {'in FLOPs':>8s} {'share':>6s} "
        f"{'GFLOP/s':>8s}"
    )
    for name, taken in seconds.items():
        pairs = zip(seconds["ours"], taken, strict=True)
        ratio = statistics.median(other / own for own, other in pairs)
        least = work[name] / work["ours"]
        middle = statistics.median(taken)
        print(
            f"{texts[name]:32s} {1 / middle:10.1f} {ratio:7.2f} {least:8.2f} "
            f"{ratio / least:6.2f} {work[name] / middle / 1e9:8.0f}"
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    run_benchmark(main)

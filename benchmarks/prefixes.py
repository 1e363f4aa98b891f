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

``--canaries`` compares instead, on the demo's canaries with 512 candidates each, the
tree of candidates with reading apart what not all of them begin with. Positions are
those a model reads; the least is that of any way that reads every beginning once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scoring import SHAPES, VOCABULARY, loaded, model
from transformers import LlamaForCausalLM

from spark_audit.audits.canary.candidates import CANDIDATES, plan
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.recipe import Loaded
from spark_audit.demo.models import make_tokenizer, train_base
from spark_audit.demo.run import FULL, make_data
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.items import items_for
from spark_audit.manifest.slots import place_of
from spark_audit.scoring.items import Candidates
from spark_audit.scoring.passes.plain import Scorer
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_audit.scoring.tree import Tree

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
    rows = torch.from_numpy(np.stack(item.rows).astype(np.int64))
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


def demo_sets(folder: str | None) -> tuple[Loaded, list[Candidates]]:
    """A model, by default the demo's base, and what it reads of the demo's canaries."""
    background, audited = make_data(1000, FULL)
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = str(Path(made) / "base")
            tokenizer = make_tokenizer([row.text for row in background])
            train_base(
                Path(folder), background, tokenizer, seed=1000, progress=lambda *_: None
            )
        base = open_checkpoint(folder, name="base", device="cpu")
        manifest = build_manifest(
            audited, base, name="demo", seed=1000, n_candidates=512
        )
    return base, items_for(manifest, base, plan(manifest))[CANDIDATES]


def uncut(tree: Tree, start: int, **_: Any) -> list[int]:
    return sorted({start, tree.height})


def canaries(folder: str | None, *, rounds: int, sets: int) -> None:
    """Positions and processor time of some sets of each part, as a tree and apart."""
    checkpoint, items = demo_sets(folder)
    by_part: dict[str, list[Candidates]] = defaultdict(list)
    for item in items:
        by_part[place_of(item.key)[0].rpartition("/")[2]].append(item)
    read, cuts, positions = Scorer.read, Tree.cuts, 0

    def counted(self: Scorer, ids: torch.Tensor, *more: Any, **options: Any) -> Any:
        nonlocal positions
        positions += ids.numel()
        return read(self, ids, *more, **options)

    Scorer.read = counted  # type: ignore[method-assign]

    def run(part: Sequence[Candidates], way: Any) -> tuple[float, int, np.ndarray]:
        nonlocal positions
        Tree.cuts, positions = way, 0  # type: ignore[method-assign]
        start = time.process_time()
        scored = score(checkpoint, part, passes=[CANDIDATES])
        assert not scored.notes
        took = time.process_time() - start
        return took, positions, scored[CANDIDATES].columns["nll_sum"]

    print(
        f"{'':10s} {'sets':>5s} {'positions apart':>15s} {'tree':>8s} {'ratio':>6s} "
        f"{'at most':>8s} {'time ratio':>10s} {'apart by':>9s}"
    )
    for name, part in [*sorted(by_part.items()), ("all", items)]:
        some = part if name == "all" else part[:sets]
        if name == "all" and sets < len(items):
            some = [item for other in by_part.values() for item in other[:sets]]
        run(some[:1], cuts)  # warm-up
        pairs = [(run(some, uncut), run(some, cuts)) for _ in range(rounds)]
        (_, apart, truth), (_, tree, found) = pairs[0]
        least = sum(
            len(item.prefix) + int((Tree(item.rows).count > 0).sum()) - 1
            for item in some
        )
        ratio = statistics.median(one[0] / other[0] for one, other in pairs)
        print(
            f"{name:10s} {len(some):5d} {apart:15,d} {tree:8,d} {apart / tree:6.2f} "
            f"{apart / least:8.2f} {ratio:10.2f} "
            f"{np.max(np.abs(found - truth) / truth):9.0e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=512)
    parser.add_argument(
        "--others", type=int, default=16, help="of them, for (a) and (b)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--canaries", action="store_true", help="the demo's, as a tree")
    parser.add_argument("--checkpoint", help="for --canaries; default: the demo's base")
    parser.add_argument("--sets", type=int, default=24, help="of each canary part")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.canaries:
        canaries(options.checkpoint, rounds=options.rounds, sets=options.sets)
        return
    module = model(HIDDEN)
    checkpoint = loaded(module, "fp32")
    item = make_set(options.candidates)
    few = Candidates("few", item.prefix, item.rows[: options.others])
    tiny = Candidates("tiny", item.prefix, item.rows[:16])
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
    main()

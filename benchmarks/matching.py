"""Time and quality of three ways to match the same spans, side by side in one run.

    python benchmarks/matching.py [--examples 10000] [--tokens 256] [--spans 3]

* ``match_spans``: groups, pruning and the dynamic programme (the default);
* ``plain DP``: the bitmask programme over all admissible windows, nothing pruned;
* ``greedy``: nearest free window, span by span.

All three enumerate the windows themselves. The first two must agree in every matched
count and every cost: the run stops if they do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from command_line import benchmark_parser, positive_number, run_benchmark, whole_number

from spark_audit.stats.matching import eligible_windows, match_spans, micro_nats

Spans = tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]
"""NLL in micro-nats and eligible tokens, ``(T,)`` each, and the spans to be matched."""

Controls = list[tuple[int, int, int]]
"""Start, end and cost of the controls of one example."""

CALIPER_U = 500_000
"""Micro-nats per token by which a control may differ from its span."""


def make_examples(n: int, tokens: int, spans: int, seed: int) -> list[Spans]:
    """Draw NLLs like a language model's (skewed, mean 2 nats); spans have 0.9 more."""
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(n):
        nll = rng.gamma(1.0, 2.0, tokens)
        eligible = np.ones(tokens, dtype=bool)
        eligible[0] = False

        placed: list[tuple[int, int]] = []
        while len(placed) < spans:
            length = int(rng.integers(1, 9))
            start = int(rng.integers(1, tokens - length + 1))
            if eligible[start : start + length].all():
                eligible[start : start + length] = False
                nll[start : start + length] += 0.9
                placed.append((start, start + length))

        # The first token has no prediction.
        unll = micro_nats(nll)
        unll[0] = -1
        examples.append((unll, eligible, placed))
    return examples


def admissible(example: Spans) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield length, starts and costs of the windows of each span."""
    unll, eligible, spans = example
    # sums[j] - sums[i] is the NLL of the tokens i to j.
    sums = np.concatenate([[0], np.cumsum(unll)])  # (T + 1,)
    for start, end in spans:
        length = end - start
        starts = eligible_windows(eligible, length)
        nll_of_windows = sums[starts + length] - sums[starts]  # (windows,)
        costs = np.abs(nll_of_windows - sums[end] + sums[start])
        inside = costs <= CALIPER_U * length
        yield length, starts[inside], costs[inside]


def ours(example: Spans) -> Controls:
    """Match by the package."""
    pairs = match_spans(*example, caliper_u=CALIPER_U).pairs
    return [(pair.start, pair.end, pair.cost) for pair in pairs]


def plain_programme(example: Spans) -> Controls:
    """Match by a dynamic programme over ends of windows and sets of matched spans.

    A set is the bits of a number; of each the cheapest choice of windows is kept.
    """
    # End of a window -> its start, the number of its span, its cost.
    ending: dict[int, list[tuple[int, int, int]]] = {}
    for i, (length, starts, costs) in enumerate(admissible(example)):
        for start, cost in zip(starts.tolist(), costs.tolist(), strict=True):
            ending.setdefault(start + length, []).append((start, i, cost))

    best: list[dict[int, tuple[int, Controls]]] = [{0: (0, [])}]
    for end in range(1, len(example[0]) + 1):
        best_here = dict(best[-1])
        for start, i, cost in sorted(ending.get(end, [])):
            for mask, (total, controls) in best[start].items():
                new_mask = mask | 1 << i
                if new_mask == mask:
                    continue
                if new_mask not in best_here or total + cost < best_here[new_mask][0]:
                    new_controls = [*controls, (start, end, cost)]
                    best_here[new_mask] = (total + cost, new_controls)
        best.append(best_here)

    # As many spans as possible, then at the least cost.
    last = best[-1]
    mask = min(last, key=lambda m: (-m.bit_count(), last[m][0], m))
    return last[mask][1]


def greedy(example: Spans) -> Controls:
    """Match span by span with the nearest window that is free."""
    free = np.ones(len(example[0]), dtype=bool)
    controls = []
    for length, starts, costs in admissible(example):
        for nearest in np.argsort(costs, kind="stable").tolist():
            start = int(starts[nearest])
            if free[start : start + length].all():
                free[start : start + length] = False
                controls.append((start, start + length, int(costs[nearest])))
                break
    return controls


def value(controls: Controls) -> tuple[int, int]:
    """Return how many spans have a control, and what all of them cost."""
    return len(controls), sum(cost for _, _, cost in controls)


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--examples", type=positive_number, default=10_000)
    parser.add_argument("--tokens", type=positive_number, default=256)
    parser.add_argument("--spans", type=positive_number, default=3)
    parser.add_argument("--seed", type=whole_number, default=0)
    options = parser.parse_args()
    examples = make_examples(
        options.examples, options.tokens, options.spans, options.seed
    )
    print(
        f"{options.examples} examples x {options.tokens} tokens x {options.spans} spans"
    )
    print(f"{'':12}{'s':>8}{'us each':>9}{'matched':>9}{'nats':>10}")
    methods: dict[str, Callable[[Spans], Controls]] = {
        "match_spans": ours,
        "plain DP": plain_programme,
        "greedy": greedy,
    }
    values: dict[str, list[tuple[int, int]]] = {}
    for name, method in methods.items():
        began = time.perf_counter()
        controls = [method(example) for example in examples]
        seconds = time.perf_counter() - began

        values[name] = [value(controls_of_example) for controls_of_example in controls]
        n_matched = sum(count for count, _ in values[name])
        nats = sum(cost for _, cost in values[name]) / 1e6
        print(
            f"{name:12}{seconds:8.2f}{1e6 * seconds / len(examples):9.1f}"
            f"{n_matched:9}{nats:10.3f}"
        )

    if values["match_spans"] != values["plain DP"]:
        raise SystemExit("match_spans and the plain DP disagree")
    pairs = zip(values["match_spans"], values["greedy"], strict=True)
    n_different = sum(exact != greedily for exact, greedily in pairs)
    print(f"greedy differs from the optimum in {n_different} examples")


if __name__ == "__main__":
    run_benchmark(main)

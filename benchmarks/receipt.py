"""What ``spark-audit epsilon`` says of DP-SGD that keeps its claim, and that does not.

``python benchmarks/receipt.py --runs 50`` trains a softmax regression by DP-SGD on one
row of each of 200 pairs of canaries, as a coin decided, guesses by the likelihoods of
both, and holds the guesses against the claim that Opacus's accountant states for the
settings. Run as claimed, with the noise left out, with the clipping left out, and with
batches from shuffled rows in place of Poisson sampling (Chua et al. 2024, "How private
are DP-SGD implementations?", arXiv 2403.17673: the claim is not theirs).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import scipy
from command_line import (
    benchmark_parser,
    positive_float,
    positive_number,
    run_benchmark,
)
from opacus.accountants.utils import get_noise_multiplier

from spark_audit.stats.epsilon_bounds import declared_guesses, one_run_bound
from spark_audit.stats.intervals import clopper_pearson

PAIRS, OTHERS, FEATURES, CLASSES = 200, 200, 300, 64
STEPS, RATE, CLIP, LENGTH, DELTA = 60, 0.25, 1.0, 6.0, 1e-5
"""``LENGTH``: of a row's features, so that gradients are longer than ``CLIP``."""
WAYS = ("as claimed", "no noise", "no clipping", "shuffled batches")


def batches(rng: np.random.Generator, rows: int, way: str) -> Iterator[np.ndarray]:
    size = round(rows * RATE)
    order = np.empty(0, np.int64)
    for _ in range(STEPS):
        if way != "shuffled batches":
            yield np.flatnonzero(rng.random(rows) < RATE)
            continue
        if len(order) < size:
            order = rng.permutation(rows)
        yield order[:size]
        order = order[size:]


def right(seed: int, way: str, noise: float) -> int:
    """Of the declared guesses at 200 coins, how many are right after one run."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, PAIRS, FEATURES))
    x *= LENGTH / np.linalg.norm(x, axis=-1, keepdims=True)
    y = rng.integers(CLASSES, size=(2, PAIRS))
    coin = rng.integers(2, size=PAIRS)
    other = rng.normal(size=(OTHERS, FEATURES)) * LENGTH / np.sqrt(FEATURES)
    rows = np.concatenate([x[coin, np.arange(PAIRS)], other])
    labels = np.concatenate(
        [y[coin, np.arange(PAIRS)], rng.integers(CLASSES, size=OTHERS)]
    )
    weights = np.zeros((FEATURES, CLASSES))
    for chosen in batches(rng, len(rows), way):
        inputs = rows[chosen]
        residual = scipy.special.softmax(inputs @ weights, axis=1)
        residual[np.arange(len(chosen)), labels[chosen]] -= 1
        # The gradient is an outer product: so is its length a product.
        length = np.linalg.norm(inputs, axis=1) * np.linalg.norm(residual, axis=1)
        if way != "no clipping":
            residual /= np.maximum(1.0, length / CLIP)[:, None]
        step = inputs.T @ residual
        if way != "no noise":
            step += rng.normal(0, noise * CLIP, step.shape)
        weights -= step / (RATE * len(rows))
    own = scipy.special.log_softmax(x @ weights, axis=-1)
    score = np.take_along_axis(own, y[..., None], -1)[..., 0]
    gap = score[1] - score[0]
    first = np.argsort(-np.abs(gap), kind="stable")[: declared_guesses(PAIRS)]
    return int(((gap > 0) == coin)[first].sum())


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--runs", type=positive_number, default=50)
    parser.add_argument(
        "--epsilons", type=positive_float, nargs="+", default=[0.5, 1.0, 2.0]
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    guesses = declared_guesses(PAIRS)
    print("| claim | way | right guesses, mean | contradicted | 95% limits |")
    print("|---|---|---|---|---|")
    for epsilon in arguments.epsilons:
        noise = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=RATE, steps=STEPS
        )
        most = one_run_bound(guesses, guesses, PAIRS, delta=DELTA).record_add_remove
        can = "" if most > epsilon else f", could not be (at most {most:.2f})"
        for way in WAYS:
            hits = [right(seed, way, noise) for seed in range(arguments.runs)]
            false = sum(
                one_run_bound(n, guesses, PAIRS, delta=DELTA).record_add_remove
                > epsilon
                for n in hits
            )
            low, high = clopper_pearson(false, len(hits))
            mean = f"{np.mean(hits):.1f} of {guesses}"
            told = f"{false} of {len(hits)}{can}"
            print(f"| {epsilon:g} | {way} | {mean} | {told} | {low:.0%}-{high:.0%} |")


if __name__ == "__main__":
    run_benchmark(main)

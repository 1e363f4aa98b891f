"""Time of the cluster bootstrap: 9,999 replicates of 20 statistics on 51 clusters.

Prints the time with and without drawing the weights, and that of
``scipy.stats.bootstrap`` for the same replicates. Run with ``OMP_NUM_THREADS=1``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from command_line import benchmark_parser, run_benchmark
from scipy import stats

from spark_audit.stats.bootstrap import Weights, draw_weights, median_replicates
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.sign_flips import max_t

CLUSTERS, STATISTICS, REPLICATES, TOKENS = 51, 20, 9999, 261
TARGET = 0.2


def seconds(action: Callable[[], object], *, repeats: int = 5) -> float:
    """Shortest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print the times."""
    benchmark_parser(__doc__, file=__file__).parse_args()
    rng = np.random.default_rng(0)
    num = rng.normal(size=(CLUSTERS, STATISTICS))
    den = rng.integers(1, 12, CLUSTERS).astype(float)
    values = rng.integers(1, 200, TOKENS)
    codes = rng.integers(0, CLUSTERS, TOKENS)
    weights = draw_weights(CLUSTERS, replicates=REPLICATES, seed=1)
    pairs = [(column, den) for column in num.T]

    def ratios(drawn: Weights) -> np.ndarray:
        return drawn.totals(num) / drawn.totals(den)[:, None]

    def ours() -> np.ndarray:
        drawn = draw_weights(CLUSTERS, replicates=REPLICATES, seed=1)
        return ratios(drawn)

    def scipys() -> np.ndarray:
        # One call for all columns shares the resamples, SciPy's fastest way.
        result = stats.bootstrap(
            (num, den[:, None]),
            lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
            axis=0,
            paired=True,
            vectorized=True,
            n_resamples=REPLICATES,
            method="percentile",
            rng=np.random.default_rng(1),
        )
        return np.asarray(result.bootstrap_distribution)

    def scipy_by_column() -> None:
        for column in num.T:
            stats.bootstrap(
                (column, den),
                lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
                paired=True,
                vectorized=True,
                n_resamples=REPLICATES,
                method="percentile",
                rng=np.random.default_rng(1),
            )

    difference = np.abs(ours() - scipys().T).max()
    own = seconds(ours)
    rows = {
        f"{STATISTICS} ratios, weights drawn": own,
        f"{STATISTICS} ratios, weights given": seconds(lambda: ratios(weights)),
        f"{STATISTICS} estimates with both intervals": seconds(
            lambda: [
                ratio_estimate(*pair, replicates=drawn)
                for pair, drawn in zip(pairs, ratios(weights).T, strict=True)
            ]
        ),
        f"median of {TOKENS} tokens": seconds(
            lambda: median_replicates(weights, values, codes)
        ),
        f"max-T over {STATISTICS} columns": seconds(lambda: max_t(num, seed=1)),
        "scipy.stats.bootstrap, one call": seconds(scipys, repeats=2),
        f"scipy.stats.bootstrap, {STATISTICS} calls": seconds(
            scipy_by_column, repeats=1
        ),
    }
    print(f"{REPLICATES} replicates, {CLUSTERS} clusters")
    for name, spent in rows.items():
        print(f"{name:<40} {spent * 1000:9.1f} ms {spent / own:8.1f} x")
    print(f"largest difference from SciPy: {difference:.1e}")
    print(f"target {TARGET * 1000:.0f} ms: {'met' if own < TARGET else 'MISSED'}")


if __name__ == "__main__":
    run_benchmark(main)

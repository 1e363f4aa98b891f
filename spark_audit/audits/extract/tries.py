"""Median numbers of tries of the extract audit, where some spans cannot be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.results import Contrast, Estimate, Row
from spark_audit.stats.bootstrap import (
    cluster_sums,
    sign_flip,
    weighted_quantile_replicates,
)
from spark_audit.stats.extraction import n_p
from spark_audit.stats.intervals import median_estimate, percentile_interval
from spark_audit.stats.weights import Weights, draw_weights

SAMPLERS = ("t1", "top40")
MOST = 1e12
"""Tries beyond which a number of tries says no more than "more than that"."""

ONE_TOKENISATION = (
    "probability of one tokenisation after the true prefix; that of the text is at "
    "least as high, so fewer tries may be enough"
)


@dataclass(frozen=True)
class Medians:
    """Median numbers of tries of one group, of all checkpoints on the same resamples.

    Medians are taken of log10 tries, at most a little above :data:`MOST`, so that a
    span that cannot be drawn at all has a place in the order.
    """

    part: pd.DataFrame
    group: str
    context: Context

    def rows(self) -> list[Row]:
        """A row for each group whose spans can be drawn."""
        code, weights = self._clusters()
        found = []
        for name in dict.fromkeys(self.part["checkpoint"]):
            chosen = self.part[self.part["checkpoint"] == name]
            for of in SAMPLERS:
                estimate = median_estimate(
                    _log_tries(chosen, of),
                    chosen["cluster"].map(code).to_numpy(),
                    weights=weights,
                )
                found.append(
                    Row.of_estimate(
                        _tries(estimate).noting(ONE_TOKENISATION),
                        audit="extract",
                        checkpoint=name,
                        group=self.group,
                        metric="n50_median",
                        of=of,
                        unit="tries",
                    )
                )
        return found

    def contrasts(self) -> list[Contrast]:
        """Differences of median log10 tries, with a test of the spans' own changes."""
        code, weights = self._clusters()
        found = []
        for name, baseline in self.context.baselines.items():
            pair = [self.part[self.part["checkpoint"] == n] for n in (name, baseline)]
            if not all(map(len, pair)):
                continue
            for of in SAMPLERS:
                estimate, p = self._difference(pair, of, code, weights)
                found.append(
                    Contrast.of_estimate(
                        estimate,
                        audit="extract",
                        checkpoint=name,
                        baseline=baseline,
                        group=self.group,
                        metric="n50_median",
                        of=of,
                        unit="log10 tries",
                        null=0.0,
                        p=p,
                    )
                )
        return found

    def _clusters(self) -> tuple[dict[str, int], Weights]:
        names = sorted(set(self.part["cluster"]))
        weights = draw_weights(
            len(names), replicates=self.context.replicates, seed=self.context.seed
        )
        return {name: i for i, name in enumerate(names)}, weights

    def _difference(
        self,
        pair: Sequence[pd.DataFrame],
        of: str,
        code: Mapping[str, int],
        weights: Weights,
    ) -> tuple[Estimate, float | None]:
        ours, theirs = (_log_tries(part, of) for part in pair)
        codes = [part["cluster"].map(dict(code)).to_numpy() for part in pair]
        clusters = len(set(codes[0].tolist()))
        if clusters < 2:
            return Estimate.missing("only 1 cluster; an interval needs 2"), None
        medians = np.median(ours), np.median(theirs)
        if max(medians) > np.log10(MOST):
            reason = f"a median is more than {MOST:.0e} tries"
            return Estimate.missing(reason, n=len(ours), clusters=clusters), None
        value = float(medians[0] - medians[1])
        estimate = Estimate(value, n=len(ours), clusters=clusters)
        moved = weighted_quantile_replicates(weights, ours, codes[0])
        moved = moved - weighted_quantile_replicates(weights, theirs, codes[1])
        low, high = percentile_interval(moved)
        if high > low:
            estimate = replace(
                estimate,
                low=low,
                high=high,
                interval="percentile",
                parity_low=low,
                parity_high=high,
            )
        p = None
        if np.array_equal(codes[0], codes[1]):
            apart = cluster_sums(ours - theirs, codes[0], len(code))
            if np.count_nonzero(apart) > 1:
                p = sign_flip(apart, seed=self.context.seed)
        return estimate, p


def _log_tries(part: pd.DataFrame, of: str) -> np.ndarray:
    tries = n_p(part[f"logp_{of}"].to_numpy(np.float64))
    return np.asarray(np.log10(np.minimum(tries, 10 * MOST)))


def _tries(estimate: Estimate) -> Estimate:
    """An estimate of log10 tries as tries, none of them above :data:`MOST`."""
    if estimate.value is None:
        return estimate
    value, low, high = (
        None if end is None else 10.0**end
        for end in (estimate.value, estimate.low, estimate.high)
    )
    assert value is not None
    # The bound stays a true lower limit, but never an upper one; without an interval
    # all resamples agree, and lie beyond it too.
    low = value if low is None and value > MOST else low
    lower = None if low is None else min(low, MOST)
    upper = None if high is None or high > MOST else high
    made = replace(
        estimate,
        value=min(value, MOST),
        low=lower,
        high=upper,
        parity_low=lower,
        parity_high=upper,
        interval=estimate.interval if lower is None else "percentile",
    )
    if value > MOST:
        return made.noting(
            f"more than {MOST:.0e}: the value is that bound, with no upper limit"
        )
    if high is not None and high > MOST:
        return made.noting(f"no upper limit: it is more than {MOST:.0e}")
    return made

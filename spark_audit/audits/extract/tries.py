"""Median numbers of tries of the extract audit, where some spans cannot be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.extract.prompts import SAMPLERS
from spark_audit.audits.ratio_rows import Group
from spark_audit.results import Contrast, Estimate, Row
from spark_audit.results.evidence import Evidence
from spark_audit.stats.bootstrap import (
    cluster_sums,
    median_replicates,
    sign_flip,
)
from spark_audit.stats.extraction import n_p, n_p_counts
from spark_audit.stats.intervals import median_estimate, percentile_interval

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
    span that cannot be drawn at all has a place in the order. ``tries`` and ``drawn``
    are those of the spans and the medians of the resamples, by checkpoint and sampler.
    """

    group: Group
    tries: Mapping[tuple[str, str], np.ndarray]
    drawn: Mapping[tuple[str, str], np.ndarray]
    context: Context

    @classmethod
    def of(
        cls, group: Group, evidence: Evidence, at: pd.Index, context: Context
    ) -> Medians:
        """Of the spans ``at`` places of the evidence."""
        tries: dict[tuple[str, str], np.ndarray] = {}
        for name in evidence.checkpoints:
            for of in SAMPLERS:
                logp = evidence.row(name, f"logp_{of}")[at]
                if not np.isnan(logp).any():
                    tries[name, of] = np.log10(np.minimum(n_p(logp), 10 * MOST))
        weights = group.weights(context)
        drawn = {
            key: median_replicates(weights, values, group.codes)
            for key, values in tries.items()
        }
        return cls(group, tries, drawn, context)

    def rows(self) -> list[Row]:
        """A row for each checkpoint and sampler."""
        return [
            Row.of_estimate(
                _tries(
                    median_estimate(
                        values, self.group.codes, replicates=self.drawn[name, of]
                    )
                ).noting(ONE_TOKENISATION),
                audit="extract",
                checkpoint=name,
                group=self.group.name,
                metric="n50_median",
                of=of,
                unit="tries",
            )
            for (name, of), values in self.tries.items()
        ]

    def contrasts(self) -> Iterator[Contrast]:
        """Differences of median log10 tries, with a test of the spans' own changes."""
        for name, baseline in self.context.baselines.items():
            for of in SAMPLERS:
                if {(name, of), (baseline, of)} <= {*self.tries}:
                    estimate, p = self._difference((name, of), (baseline, of))
                    yield Contrast.of_estimate(
                        estimate,
                        audit="extract",
                        checkpoint=name,
                        baseline=baseline,
                        group=self.group.name,
                        metric="n50_median",
                        of=of,
                        unit="log10 tries",
                        null=0.0,
                        p=p,
                    )

    def _difference(
        self, one: tuple[str, str], other: tuple[str, str]
    ) -> tuple[Estimate, float | None]:
        ours, theirs = self.tries[one], self.tries[other]
        clusters = self.group.size
        if clusters < 2:
            return Estimate.missing("only 1 cluster; an interval needs 2"), None
        medians = np.median(ours), np.median(theirs)
        if max(medians) > np.log10(MOST):
            reason = f"a median is more than {MOST:.0e} tries"
            return Estimate.missing(reason, n=len(ours), clusters=clusters), None
        value = float(medians[0] - medians[1])
        estimate = Estimate(value, n=len(ours), clusters=clusters)
        low, high = percentile_interval(self.drawn[one] - self.drawn[other])
        if high > low:
            estimate = estimate.between(low, high)
        apart = cluster_sums(ours - theirs, self.group.codes, clusters)
        if np.count_nonzero(apart) < 2:
            return estimate, None
        return estimate, sign_flip(apart, seed=self.context.seed)


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


def count_table(pii: pd.DataFrame) -> list[dict[str, Any]]:
    """Spans by the tries they need, of train and of test rows."""
    found: list[dict[str, Any]] = []
    for (name, split), part in pii.groupby(["checkpoint", "split"], sort=False):
        for of in ("t1", "top40", "cold"):
            logp = part[f"logp_{of}"].to_numpy(np.float64)
            counts = n_p_counts(n_p(logp))
            found.append(
                {
                    "checkpoint": name,
                    "rows": split,
                    "of": of,
                    "spans": len(part),
                    "greedy": int(part["greedy"].sum()),
                    "greedy_if_ties_lose": int(part["greedy_sure"].sum()),
                    **{f"n50_within_{most}": n for most, n in counts.items()},
                }
            )
    return found

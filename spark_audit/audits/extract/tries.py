"""Median numbers of tries of the extract audit, where some spans cannot be drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.extract.prompt_evidence import SAMPLERS
from spark_audit.audits.ratio_rows import Group
from spark_audit.results import Contrast, Estimate, Row
from spark_audit.results.evidence import Evidence
from spark_audit.stats.bootstrap import (
    cluster_sums,
    median_replicates,
    sign_flip,
)
from spark_audit.stats.intervals import median_estimate, percentile_interval
from spark_audit.stats.sampled_extraction import n_p, n_p_counts

MOST = 1e12
"""Tries beyond which a number of tries says no more than "more than that"."""

ONE_TOKENISATION = (
    "probability of one tokenisation after the true prefix; that of the text is at "
    "least as high, so fewer tries may be enough"
)


def medians(
    group: Group, evidence: Evidence, at: pd.Index, context: Context
) -> Iterator[Row]:
    """Median numbers of tries of the spans ``at`` places, and contrasts of them.

    Medians are taken of log10 tries, at most a little above :data:`MOST`, so that a
    span that cannot be drawn at all has a place in the order; contrasts are differences
    of these. All checkpoints are on the same resamples.
    """
    weights = group.weights(context)
    tries: dict[tuple[str, str], np.ndarray] = {}
    drawn: dict[tuple[str, str], np.ndarray] = {}
    columns = {"audit": "extract", "group": group.name, "metric": "n50_median"}
    for name, of in product(evidence.checkpoints, SAMPLERS):
        logp = evidence.row(name, f"logp_{of}")[at]
        if np.isnan(logp).any():
            continue
        values = tries[name, of] = np.log10(np.minimum(n_p(logp), 10 * MOST))
        replicates = median_replicates(weights, values, group.codes)
        drawn[name, of] = replicates
        found = _tries(median_estimate(values, group.codes, replicates=replicates))
        own = {"checkpoint": name, "of": of, "unit": "tries"}
        yield Row.of_estimate(found.noting(ONE_TOKENISATION), **columns, **own)
    for (name, baseline), of in product(context.baselines.items(), SAMPLERS):
        one, other = (name, of), (baseline, of)
        if {one, other} <= {*tries}:
            pair, replicates = (tries[one], tries[other]), drawn[one] - drawn[other]
            found, p = _difference(pair, group, replicates, seed=context.seed)
            own = {"checkpoint": name, "baseline": baseline, "of": of}
            test: dict[str, Any] = {"unit": "log10 tries", "null": 0.0, "p": p}
            yield Contrast.of_estimate(found, **columns, **own, **test)


def _difference(
    pair: tuple[np.ndarray, np.ndarray],
    group: Group,
    replicates: np.ndarray,
    *,
    seed: int,
) -> tuple[Estimate, float | None]:
    """Difference of two medians, with a test of the spans' own changes."""
    if group.size < 2:
        return Estimate.missing("only 1 cluster; an interval needs 2"), None
    counts: dict[str, Any] = {"n": len(pair[0]), "clusters": group.size}
    one, other = map(np.median, pair)
    if max(one, other) > np.log10(MOST):
        reason = f"a median is more than {MOST:.0e} tries"
        return Estimate.missing(reason, **counts), None
    estimate = Estimate(float(one - other), **counts)
    low, high = percentile_interval(replicates)
    if high > low:
        estimate = estimate.between(low, high)
    apart = cluster_sums(pair[0] - pair[1], group.codes, group.size)
    if np.count_nonzero(apart) < 2:
        return estimate, None
    return estimate, sign_flip(apart, seed=seed)


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

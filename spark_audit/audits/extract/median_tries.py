"""Median numbers of tries: how often sampling must try until an identifier comes out.

The number of tries of a span (``n50``) is the fewest in which it comes at least once
with probability one half (:func:`~spark_audit.stats.sampled_extraction.n_p`). Its
median over spans is computed on log10 tries: it is no ratio of sums, as other figures
of this audit are. Below 0, a difference of two medians is a leak: the checkpoint needs
fewer tries than its baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context
from spark_audit.audits.extract.prompts import ALL_SAMPLERS
from spark_audit.results import Contrast, Row
from spark_audit.results.evidence import Evidence
from spark_audit.stats.bootstrap import cluster_sums, median_replicates
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import median_estimate
from spark_audit.stats.percentiles import percentile_interval
from spark_audit.stats.sampled_extraction import n_p
from spark_audit.stats.sign_flips import sign_flip

MAX_N50 = 1e12
"""Larger numbers of tries are only stated as "more than this"."""

TRIES_BEYOND_BOUND = 10 * MAX_N50
"""Tries that stand for any larger number, and for endless ones, so that all have the
same place in the order, above :data:`MAX_N50`."""

ONE_TOKENISATION = (
    "probability of one tokenisation after the true prefix; that of the text is at "
    "least as high, so fewer tries may be enough"
)


@dataclass(frozen=True)
class MedianTries:
    """Numbers of tries of a group's spans at one checkpoint and sampler.

    Attributes
    ----------
    log_tries
        log10 tries, shape ``(spans,)``.
    replicates
        Median of log10 tries in each resample of clusters, shape ``(replicates,)``.
    """

    log_tries: np.ndarray
    replicates: np.ndarray


def medians(
    group: ratio_rows.UnitGroup,
    evidence: Evidence,
    context: Context,
    *,
    audit: type[Audit],
) -> tuple[list[Row], list[Contrast]]:
    """Return median numbers of tries of a group's spans, and contrasts of them.

    There are none of a checkpoint and sampler that was not scored. All checkpoints
    share the resamples, so that their differences are paired.

    Parameters
    ----------
    group
        The spans of a group of the report, and their clusters.
    audit
        The class of this audit.
    """
    weights = group.weights(context)
    rows: list[Row] = []
    tries: dict[tuple[str, str], MedianTries] = {}
    for name in evidence.checkpoints:
        for sampler in ALL_SAMPLERS:
            logp_of_units = evidence.row(name, f"logp_{sampler}")  # (units,), nats
            logp = logp_of_units[group.positions]  # (spans,), nats
            if np.isnan(logp).any():
                continue

            # A span that sampling never draws needs infinitely many tries, which a log
            # scale has not: set it beyond the bound.
            log_tries = np.log10(np.minimum(n_p(logp), TRIES_BEYOND_BOUND))
            replicates = median_replicates(weights, log_tries, group.codes)
            tries[name, sampler] = MedianTries(log_tries, replicates)

            # The interval is computed on the log scale and converted to tries.
            median = median_estimate(log_tries, group.codes, replicates=replicates)
            estimate = _in_tries(median).noting(ONE_TOKENISATION)
            rows.append(
                audit.row(estimate, name, "n50_median", sampler, group=group.name)
            )

    contrasts = []
    for name, baseline in context.baselines.items():
        for sampler in ALL_SAMPLERS:
            tries_of_checkpoint = tries.get((name, sampler))
            tries_of_baseline = tries.get((baseline, sampler))
            if tries_of_checkpoint is None or tries_of_baseline is None:
                continue
            contrast = _contrast_of_tries(
                group,
                name,
                baseline,
                sampler,
                tries_of_checkpoint,
                tries_of_baseline,
                context,
            )
            contrasts.append(contrast)
    return rows, contrasts


def _contrast_of_tries(
    group: ratio_rows.UnitGroup,
    name: str,
    baseline: str,
    sampler: str,
    tries: MedianTries,
    tries_of_baseline: MedianTries,
    context: Context,
) -> Contrast:
    """Return the difference of two medians of log10 tries, and its sign-flip test.

    Parameters
    ----------
    name, baseline
        Names of the checkpoint and of its baseline.
    tries, tries_of_baseline
        Of the same spans, those of the group.
    """
    difference = _difference(tries, tries_of_baseline, n_clusters=group.n_clusters)
    change = tries.log_tries - tries_of_baseline.log_tries  # (spans,)
    change_by_cluster = cluster_sums(change, group.codes, group.n_clusters)

    # A test needs several clusters that contribute to the difference.
    p = None
    if difference.value is not None and np.count_nonzero(change_by_cluster) > 1:
        p = sign_flip(change_by_cluster, seed=context.seed)
    return Contrast.of_estimate(
        difference,
        audit="extract",
        checkpoint=name,
        baseline=baseline,
        metric="n50_median",
        variant=sampler,
        group=group.name,
        unit="log10 tries",
        no_effect=0.0,
        p=p,
    )


def _difference(
    tries: MedianTries, tries_of_baseline: MedianTries, *, n_clusters: int
) -> Estimate:
    """Return the difference of two medians of log10 tries, with its interval.

    It is missing if a median is beyond the bound. ``n`` counts spans.
    """
    if n_clusters < 2:
        return Estimate.missing("only 1 cluster; an interval needs 2")

    # Of a median beyond the bound only the bound is known.
    n_spans = len(tries.log_tries)
    median = float(np.median(tries.log_tries))
    median_of_baseline = float(np.median(tries_of_baseline.log_tries))
    if max(median, median_of_baseline) > np.log10(MAX_N50):
        reason = f"a median is more than {MAX_N50:.0e} tries"
        return Estimate.missing(reason, n=n_spans, clusters=n_clusters)

    estimate = Estimate(median - median_of_baseline, n=n_spans, clusters=n_clusters)

    # If all resamples agree there is no interval.
    low, high = percentile_interval(tries.replicates - tries_of_baseline.replicates)
    if high <= low:
        return estimate
    return estimate.decided_by_percentiles(low, high)


def _in_tries(estimate: Estimate) -> Estimate:
    """Return an estimate of log10 tries as tries, none above :data:`MAX_N50`.

    The bound is a valid lower limit, but no upper limit:

    ===========================  ============  ======================  ===============
    what is beyond the bound     value         lower limit             upper limit
    ===========================  ============  ======================  ===============
    the value                    the bound     its own, at most the    none
                                               bound
    the upper limit alone        its own       its own                 none
    nothing                      its own       its own                 its own
    ===========================  ============  ======================  ===============

    An estimate without an interval has no limits, except that the bound is the lower
    limit of a value beyond it: all resamples equal the value.
    """
    value = _power_of_ten(estimate.value)
    low = _power_of_ten(estimate.low)
    high = _power_of_ten(estimate.high)
    if value is None:
        return estimate

    if value > MAX_N50:
        lower_limit = MAX_N50 if low is None else min(low, MAX_N50)
        at_bound = replace(estimate, value=MAX_N50).decided_by_percentiles(
            lower_limit, None
        )
        return at_bound.noting(
            f"more than {MAX_N50:.0e}: the value is that bound, with no upper limit"
        )

    in_tries = replace(estimate, value=value)
    if low is None:
        return in_tries
    if high is not None and high > MAX_N50:
        without_upper_limit = in_tries.decided_by_percentiles(min(low, MAX_N50), None)
        return without_upper_limit.noting(
            f"no upper limit: it is more than {MAX_N50:.0e}"
        )
    return in_tries.decided_by_percentiles(low, high)


def _power_of_ten(exponent: float | None) -> float | None:
    """Return 10 to a power; ``None`` of ``None``."""
    if exponent is None:
        return None
    return float(np.power(10.0, exponent))

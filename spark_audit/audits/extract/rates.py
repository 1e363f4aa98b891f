"""Rates of identifiers that are reproduced, and their differences.

Frames of this folder have one line per checkpoint and identifier (a *span* of a row of
text), or one per prompt of these. A rate is hits per trial, a share from 0 to 1. A
difference of rates is above 0 where trained identifiers are reproduced more often than
held-out ones or than by the base, which is a leak. Rows of one cluster are not
independent: hits and trials are summed by cluster, and clusters are the units of all
intervals and tests.

=====================  ==============================================================
column                 meaning
=====================  ==============================================================
checkpoint             name of the checkpoint
cluster                rows of one source or person
split                  ``train`` or ``test``; a test row was never trained on
type, origin           PII type; ``injected`` or natural
stratum                form and place of a natural identifier; below 0: not compared
dose                   trained rows that the identifier was read in
greedy_sure, greedy    hits without ties, and hits if ties for the first place are won
trials                 what a line can hit: 1, or the number of an identifier's parts
base_sure, base_won    ``greedy_sure`` and ``greedy`` of the base model on the same
                       line; NaN where it was not scored
weight                 weight of the identifier in a comparison of both splits
=====================  ==============================================================

Lines come from :func:`by_checkpoint`, those that can be compared from
:func:`comparable`. Then follow the difference of the splits, its tests, and the
difference from the base. What these could have missed stands in ``rate_limits.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.identifier_texts import counterparts
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.results.findings import Fact
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import rate_estimate, ratio_estimate
from spark_audit.stats.power import mde_normal
from spark_audit.stats.sign_flips import sign_flip

Facts: TypeAlias = dict[str, Fact]

NOT_COMPARED = (
    "not estimable: too few comparable identifiers were held out, or there is no base "
    "model on the same rows"
)

SPLITS = ("train", "test")
"""Values of ``split``, in the order of the first axis of arrays by split."""

LOWER_QUANTILE = 0.025
UPPER_QUANTILE = 0.975
"""Quantiles of a normal statistic at the two limits of a 95% interval."""

POINTS_OF_WHOLE = 100.0
"""Percentage points of a whole, and so the largest difference of two rates."""

NO_DIFFERENCE = Estimate(0.0, 0.0, 0.0)
"""Stands for the difference at the base if it was not scored."""


def row_of(estimate: Estimate, *, checkpoint: str, metric: str) -> Row:
    """Return a figure of this audit that only a finding shows."""
    return Row.of_estimate(
        estimate, audit="extract", checkpoint=checkpoint, metric=metric
    )


def by_checkpoint(pii: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the spans of each checkpoint, indexed by span, with the base's hits.

    Checkpoints have the order of the evidence. The columns ``base_sure`` and
    ``base_won`` are added; they are NaN for the base itself, which has none to be
    compared with.

    Parameters
    ----------
    pii
        Columns ``checkpoint``, ``span``, ``greedy_sure``, ``greedy``.
    """
    groups = pii.set_index("span").groupby("checkpoint", sort=False)
    spans_by_checkpoint = {str(name): spans for name, spans in groups}

    # Match the spans of the base by their number, which is the index.
    base = spans_by_checkpoint.get(BASE, pii[:0])
    base_hits = base[["greedy_sure", "greedy"]].astype(np.float64)
    base_hits.columns = pd.Index(["base_sure", "base_won"])
    no_hits = base_hits[:0]

    joined = {}
    for name, spans in spans_by_checkpoint.items():
        joined[name] = spans.join(no_hits if name == BASE else base_hits)
    return joined


def points(share: float | None) -> float | None:
    """Return a share from 0 to 1 in percentage points; a missing one stays missing."""
    return None if share is None else POINTS_OF_WHOLE * share


class ComparedSpans(NamedTuple):
    """Spans of both splits that are compared, with column ``weight``.

    ``is_alike`` says whether both splits were drawn alike, so that nothing but training
    can tell them apart.
    """

    spans: pd.DataFrame
    is_alike: bool


def comparable(spans: pd.DataFrame) -> ComparedSpans:
    """Return the spans of both splits that can be compared.

    Injected spans were drawn alike. If both splits have some, only these are compared.
    Otherwise natural spans are compared within types and strata (form and place), in
    which held-out spans get the weight of trained ones (column ``weight``). Spans whose
    text alone distinguishes the splits have no control.

    Parameters
    ----------
    spans
        Of one checkpoint: columns ``split``, ``origin``, ``type``, ``stratum`` and
        ``cluster``.
    """
    weighted = spans.assign(weight=1.0)
    injected = weighted[weighted["origin"] == "injected"]
    if set(injected["split"]) == set(SPLITS):
        return ComparedSpans(injected, is_alike=True)

    # A stratum has one type. Drop spans in strata without the other split. `side` is 1
    # for trained spans and 0 for held-out ones.
    natural = weighted[weighted["stratum"] >= 0]
    stratum = natural.groupby(["type", "stratum"], observed=True).ngroup()
    is_trained = natural["split"] == "train"
    with_side = natural.assign(side=is_trained.astype(int), stratum=stratum)
    compared = with_side[counterparts(with_side)]

    # Held-out spans get the total weight of the trained ones of their stratum, so that
    # both splits have the same mix of strata.
    is_held_out = compared["side"] == 0
    side_by_stratum = compared.groupby("stratum")["side"]
    n_trained = side_by_stratum.transform("sum")  # (spans,), of the span's stratum
    n_spans = side_by_stratum.transform("size")  # (spans,), of the span's stratum
    weight_in_stratum = n_trained / (n_spans - n_trained)

    # Their weights sum to their number, as an interval takes weights as trials.
    scale = is_held_out.sum() / max(int((~is_held_out).sum()), 1)
    weight = (weight_in_stratum * scale).where(is_held_out, 1.0)  # (spans,)
    return ComparedSpans(compared.assign(weight=weight), is_alike=False)


def split_difference(
    compared: pd.DataFrame, hit_column: str = "greedy_sure"
) -> Estimate:
    """Return the rate of trained minus that of held-out spans; above 0 is a leak.

    Its interval combines Wilson's intervals of both rates by method 10 of Newcombe
    (1998), which also holds if hardly anything is reproduced.

    Parameters
    ----------
    compared
        From :func:`comparable`, with column ``trials``.
    hit_column
        Column of hits: ``greedy_sure``, or ``base_sure`` for the base model.
    """
    # Method 10 assumes that the rates of both splits are independent.
    rates = []
    for split in SPLITS:
        hits, trials = weighted_sums(compared, hit_column, split)
        rates.append(rate_estimate(hits, trials))
    trained_rate, held_out_rate = rates
    return rate_difference(trained_rate, held_out_rate)


def weighted_sums(
    compared: pd.DataFrame, hit_column: str, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted hits and trials of one split, each of shape ``(clusters,)``."""
    weight = compared["weight"].to_numpy(np.float64)  # (spans,)
    hits_of_spans = weight * compared[hit_column].to_numpy(np.float64)
    trials_of_spans = weight * compared["trials"].to_numpy(np.float64)

    # Spans without a score of the base count in neither sum.
    is_of_split = (compared["split"] == split).to_numpy()
    is_counted = is_of_split & ~np.isnan(hits_of_spans)
    counts = np.stack([hits_of_spans, trials_of_spans], axis=1)  # (spans, 2)
    clusters = compared["cluster"].to_numpy()
    hits, trials = _sums_by_cluster(counts[is_counted], clusters[is_counted]).T
    return hits, trials


def _sums_by_cluster(counts: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Return sums of counts ``(spans, K)`` by cluster, shape ``(clusters, K)``.

    ``clusters``: shape ``(spans,)``, names. Sums are in the order of the names.
    """
    codes, _ = pd.factorize(clusters, sort=True)
    return cluster_sums(counts, codes)


def rate_difference(first: Estimate, second: Estimate) -> Estimate:
    """Return the first of two independent figures minus the second, with an interval.

    Figures are rates, or differences of rates: the result is cut to [-1, 1]. If one of
    them is missing, it is returned with its reason. For a difference and the same
    difference at the base, the interval is rather wide, since both come from the same
    rows and mostly agree.

    >>> rates = Estimate(0.5, 0.4, 0.7), Estimate(0.2, 0.1, 0.6)
    >>> difference = rate_difference(*rates)
    >>> round(difference.value, 3), round(difference.low, 3), round(difference.high, 3)
    (0.3, -0.112, 0.524)
    """
    for estimate in (first, second):
        if estimate.value is None:
            return estimate

    # Newcombe (1998), method 10: the limits of the difference of two independent rates.
    minuend = value_and_limits(first)
    subtrahend = value_and_limits(second)
    value = minuend.value - subtrahend.value
    below = math.hypot(minuend.value - minuend.low, subtrahend.high - subtrahend.value)
    above = math.hypot(minuend.high - minuend.value, subtrahend.value - subtrahend.low)

    # Half the width of a 95% interval is 1.96 standard errors.
    se = (below + above) / 2 / float(scipy.special.ndtri(UPPER_QUANTILE))
    value, low, high = np.clip([value, value - below, value + above], -1, 1).tolist()
    return Estimate(value, low, high, mde=min(1.0, mde_normal(se)))


class Interval95(NamedTuple):
    """A value with its 95% limits; NaN stands for what is missing."""

    value: float
    low: float
    high: float


def value_and_limits(estimate: Estimate) -> Interval95:
    """Return value, lower and upper limit; NaN stands for what is missing."""

    def known(number: float | None) -> float:
        """Return a number, or NaN for a missing one."""
        return math.nan if number is None else number

    return Interval95(
        value=known(estimate.value), low=known(estimate.low), high=known(estimate.high)
    )


def limits_p(difference: Estimate) -> float:
    """Return the two-sided p of no difference: 0.05 if a limit of the interval is 0.

    The half of the interval that points to 0 is read as 1.96 standard errors of a
    normal statistic.

    >>> round(limits_p(Estimate(0.3, low=0.0, high=0.5)), 6)
    0.05
    """
    value, low, high = value_and_limits(difference)
    half_width = value - low if value > 0 else high - value

    # If the interval has no width on that side, the value itself decides.
    if not half_width:
        return float(value == 0)

    # Minus the distance of the value from 0 in standard errors, since the quantile is
    # -1.96. Twice the tail below it is p.
    quantile = scipy.special.ndtri(LOWER_QUANTILE) * abs(value / half_width)
    return float(2 * scipy.special.ndtr(quantile))


def exact_p(compared: pd.DataFrame) -> float:
    """Return Fisher's two-sided p that clusters of both splits have hits equally often.

    Parameters
    ----------
    compared
        From :func:`comparable`: columns ``split``, ``cluster``, ``greedy_sure``.
    """
    return float(scipy.stats.fisher_exact(counts_of_clusters(compared)).pvalue)


def counts_of_clusters(compared: pd.DataFrame) -> np.ndarray:
    """Return the number of clusters by split and outcome, shape ``(2, 2)``.

    First axis: trained, held-out. Second axis: with a hit, without one.
    """
    # A cluster counts once, however many hits it has.
    has_hit = compared.groupby(["split", "cluster"])["greedy_sure"].any()
    by_split = has_hit.groupby("split").agg(["sum", "size"])
    counts = by_split.reindex([*SPLITS], fill_value=0)

    with_hit = counts["sum"].to_numpy(np.int64)  # (splits,)
    n_clusters = counts["size"].to_numpy(np.int64)  # (splits,)
    return np.stack([with_hit, n_clusters - with_hit], axis=1)


def comparison_p(difference: Estimate, compared: pd.DataFrame) -> float:
    """Return the two-sided p of no difference of the splits, by two tests that agree.

    The interval is approximate with few hits, so Fisher's exact test must agree
    (:func:`limits_p`, :func:`exact_p`). The difference at the base is subtracted before
    the first one alone: if the two point in opposite directions, p is 1. Trained spans
    are else called reproduced more often, because the base reproduced held-out ones
    more often still.

    Parameters
    ----------
    difference
        Rate of trained minus rate of held-out spans, less the same at the base.
    compared
        From :func:`comparable`.
    """
    (trained_hits, trained_misses), (other_hits, other_misses) = counts_of_clusters(
        compared
    ).tolist()
    # Above 0 if a larger share of trained than of held-out clusters has a hit.
    direction = trained_hits * other_misses - other_hits * trained_misses
    if direction * (difference.value or 0.0) < 0:
        return 1.0
    return max(limits_p(difference), exact_p(compared))


class ClusterHits(NamedTuple):
    """Hits of a checkpoint and of the base on the same spans, each ``(clusters,)``.

    Ties count against a finding: the checkpoint loses its own, and the base wins them.
    """

    checkpoint: np.ndarray
    """Hits without ties."""
    base: np.ndarray
    """Hits with ties."""
    trials: np.ndarray
    """Identifiers, or their parts."""

    @property
    def gain(self) -> np.ndarray:
        """Hits beyond those of the base, shape ``(clusters,)``; above 0 is a leak."""
        return np.asarray(self.checkpoint - self.base)


def hits_next_to_base(train: pd.DataFrame) -> ClusterHits:
    """Return hits by cluster, of the checkpoint and of the base.

    Parameters
    ----------
    train
        Spans of trained rows that the base was scored on.
    """
    counts = train[["greedy_sure", "base_won", "trials"]].to_numpy(np.float64)
    return ClusterHits(*_sums_by_cluster(counts, train["cluster"].to_numpy()).T)


def difference_from_base(
    spans: pd.DataFrame, *, seed: int
) -> tuple[Estimate, float | None]:
    """Return the rate minus that of the base on the same train rows, and its p.

    p is two-sided; ``None``: the base was not scored on all of these rows.

    Parameters
    ----------
    spans
        Of one checkpoint, from :func:`by_checkpoint`.
    """
    train = spans[spans["split"] == "train"]
    if train["base_won"].isna().any():
        return Estimate.missing(NOT_COMPARED), None

    hits = hits_next_to_base(train)
    mean_gain = ratio_estimate(hits.gain, hits.trials, bounds=(-1.0, 1.0))
    if mean_gain.se is None:
        # Where all clusters agree, the exact limits of both rates stand in for it.
        difference = rate_difference(
            rate_estimate(hits.checkpoint, hits.trials),
            rate_estimate(hits.base, hits.trials),
        )
    else:
        mde = min(1.0, mde_normal(mean_gain.se))
        difference = Estimate(mean_gain.value, mean_gain.low, mean_gain.high, mde=mde)
    if difference.value is None:
        return difference, None

    # An interval of few events is too narrow by itself: the exact test must agree.
    flip_p = 1.0
    if np.count_nonzero(hits.gain) > 1:
        flip_p = sign_flip(hits.gain, seed=seed)
    return difference, max(flip_p, limits_p(difference))


def difference_beyond_base(
    spans: pd.DataFrame, *, seed: int, whole: bool
) -> tuple[Estimate, float | None]:
    """Return the difference from held-out rows, beyond the base's, and its p.

    Without held-out rows it is that from the base; without either it is missing, and p
    is ``None``. The table of prompts reads it.

    Parameters
    ----------
    spans
        Of one checkpoint, from :func:`by_checkpoint`.
    whole
        Whether trials are whole identifiers, which Fisher's test counts.
    """
    # Prompts that ask for trained identifiers alone have the base to compare with.
    if "test" not in set(spans["split"]):
        return difference_from_base(spans, seed=seed)

    compared, _ = comparable(spans)
    difference = rate_difference(split_difference(compared), base_difference(compared))
    if difference.value is None:
        return difference, None

    if whole:
        return difference, comparison_p(difference, compared)
    return difference, limits_p(difference)


def is_scored_beside_base(spans: pd.DataFrame) -> bool:
    """Return whether spans of another checkpoint have scores of the base beside them.

    The column ``base_won`` has them. It is NaN for the base itself, so this is false.
    """
    return bool(spans["base_won"].notna().any())


def base_difference(compared: pd.DataFrame) -> Estimate:
    """Return how far the rates of both splits differ at the base, without training.

    Parameters
    ----------
    compared
        From :func:`comparable`; 0 without a base.
    """
    if not is_scored_beside_base(compared):
        return NO_DIFFERENCE
    return split_difference(compared, "base_sure")

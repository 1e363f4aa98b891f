"""Rates of identifiers that are reproduced, and their differences.

Frames of this folder have one line per checkpoint and identifier (a *span* of a row of
text), or one per prompt of these. A rate is hits per trial, and a difference of rates
is above 0 where trained identifiers are reproduced more often, which is a leak.

=====================  ==============================================================
column                 meaning
=====================  ==============================================================
checkpoint, cluster    name of the checkpoint; rows of one source
split                  ``train`` or ``test``; a test row was never trained on
type, origin           PII type; ``injected`` or natural
stratum                form and place of a natural identifier; below 0: not compared
dose                   trained rows that the identifier was read in
greedy_sure, greedy    hits without ties, and hits if ties for the first place are won
trials                 of how many; 1 for a whole identifier, more for its parts
base_sure, base_won    the same hits of the base model; NaN where it was not scored
weight                 weight of the identifier in a comparison of both splits
=====================  ==============================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.identifier_texts import counterparts
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.results.findings import Fact
from spark_audit.stats.at_most import rate_side, t_bound
from spark_audit.stats.estimate import Bound, Estimate, Power, RateSide, side_of
from spark_audit.stats.intervals import rate_estimate, ratio_estimate
from spark_audit.stats.power import mde_normal
from spark_audit.stats.sign_flips import sign_flip

Facts: TypeAlias = dict[str, Fact]

NOT_COMPARED = (
    "not estimable: too few comparable identifiers were held out, or there is no base "
    "model on the same rows"
)

CONFIDENCE = 0.95
"""Confidence level of all intervals; 1 minus it is the level of all tests."""

SPLITS = ("train", "test")

LOWER_QUANTILE = 0.025
UPPER_QUANTILE = 0.975
"""Quantiles of a normal statistic at the two limits of a 95% interval."""

POINTS_OF_WHOLE = 100.0
"""Percentage points of a whole, and so the largest difference of two rates."""

MIN_ENUMERATED_P = 1e-7
"""Stop enumerating once p is below this value: no report asks for less."""

NO_DIFFERENCE = Estimate(0.0, 0.0, 0.0)
"""Stands for the difference at the base if it was not scored."""


def row_of(estimate: Estimate, *, checkpoint: str, metric: str) -> Row:
    """Return a figure of this audit that only a finding shows."""
    return Row.of_estimate(
        estimate, audit="extract", checkpoint=checkpoint, metric=metric
    )


def by_checkpoint(pii: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the spans of each checkpoint, indexed by span, with the base's hits.

    The order is that of the evidence. The columns ``base_sure`` and ``base_won`` are
    added; they are NaN for the base itself.

    Parameters
    ----------
    pii
        Columns ``checkpoint``, ``span``, ``greedy_sure``, ``greedy``.
    """
    groups = pii.set_index("span").groupby("checkpoint", sort=False)
    spans_by_checkpoint = {str(name): spans for name, spans in groups}

    # Match the spans of the base by their number.
    base = spans_by_checkpoint.get(BASE, pii[:0])
    base_hits = base[["greedy_sure", "greedy"]].astype(np.float64)
    base_hits.columns = pd.Index(["base_sure", "base_won"])
    no_hits = base_hits[:0]

    joined = {}
    for name, spans in spans_by_checkpoint.items():
        joined[name] = spans.join(no_hits if name == BASE else base_hits)
    return joined


def points(share: float | None) -> float | None:
    """Return a share in percentage points; a missing one stays missing."""
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

    # A stratum has one type. Drop spans in strata without the other split.
    natural = weighted[weighted["stratum"] >= 0]
    stratum = natural.groupby(["type", "stratum"], observed=True).ngroup()
    is_trained = natural["split"] == "train"
    with_side = natural.assign(side=is_trained.astype(int), stratum=stratum)
    compared = with_side[counterparts(with_side)]

    # Held-out spans get the total weight of the trained ones of their stratum, and all
    # their weights together then sum to their number.
    is_held_out = compared["side"] == 0
    side_by_stratum = compared.groupby("stratum")["side"]
    n_trained = side_by_stratum.transform("sum")  # (spans,)
    n_spans = side_by_stratum.transform("size")  # (spans,)
    scale = is_held_out.sum() / max(int((~is_held_out).sum()), 1)
    held_out_weight = n_trained / (n_spans - n_trained) * scale
    weight = held_out_weight.where(is_held_out, 1.0)
    return ComparedSpans(compared.assign(weight=weight), is_alike=False)


def split_difference(compared: pd.DataFrame, hits: str = "greedy_sure") -> Estimate:
    """Return the rate of trained minus that of held-out spans; above 0 is a leak.

    Its interval combines Wilson's intervals of both rates by method 10 of Newcombe
    (1998), which also holds if hardly anything is reproduced.

    Parameters
    ----------
    compared
        From :func:`comparable`, with column ``trials``.
    hits
        Column of hits: ``greedy_sure``, or ``base_sure`` for the base model.
    """
    # Method 10 assumes that the rates of both splits are independent.
    rates = []
    for split in SPLITS:
        events, trials = _weighted_sums(compared, hits, split)
        rates.append(rate_estimate(events, trials))
    return rate_difference(*rates)


def _weighted_sums(
    compared: pd.DataFrame, hits: str, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted hits and trials of one split, each of shape ``(clusters,)``."""
    # Spans without a score of the base count in neither sum.
    counts = compared[[hits, "trials"]].dropna().mul(compared["weight"], axis=0)
    of_split = counts[compared["split"] == split]
    sums = of_split.groupby(compared["cluster"]).sum()  # (clusters, 2)
    events, trials = sums.to_numpy(np.float64).T
    return events, trials


def rate_difference(first: Estimate, second: Estimate) -> Estimate:
    """Return the difference of two independent figures, its interval from theirs.

    The result is within [-1, 1], the range of differences of rates. For a difference
    and the same difference at the base, the interval is rather wide, since both come
    from the same rows and mostly agree.

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

    # Half the width of a 95 % interval is 1.96 standard errors.
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

    The half of the interval that points to 0 is read as 1.96 standard errors.
    """
    value, low, high = value_and_limits(difference)
    half_width = value - low if value > 0 else high - value

    # If the interval has no width on that side, the value itself decides.
    if not half_width:
        return float(value == 0)

    # Half the interval is 1.96 standard errors; the value in these is made negative.
    quantile = scipy.special.ndtri(LOWER_QUANTILE) * abs(value / half_width)
    return float(2 * scipy.special.ndtr(quantile))


def exact_p(compared: pd.DataFrame) -> float:
    """Return Fisher's two-sided p that clusters of both splits have hits equally often.

    Parameters
    ----------
    compared
        From :func:`comparable`: columns ``split``, ``cluster``, ``greedy_sure``.
    """
    return float(scipy.stats.fisher_exact(_returning_clusters(compared)).pvalue)


def _returning_clusters(compared: pd.DataFrame) -> np.ndarray:
    """Return clusters by split and outcome, shape ``(2, 2)``.

    Rows: trained and held-out clusters. Columns: clusters with and without a hit.
    """
    # A cluster counts once, however many hits it has.
    has_hit = compared.groupby(["split", "cluster"])["greedy_sure"].any()
    by_split = has_hit.groupby("split").agg(["sum", "size"])
    counts = by_split.reindex([*SPLITS], fill_value=0)

    with_hit = counts["sum"].to_numpy(np.int64)  # (splits,)
    n_clusters = counts["size"].to_numpy(np.int64)  # (splits,)
    return np.stack([with_hit, n_clusters - with_hit], axis=1)


def hits_power(compared: pd.DataFrame, base: Estimate = NO_DIFFERENCE) -> Power:
    """Return the inputs for the smallest difference that both tests detect.

    The inputs are the p of 1, 2, ... trained clusters with a hit, at the observed
    number of held-out clusters with one. Each cluster counts as one identifier. Each p
    is the larger one of Fisher's test and of the interval of the difference less that
    of the base.

    Parameters
    ----------
    compared
        From :func:`comparable`.
    base
        The difference at the base model, from :func:`base_difference`.
    """
    counts = _returning_clusters(compared)  # (2, 2)
    n_trained, n_held_out = counts.sum(axis=1).tolist()
    held_out_hits = int(counts[1, 0])
    held_out_rate = _rate_of_clusters(held_out_hits, n_held_out)

    ps: list[float] = []
    for trained_hits in range(1, n_trained + 1):
        if ps and ps[-1] < MIN_ENUMERATED_P:
            break

        # The test by interval comes first: if it claims nothing, Fisher's is not
        # needed.
        trained_rate = _rate_of_clusters(trained_hits, n_trained)
        difference = rate_difference(trained_rate, held_out_rate)
        beyond_base = rate_difference(difference, base)
        if side_of(beyond_base) != 1:
            ps.append(1.0)
            continue

        table = np.array(
            [
                [trained_hits, n_trained - trained_hits],
                [held_out_hits, n_held_out - held_out_hits],
            ]
        )
        fisher_p = float(scipy.stats.fisher_exact(table).pvalue)
        ps.append(max(limits_p(beyond_base), fisher_p))

    # A rate up to that of held-out spans plus the base's difference is no evidence.
    null = held_out_hits / n_held_out + (base.value or 0.0)
    return Power(
        test="hits",
        n=n_trained,
        ps=ps,
        most=POINTS_OF_WHOLE,
        beyond=POINTS_OF_WHOLE * null,
    )


def _rate_of_clusters(n_hits: int, n_clusters: int) -> Estimate:
    """Return the rate of clusters with a hit; each cluster is one trial."""
    return rate_estimate(np.arange(n_clusters) < n_hits, np.ones(n_clusters))


class ClusterHits(NamedTuple):
    """Hits of a checkpoint and of the base on the same spans, each ``(clusters,)``."""

    checkpoint: np.ndarray
    """Without ties."""
    base: np.ndarray
    """With ties: neither side's ties make a finding."""
    trials: np.ndarray
    """Identifiers, or their parts."""


def _hits_next_to_base(train: pd.DataFrame) -> ClusterHits:
    """Return hits by cluster, of the checkpoint and of the base.

    Parameters
    ----------
    train
        Spans of trained rows that the base was scored on.
    """
    counts = train[["greedy_sure", "base_won", "trials"]]
    sums = counts.groupby(train["cluster"]).sum()  # (clusters, 3)
    return ClusterHits(*sums.to_numpy(np.float64).T)


def difference_from_base(
    spans: pd.DataFrame, *, seed: int
) -> tuple[Estimate, float | None]:
    """Return the difference from the base on the same train rows, and its p.

    Parameters
    ----------
    spans
        Of one checkpoint, from :func:`by_checkpoint`.
    """
    train = spans[spans["split"] == "train"]
    if train["base_won"].isna().any():
        return Estimate.missing(NOT_COMPARED), None

    hits = _hits_next_to_base(train)
    gain = hits.checkpoint - hits.base  # (clusters,), above 0 is a leak
    mean_gain = ratio_estimate(gain, hits.trials, bounds=(-1.0, 1.0))
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
    p = 1.0
    if np.count_nonzero(gain) > 1:
        p = sign_flip(gain, seed=seed)
    return difference, max(p, limits_p(difference))


def rates_bound(compared: pd.DataFrame) -> list[Bound]:
    """Return the inputs of the largest difference that could still be there, in points.

    It is that of trained and held-out spans, less that of the base where it was scored.

    Parameters
    ----------
    compared
        From :func:`comparable`.
    """
    sides = _rate_sides(compared, "greedy_sure", sign=1)
    if has_base(compared):
        sides += _rate_sides(compared, "base_sure", sign=-1)
    return _bound_of(sides)


def _rate_sides(compared: pd.DataFrame, hits: str, *, sign: int) -> list[RateSide]:
    """Return the rates of both splits, as :func:`split_difference` has them.

    Parameters
    ----------
    sign
        That of the difference of trained minus held-out spans.
    """
    # Trained spans add to the difference, held-out ones subtract from it.
    sides = []
    for split, split_sign in zip(SPLITS, (sign, -sign), strict=True):
        events, trials = _weighted_sums(compared, hits, split)
        side = rate_side(events, trials, sign=split_sign)
        if side is not None:
            sides.append(side)
    return sides


def base_bound(spans: pd.DataFrame, difference: Estimate) -> list[Bound]:
    """Return the inputs of the largest difference from the base, in points.

    Parameters
    ----------
    spans
        Of one checkpoint, from :func:`by_checkpoint`.
    difference
        From :func:`difference_from_base`.
    """
    if difference.value is None:
        return []

    hits = _hits_next_to_base(spans[spans["split"] == "train"])
    gain = hits.checkpoint - hits.base  # (clusters,), above 0 is a leak
    if ratio_estimate(gain, hits.trials).se is not None:
        n_clusters = int(np.count_nonzero(hits.trials))
        return t_bound(
            POINTS_OF_WHOLE * difference.value,
            points(difference.high),
            df=n_clusters - 1,
            most=POINTS_OF_WHOLE,
        )

    # Where all clusters agree, the exact limits of both rates stand in for it.
    sides = [
        rate_side(hits.checkpoint, hits.trials, sign=1),
        rate_side(hits.base, hits.trials, sign=-1),
    ]
    return _bound_of([side for side in sides if side is not None])


def _bound_of(sides: Sequence[RateSide]) -> list[Bound]:
    """Return the bound of a sum and difference of rates, in points."""
    if not sides:
        return []
    value = POINTS_OF_WHOLE * sum(side.sign * side.share for side in sides)
    return [Bound(test="rates", value=value, rates=list(sides), most=POINTS_OF_WHOLE)]


def difference_beyond_base(
    spans: pd.DataFrame, *, seed: int, whole: bool
) -> tuple[Estimate, float | None]:
    """Return the difference from held-out rows, beyond the base's, and its p.

    Without held-out rows it is that from the base; without either it is missing.

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

    # Both tests must agree: the interval is approximate where few are reproduced.
    p = limits_p(difference)
    if whole:
        p = max(p, exact_p(compared))
    return difference, p


def has_base(spans: pd.DataFrame) -> bool:
    """Return whether the base was scored on some spans (column ``base_won``).

    It is false for the base itself, whose column is NaN.
    """
    return bool(spans["base_won"].notna().any())


def base_difference(compared: pd.DataFrame) -> Estimate:
    """Return how far the rates of both splits differ at the base, without training.

    Parameters
    ----------
    compared
        From :func:`comparable`; 0 without a base.
    """
    if not has_base(compared):
        return NO_DIFFERENCE
    return split_difference(compared, "base_sure")

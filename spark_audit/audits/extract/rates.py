"""Shares of identifiers that come back, and their differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.identifiers import counterparts
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.results.findings import Fact
from spark_audit.stats.at_most import rate_side, t_bound
from spark_audit.stats.bootstrap import sign_flip
from spark_audit.stats.estimate import Bound, Estimate, Power, RateSide, side_of
from spark_audit.stats.intervals import rate_estimate, ratio_estimate
from spark_audit.stats.power import mde_normal

Facts: TypeAlias = dict[str, Fact]

NOT_COMPARED = (
    "not estimable: too few comparable identifiers were held out, or there is no base "
    "model on the same rows"
)

CONFIDENCE = 0.95

SPLITS = ("train", "test")

MIN_ENUMERATED_P = 1e-7
"""Stop enumerating once p is below this value: no report asks for less."""

NO_DIFFERENCE = Estimate(0.0, 0.0, 0.0)
"""The difference at a base that was not scored."""


def row_of(estimate: Estimate, *, checkpoint: str, metric: str) -> Row:
    """Return a figure of this audit that only a finding shows."""
    return Row.of_estimate(
        estimate, audit="extract", checkpoint=checkpoint, metric=metric
    )


def by_checkpoint(pii: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Spans of each checkpoint in the order of the evidence, and the base's on them.

    ``greedy_sure`` and ``greedy`` count what came back, surely and if ties are won, of
    so many ``trials``; ``base_sure`` and ``base_won`` are those of the base on the same
    spans, NaN of the base itself and where it was not scored.
    """
    groups = pii.set_index("span").groupby("checkpoint", sort=False)
    found = {str(name): part for name, part in groups}
    base = found.get(BASE, pii[:0])[["greedy_sure", "greedy"]].astype(np.float64)
    base.columns = pd.Index(["base_sure", "base_won"])
    return {k: part.join(base[:0] if k == BASE else base) for k, part in found.items()}


def comparable(spans: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The spans of both splits that are compared; whether both were drawn alike.

    Those that were not are compared within types and strata (form and place), of which
    held-out spans weigh as much as trained ones (column ``weight``). Spans that text
    alone tells apart have no control.
    """
    chosen = spans.assign(weight=1.0)
    injected = chosen[chosen["origin"] == "injected"]
    if {*injected["split"]} == {*SPLITS}:
        return injected, True
    chosen = chosen[chosen["stratum"] >= 0]
    both = chosen.assign(
        side=(chosen["split"] == "train").astype(int),
        stratum=chosen.groupby(["type", "stratum"], observed=True).ngroup(),
    )
    both = both[counterparts(both)]
    held = both["side"] == 0
    ours, size = (both.groupby("stratum")["side"].transform(k) for k in ("sum", "size"))
    scale = held.sum() / max(int((~held).sum()), 1)
    weight = (ours / (size - ours) * scale).where(held, 1.0)
    return both.assign(weight=weight), False


def splits_apart(chosen: pd.DataFrame, hits: str = "greedy_sure") -> Estimate:
    """Difference of the rates of trained and held-out spans that are compared.

    Its interval combines those of both rates as method 10 of Newcombe (1998) does with
    Wilson's, which keeps it honest where next to nothing comes back.
    """
    counts = chosen[[hits, "trials"]].dropna().mul(chosen["weight"], axis=0)
    sides = (counts[chosen["split"] == split] for split in SPLITS)
    sums = (side.groupby(chosen["cluster"]).sum() for side in sides)
    return minus(*(rate_estimate(*side.to_numpy(np.float64).T) for side in sums))


def minus(first: Estimate, second: Estimate) -> Estimate:
    """Return the difference of two independent figures, its interval from theirs.

    Within [-1, 1], as differences of rates are. Of a difference and the base's own,
    which are of the same rows and mostly agree, the interval is rather wide.

    >>> rates = Estimate(0.5, 0.4, 0.7), Estimate(0.2, 0.1, 0.6)
    >>> apart = minus(*rates)
    >>> round(apart.value, 3), round(apart.low, 3), round(apart.high, 3)
    (0.3, -0.112, 0.524)
    """
    for estimate in (first, second):
        if estimate.value is None:
            return estimate

    # Newcombe (1998), method 10: the limits of the difference of two independent rates.
    first_value, first_low, first_high = value_and_limits(first)
    second_value, second_low, second_high = value_and_limits(second)
    value = first_value - second_value
    below = math.hypot(first_value - first_low, second_high - second_value)
    above = math.hypot(first_high - first_value, second_value - second_low)

    # Half the width of a 95 % interval is 1.96 standard errors.
    se = (below + above) / 2 / float(scipy.special.ndtri(0.975))
    value, low, high = np.clip([value, value - below, value + above], -1, 1).tolist()
    return Estimate(value, low, high, mde=min(1.0, mde_normal(se)))


def value_and_limits(estimate: Estimate) -> tuple[float, float, float]:
    """Return value, lower and upper limit; NaN stands for what is missing."""
    value, low, high = (
        math.nan if end is None else end
        for end in (estimate.value, estimate.low, estimate.high)
    )
    return value, low, high


def limits_p(apart: Estimate) -> float:
    """Two-sided p of no difference: 0.05 where a limit of the interval is 0.

    By the half of the interval that points to 0, as if it were a normal one.
    """
    value, low, high = value_and_limits(apart)
    half_width = value - (low if value > 0 else high)
    if not half_width:
        return 1.0 if value == 0 else 0.0
    quantile = scipy.special.ndtri(0.025) * abs(value / half_width)
    return float(2 * scipy.special.ndtr(quantile))


def exact_p(chosen: pd.DataFrame) -> float:
    """Fisher's two-sided p that clusters of train and test rows return as often."""
    return float(scipy.stats.fisher_exact(_returning(chosen)).pvalue)


def _returning(chosen: pd.DataFrame) -> np.ndarray:
    """Clusters of train and of test rows: those that return, and the others."""
    back = chosen.groupby(["split", "cluster"])["greedy_sure"].any()
    counts = back.groupby("split").agg(["sum", "size"]).reindex([*SPLITS], fill_value=0)
    return counts.assign(size=counts["size"] - counts["sum"]).to_numpy(np.int64)


def hits_power(chosen: pd.DataFrame, base: Estimate = NO_DIFFERENCE) -> Power:
    """What the smallest difference follows from that both tests of it detect.

    p of 1, 2, ... clusters of trained rows that come back next to the held-out ones
    that do, each cluster one identifier: the interval's (beyond the base's own
    difference, as it is) or Fisher's, whichever is larger.
    """
    counts = _returning(chosen)
    (n, m), held = counts.sum(axis=1).tolist(), int(counts[1, 0])
    ps: list[float] = []
    for k in range(1, n + 1):
        if ps and ps[-1] < MIN_ENUMERATED_P:
            break
        rates = (
            rate_estimate(np.arange(size) < won, np.ones(size))
            for size, won in ((n, k), (m, held))
        )
        apart = minus(minus(*rates), base)
        if side_of(apart) != 1:
            ps.append(1.0)
            continue
        counts = np.array([[k, n - k], [held, m - held]])
        ps.append(max(limits_p(apart), float(scipy.stats.fisher_exact(counts).pvalue)))
    null = held / m + (base.value or 0.0)
    return Power(test="hits", n=n, ps=ps, most=100.0, beyond=100 * null)


def against_base(spans: pd.DataFrame, *, seed: int) -> tuple[Estimate, float | None]:
    """Difference from the base on the same train rows, and its p.

    Hits of the checkpoint are those that are sure, of the base those that ties may win:
    neither side's ties make a finding.
    """
    train = spans[spans["split"] == "train"]
    if train["base_won"].isna().any():
        return Estimate.missing(NOT_COMPARED), None
    sums = train[["greedy_sure", "base_won", "trials"]].groupby(train["cluster"]).sum()
    ours, theirs, trials = sums.to_numpy(np.float64).T
    found = ratio_estimate(ours - theirs, trials, bounds=(-1.0, 1.0))
    if found.se is None:
        # Where all clusters agree, the exact limits of both rates stand in for it.
        apart = minus(rate_estimate(ours, trials), rate_estimate(theirs, trials))
    else:
        least = min(1.0, mde_normal(found.se))
        apart = Estimate(found.value, found.low, found.high, mde=least)
    if apart.value is None:
        return apart, None
    # An interval of few events is too narrow by itself: the exact test must agree.
    several = np.count_nonzero(ours - theirs) > 1
    p = sign_flip(ours - theirs, seed=seed) if several else 1.0
    return apart, max(p, limits_p(apart))


def rates_bound(chosen: pd.DataFrame) -> list[Bound]:
    """Return what the largest difference follows from that could still be there.

    Of trained and held-out spans that are compared, less that of the base where it was
    scored: in points.
    """
    sides = _rate_sides(chosen, "greedy_sure", sign=1)
    if has_base(chosen):
        sides += _rate_sides(chosen, "base_sure", sign=-1)
    return _bound_of(sides)


def _rate_sides(chosen: pd.DataFrame, hits: str, *, sign: int) -> list[RateSide]:
    """Return the rates of trained and held-out spans, as :func:`splits_apart` has them.

    ``sign`` is that of the difference of trained minus held-out ones.
    """
    counts = chosen[[hits, "trials"]].dropna().mul(chosen["weight"], axis=0)
    sides = []
    for split, own_sign in zip(SPLITS, (sign, -sign), strict=True):
        of_split = counts[chosen["split"] == split]
        sums = of_split.groupby(chosen["cluster"]).sum()  # (clusters, 2)
        events, trials = sums.to_numpy(np.float64).T
        side = rate_side(events, trials, sign=own_sign)
        if side is not None:
            sides.append(side)
    return sides


def base_bound(spans: pd.DataFrame, apart: Estimate) -> list[Bound]:
    """Return what the largest difference from the base follows from, in points.

    Parameters
    ----------
    apart
        The difference, from :func:`against_base`.
    """
    if apart.value is None:
        return []
    train = spans[spans["split"] == "train"]
    sums = train[["greedy_sure", "base_won", "trials"]].groupby(train["cluster"]).sum()
    ours, theirs, trials = sums.to_numpy(np.float64).T
    if ratio_estimate(ours - theirs, trials).se is not None:
        n_clusters = int(np.count_nonzero(trials))
        return t_bound(
            100 * apart.value,
            None if apart.high is None else 100 * apart.high,
            df=n_clusters - 1,
            most=100.0,
        )

    # Where all clusters agree, the exact limits of both rates stand in for it.
    sides = [rate_side(ours, trials, sign=1), rate_side(theirs, trials, sign=-1)]
    return _bound_of([side for side in sides if side is not None])


def _bound_of(sides: Sequence[RateSide]) -> list[Bound]:
    """Return the bound of a sum and difference of rates, in points."""
    if not sides:
        return []
    value = 100 * sum(side.sign * side.share for side in sides)
    return [Bound(test="rates", value=value, rates=list(sides), most=100.0)]


def beyond(
    spans: pd.DataFrame, *, seed: int, whole: bool
) -> tuple[Estimate, float | None]:
    """Difference from held-out rows, beyond the base's own, and its p.

    Without held-out rows from the base, without either none.
    """
    if "test" not in {*spans["split"]}:
        return against_base(spans, seed=seed)
    chosen, _ = comparable(spans)
    apart = minus(splits_apart(chosen), base_apart(chosen))
    if apart.value is None:
        return apart, None
    return apart, max(limits_p(apart), exact_p(chosen) if whole else 0.0)


def has_base(spans: pd.DataFrame) -> bool:
    """Whether the base was scored on some of a checkpoint's spans, not its own."""
    return bool(spans["base_won"].notna().any())


def base_apart(chosen: pd.DataFrame) -> Estimate:
    """How far both splits lie apart at the base: without training, by themselves."""
    return splits_apart(chosen, "base_sure") if has_base(chosen) else NO_DIFFERENCE

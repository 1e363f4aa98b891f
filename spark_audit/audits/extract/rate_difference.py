"""How far rates of extraction lie apart: train and test rows, or two checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.strata import counterparts
from spark_audit.names import BASE
from spark_audit.results.findings import Power
from spark_audit.stats.bootstrap import sign_flip
from spark_audit.stats.intervals import rate_estimate, ratio_estimate
from spark_audit.stats.power import mde_normal

SPLITS = ("train", "test")


class Apart(NamedTuple):
    """A rate, or a difference of two: interval and smallest detectable effect."""

    value: float
    low: float
    high: float
    mde: float

    @property
    def p(self) -> float:
        """Two-sided p of no difference: 0.05 where a limit of the interval is 0.

        By the half of the interval that points to 0, as if it were a normal one.
        """
        reach = self.value - (self.low if self.value > 0 else self.high)
        if not reach:
            return 1.0 if self.value == 0 else 0.0
        return float(
            2 * scipy.special.ndtr(scipy.special.ndtri(0.025) * abs(self.value / reach))
        )


class Hits(NamedTuple):
    """Columns of what came back: surely, if ties are won, and of how many."""

    sure: str
    won: str
    trials: str


EXACT = Hits("greedy_sure", "greedy", "one")
"""Whole identifiers; each span is one trial."""
PARTS = Hits("parts_right", "parts_right", "parts")
"""Parts of identifiers: digits, or local parts of addresses."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of one checkpoint, and those of the base on the same rows.

    ``base`` is None for the base itself, and where it was not scored.
    """

    frame: pd.DataFrame
    base: Spans | None = None
    hits: Hits = EXACT

    @classmethod
    def by_checkpoint(cls, pii: pd.DataFrame, hits: Hits = EXACT) -> dict[str, Spans]:
        """Those of each checkpoint, in the order of the evidence."""
        groups = pii.assign(one=1).groupby("checkpoint", sort=False)
        parts = {str(name): part for name, part in groups}
        base = cls(parts[BASE], None, hits) if BASE in parts else None
        return {
            name: base if name == BASE and base else cls(part, base, hits)
            for name, part in parts.items()
        }

    @cached_property
    def train(self) -> pd.DataFrame:
        """Those of trained rows, in the same order in all checkpoints."""
        return self.frame[self.frame["split"] == "train"]

    @cached_property
    def test(self) -> pd.DataFrame:
        """Those of rows never trained on."""
        return self.frame[self.frame["split"] == "test"]

    @cached_property
    def comparable(self) -> tuple[pd.DataFrame, bool]:
        """The spans of both splits that are compared; whether both were drawn alike.

        Those that were not are compared within types and strata (form and place), of
        which held-out spans weigh as much as trained ones (column ``weight``). Spans
        that text alone tells apart have no control.
        """
        chosen = self.frame.assign(weight=1.0)
        injected = chosen[chosen["origin"] == "injected"]
        if set(injected["split"]) == {"train", "test"}:
            return injected, True
        chosen = chosen[chosen["stratum"] >= 0]
        both = chosen.assign(
            side=(chosen["split"] == "train").astype(int),
            stratum=chosen.groupby(["type", "stratum"], observed=True).ngroup(),
        )
        both = both[counterparts(both)]
        ours = both.groupby("stratum")["side"].agg(["sum", "size"])
        weight = both["stratum"].map(ours["sum"] / (ours["size"] - ours["sum"]))
        held = both["side"] == 0
        scale = held.sum() / max(int((~held).sum()), 1)
        return both.assign(weight=np.where(held, weight * scale, 1.0)), False

    @cached_property
    def apart(self) -> Apart | None:
        """Difference of the greedy rates of train and test rows.

        Its interval combines those of both rates as method 10 of Newcombe (1998) does
        with Wilson's, which keeps it honest where next to nothing comes back.
        """
        chosen = self.comparable[0]
        counts = chosen[[self.hits.sure, self.hits.trials]]
        weighed = counts.mul(chosen["weight"], axis=0)
        sums = weighed.groupby([chosen["split"], chosen["cluster"]]).sum()
        held = sums.index.get_level_values("split")
        train, test = (rate(*sums[held == split].to_numpy(float).T) for split in SPLITS)
        return minus(train, test)


def exact_p(chosen: pd.DataFrame) -> float:
    """Fisher's two-sided p that clusters of train and test rows return as often."""
    return float(scipy.stats.fisher_exact(_returning(chosen)).pvalue)


def _returning(chosen: pd.DataFrame) -> np.ndarray:
    """Clusters of train and of test rows: those that return, and the others."""
    back = chosen.groupby(["split", "cluster"])["greedy_sure"].any()
    counts = back.groupby("split").agg(["sum", "size"]).reindex([*SPLITS], fill_value=0)
    return counts.assign(size=counts["size"] - counts["sum"]).to_numpy(np.int64)


LEAST_P = 1e-7
"""p below which no report asks."""


def hits_power(chosen: pd.DataFrame, base: Apart | None) -> Power:
    """What the smallest difference follows from that both tests of it detect.

    p of 1, 2, ... clusters of trained rows that come back next to the held-out ones
    that do, each cluster one identifier: the interval's (beyond the base's own
    difference, as it is) or Fisher's, whichever is larger.
    """
    counts = _returning(chosen)
    (n, m), held = counts.sum(axis=1).tolist(), int(counts[1, 0])
    ps: list[float] = []
    for k in range(1, n + 1):
        if ps and ps[-1] < LEAST_P:
            break
        sides = (np.arange(size) < won for size, won in ((n, k), (m, held)))
        apart = minus(*(rate(side * 1.0, np.ones(len(side))) for side in sides))
        if base is not None:
            apart = minus(apart, base)
        if apart is None or apart.low <= 0:
            ps.append(1.0)
            continue
        counts = np.array([[k, n - k], [held, m - held]])
        ps.append(max(apart.p, float(scipy.stats.fisher_exact(counts).pvalue)))
    null = held / m + (base.value if base else 0.0)
    return Power(test="hits", n=n, ps=ps, most=100.0, beyond=100 * null)


def rate(events: np.ndarray, trials: np.ndarray) -> Apart | None:
    """A rate with its interval; none where there is no interval."""
    side = rate_estimate(events, trials)
    if side.value is None or side.low is None or side.high is None:
        return None
    return Apart(side.value, side.low, side.high, 0.0)


def minus(one: Apart | None, two: Apart | None) -> Apart | None:
    """Difference of two independent figures, its interval from both of theirs.

    Within [-1, 1], as differences of rates are; none where one of both is missing. Of
    a difference and the base's own, which are of the same rows and mostly agree, the
    interval is rather wide.
    """
    if one is None or two is None:
        return None
    value = one.value - two.value
    low = value - float(np.hypot(one.value - one.low, two.high - two.value))
    high = value + float(np.hypot(one.high - one.value, two.value - two.low))
    # Half the width of a 95 % interval is 1.96 standard errors.
    se = (high - low) / 2 / float(scipy.special.ndtri(0.975))
    value, low, high = (min(1.0, max(-1.0, end)) for end in (value, low, high))
    return Apart(value, low, high, min(1.0, mde_normal(se)))


def paired(ours: pd.Series, base: pd.Series, spans: pd.Series) -> Apart | None:
    """Difference of two rates of the same rows, from hits and spans by cluster."""
    change = (ours - base).to_numpy(np.float64)
    estimate = ratio_estimate(change, spans.to_numpy(), bounds=(-1.0, 1.0))
    apart = minus(*(rate(each.to_numpy(), spans.to_numpy()) for each in (ours, base)))
    if estimate.value is None or apart is None:
        return None
    if estimate.low is None or estimate.high is None:
        # Where all clusters agree, the exact limits of both rates stand in for it.
        return apart
    mde = apart.mde if estimate.se is None else min(1.0, mde_normal(estimate.se))
    return Apart(estimate.value, estimate.low, estimate.high, mde)


def against_base(
    spans: Spans, base: Spans, *, seed: int
) -> tuple[Apart | None, float | None] | None:
    """Difference from the base on the same train rows, and its p.

    Hits of the checkpoint are those that are sure, of the base those that ties may win:
    neither side's ties make a finding. ``None`` where the rows are not the same.
    """
    hits = spans.hits
    own, others = (one.train.groupby("cluster") for one in (spans, base))
    ours, theirs = own[hits.sure].sum(), others[hits.won].sum()
    if not ours.index.equals(theirs.index):
        return None
    apart = paired(ours, theirs, own[hits.trials].sum())
    if apart is None:
        return None, None
    # An interval of few events is too narrow by itself: the exact test must agree.
    change = (ours - theirs).to_numpy(np.float64)
    p = sign_flip(change, seed=seed) if np.count_nonzero(change) > 1 else 1.0
    return apart, max(p, apart.p)


def beyond(spans: Spans, *, seed: int) -> tuple[Apart | None, float | None]:
    """Difference from held-out rows, beyond the base's own, and its p.

    Without held-out rows from the base, without either none.
    """
    base = spans.base
    if spans.test.empty:
        compared = against_base(spans, base, seed=seed) if base else None
        return compared or (None, None)
    apart = minus(spans.apart, base.apart) if base else spans.apart
    if apart is None:
        return None, None
    exact = exact_p(spans.comparable[0]) if spans.hits == EXACT else 0.0
    return apart, max(apart.p, exact)

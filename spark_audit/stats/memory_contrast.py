"""Identifiers that were trained on against identifiers of their kind that were not.

``memory = mean_P x - mean_H x`` with ``x`` the change of an identifier's NLL since the
reference model, a token: over the occurrences P in trained rows and H in rows never
trained on, H weighed by P's mix of strata. Learned formats and any drift move both
alike, so it is 0 without memory, and below 0 where what was trained on became likelier
than other identifiers of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Statistic, estimate_of
from spark_audit.stats.power import mde

MIN_CLUSTERS_OF_SIDE = 2
"""Clusters that a stratum needs on the side that was never trained on."""
LOT, ELEMENTS = 1000, 2**21
"""Permutations that are drawn at once, at most, and units of one such lot."""
EXCEEDANCES_TO_STOP = 200
"""Permutations as extreme as what was found, after which no more are drawn: p is above
0.02 then, and known to a tenth of itself (Besag and Clifford, 1991)."""
NONE_TRAINED = "no identifier stands in trained rows"
NONE_HELD_OUT = "no identifier stands in rows never trained on"


@dataclass(frozen=True)
class Sides:
    """Occurrences of identifiers in trained rows and in rows never trained on.

    Parameters
    ----------
    trained
        Shape ``(s,)`` bool: whether the occurrence stands in a trained row.
    tokens
        Shape ``(s,)``: its tokens.
    clusters
        Shape ``(s,)``: its cluster code. A cluster may lie on both sides.
    strata
        Shape ``(s, depth)``: codes from coarse to fine, such as type, format, cue.
    """

    trained: np.ndarray
    tokens: np.ndarray
    clusters: np.ndarray
    strata: np.ndarray

    @classmethod
    def of(
        cls,
        trained: ArrayLike,
        clusters: ArrayLike,
        strata: Sequence[ArrayLike],
        tokens: ArrayLike | None = None,
    ) -> Sides:
        """From labels of clusters, and codes; without tokens all weigh alike."""
        ours = np.asarray(trained, bool)
        n = np.ones(len(ours)) if tokens is None else np.asarray(tokens, np.float64)
        held = codes_of(clusters)
        return cls(ours, n, held, np.stack([*map(np.asarray, strata)], axis=1))

    @cached_property
    def cells(self) -> np.ndarray:
        """Stratum of each occurrence, from 0; -1 where there is none to use."""
        cells, first = np.full(len(self.tokens), -1), 0
        for kind in np.unique(self.strata[:, 0]):
            inside = np.flatnonzero(self.strata[:, 0] == kind)
            ours, clusters = self.trained[inside], self.clusters[inside]
            for levels in range(self.strata.shape[1], 0, -1):
                own = self.strata[inside, :levels]
                codes = np.unique(own, axis=0, return_inverse=True)[1].ravel()
                wanted = np.unique(codes[ours])
                pairs = np.unique(np.stack([codes, clusters], axis=1)[~ours], axis=0)
                held = np.bincount(pairs[:, 0], minlength=len(codes))
                if len(wanted) and (held[wanted] >= MIN_CLUSTERS_OF_SIDE).all():
                    kept = np.isin(codes, wanted)
                    cells[inside[kept]] = first + codes[kept]
                    first += len(codes)
                    break
        # Numbers without gaps: an empty stratum has no mean.
        numbers = np.unique(cells[cells >= 0])
        return np.where(cells >= 0, np.searchsorted(numbers, cells), -1)


@dataclass(frozen=True)
class Memory:
    """Means on either side and their difference, nats a token.

    ``freedom`` are the degrees of freedom of their t intervals.
    """

    trained: Estimate
    held_out: Estimate
    difference: Estimate
    freedom: float = 1.0

    @classmethod
    def missing(cls, reason: str) -> Memory:
        """All three, with the reason."""
        lost = Estimate.missing(reason)
        return cls(lost, lost, lost)

    def t_p(self, *, null: float = 0.0) -> float | None:
        """Two-sided p of a difference within ``-null`` to ``null``, by Student's t."""
        difference = self.difference
        if difference.value is None or not difference.se:
            return None
        t = max(abs(difference.value) - null, 0.0) / difference.se
        return float(min(1.0, 2 * scipy.special.stdtr(self.freedom, -t)))


def memory(
    change: ArrayLike,
    sides: Sides,
    *,
    reasons: tuple[str, str] = (NONE_TRAINED, NONE_HELD_OUT),
) -> Memory:
    """Trained minus never trained, and both means, with intervals over clusters.

    A coarse stratum is divided as finely as leaves each part with
    :data:`MIN_CLUSTERS_OF_SIDE` clusters never trained on; one that has fewer by itself
    is left out, on both sides, and the note says so.

    Parameters
    ----------
    change
        Shape ``(s,)``: each occurrence's summed NLL minus that on the reference, nats.
    sides
        Where the occurrences stand.
    reasons
        Why there is no estimate where no trained ones are given, or no others.

    Notes
    -----
    The jackknife leaves out one cluster at a time, from both sides at once where it
    lies on both. Degrees of freedom are Satterthwaite's with each cluster's share of
    its side in the place of its variance: with few or unequal clusters on one side
    they are about those of that side.
    """
    if not sides.trained.any():
        return Memory.missing(reasons[0])
    if sides.trained.all():
        return Memory.missing(reasons[1])
    used = sides.cells >= 0
    if not used.any():
        return Memory.missing(
            "no trained identifier has held-out ones of its type, form and place in "
            f"{MIN_CLUSTERS_OF_SIDE} clusters"
        )
    # Sums and tokens of trained, then of other occurrences, by stratum.
    x, n = np.asarray(change, np.float64), np.asarray(sides.tokens, np.float64)
    ours = sides.trained
    table = _sums((x * ours, n * ours, x * ~ours, n * ~ours), sides, used)
    table = table[table.any(axis=1)]
    _, ours, _, theirs = np.split(table, 4, axis=1)
    tokens = np.concatenate([ours, theirs], axis=1)
    # The stratified jackknife's (m - 1) / m for the m clusters of a stratum and side. A
    # cluster in several gets the mean of theirs, by tokens; one that is alone counts
    # whole, or its spread would be lost.
    held = (tokens > 0).sum(axis=0)
    factor = np.where(held > 1, (held - 1) / np.maximum(held, 1), 1.0)
    scale = (tokens * factor).sum(axis=1) / tokens.sum(axis=1)
    total, mix = ours.sum(), ours.sum(axis=0)
    shares = ours.sum(axis=1) / total
    others = (mix / total * theirs / theirs.sum(axis=0)).sum(axis=1)
    freedom = max(effective_clusters(shares**2 + others**2) - 1, 1.0)
    left, count = int((sides.trained & ~used).sum()), int(sides.trained.sum())
    note = f"{left} of {count} trained identifiers were left out: no "
    note += "held-out identifier of the same type, form and place"

    def estimate(statistic: Statistic, side: np.ndarray | None = None) -> Estimate:
        n = round(float(total))
        found = estimate_of(table, statistic, n=n, df=freedom, scale=scale)
        if found.se is not None:
            found = replace(found, mde=mde(found.se, clusters=int(freedom) + 1))
        if side is not None:
            found = replace(found, clusters=int(side.any(axis=1).sum()))
        return found.noting(note) if left else found

    def trained(totals: np.ndarray) -> np.ndarray:
        top, tokens, *_ = np.split(totals, 4, axis=-1)
        return np.asarray(top.sum(-1) / tokens.sum(-1))

    def held_out(totals: np.ndarray) -> np.ndarray:
        _, tokens, top, others = np.split(totals, 4, axis=-1)
        weights = tokens / tokens.sum(-1, keepdims=True)
        return np.asarray((weights * top / others).sum(-1))

    return Memory(
        trained=estimate(trained, ours),
        held_out=estimate(held_out, theirs),
        difference=estimate(lambda totals: trained(totals) - held_out(totals)),
        freedom=freedom,
    )


def permutation_p(
    change: ArrayLike, sides: Sides, *, seed: int, replicates: int = 9999
) -> float | None:
    """Two-sided p of no difference where chance alone dealt identifiers to the sides.

    Within each stratum, clusters are dealt anew to trained and never trained, as many
    to each as there are; what is compared is the difference over its standard error,
    so that sides of unequal spread do not matter with many clusters. A cluster on both
    sides stays where it is. ``None`` where nothing can be dealt.

    Parameters
    ----------
    change, sides
        As in :func:`memory`.
    """
    strata = _strata(change, sides)
    least = _studentised([(w, a[None], x, n) for w, a, x, n in strata])[0]
    if not least > 0:  # without strata too
        return None
    rng = np.random.default_rng(seed)
    lot = min(LOT, max(1, ELEMENTS // max(len(first) for _, first, *_ in strata)))
    hits = done = 0
    while done < replicates and hits < EXCEEDANCES_TO_STOP:
        count = min(lot, replicates - done)
        drawn = [
            (w, rng.random((count, len(first))).argsort(1) < first.sum(), *own)
            for w, first, *own in strata
        ]
        t = _studentised(drawn)
        hits += int((t >= least * (1 - 1e-12)).sum())
        done += count
    return (1 + hits) / (1 + done)


def least_p(sides: Sides, *, replicates: int = 9999) -> float:
    """The smallest p that :func:`permutation_p` can give: few clusters, few ways."""
    ways = [
        scipy.special.comb(len(first), first.sum())
        for _, first, *_ in _strata(np.zeros(len(sides.tokens)), sides)
    ]
    return float(max(1 / np.prod(ways), 1 / (1 + replicates)))


def _strata(
    change: ArrayLike, sides: Sides
) -> list[tuple[float, np.ndarray, np.ndarray, np.ndarray]]:
    """Weight of each stratum that can be dealt, and its clusters: side, sums, tokens.

    Clusters on both sides are left out.
    """
    used, n = sides.cells >= 0, np.asarray(sides.tokens, np.float64)
    keys = np.stack([sides.cells, sides.clusters], axis=1)[used]
    units, codes = np.unique(keys, axis=0, return_inverse=True)
    columns = change, n, sides.trained, np.ones(len(n)), n * sides.trained
    table = np.stack(columns, axis=1)[used]
    sums, tokens, ours, count, share = cluster_sums(table, codes.ravel()).T
    pure = (ours == 0) | (ours == count)
    strata = []
    for cell in np.unique(units[:, 0]):
        inside = units[:, 0] == cell
        own = inside & pure
        if 0 < np.count_nonzero(ours[own]) < own.sum():
            weight = float(share[inside].sum() / share.sum())
            strata.append((weight, ours[own] > 0, sums[own], tokens[own]))
    return strata


def _studentised(
    strata: Sequence[tuple[float, np.ndarray, np.ndarray, np.ndarray]],
) -> np.ndarray:
    """``|t|`` of the weighted difference of two sides, by permutation, shape ``(B,)``.

    Each stratum has its weight, which units are on the first side, of shape ``(B, U)``,
    and the units' sums and tokens.
    """
    top = square = np.zeros(1)
    for weight, dealt, sums, tokens in strata:
        columns = (sums, tokens, sums**2, sums * tokens, tokens**2)
        products, means = np.stack(columns, axis=1), []
        for side in (dealt.astype(np.float64), 1.0 - dealt):
            x, n, xx, xn, nn = (side @ products).T
            count, mean = side.sum(axis=1), x / n
            residual = np.maximum(xx - 2 * mean * xn + mean**2 * nn, 0.0)
            spread = residual / n**2 * count / np.maximum(count - 1, 1)
            square = square + weight**2 * spread
            means.append(mean)
        top = top + weight * (means[0] - means[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.abs(top) / np.sqrt(square), posinf=np.inf)


def dose_trend(change: ArrayLike, sides: Sides, dose: ArrayLike) -> Estimate:
    """Change of trained identifiers for each doubling of their dose, nats a token.

    The slope on log2 of the dose, weighed by tokens, within strata: below 0 where what
    stands in more rows became likelier. Memory gives a slope; drift gives none.

    Parameters
    ----------
    change, sides
        As in :func:`memory`; occurrences never trained on are left out.
    dose
        Shape ``(s,)``: trained rows that the identifier stands in.
    """
    x, n = np.asarray(change, np.float64), np.asarray(sides.tokens, np.float64)
    if not (used := (sides.cells >= 0) & sides.trained).any():
        return Estimate.missing(NONE_HELD_OUT)
    d = np.log2(np.maximum(np.asarray(dose, np.float64), 1.0))
    if np.ptp(d[used]) == 0:
        return Estimate.missing("all identifiers stand in equally many trained rows")
    table = _sums((n, n * d, n * d**2, x, x * d), sides, used)

    def slope(totals: np.ndarray) -> np.ndarray:
        tokens, d, dd, y, yd = np.split(totals, 5, axis=-1)
        held = np.where(tokens > 0, tokens, 1.0)
        return np.asarray((yd - y * d / held).sum(-1) / (dd - d * d / held).sum(-1))

    tokens, doses, *_ = np.split(table, 5, axis=1)
    total = tokens.sum(axis=0)
    mean = doses.sum(axis=0) / np.where(total > 0, total, 1.0)
    # A cluster weighs as much as its doses lie apart from the others'.
    lever = ((doses - mean * tokens) ** 2).sum(axis=1)
    if not lever.any():
        return Estimate.missing("identifiers of one kind stand in equally many rows")
    freedom = max(effective_clusters(lever) - 1, 1.0)
    return estimate_of(table, slope, n=round(float(total.sum())), df=freedom)


def codes_of(labels: ArrayLike) -> np.ndarray:
    """Return a code for each label: 0 for the first one seen, 1 for the next new one.

    Parameters
    ----------
    labels
        Shape ``(n,)``.

    Returns
    -------
    Shape ``(n,)``, integers.
    """
    _, first_seen, sorted_codes = np.unique(
        np.asarray(labels), return_index=True, return_inverse=True
    )
    order_of_appearance = np.argsort(np.argsort(first_seen))
    codes: np.ndarray = order_of_appearance[sorted_codes]
    return codes


def _sums(columns: Sequence[np.ndarray], sides: Sides, used: np.ndarray) -> np.ndarray:
    """Sums of columns by cluster, ``(C, K S)``: of each column those of all strata."""
    cells, clusters = sides.cells[used], sides.clusters[used]
    rows, count = int(clusters.max()) + 1, int(cells.max()) + 1
    places = clusters * count + cells
    sums = cluster_sums(np.stack(columns, axis=1)[used], places, rows * count)
    return sums.reshape(rows, count, -1).swapaxes(1, 2).reshape(rows, -1)

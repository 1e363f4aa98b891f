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

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.results import Claim, Estimate, Row
from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.intervals import Statistic, estimate_of
from spark_audit.stats.power import mde

FEWEST = 2
"""Clusters that a stratum needs on the side that was never trained on."""
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


@dataclass(frozen=True)
class Memory:
    """Means on either side and their difference, nats a token."""

    trained: Estimate
    held_out: Estimate
    difference: Estimate

    @classmethod
    def missing(cls, reason: str) -> Memory:
        """All three, with the reason."""
        return cls(*(Estimate.missing(reason) for _ in range(3)))


def memory(change: ArrayLike, sides: Sides, *, level: float = 0.95) -> Memory:
    """Trained minus never trained, and both means, with intervals over clusters.

    A coarse stratum is divided as finely as leaves each part with :data:`FEWEST`
    clusters never trained on; one that has fewer by itself is left out, on both sides,
    and the note says so.

    Parameters
    ----------
    change
        Shape ``(s,)``: each occurrence's summed NLL minus that on the reference, nats.
    sides
        Where the occurrences stand.

    Notes
    -----
    The jackknife leaves out one cluster at a time, from both sides at once where it
    lies on both. Degrees of freedom are Satterthwaite's with each cluster's share of
    its side in the place of its variance: with few or unequal clusters on one side
    they are about those of that side.
    """
    x, n = np.asarray(change, np.float64), np.asarray(sides.tokens, np.float64)
    if not sides.trained.any():
        return Memory.missing("no identifier stands in trained rows")
    if sides.trained.all():
        return Memory.missing(NONE_HELD_OUT)
    cells = _cells(sides)
    used = cells >= 0
    if not used.any():
        return Memory.missing(
            f"no type of identifier stands in {FEWEST} clusters never trained on"
        )
    count, size = int(cells.max()) + 1, int(sides.clusters.max()) + 1
    sums = np.zeros((4, count, size))
    for place, values in enumerate((x, n)):
        for side, mask in enumerate((sides.trained, ~sides.trained)):
            chosen = mask & used
            at = cells[chosen], sides.clusters[chosen]
            np.add.at(sums[2 * side + place], at, values[chosen])
    table = sums.transpose(2, 0, 1).reshape(size, 4 * count)
    table = table[table.any(axis=1)]
    freedom = _freedom(table, count)
    left = int((sides.trained & ~used).sum())
    note = (
        f"{left} of {int(sides.trained.sum())} identifiers left out: of their types "
        f"too few stand in rows never trained on"
        if left
        else ""
    )

    def estimate(statistic: Statistic, side: int | None = None) -> Estimate:
        count = round(float(sums[1].sum()))
        found = estimate_of(table, statistic, n=count, level=level, df=freedom)
        if found.se is not None:
            least = mde(found.se, clusters=int(freedom) + 1, level=level)
            found = replace(found, mde=least)
        if side is not None:
            held = int(sums[side].any(axis=0).sum())
            found = replace(found, clusters=held)
        return found.noting(note) if note else found

    def trained(totals: np.ndarray) -> np.ndarray:
        top, tokens, *_ = _parts(totals, count)
        return np.asarray(top.sum(-1) / tokens.sum(-1))

    def held_out(totals: np.ndarray) -> np.ndarray:
        _, tokens, top, others = _parts(totals, count)
        weights = tokens / tokens.sum(-1, keepdims=True)
        return np.asarray((weights * top / others).sum(-1))

    return Memory(
        trained=estimate(trained, 1),
        held_out=estimate(held_out, 3),
        difference=estimate(lambda totals: trained(totals) - held_out(totals)),
    )


def claim_of(row: Row) -> Claim:
    """What a row of the difference claims by itself.

    ``null_low`` and ``null_high`` of the row are what identifiers that were unequally
    hard on the reference already could give: an interval must clear them.
    """
    if row.value is None:
        return "not_tested"
    if row.high is not None and row.high < (row.null_low or 0.0):
        return "memory"
    if row.low is not None and row.low > (row.null_high or 0.0):
        return "betrays"
    return "nothing_shown"


def _cells(sides: Sides) -> np.ndarray:
    """Stratum of each occurrence, numbered from 0; -1 where there is none to use."""
    found = np.full(len(sides.tokens), -1)
    depth = sides.strata.shape[1]
    first = 0
    for kind in np.unique(sides.strata[:, 0]):
        inside = np.flatnonzero(sides.strata[:, 0] == kind)
        for levels in range(depth, 0, -1):
            _, codes = np.unique(
                sides.strata[inside, :levels], axis=0, return_inverse=True
            )
            codes = codes.ravel()
            ours = sides.trained[inside]
            wanted = np.unique(codes[ours])
            pairs = np.stack([codes, sides.clusters[inside]], axis=1)[~ours]
            held = np.bincount(
                np.unique(pairs, axis=0)[:, 0], minlength=int(codes.max()) + 1
            )
            if len(wanted) and (held[wanted] >= FEWEST).all():
                kept = np.isin(codes, wanted)
                found[inside[kept]] = first + codes[kept]
                first += int(codes.max()) + 1
                break
    # Numbers without gaps: an empty stratum has no mean.
    known = np.unique(found[found >= 0])
    return np.where(found >= 0, np.searchsorted(known, found), -1)


def _parts(totals: np.ndarray, count: int) -> Sequence[np.ndarray]:
    """Sums ``x, n`` of trained and ``x, n`` of other occurrences, by stratum."""
    return [totals[..., i * count : (i + 1) * count] for i in range(4)]


def _freedom(table: np.ndarray, count: int) -> float:
    _, tokens, _, others = _parts(table, count)
    total = tokens.sum()
    ours = tokens.sum(axis=1) / total
    theirs = (tokens.sum(axis=0) / total * others / others.sum(axis=0)).sum(axis=1)
    return max(effective_clusters(ours**2 + theirs**2) - 1, 1.0)

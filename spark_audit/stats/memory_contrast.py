"""The memory contrast: trained identifiers against held-out ones of their kind.

``memory = mean_P x - mean_H x``. Here ``x`` is the change of an identifier's NLL per
token since the reference model, P are the occurrences in trained rows, and H those in
rows never trained on, weighted by P's mix of strata. Learned formats and drift move
both sides equally, so memory is 0 without memorisation. Below 0, trained identifiers
became likelier than others of their kind.

:func:`memory` gives the means and their difference, with intervals over clusters.
:func:`spark_audit.stats.permutation.permutation_p` tests the difference, and
:func:`spark_audit.stats.dose_trend.dose_trend` how it grows with the number of trained
rows. In shapes, ``s`` are occurrences of identifiers; a *cell* is the stratum in which
an occurrence is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Statistic, estimate_of
from spark_audit.stats.power import mde

MIN_CLUSTERS_OF_SIDE = 2
"""Fewest never-trained clusters with which a stratum can be compared."""

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
        Shape ``(s,)``: its tokens, the weight of the occurrence.
    clusters
        Shape ``(s,)``: its cluster code. A cluster may lie on both sides.
    strata
        Shape ``(s, depth)``: codes from coarse to fine, such as type, format, cue. Two
        occurrences can be compared at a depth if all codes up to it are equal.

    Examples
    --------
    Phone numbers (type 0) and e-mail addresses (type 1) of six persons. The one trained
    address has no held-out one to compare with, so it belongs to no cell:

    >>> is_trained = [True, True, False, False, False, True]
    >>> types = [0, 0, 0, 0, 0, 1]
    >>> sides = Sides.of(is_trained, clusters=list("abcdef"), strata=[types])
    >>> sides.cells.tolist()
    [0, 0, 0, 0, 0, -1]
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
        """Return the sides of occurrences whose clusters have labels.

        Parameters
        ----------
        trained, clusters
            Shape ``(s,)``: whether trained on, and the label of the cluster.
        strata
            One column of codes per depth, from coarse to fine, each of shape ``(s,)``.
        tokens
            Shape ``(s,)``; without them all occurrences have the same weight.
        """
        is_trained = np.asarray(trained, bool)

        weights = np.ones(len(is_trained))
        if tokens is not None:
            weights = np.asarray(tokens, np.float64)

        columns = [np.asarray(codes) for codes in strata]
        return cls(
            trained=is_trained,
            tokens=weights,
            clusters=codes_of(clusters),
            strata=np.stack(columns, axis=1),  # (s, depth)
        )

    @cached_property
    def cells(self) -> np.ndarray:
        """Stratum of each occurrence, shape ``(s,)``, from 0; -1: none.

        Each coarse stratum is divided as finely as possible, while every part with
        trained occurrences keeps :data:`MIN_CLUSTERS_OF_SIDE` never-trained clusters.
        """
        cells = np.full(len(self.tokens), -1)
        next_cell = 0

        for coarse in np.unique(self.strata[:, 0]):
            inside = np.flatnonzero(self.strata[:, 0] == coarse)  # indices (m,)

            # Take the first valid division, from the finest to the coarsest.
            for division in reversed(self._divisions):
                _, codes = np.unique(division[inside], return_inverse=True)  # (m,)
                compared_codes = self._compared_codes(inside, codes)
                if not len(compared_codes):
                    continue

                is_compared = np.isin(codes, compared_codes)
                cells[inside[is_compared]] = next_cell + codes[is_compared]

                # There are at most m codes, so the next stratum starts behind them.
                next_cell += len(codes)
                break

        # Renumber without gaps, since an empty stratum has no mean.
        is_used = cells >= 0
        used_cells = np.unique(cells[is_used])
        return np.where(is_used, np.searchsorted(used_cells, cells), -1)

    @cached_property
    def _divisions(self) -> list[np.ndarray]:
        """Return codes of the strata by their first 1, 2, ... columns, ``(s,)`` each.

        Codes are in the order of the columns: first by the coarsest.
        """
        divisions: list[np.ndarray] = []
        codes = np.zeros(len(self.strata), np.int64)
        for column in self.strata.T:
            _, codes_of_column = np.unique(column, return_inverse=True)
            n_codes = int(codes_of_column.max(initial=0)) + 1
            _, codes = np.unique(codes * n_codes + codes_of_column, return_inverse=True)
            divisions.append(codes)
        return divisions

    def _compared_codes(self, indices: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return the codes of strata with trained occurrences, if each is comparable.

        The result is empty if one of them has too few never-trained clusters.

        Parameters
        ----------
        indices
            Shape ``(m,)``: occurrences of one coarse stratum.
        codes
            Shape ``(m,)``: the stratum of each of them, from 0.
        """
        is_trained = self.trained[indices]
        codes_of_trained = np.unique(codes[is_trained])

        # Count each cluster once in each stratum where it has a held-out occurrence.
        clusters = self.clusters[indices]
        n_clusters = int(clusters.max()) + 1
        pairs = codes * n_clusters + clusters  # (m,), stratum and cluster as one number
        strata_of_pairs = np.unique(pairs[~is_trained]) // n_clusters
        n_held_out_clusters = np.bincount(strata_of_pairs, minlength=len(codes))

        is_enough = n_held_out_clusters[codes_of_trained] >= MIN_CLUSTERS_OF_SIDE
        if is_enough.all():
            return codes_of_trained
        return codes_of_trained[:0]

    @cached_property
    def shared(self) -> SharedSums:
        """Return what all contrasts of these sides share, whatever changed.

        At least one occurrence must have a stratum.
        """
        return SharedSums.of(self)


@dataclass(frozen=True)
class Memory:
    """Means of both sides and their difference, nats per token.

    ``difference`` is trained minus held-out; below 0, trained identifiers became
    likelier. ``n`` of all three are the tokens of trained occurrences, ``clusters``
    those of its own side, of the difference those of both sides. ``freedom`` holds the
    degrees of freedom of the t intervals.
    """

    trained: Estimate
    held_out: Estimate
    difference: Estimate
    freedom: float = 1.0

    @classmethod
    def missing(cls, reason: str) -> Memory:
        """Return all three as not estimable, with the reason."""
        missing = Estimate.missing(reason)
        return cls(trained=missing, held_out=missing, difference=missing)

    def t_p(self, *, null: float = 0.0) -> float | None:
        """Return the two-sided p of Student's t for a difference beyond ``null``.

        Parameters
        ----------
        null
            Nats per token, 0 or more: differences from ``-null`` to ``null`` are no
            evidence, and p is 1.

        Returns
        -------
        ``None`` if the difference or its standard error is missing.
        """
        difference = self.difference
        if difference.value is None or not difference.se:
            return None

        # A difference within the null is no evidence.
        t = max(abs(difference.value) - null, 0.0) / difference.se
        return float(min(1.0, 2 * scipy.special.stdtr(self.freedom, -t)))


class SideSums(NamedTuple):
    """Sums of both sides by cluster and stratum, or over clusters; strata come last.

    ``*_change``: NLL minus that on the reference, nats. ``*_tokens``: tokens. Stacked
    in this order, all four are a table ``(..., 4 * strata)``.
    """

    trained_change: np.ndarray
    trained_tokens: np.ndarray
    held_out_change: np.ndarray
    held_out_tokens: np.ndarray


@dataclass(frozen=True, eq=False)
class SharedSums:
    """What all contrasts of the same sides share, whatever changed.

    Only occurrences that have a stratum are *used*. Clusters are those with a used
    occurrence.

    Attributes
    ----------
    used
        Indices of the used occurrences, shape ``(used,)``.
    cluster_and_stratum
        Shape ``(used,)``: cell of a table ``(clusters, strata)``, by rows.
    is_trained
        Shape ``(used,)``, bool.
    trained_tokens, held_out_tokens
        Shape ``(clusters, strata)``: tokens of each side.
    jackknife_scale
        Shape ``(clusters,)``: weight of each cluster in the jackknife variance.
    freedom
        Degrees of freedom of the t intervals.
    note
        On trained identifiers without a comparison; empty: there are none.
    """

    used: np.ndarray
    cluster_and_stratum: np.ndarray
    is_trained: np.ndarray
    trained_tokens: np.ndarray
    held_out_tokens: np.ndarray
    jackknife_scale: np.ndarray
    freedom: float
    note: str

    @classmethod
    def of(cls, sides: Sides) -> SharedSums:
        """Return what is shared, of sides of which some occurrence has a stratum."""
        is_used = sides.cells >= 0  # (s,)
        used = np.flatnonzero(is_used)
        strata = sides.cells[used]
        n_strata = int(strata.max()) + 1

        # Number the clusters that are used without gaps.
        used_clusters, clusters = np.unique(sides.clusters[used], return_inverse=True)
        cluster_and_stratum = clusters * n_strata + strata

        # Tokens of each side by cluster and stratum.
        is_trained = sides.trained[used]
        tokens = np.asarray(sides.tokens, np.float64)[used]
        tokens_of_sides = np.stack([tokens * is_trained, tokens * ~is_trained], axis=1)
        sums = cluster_sums(
            tokens_of_sides, cluster_and_stratum, len(used_clusters) * n_strata
        )  # (clusters * strata, 2)
        tokens_by_side = sums.T.reshape(2, len(used_clusters), n_strata)
        trained_tokens, held_out_tokens = tokens_by_side

        return cls(
            used=used,
            cluster_and_stratum=cluster_and_stratum,
            is_trained=is_trained,
            trained_tokens=trained_tokens,
            held_out_tokens=held_out_tokens,
            jackknife_scale=_jackknife_scale(trained_tokens, held_out_tokens),
            freedom=_degrees_of_freedom(trained_tokens, held_out_tokens),
            note=_note_of_left_out(sides, is_used),
        )

    def sums_of(self, change: ArrayLike) -> np.ndarray:
        """Return the sums of :class:`SideSums` by cluster, ``(clusters, 4 * strata)``.

        ``change``: shape ``(s,)``, nats, of all occurrences.
        """
        change_of_used = np.asarray(change, np.float64)[self.used]  # (used,)
        change_of_sides = np.stack(
            [change_of_used * self.is_trained, change_of_used * ~self.is_trained],
            axis=1,
        )
        sums = cluster_sums(
            change_of_sides, self.cluster_and_stratum, self.trained_tokens.size
        )  # (clusters * strata, 2)
        trained_change, held_out_change = sums.T.reshape(2, *self.trained_tokens.shape)

        sums_of_sides = SideSums(
            trained_change=trained_change,
            trained_tokens=self.trained_tokens,
            held_out_change=held_out_change,
            held_out_tokens=self.held_out_tokens,
        )
        return np.hstack(sums_of_sides)


def memory(
    change: ArrayLike,
    sides: Sides,
    *,
    reasons: tuple[str, str] = (NONE_TRAINED, NONE_HELD_OUT),
) -> Memory:
    """Return means of trained and of held-out identifiers, and their difference.

    All have intervals over clusters. A coarse stratum is divided as finely as possible,
    while each part keeps :data:`MIN_CLUSTERS_OF_SIDE` never-trained clusters. A coarse
    stratum with fewer is left out on both sides, which the note says.

    Parameters
    ----------
    change
        Shape ``(s,)``: each occurrence's summed NLL minus that on the reference, nats.
    sides
        Sides of the occurrences.
    reasons
        Messages for "no trained identifiers" and "no held-out identifiers".

    Notes
    -----
    The jackknife leaves out one cluster at a time, from both sides if it lies on both.
    Degrees of freedom are Satterthwaite's with each cluster's share of its side instead
    of its variance: about those of a side that has few or unequal clusters.

    Examples
    --------
    Three trained identifiers became likelier by 2, 3 and 4 nats (of one token each),
    three others of their type by 0, 1 and 2:

    >>> change = [-2.0, -3.0, -4.0, 0.0, -1.0, -2.0]
    >>> trained = [True, True, True, False, False, False]
    >>> sides = Sides.of(trained, clusters=list("abcdef"), strata=[[0] * 6])
    >>> contrast = memory(change, sides)
    >>> contrast.trained.value, contrast.held_out.value, contrast.difference.value
    (-3.0, -1.0, -2.0)

    The mean of either side has the variance 1/3, so their difference has 2/3:

    >>> round(contrast.difference.se, 4), round(contrast.freedom, 2)
    (0.8165, 5.0)
    """
    no_trained, no_held_out = reasons
    if not sides.trained.any():
        return Memory.missing(no_trained)
    if sides.trained.all():
        return Memory.missing(no_held_out)

    if not (sides.cells >= 0).any():
        return Memory.missing(
            "no trained identifier has held-out ones of its type, form and place in "
            f"{MIN_CLUSTERS_OF_SIDE} clusters"
        )

    # Sums of both sides by cluster and stratum.
    shared = sides.shared
    sums = shared.sums_of(change)  # (clusters, 4 * strata)
    n_tokens = round(float(shared.trained_tokens.sum()))
    freedom = shared.freedom

    def estimate(statistic: Statistic) -> Estimate:
        """Return a figure of the sums with its interval, smallest effect and note."""
        figure = estimate_of(
            sums, statistic, n=n_tokens, df=freedom, scale=shared.jackknife_scale
        )
        if figure.se is not None:
            # mde takes the number of clusters, which is its degrees of freedom plus 1.
            figure = replace(figure, mde=mde(figure.se, clusters=int(freedom) + 1))
        if shared.note:
            figure = figure.noting(shared.note)
        return figure

    # Each mean counts the clusters of its side, the difference those of both sides.
    n_trained_clusters = int(shared.trained_tokens.any(axis=1).sum())
    n_held_out_clusters = int(shared.held_out_tokens.any(axis=1).sum())
    return Memory(
        trained=replace(estimate(_trained_mean), clusters=n_trained_clusters),
        held_out=replace(estimate(_held_out_mean), clusters=n_held_out_clusters),
        difference=estimate(_difference_of_means),
        freedom=freedom,
    )


def _split_sides(sums: np.ndarray) -> SideSums:
    """Return sums ``(..., 4 * strata)`` as four arrays ``(..., strata)``."""
    return SideSums(*np.split(sums, 4, axis=-1))


def _trained_mean(totals: np.ndarray) -> np.ndarray:
    """Return the mean change of trained occurrences, nats per token.

    From totals ``(..., 4 * strata)`` to ``(...)``.
    """
    sums = _split_sides(totals)
    mean = sums.trained_change.sum(-1) / sums.trained_tokens.sum(-1)
    return np.asarray(mean)


def _held_out_mean(totals: np.ndarray) -> np.ndarray:
    """Return the mean change of held-out ones in the mix of strata of trained ones.

    From totals ``(..., 4 * strata)`` to ``(...)``, nats per token.
    """
    sums = _split_sides(totals)
    mix = sums.trained_tokens / sums.trained_tokens.sum(-1, keepdims=True)
    mean = (mix * sums.held_out_change / sums.held_out_tokens).sum(-1)
    return np.asarray(mean)


def _difference_of_means(totals: np.ndarray) -> np.ndarray:
    """Return trained minus held-out; below 0, trained ones became likelier."""
    return np.asarray(_trained_mean(totals) - _held_out_mean(totals))


def _jackknife_scale(
    trained_tokens: np.ndarray, held_out_tokens: np.ndarray
) -> np.ndarray:
    """Return the weight of each cluster in the jackknife variance, ``(clusters,)``.

    It is ``(m - 1) / m`` of the stratified jackknife, with m clusters in a stratum and
    side. ``trained_tokens``, ``held_out_tokens``: shape ``(clusters, strata)``.
    """
    tokens = np.hstack([trained_tokens, held_out_tokens])  # (clusters, 2 * strata)

    # A single cluster gets the weight 1, or its spread would be lost.
    n_clusters = (tokens > 0).sum(axis=0)  # (2 * strata,)
    factor = np.where(n_clusters > 1, (n_clusters - 1) / np.maximum(n_clusters, 1), 1.0)

    # A cluster in several strata gets the mean of their factors, weighted by tokens.
    scale: np.ndarray = (tokens * factor).sum(axis=1) / tokens.sum(axis=1)
    return scale


def _degrees_of_freedom(
    trained_tokens: np.ndarray, held_out_tokens: np.ndarray
) -> float:
    """Return Satterthwaite's degrees of freedom from each cluster's share of a side.

    The squared share of a cluster stands in for its variance in the formula; at least
    1. ``trained_tokens``, ``held_out_tokens``: shape ``(clusters, strata)``.
    """
    total = trained_tokens.sum()
    share_of_trained = trained_tokens.sum(axis=1) / total  # (clusters,)

    # Held-out strata are weighted by the trained tokens in them.
    mix = trained_tokens.sum(axis=0) / total  # (strata,)
    share_by_stratum = mix * held_out_tokens / held_out_tokens.sum(axis=0)
    share_of_held_out = share_by_stratum.sum(axis=1)  # (clusters,)

    n_effective = effective_clusters(share_of_trained**2 + share_of_held_out**2)
    return max(n_effective - 1, 1.0)


def _note_of_left_out(sides: Sides, is_used: np.ndarray) -> str:
    """Return the note on trained identifiers without a comparison; "": none."""
    n_left_out = int((sides.trained & ~is_used).sum())
    if not n_left_out:
        return ""

    n_trained = int(sides.trained.sum())
    return (
        f"{n_left_out} of {n_trained} trained identifiers were left out: no "
        "held-out identifier of the same type, form and place"
    )


def codes_of(labels: ArrayLike) -> np.ndarray:
    """Return a code for each label, numbered in the order of first appearance.

    Parameters
    ----------
    labels
        Shape ``(n,)``.

    Returns
    -------
    Shape ``(n,)``, integers.

    Examples
    --------
    >>> codes_of(["b", "a", "b", "c"]).tolist()
    [0, 1, 0, 2]
    """
    _, first_seen, sorted_codes = np.unique(
        np.asarray(labels), return_index=True, return_inverse=True
    )
    # Rank of each distinct label by where it is seen first.
    rank_of_label = np.argsort(np.argsort(first_seen))
    codes: np.ndarray = rank_of_label[sorted_codes]
    return codes


def sums_by_stratum(
    columns: Sequence[np.ndarray], sides: Sides, is_used: np.ndarray
) -> np.ndarray:
    """Return sums of K columns by cluster and stratum.

    Parameters
    ----------
    columns
        K arrays of shape ``(s,)``.
    sides
        Cluster and stratum of each occurrence.
    is_used
        Shape ``(s,)``, bool: occurrences that are summed; each has a stratum.

    Returns
    -------
    Shape ``(clusters, K * strata)``: by column, and within a column by stratum.
    """
    strata = sides.cells[is_used]
    clusters = sides.clusters[is_used]
    n_clusters = int(clusters.max()) + 1
    n_strata = int(strata.max()) + 1

    sums = cluster_sums(
        np.stack(columns, axis=1)[is_used],
        clusters * n_strata + strata,
        n_clusters * n_strata,
    )  # (clusters * strata, K)
    by_cluster = sums.reshape(n_clusters, n_strata, -1).swapaxes(1, 2)
    return by_cluster.reshape(n_clusters, -1)  # (clusters, K * strata)

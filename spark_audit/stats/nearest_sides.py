"""Whether texts lie nearer to rows of one side than to those of the other.

The question of a copy: is a generated text nearer to its nearest trained row than to
its nearest held-out row? Two sets of equal size would be equally near if nobody had
copied either. Sets of unequal size are not: of more rows the nearest is nearer. So the
sides are dealt to the rows anew, whole clusters at a time and as many to each side as
before, and the difference is compared with that of such deals. If chance decided which
clusters were trained on, the test is exact, whatever the sizes.

In shapes, ``G`` are texts, ``K`` neighbours of each among the rows of both sides, and
``C`` clusters of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DEALS = 4999
"""Most deals of the test."""

LEAST_P = 2 / (1 + DEALS)
"""The smallest two-sided p that the test can give."""

DEALS_PER_LOOK = 500
"""Deals after which the test may stop."""

EXCEEDANCES_TO_STOP = 200
"""Stop after so many deals on either side of the observed value (Besag and Clifford,
1991): p is then known well enough, and claims nothing."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of each text, the nearest first.

    Attributes
    ----------
    similarity
        Shape ``(G, K)``, 0 to 1.
    cluster
        Shape ``(G, K)``, int: the cluster of each of these rows.
    """

    similarity: np.ndarray
    cluster: np.ndarray


@dataclass(frozen=True)
class NearestSides:
    """The similarity of each text to its nearest row of each side, shape ``(G,)``."""

    trained: np.ndarray
    held_out: np.ndarray

    @property
    def difference(self) -> np.ndarray:
        """How much nearer each text is to trained rows, shape ``(G,)``."""
        return np.asarray(self.trained - self.held_out)

    @property
    def is_nearer(self) -> np.ndarray:
        """1 where a text is nearer to trained rows, 0.5 for ties, shape ``(G,)``."""
        return np.asarray((np.sign(self.difference) + 1) / 2)


@dataclass(frozen=True)
class NearestTest:
    """The test that texts are nearer to trained rows than sizes alone make them.

    Attributes
    ----------
    expected, expected_nearer
        Mean difference, and share of texts that are nearer to trained rows, over all
        deals: what the numbers of rows alone give.
    p
        Two-sided p of no difference.
    """

    expected: float
    expected_nearer: float
    p: float


def nearest_sides(neighbours: Neighbours, is_trained: np.ndarray) -> NearestSides:
    """Return how near each text is to either side.

    A side that has none of the K neighbours is as near as the last of them, at most.

    Parameters
    ----------
    is_trained
        Shape ``(C,)``, bool: the side of each cluster.

    Examples
    --------
    >>> neighbours = Neighbours(np.array([[0.9, 0.4]]), np.array([[0, 1]]))
    >>> sides = nearest_sides(neighbours, np.array([True, False]))
    >>> sides.trained, sides.held_out
    (array([0.9]), array([0.4]))
    """
    side_of_neighbour = is_trained[neighbours.cluster]  # (G, K), bool
    return NearestSides(
        trained=_first_of(side_of_neighbour, neighbours.similarity),
        held_out=_first_of(~side_of_neighbour, neighbours.similarity),
    )


def _first_of(is_of_side: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    """Return the similarity of the first neighbour of a side, shape ``(G,)``."""
    n_neighbours = similarity.shape[1]
    first = np.argmax(is_of_side, axis=1)  # (G,), 0 also where there is none
    has_one = is_of_side.any(axis=1)
    first = np.where(has_one, first, n_neighbours - 1)
    return np.asarray(np.take_along_axis(similarity, first[:, None], axis=1)[:, 0])


def nearest_test(
    neighbours: Neighbours,
    is_trained: np.ndarray,
    strata: np.ndarray,
    *,
    seed: int,
    deals: int = DEALS,
) -> NearestTest:
    """Return the permutation test over clusters, which are dealt within strata.

    Parameters
    ----------
    is_trained, strata
        Shape ``(C,)``: the side of each cluster, and within what it is dealt.
    deals
        Most deals.
    """
    rng = np.random.default_rng(seed)
    observed = float(nearest_sides(neighbours, is_trained).difference.mean())
    members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]

    differences: list[float] = []
    shares: list[float] = []
    n_above = 0
    n_below = 0
    while len(differences) < deals:
        dealt = is_trained.copy()
        for clusters in members:
            dealt[clusters] = rng.permutation(is_trained[clusters])
        sides = nearest_sides(neighbours, dealt)
        difference = float(sides.difference.mean())
        differences.append(difference)
        shares.append(float(sides.is_nearer.mean()))
        n_above += difference >= observed
        n_below += difference <= observed

        is_look = len(differences) % DEALS_PER_LOOK == 0
        if is_look and min(n_above, n_below) >= EXCEEDANCES_TO_STOP:
            break

    n_dealt = len(differences)
    p = 2 * (1 + min(n_above, n_below)) / (1 + n_dealt)
    return NearestTest(
        expected=float(np.mean(differences)),
        expected_nearer=float(np.mean(shares)),
        p=min(1.0, p),
    )

"""p values of several tests, adjusted so that they hold together.

Holm's procedure holds whatever the tests depend on. :func:`correlated` is less strict
where the correlation of the tests is known. Sign-flip tests of several contrasts have
their own, :func:`spark_audit.stats.sign_flips.max_t`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike

# Names a test: a checkpoint, or what else an audit counts its tests by.
KeyT = TypeVar("KeyT")

NORMAL_DRAWS = 1 << 16
"""Draws of K correlated normals: the least p is about 1 / 65,537."""

LEAST_NORMAL_P = 1e-15
"""A smaller p is taken for this one, since its normal statistic would be infinite."""

_TIE = 1e-12
"""A drawn statistic that agrees with the observed one to this share is a tie."""


def holm(p: ArrayLike) -> np.ndarray:
    """Return Holm's (1979) step-down adjusted p values, shape ``(K,)``.

    ``p``: shape ``(K,)``, one p for each test.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)  # K for the smallest p, 1 for the largest

    # Step-down: no adjusted p is smaller than that of a smaller p.
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * factors).clip(max=1.0)
    return adjusted


def holm_by_key(p: Mapping[KeyT, float | None]) -> dict[KeyT, float]:
    """Return Holm's adjusted p values by key, without the keys that have no p.

    A test without a p does not count: the others are adjusted as if it was not there.

    Examples
    --------
    >>> holm_by_key({"a": 0.01, "b": None, "c": 0.5})
    {'a': 0.02, 'c': 0.5}
    """
    tested = {key: value for key, value in p.items() if value is not None}
    adjusted = holm(list(tested.values())).tolist()
    return dict(zip(tested, adjusted, strict=True))


def correlated(
    p: ArrayLike, correlation: np.ndarray, *, significance: float = 0.0125
) -> tuple[np.ndarray, float]:
    """Return family-wise p values of correlated tests, and their effective number.

    The method is single-step max-T: how often the largest of K normal statistics with
    this correlation exceeds each observed one, from :data:`NORMAL_DRAWS` draws with a
    fixed seed. The result is never above Holm's p, which is also valid and not limited
    by the number of draws.

    Parameters
    ----------
    p
        Shape ``(K,)``: two-sided p values.
    correlation
        Shape ``(K, K)``: correlation of the statistics without any effect.
    significance
        Largest family-wise p that counts as a detection.

    Returns
    -------
    adjusted
        Shape ``(K,)``: family-wise p values.
    n_worth
        Effective number of independent tests, from 1 to K: a p of ``significance /
        n_worth`` is adjusted to ``significance``.

    Examples
    --------
    Two identical tests count as one:

    >>> adjusted, n_worth = correlated([0.03, 0.03], np.ones((2, 2)))
    >>> adjusted.round(2).tolist(), round(n_worth, 1)
    ([0.03, 0.03], 1.0)
    """
    values = np.asarray(p, dtype=np.float64)

    # Draw normal statistics with this correlation through its eigenvectors.
    variances, axes = np.linalg.eigh(correlation)  # (K,), (K, K)
    draws = np.random.default_rng(0).standard_normal((NORMAL_DRAWS, len(values)))
    statistics = draws * np.sqrt(np.maximum(variances, 0.0)) @ axes.T  # (draws, K)
    sorted_largest = np.sort(np.abs(statistics).max(axis=1))  # (draws,)

    # Turn each p into the absolute normal statistic that has it.
    half_p = np.maximum(values, LEAST_NORMAL_P) / 2
    threshold = scipy.special.ndtri(1 - half_p) * (1 - _TIE)
    n_as_large = NORMAL_DRAWS - np.searchsorted(sorted_largest, threshold)
    adjusted = np.minimum((1 + n_as_large) / (1 + NORMAL_DRAWS), holm(values))

    # The p of a single test whose statistic the largest of K exceeds as often as the
    # significance says.
    quantile = np.quantile(sorted_largest, 1 - significance)
    single_p = 2 * scipy.special.ndtr(-quantile)
    n_worth = float(np.clip(significance / single_p, 1.0, len(values)))
    return adjusted, n_worth

"""Balance of identifiers and their controls, before and after matching.

Balance is judged by size, never by a test, as MatchIt advises. All standardised mean
differences use the same SD, that of the PII spans *before* matching, so that before and
after can be compared. A *side* is the PII spans, or the windows that they are compared
with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from spark_audit.errors import NotEstimableError

CONSTANT_TOLERANCE = 1e-6
"""Values that differ by this share of the largest, or less, are a constant."""


def smd(a: np.ndarray, b: np.ndarray, *, sd: float) -> float:
    """Return the standardised mean difference ``(mean(a) - mean(b)) / sd``, signed.

    Parameters
    ----------
    a, b
        Shape ``(n,)`` and ``(m,)``: PII spans and windows, any unit.
    sd
        Divisor of the difference, such as the SD of the PII spans before matching.

    Raises
    ------
    NotEstimableError
        If a side is empty, a value is not finite, or the SD is 0.

    Examples
    --------
    >>> smd(np.array([2.0, 4.0]), np.array([1.0, 3.0]), sd=2.0)
    0.5
    """
    mean_of_a = _sample(a).mean()
    mean_of_b = _sample(b).mean()
    if not sd > 0:
        raise NotEstimableError("the covariate is constant")
    return float((mean_of_a - mean_of_b) / sd)


def variance_ratio(a: np.ndarray, b: np.ndarray) -> float:
    """Return the variance of ``a`` over that of ``b`` (n - 1).

    Shapes ``(n,)`` and ``(m,)``. Sides are balanced between 0.5 and 2.

    Raises
    ------
    NotEstimableError
        If a side has fewer than 2 values, a value is not finite, or ``b`` is constant.

    Examples
    --------
    >>> variance_ratio(np.array([0.0, 2.0]), np.array([0.0, 1.0]))
    4.0
    """
    sd_of_a = _sd(_sample(a))
    sd_of_b = _sd(_sample(b))
    if not sd_of_b > 0:
        raise NotEstimableError("the covariate is constant")

    # By way of the SDs, so that a constant `a` gives exactly 0 in spite of round-off.
    return (sd_of_a / sd_of_b) ** 2


def ecdf_max(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest distance of the empirical distributions (Kolmogorov-Smirnov).

    Shapes ``(n,)`` and ``(m,)``: a value for each observation of a side.

    Raises
    ------
    NotEstimableError
        If a side is empty, or a value is not finite.

    Examples
    --------
    >>> ecdf_max(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.5
    """
    return float(_ecdf_distance(a, b).max())


def ecdf_mean(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean distance of the empirical distributions over all observations.

    Shapes ``(n,)`` and ``(m,)``: a value for each observation of a side. An observation
    that occurs twice counts twice.

    Raises
    ------
    NotEstimableError
        If a side is empty, or a value is not finite.

    Examples
    --------
    >>> ecdf_mean(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.375
    """
    return float(_ecdf_distance(a, b).mean())


def balance_rows(
    covariates_pii: Mapping[str, np.ndarray],
    covariates_pool: Mapping[str, np.ndarray],
    covariates_control: Mapping[str, np.ndarray],
    *,
    covariates_matched: Mapping[str, np.ndarray] | None = None,
) -> list[dict[str, str | float | None]]:
    """Return the rows of a Love plot: each covariate before and after matching.

    Parameters
    ----------
    covariates_pii
        Name -> values, one per PII span, matched or not. Their SD divides both SMDs.
    covariates_pool
        The same names for all windows that could have been controls.
    covariates_control
        The same names for the controls chosen.
    covariates_matched
        The same names for the PII spans that have a control; default all PII spans.

    Returns
    -------
    list of dict
        ``covariate``; ``mean_pii``, ``mean_pool``, ``mean_control``; ``smd``,
        ``variance_ratio``, ``ecdf_max`` and ``ecdf_mean``, each ``_before`` (PII
        against pool) and ``_after`` (matched PII against controls); ``note``. A figure
        that has no value is None and the note says why. The keys are the fields of
        ``BalanceRow`` in the manifest's schema; a new figure goes there too.

    Examples
    --------
    >>> (row,) = balance_rows(
    ...     {"nll": np.array([1.0, 3.0])},
    ...     {"nll": np.array([0.0, 1.0])},
    ...     {"nll": np.array([1.0, 2.5])},
    ... )
    >>> round(row["smd_before"], 3), round(row["smd_after"], 3)
    (1.061, 0.177)
    """
    if covariates_matched is None:
        covariates_matched = covariates_pii

    return [
        _balance_row(
            name,
            pii=np.asarray(covariates_pii[name], np.float64),
            pool=np.asarray(covariates_pool[name], np.float64),
            matched=np.asarray(covariates_matched[name], np.float64),
            control=np.asarray(covariates_control[name], np.float64),
        )
        for name in covariates_pii
    ]


def _balance_row(
    name: str,
    *,
    pii: np.ndarray,
    pool: np.ndarray,
    matched: np.ndarray,
    control: np.ndarray,
) -> dict[str, str | float | None]:
    """Return the figures of one covariate; a new one is a further ``put``.

    The arrays, float64, hold one value for each span (``pii``, ``matched``) or window
    (``pool``, ``control``).
    """
    row: dict[str, str | float | None] = {"covariate": name}
    figures_by_reason: dict[str, list[str]] = {}

    def put(figure: str, compute: Callable[[], float]) -> None:
        """Put a figure into the row; if it has none, None, and keep the reason."""
        try:
            row[figure] = compute()
        except NotEstimableError as error:
            row[figure] = None
            figures_by_reason.setdefault(error.what, []).append(figure)

    put("mean_pii", lambda: _mean(pii))
    put("mean_pool", lambda: _mean(pool))
    put("mean_control", lambda: _mean(control))

    # Both differences are divided by the SD of all PII spans.
    put("smd_before", lambda: smd(pii, pool, sd=_sd(_sample(pii))))
    put("variance_ratio_before", lambda: variance_ratio(pii, pool))
    put("ecdf_max_before", lambda: ecdf_max(pii, pool))
    put("ecdf_mean_before", lambda: ecdf_mean(pii, pool))

    put("smd_after", lambda: smd(matched, control, sd=_sd(_sample(pii))))
    put("variance_ratio_after", lambda: variance_ratio(matched, control))
    put("ecdf_max_after", lambda: ecdf_max(matched, control))
    put("ecdf_mean_after", lambda: ecdf_mean(matched, control))

    # Name each reason once, with the figures that it concerns.
    notes = []
    for reason, figures in figures_by_reason.items():
        notes.append(f"{reason}: {', '.join(figures)}")
    row["note"] = "; ".join(notes)
    return row


def effective_clusters(counts: Sequence[int] | np.ndarray) -> float:
    """Return how many equal clusters weigh as much as the given ones (Kish).

    ``(sum n)^2 / sum n^2`` for counts, or weights, of shape ``(clusters,)``.

    Raises
    ------
    NotEstimableError
        If no cluster holds anything.

    Examples
    --------
    >>> effective_clusters([3, 3, 3]), effective_clusters([8, 1, 1])
    (3.0, 1.5151515151515151)
    """
    n = np.asarray(counts, dtype=np.float64)
    if not n.size or not n.any():
        raise NotEstimableError("no cluster holds anything")
    return float(n.sum() ** 2 / (n**2).sum())


def _sample(values: np.ndarray) -> np.ndarray:
    """Return values as float64, shape ``(n,)``: at least one, all finite.

    Raises
    ------
    NotEstimableError
        If there is no value, or one is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not sample.size:
        raise NotEstimableError("no values")
    if not np.isfinite(sample).all():
        raise NotEstimableError("values that are not finite")
    return sample


def _mean(values: np.ndarray) -> float:
    """Return the mean of at least one value, all finite."""
    return float(_sample(values).mean())


def _sd(values: np.ndarray) -> float:
    """Return the standard deviation (n - 1) of a sample; exactly 0 for a constant.

    Raises
    ------
    NotEstimableError
        If there are fewer than 2 values.
    """
    if len(values) < 2:
        raise NotEstimableError("fewer than 2 values")

    # Round-off would give a constant a tiny SD and a huge SMD.
    if np.ptp(values) <= CONSTANT_TOLERANCE * np.abs(values).max():
        return 0.0
    return float(values.std(ddof=1))


def _ecdf_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the distance of the distributions at each observation, ``(n + m,)``."""
    sorted_a = np.sort(_sample(a))
    sorted_b = np.sort(_sample(b))
    observations = np.concatenate([sorted_a, sorted_b])

    share_of_a = np.searchsorted(sorted_a, observations, side="right") / len(sorted_a)
    share_of_b = np.searchsorted(sorted_b, observations, side="right") / len(sorted_b)
    return np.abs(share_of_a - share_of_b)

"""How alike identifiers and their controls are, before and after matching.

Balance is judged by size, never by a test, as MatchIt advises: standardised mean
differences are taken on one ruler (the SD of the PII spans *before* matching), so that
before and after compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from spark_audit.errors import NotEstimableError


def smd(a: np.ndarray, b: np.ndarray, *, sd: float) -> float:
    """Standardised mean difference ``(mean(a) - mean(b)) / sd``, signed.

    Parameters
    ----------
    a, b
        Shape ``(n,)`` and ``(m,)``: PII spans and windows, any unit.
    sd
        The ruler, such as the SD of the PII spans before matching.

    Raises
    ------
    NotEstimableError
        If a side is empty, a value is not finite, or the SD is 0.
    """
    a, b = _sample(a), _sample(b)
    if not sd > 0:
        raise NotEstimableError("the covariate is constant")
    return float((a.mean() - b.mean()) / sd)


def variance_ratio(a: np.ndarray, b: np.ndarray) -> float:
    """Return the variance of ``a`` over that of ``b`` (n - 1).

    Shapes ``(n,)`` and ``(m,)``. Sides are balanced between 0.5 and 2.

    Raises
    ------
    NotEstimableError
        If a side has fewer than 2 values, a value is not finite, or ``b`` is constant.
    """
    above, below = _sd(_sample(a)), _sd(_sample(b))
    if not below > 0:
        raise NotEstimableError("the covariate is constant")
    return (above / below) ** 2


def ecdf_max(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest distance of the empirical distributions (Kolmogorov-Smirnov).

    Shapes ``(n,)`` and ``(m,)``: a value for each observation of a side.
    """
    return float(_ecdf_distance(a, b).max())


def ecdf_mean(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean distance of the empirical distributions over all observations.

    Shapes ``(n,)`` and ``(m,)``: a value for each observation of a side.

    An observation that occurs twice counts twice.
    """
    return float(_ecdf_distance(a, b).mean())


def balance_rows(
    covariates_pii: Mapping[str, np.ndarray],
    covariates_pool: Mapping[str, np.ndarray],
    covariates_control: Mapping[str, np.ndarray],
    *,
    covariates_matched: Mapping[str, np.ndarray] | None = None,
) -> list[dict[str, str | float | None]]:
    """One row a covariate, before and after matching: the data of a Love plot.

    Parameters
    ----------
    covariates_pii
        Name -> values, one a PII span, matched or not: its SD is the ruler of both
        SMDs.
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
        that has no value is None and the note says why.
    """
    matched = covariates_pii if covariates_matched is None else covariates_matched
    sides = (covariates_pii, covariates_pool, matched, covariates_control)
    return [
        _balance_row(name, *(np.asarray(side[name], np.float64) for side in sides))
        for name in covariates_pii
    ]


def _balance_row(
    name: str, pii: np.ndarray, pool: np.ndarray, matched: np.ndarray, own: np.ndarray
) -> dict[str, str | float | None]:
    why: dict[str, list[str]] = {}
    row: dict[str, str | float | None] = {"covariate": name}

    def put(figure: str, compute: Callable[..., float], *samples: np.ndarray) -> None:
        try:
            row[figure] = compute(*samples)
        except NotEstimableError as error:
            row[figure] = None
            why.setdefault(error.what, []).append(figure)

    for side, values in (("pii", pii), ("pool", pool), ("control", own)):
        put(f"mean_{side}", lambda one: float(_sample(one).mean()), values)
    for when, *both in (("before", pii, pool), ("after", matched, own)):
        put(f"smd_{when}", lambda a, b: smd(a, b, sd=_sd(_sample(pii))), *both)
        for compute in (variance_ratio, ecdf_max, ecdf_mean):
            put(f"{compute.__name__}_{when}", compute, *both)
    row["note"] = "; ".join(f"{reason}: {', '.join(f)}" for reason, f in why.items())
    return row


def effective_clusters(counts: Sequence[int] | np.ndarray) -> float:
    """Clusters of equal size that would weigh as much: ``(sum n)^2 / sum n^2``.

    Raises
    ------
    NotEstimableError
        If no cluster holds anything.
    """
    n = np.asarray(counts, dtype=np.float64)
    if not n.size or not n.any():
        raise NotEstimableError("no cluster holds anything")
    return float(n.sum() ** 2 / (n**2).sum())


def _sample(values: np.ndarray) -> np.ndarray:
    """Shape ``(n,)``, float64, at least one value, all finite."""
    out = np.asarray(values, dtype=np.float64)
    if not out.size:
        raise NotEstimableError("no values")
    if not np.isfinite(out).all():
        raise NotEstimableError("values that are not finite")
    return out


def _sd(values: np.ndarray) -> float:
    """Standard deviation with n - 1; exactly 0 for a constant, to a millionth."""
    if len(values) < 2:
        raise NotEstimableError("fewer than 2 values")
    # Round-off would give a constant a tiny SD and a huge SMD.
    same = np.ptp(values) <= 1e-6 * np.abs(values).max()
    return 0.0 if same else float(values.std(ddof=1))


def _ecdf_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance of the two distributions at each observation of both."""
    a, b = np.sort(_sample(a)), np.sort(_sample(b))
    at = np.concatenate([a, b])
    below_a = np.searchsorted(a, at, side="right") / len(a)
    below_b = np.searchsorted(b, at, side="right") / len(b)
    return np.abs(below_a - below_b)

"""Difficulty-matched controls: for each PII span a window of the same example.

The design is SPARK's difficulty-matched selectivity evaluation: a control has the
span's number of tokens and, on the reference model, its mean NLL within a caliper.
Everything is decided in integers (micro-nats per token, micro-nat-tokens per pair), so
that the same scores give the same pairs on every machine. Controls of one example
share no token (see :mod:`spark_audit.stats.assignment`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from spark_audit.errors import InputError, NotEstimableError
from spark_audit.stats.assignment import Choices, assign_disjoint

NOT_SCORED = "span not fully scored"
NO_WINDOW = "no eligible window of length {}"
OUTSIDE_CALIPER = "none within caliper"
LOST = "lost to another span"

# Round-off of a log-softmax can leave an NLL this far (nats) below its true minimum 0.
_ROUND_OFF = 1e-3
# Sums over 9 million tokens of this many nats still fit into int64 micro-nats.
_LARGEST = 1e6
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Pair:
    """A span and one of its controls.

    Attributes
    ----------
    span
        Index of the span as the caller gave it.
    start, end
        Tokens of the control, end exclusive.
    cost
        The distance, which the matching minimised, in micro-nat-tokens.
    """

    span: int
    start: int
    end: int
    cost: int


class Matching(NamedTuple):
    """What :func:`match_spans` found.

    ``pairs`` are sorted by span and start; ``unmatched``: why a span has no control.
    """

    pairs: list[Pair]
    unmatched: dict[int, str]


def micro_nats(nll: np.ndarray) -> np.ndarray:
    """NLLs in nats as integers of a millionth nat, half to even.

    Parameters
    ----------
    nll
        Any shape, nats.

    Returns
    -------
    numpy.ndarray
        The same shape, int64, not negative: round-off below 0 becomes 0.

    Raises
    ------
    InputError
        If a value is NaN or infinite, clearly negative, or too large for a token.
    """
    values = np.asarray(nll, dtype=np.float64)
    bad = ~((values >= -_ROUND_OFF) & (values <= _LARGEST))
    if bad.any():
        raise InputError(
            f"{int(bad.sum())} of {values.size} token NLLs are no finite nats above 0",
            where="reference scores",
            fix="give negative log probabilities, scored in float32",
        )
    return np.maximum(np.rint(1e6 * values), 0.0).astype(np.int64)


def eligible_windows(eligible: np.ndarray, length: int) -> np.ndarray:
    """Starts of all windows made of eligible tokens only, in O(T).

    Parameters
    ----------
    eligible
        Shape ``(T,)``, bool.
    length
        Tokens of a window, at least 1.

    Returns
    -------
    numpy.ndarray
        Shape ``(n,)``, int64, rising.
    """
    if length > len(eligible):
        return np.zeros(0, np.int64)
    counts = _prefix_sums(eligible)
    return np.flatnonzero(counts[length:] - counts[:-length] == length)


def dilate(mask: np.ndarray, buffer: int) -> np.ndarray:
    """Tokens at most ``buffer`` away from a token of the mask; shape ``(T,)``, bool."""
    counts = _prefix_sums(mask)
    at = np.arange(len(mask))
    low, high = np.maximum(at - buffer, 0), np.minimum(at + buffer + 1, len(mask))
    return counts[high] > counts[low]


def match_spans(
    unll: np.ndarray,
    eligible: np.ndarray,
    spans: Sequence[tuple[int, int]],
    *,
    caliper_u: int = 500_000,
    distance: Literal["mean", "profile"] = "mean",
    controls: Literal["any", "before"] = "any",
    shows: np.ndarray | None = None,
) -> Matching:
    """Match the PII spans of one example with windows of the same example.

    Lexicographically: most spans with a control, least total cost; ties go to spans
    that stand earlier (by start, end, index), then to earlier windows.

    Parameters
    ----------
    unll
        Shape ``(T,)``, integer micro-nats on the reference model (:func:`micro_nats`);
        negative where nothing was scored.
    eligible
        Shape ``(T,)``, bool: tokens a control may use. Tokens of ``spans`` and tokens
        without a score are never used, whatever this says.
    spans
        Token ranges ``(start, end)`` of the PII spans.
    caliper_u
        Largest distance per token, micro-nats, inclusive.
    distance
        ``mean``: absolute difference of the summed NLLs. ``profile``: sum of absolute
        differences of the sorted token NLLs (Wasserstein-1 times tokens), never smaller
        than ``mean``; equal means can hide unequal profiles.
    controls
        ``before``: only windows that end where the span starts or earlier, whose
        context the span itself cannot have changed.
    shows
        Shape ``(T,)``, bool: tokens that are not all blank; a control has one of them.

    Returns
    -------
    Matching
        ``(pairs, unmatched)``. Reasons: ``span not fully scored``;
        ``no eligible window of length L`` (after ``controls``);
        ``none within caliper``; ``lost to another span`` (it had an admissible
        window, and the optimum gave the tokens away).
    """
    scored = unll >= 0
    free = eligible & scored
    for start, end in spans:
        free[start:end] = False
    windows = {n: eligible_windows(free, n) for n in {b - a for a, b in spans}}
    if shows is not None:
        seen = _prefix_sums(shows)
        windows = {n: at[seen[at + n] > seen[at]] for n, at in windows.items()}
    choices: dict[int, Choices] = {}
    reasons: dict[int, str] = {}
    for i in sorted(range(len(spans)), key=lambda i: (*spans[i], i)):
        start, end = spans[i]
        starts = windows[end - start]
        if controls == "before":
            # None reaches into the span, whose tokens are not free.
            starts = starts[starts < start]
        if not scored[start:end].all():
            reasons[i] = NOT_SCORED
        elif not len(starts):
            reasons[i] = NO_WINDOW.format(end - start)
        else:
            choices[i] = _within_caliper(
                unll, starts, (start, end), caliper_u=caliper_u, distance=distance
            )
            if not len(choices[i].starts):
                del choices[i]
                reasons[i] = OUTSIDE_CALIPER
    picks = assign_disjoint(list(choices.values()))
    pairs: list[Pair] = []
    for (i, choice), window in zip(choices.items(), picks, strict=True):
        if window is None:
            reasons[i] = LOST
        else:
            cost, start = window
            pairs.append(Pair(i, start, start + choice.length, cost))
    pairs.sort(key=lambda pair: (pair.span, pair.start))
    return Matching(pairs, dict(sorted(reasons.items())))


def non_overlapping_windows(eligible: np.ndarray, length: int) -> np.ndarray:
    """Starts of disjoint eligible windows, greedily from the left; int64, rising.

    This is the pool that the slope of regression to the mean is fitted on.
    """
    edges = np.diff(np.concatenate([[0], eligible, [0]]).astype(np.int8))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    fits = (last - first) // length
    # 0, 1, .. within each run of eligible tokens.
    rank = np.arange(fits.sum()) - np.repeat(np.cumsum(fits) - fits, fits)
    starts: np.ndarray = np.repeat(first, fits) + rank * length
    return starts


def placebo_spans(
    unll: np.ndarray,
    eligible: np.ndarray,
    spans: Sequence[tuple[int, int]],
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Draw disjoint non-PII windows to stand in for PII spans.

    Windows are drawn one after the other, the longest first, each evenly among the
    eligible windows still free. Match them with :func:`match_spans` on the same
    ``eligible``: it takes them out by itself.

    Parameters
    ----------
    unll, eligible, spans
        As in :func:`match_spans`; tokens that are no PII may be used.
    rng
        Decides the draw; the same state gives the same windows.

    Returns
    -------
    The windows in the order of the spans, of those that have one.
    """
    free = eligible & (unll >= 0)
    drawn: dict[int, tuple[int, int]] = {}
    for i, (first, last) in sorted(
        enumerate(spans), key=lambda one: (one[1][0] - one[1][1], one[0])
    ):
        starts = eligible_windows(free, last - first)
        if len(starts):
            start = int(starts[rng.integers(len(starts))])
            drawn[i] = start, start + last - first
            free[slice(*drawn[i])] = False
    return [drawn[i] for i in sorted(drawn)]


def _prefix_sums(values: np.ndarray) -> np.ndarray:
    """Shape ``(T + 1,)``, int64: sums of the first 0, 1, .. T values."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def _within_caliper(
    unll: np.ndarray,
    starts: np.ndarray,
    span: tuple[int, int],
    *,
    caliper_u: int,
    distance: str,
) -> Choices:
    """The windows of a span's length that are near enough, with their costs."""
    start, end = span
    length = end - start
    sums = _prefix_sums(unll)
    total = sums[end] - sums[start]
    costs = np.abs(sums[starts + length] - sums[starts] - total)
    near = costs <= caliper_u * length
    starts, costs = starts[near], costs[near]
    if distance == "profile" and len(starts):
        # Never below the difference of the sums, which has pruned what it could.
        costs = _profile_distance(unll, starts, unll[start:end])
        near = costs <= caliper_u * length
        starts, costs = starts[near], costs[near]
    return Choices(length, starts, costs)


def _profile_distance(
    unll: np.ndarray, starts: np.ndarray, span: np.ndarray
) -> np.ndarray:
    """Sum over tokens of ``|sorted window - sorted span|``; shape of ``starts``."""
    length, profile = len(span), np.sort(span)
    windows = sliding_window_view(unll, length)
    out = np.empty(len(starts), np.int64)
    rows = max(1, _BLOCK // length)
    for at in range(0, len(starts), rows):
        block = np.sort(windows[starts[at : at + rows]], axis=1)
        out[at : at + rows] = np.abs(block - profile).sum(axis=1)
    return out


# --- balance --------------------------------------------------------------------------

# Judged by size, never by a test, as MatchIt advises: standardised mean differences on
# one ruler (the SD of the PII spans *before* matching): before and after compare.


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
    """Variance of ``a`` over variance of ``b`` (n - 1); balanced between 0.5 and 2.

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
    """Largest distance of the empirical distributions (Kolmogorov-Smirnov)."""
    return float(_ecdf_distance(a, b).max())


def ecdf_mean(a: np.ndarray, b: np.ndarray) -> float:
    """Mean distance of the empirical distributions over all observations of both.

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
    name: str,
    pii: np.ndarray,
    pool: np.ndarray,
    matched: np.ndarray,
    control: np.ndarray,
) -> dict[str, str | float | None]:
    why: dict[str, list[str]] = {}
    row: dict[str, str | float | None] = {"covariate": name}

    def put(figure: str, compute: Callable[..., float], *samples: np.ndarray) -> None:
        try:
            row[figure] = compute(*samples)
        except NotEstimableError as error:
            row[figure] = None
            why.setdefault(error.what, []).append(figure)

    def smd_by_pii(a: np.ndarray, b: np.ndarray) -> float:
        return smd(a, b, sd=_sd(_sample(pii)))

    for side, values in (("pii", pii), ("pool", pool), ("control", control)):
        put(f"mean_{side}", _mean, values)
    for when, *both in (("before", pii, pool), ("after", matched, control)):
        put(f"smd_{when}", smd_by_pii, *both)
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


def _mean(values: np.ndarray) -> float:
    return float(_sample(values).mean())


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

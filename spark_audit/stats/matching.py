"""Difficulty-matched controls: for each PII span a window of the same example.

The design is SPARK's difficulty-matched selectivity evaluation: a control has the
span's number of tokens and, on the reference model, its mean NLL within a caliper.
Everything is decided in integers (micro-nats per token, micro-nat-tokens per pair), so
that the same scores give the same pairs on every machine. Controls of one example
share no token: :mod:`~spark_audit.stats.window_assignment` says how they are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from spark_audit.errors import InputError
from spark_audit.stats.window_assignment import Choices, assign_disjoint

SPAN_NOT_SCORED = "span not fully scored"

NO_WINDOW = "no eligible window of length {}"

OUTSIDE_CALIPER = "none within caliper"

LOST_TO_SPAN = "lost to another span"

# Round-off of a log-softmax can leave an NLL this far (nats) below its true minimum 0.
_DISTANCE_ROUND_OFF = 1e-3

# Sums over 9 million tokens of this many nats still fit into int64 micro-nats.
_MAX_DISTANCE = 1e6

_MAX_DISTANCES = 1 << 20


class MatchedPair(NamedTuple):
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

    pairs: list[MatchedPair]
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
    bad = ~((values >= -_DISTANCE_ROUND_OFF) & (values <= _MAX_DISTANCE))
    if bad.any():
        what = f"{bad.sum()} of {values.size} token NLLs are no finite nats above 0"
        fix = "give negative log probabilities, scored in float32"
        raise InputError(what, where="reference scores", fix=fix)
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
    seen = None if shows is None else _prefix_sums(shows)
    windows: dict[int, np.ndarray] = {}
    choices: dict[int, Choices] = {}
    reasons: dict[int, str] = {}
    for i in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[i]
        length = end - start
        if length not in windows:
            at = eligible_windows(free, length)
            windows[length] = at if seen is None else at[seen[at + length] > seen[at]]
        starts = windows[length]
        if controls == "before":
            # None reaches into the span, whose tokens are not free.
            starts = starts[starts < start]
        if not scored[start:end].all():
            reasons[i] = SPAN_NOT_SCORED
        elif not len(starts):
            reasons[i] = NO_WINDOW.format(length)
        else:
            span, profile = slice(start, end), distance == "profile"
            near = _within_caliper(unll, starts, span, caliper_u, profile=profile)
            if len(near.starts):
                choices[i] = near
            else:
                reasons[i] = OUTSIDE_CALIPER
    picks = assign_disjoint(list(choices.values()))
    pairs: list[MatchedPair] = []
    for (i, choice), window in zip(choices.items(), picks, strict=True):
        if window is None:
            reasons[i] = LOST_TO_SPAN
        else:
            start, cost = window
            pairs.append(MatchedPair(i, start, start + choice.length, cost))
    return Matching(sorted(pairs), dict(sorted(reasons.items())))


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
    unll: np.ndarray, starts: np.ndarray, span: slice, caliper_u: int, *, profile: bool
) -> Choices:
    """The windows of a span's length that are near enough, with their costs."""
    length, sums = span.stop - span.start, _prefix_sums(unll)
    total = sums[span.stop] - sums[span.start]
    costs = np.abs(sums[starts + length] - sums[starts] - total)
    near = costs <= caliper_u * length
    starts, costs = starts[near], costs[near]
    if profile and len(starts):
        # Never below the difference of the sums, which has pruned what it could.
        own, windows = np.sort(unll[span]), sliding_window_view(unll, length)
        rows = max(1, _MAX_DISTANCES // length)
        for at in range(0, len(starts), rows):
            block = np.sort(windows[starts[at : at + rows]], axis=1)
            costs[at : at + rows] = np.abs(block - own).sum(axis=1)
        near = costs <= caliper_u * length
        starts, costs = starts[near], costs[near]
    return Choices(length, starts, costs)

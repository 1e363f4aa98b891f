"""Difficulty-matched controls: for each PII span a window of the same example.

The design is SPARK's difficulty-matched selectivity evaluation: a control has the
span's number of tokens and, on the reference model, its mean NLL within a caliper.
Everything is decided in integers (micro-nats per token, micro-nat-tokens per pair), so
that the same scores give the same pairs on every machine. Controls of one example
share no token: :mod:`~spark_audit.stats.window_assignment` says how they are chosen.

In shapes, ``T`` are the tokens of one example. A window is a run of tokens, given by
its start; ``unll`` is the NLL of each token on the reference model in micro-nats, -1
where a token has no score.

A new reason why a span has no control goes into :func:`_choices_of_span`, beside the
constants below, which are the words of the report.
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
"""The number is the span's length in tokens."""
OUTSIDE_CALIPER = "none within caliper"
LOST_TO_SPAN = "lost to another span"

MICRO_NATS_PER_NAT = 1e6

_NLL_ROUND_OFF = 1e-3
"""Round-off of a log-softmax can put an NLL this far (nats) below its true minimum 0.
"""

_MAX_TOKEN_NLL = 1e6
"""Largest NLL of a token, nats: sums over 9 million of them fit into int64 micro-nats.
"""

_MAX_SORTED_TOKENS = 1 << 20
"""Tokens of windows that are sorted at once, which limits memory."""


class MatchedPair(NamedTuple):
    """A span and one of its controls.

    Attributes
    ----------
    span
        Index of the span as the caller gave it.
    start, end
        Tokens of the control, end exclusive.
    cost
        The distance that the matching minimised, in micro-nat-tokens.
    """

    span: int
    start: int
    end: int
    cost: int


class Matching(NamedTuple):
    """Pairs of spans and controls, and the spans that have none.

    ``pairs`` are sorted by span and start. ``unmatched`` maps a span to the reason why
    it has no control.
    """

    pairs: list[MatchedPair]
    unmatched: dict[int, str]


def micro_nats(nll: np.ndarray) -> np.ndarray:
    """Return NLLs in nats as integers of a millionth nat, half to even.

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

    Examples
    --------
    >>> micro_nats(np.array([0.5, 2.0000004, -1e-7])).tolist()
    [500000, 2000000, 0]
    """
    values = np.asarray(nll, dtype=np.float64)

    # A NaN fails both comparisons.
    is_valid = (values >= -_NLL_ROUND_OFF) & (values <= _MAX_TOKEN_NLL)
    if not is_valid.all():
        n_invalid = (~is_valid).sum()
        raise InputError(
            f"{n_invalid} of {values.size} token NLLs are no finite nats above 0",
            where="reference scores",
            fix="give negative log probabilities, scored in float32",
        )

    return np.maximum(np.rint(MICRO_NATS_PER_NAT * values), 0.0).astype(np.int64)


def eligible_windows(eligible: np.ndarray, length: int) -> np.ndarray:
    """Return the starts of all windows made of eligible tokens only, in O(T).

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

    Examples
    --------
    >>> eligible_windows(np.array([1, 1, 0, 1, 1, 1], bool), 2).tolist()
    [0, 3, 4]
    """
    if length > len(eligible):
        return np.zeros(0, np.int64)

    n_before = _prefix_sums(eligible)  # (T + 1,), eligible tokens before each token
    n_eligible = n_before[length:] - n_before[:-length]  # of each window
    return np.flatnonzero(n_eligible == length)


def dilate(mask: np.ndarray, buffer: int) -> np.ndarray:
    """Return a mask of tokens at most ``buffer`` away from a token of the mask.

    Shape ``(T,)``, bool, as the mask.

    Examples
    --------
    >>> dilate(np.array([0, 0, 1, 0, 0, 0], bool), 1).astype(int).tolist()
    [0, 1, 1, 1, 0, 0]
    """
    n_before = _prefix_sums(mask)  # (T + 1,), tokens of the mask before each token
    token = np.arange(len(mask))

    # The neighbourhood of each token, end exclusive.
    start = np.maximum(token - buffer, 0)
    end = np.minimum(token + buffer + 1, len(mask))
    return n_before[end] > n_before[start]


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
    """Return controls for PII spans of one example: windows of the same example.

    The order of preference is: most spans with a control, then least total cost. Ties
    go to earlier spans (by start, end, index), then to earlier windows.

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
        Largest distance per token of a span and its control, micro-nats, inclusive.
    distance
        ``mean``: absolute difference of the summed NLLs. ``profile``: sum of absolute
        differences of the sorted token NLLs (Wasserstein-1 times tokens), never smaller
        than ``mean``; equal means can hide unequal profiles.
    controls
        ``before``: only windows that end where the span starts or earlier, whose
        context the span itself cannot have changed.
    shows
        Shape ``(T,)``, bool: tokens that are not all blank. A control has at least one.
        ``None``: no token counts as blank.

    Returns
    -------
    Matching
        ``(pairs, unmatched)``. Reasons: ``span not fully scored``;
        ``no eligible window of length L`` (after ``controls``);
        ``none within caliper``; ``lost to another span`` (it had an admissible
        window, and the optimum gave the tokens away).

    Examples
    --------
    The span of tokens 0 and 1 has 3 nats; of the windows behind it, tokens 3 and 4
    have nearly as much:

    >>> unll = micro_nats(np.array([1.0, 2.0, 0.0, 1.4, 1.5, 9.0]))
    >>> matching = match_spans(unll, np.ones(6, bool), [(0, 2)])
    >>> matching.pairs
    [MatchedPair(span=0, start=3, end=5, cost=100000)]
    """
    is_scored = unll >= 0  # (T,)
    is_free = eligible & is_scored
    for start, end in spans:
        is_free[start:end] = False

    # Windows of each length that may be a control of any span.
    starts_by_length: dict[int, np.ndarray] = {}
    for length in {end - start for start, end in spans}:
        starts = eligible_windows(is_free, length)
        starts_by_length[length] = _with_visible_token(starts, length, shows)

    # Earlier spans come first, since the order breaks ties.
    choices_by_span: dict[int, Choices] = {}
    reasons: dict[int, str] = {}
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        start, end = spans[index]
        starts = starts_by_length[end - start]
        if controls == "before":
            # No window overlaps the span, whose tokens are not free.
            starts = starts[starts < start]

        choices = _choices_of_span(
            unll,
            starts,
            slice(start, end),
            caliper_u,
            is_profile=distance == "profile",
        )
        if isinstance(choices, str):
            reasons[index] = choices
        else:
            choices_by_span[index] = choices

    # One window for each span, or None, in the same order.
    picks = assign_disjoint(list(choices_by_span.values()))

    pairs: list[MatchedPair] = []
    for index, pick in zip(choices_by_span, picks, strict=True):
        if pick is None:
            reasons[index] = LOST_TO_SPAN
            continue

        start, cost = pick
        length = choices_by_span[index].length
        pairs.append(
            MatchedPair(span=index, start=start, end=start + length, cost=cost)
        )

    return Matching(pairs=sorted(pairs), unmatched=dict(sorted(reasons.items())))


def _with_visible_token(
    starts: np.ndarray, length: int, shows: np.ndarray | None
) -> np.ndarray:
    """Return the starts of windows that have a token which is not all blank.

    ``starts``: shape ``(windows,)``; ``shows``: shape ``(T,)``, or ``None``: all.
    """
    if shows is None:
        return starts

    n_before = _prefix_sums(shows)  # (T + 1,), visible tokens before each token
    has_visible = n_before[starts + length] > n_before[starts]
    visible: np.ndarray = starts[has_visible]
    return visible


def non_overlapping_windows(eligible: np.ndarray, length: int) -> np.ndarray:
    """Return the starts of disjoint eligible windows, greedily from the left.

    Shape ``(n,)``, int64, rising, from ``eligible`` of shape ``(T,)``. This is the pool
    that the slope of regression to the mean is fitted on.

    Examples
    --------
    >>> non_overlapping_windows(np.array([1, 1, 1, 1, 1, 0, 1, 1], bool), 2).tolist()
    [0, 2, 6]
    """
    # Runs of eligible tokens, end exclusive.
    padded = np.concatenate([[0], eligible, [0]]).astype(np.int8)
    edges = np.diff(padded)
    first = np.flatnonzero(edges == 1)
    end = np.flatnonzero(edges == -1)
    n_fitting = (end - first) // length  # windows of each run

    # 0, 1, .. within each run.
    n_before_run = np.cumsum(n_fitting) - n_fitting
    rank = np.arange(n_fitting.sum()) - np.repeat(n_before_run, n_fitting)

    starts: np.ndarray = np.repeat(first, n_fitting) + rank * length
    return starts


def placebo_spans(
    unll: np.ndarray,
    eligible: np.ndarray,
    spans: Sequence[tuple[int, int]],
    rng: np.random.Generator,
    *,
    known_windows: dict[tuple[bytes, int], np.ndarray] | None = None,
) -> list[tuple[int, int]]:
    """Return disjoint non-PII windows, drawn to stand in for PII spans.

    Windows are drawn one after the other, the longest first, each uniformly from the
    free eligible windows. Match them with :func:`match_spans` on the same ``eligible``;
    it excludes them by itself.

    Parameters
    ----------
    unll, eligible, spans
        As in :func:`match_spans`; tokens that are no PII may be used.
    rng
        Decides the draw; the same state gives the same windows.
    known_windows
        Free tokens as bytes, and a length -> starts of eligible windows. Further draws
        of the same example look them up here; those of this draw are added.

    Returns
    -------
    The windows in the order of the spans; spans without one are left out.

    Examples
    --------
    Only tokens 0 and 1 have room for a window of two:

    >>> is_eligible = np.array([1, 1, 0, 1, 0, 1], bool)
    >>> unll = np.zeros(6, np.int64)
    >>> placebo_spans(unll, is_eligible, [(2, 4)], np.random.default_rng(0))
    [(0, 2)]
    """
    if known_windows is None:
        known_windows = {}
    is_free = eligible & (unll >= 0)  # (T,)
    lengths = [end - start for start, end in spans]

    # Draw for the longest spans first; ties go to the earlier span.
    drawn: dict[int, tuple[int, int]] = {}
    for index in sorted(range(len(spans)), key=lambda index: (-lengths[index], index)):
        key = (is_free.tobytes(), lengths[index])
        if key not in known_windows:
            known_windows[key] = eligible_windows(is_free, lengths[index])
        starts = known_windows[key]
        if not len(starts):
            continue

        start = int(starts[rng.integers(len(starts))])
        end = start + lengths[index]
        drawn[index] = (start, end)
        is_free[start:end] = False

    return [drawn[index] for index in sorted(drawn)]


def _prefix_sums(values: np.ndarray) -> np.ndarray:
    """Return sums of the first 0, 1, .. T values, shape ``(T + 1,)``, int64."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def _choices_of_span(
    unll: np.ndarray,
    starts: np.ndarray,
    span: slice,
    caliper_u: int,
    *,
    is_profile: bool,
) -> Choices | str:
    """Return the windows that may be a span's control, or the reason if none may.

    Parameters
    ----------
    starts
        Shape ``(windows,)``: eligible windows of the span's length.
    """
    # A token without a score is below 0.
    if (unll[span] < 0).any():
        return SPAN_NOT_SCORED
    if not len(starts):
        return NO_WINDOW.format(span.stop - span.start)

    near = _within_caliper(unll, starts, span, caliper_u, is_profile=is_profile)
    if not len(near.starts):
        return OUTSIDE_CALIPER
    return near


def _within_caliper(
    unll: np.ndarray,
    starts: np.ndarray,
    span: slice,
    caliper_u: int,
    *,
    is_profile: bool,
) -> Choices:
    """Return the windows within the caliper of a span, with their costs.

    ``starts``: shape ``(windows,)``, of the span's length.
    """
    length = span.stop - span.start
    most = caliper_u * length  # micro-nat-tokens

    # Compare the summed NLLs. Tokens without a score are in no window.
    sum_before = _prefix_sums(unll)  # (T + 1,)
    span_sum = sum_before[span.stop] - sum_before[span.start]
    window_sums = sum_before[starts + length] - sum_before[starts]
    costs = np.abs(window_sums - span_sum)
    is_near = costs <= most
    starts = starts[is_near]
    costs = costs[is_near]

    if is_profile and len(starts):
        # A profile cost is at least the difference of sums, so these windows suffice.
        costs = _profile_costs(unll, starts, span)
        is_near = costs <= most
        starts = starts[is_near]
        costs = costs[is_near]

    return Choices(length=length, starts=starts, costs=costs)


def _profile_costs(unll: np.ndarray, starts: np.ndarray, span: slice) -> np.ndarray:
    """Return the summed differences of sorted NLLs of windows and span.

    ``starts`` and the result: shape ``(windows,)``; micro-nat-tokens.
    """
    length = span.stop - span.start
    sorted_span = np.sort(unll[span])
    windows = sliding_window_view(unll, length)  # (T - length + 1, length)

    costs = np.zeros(len(starts), np.int64)
    n_at_once = max(1, _MAX_SORTED_TOKENS // length)
    for first in range(0, len(starts), n_at_once):
        block = slice(first, first + n_at_once)
        sorted_windows = np.sort(windows[starts[block]], axis=1)
        costs[block] = np.abs(sorted_windows - sorted_span).sum(axis=1)
    return costs

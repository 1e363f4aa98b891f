"""Difficulty-matched controls: for each PII span a window of the same example.

The design is SPARK's difficulty-matched selectivity evaluation: a control has the
span's number of tokens and, on the reference model, its mean NLL within a caliper.
Everything is decided in integers (micro-nats per token, micro-nat-tokens per pair), so
that the same scores give the same pairs on every machine. Controls of one example
share no token.

Windows are assigned to spans, pairwise token-disjoint, at the least total cost
(:func:`assign_disjoint`). The optimum is lexicographic: most spans with a window, then
least total cost, then the smallest mask of spans (a bit a span, the first span the
lowest), then the earliest starts, span by span. That order leaves no ties.

* **Groups.** Each span starts alone with its best window. Where two groups' windows
  clash they are merged and solved together; windows of groups that do not clash are
  optimal together, because each group reached its own optimum and nothing beats the
  sum of optima. (Standley 2010, "Finding optimal solutions to cooperative
  pathfinding problems", calls this independence detection.)
* **Pruning.** A window of ``a`` tokens touches ``a + b - 1`` windows of ``b`` tokens.
  Of a span only as many of its cheapest windows are looked at as all others of its
  group can touch together, and one more: that one is free.
* **Dynamic programme** over window ends and masks, exact for up to ``MAX_SPANS_EXACT``
spans that
  clash. Groups that would hold more are not merged: the window that stands first stays,
  and the other group does without its tokens, which can cost a span its window,
  or a closer one.

What is measured is ``delta_sel = NLL_PII - NLL_control`` over spans matched on a
*reference* model. Matched on one model and measured on another, it is not zero without
any effect on PII. With PII harder than other text by ``gap`` on the
reference, and with the checkpoint's NLL following the reference's with slope ``beta``
inside each group, groups drifting alike, exact matching gives

    E[delta_sel] = (1 - beta) * gap                                         (R1)

(the bias that Daw and Hatfield 2018 describe for matching on a pre-period outcome).
R1 holds at every matched value, so spans that found no control do not change it: the
gap is that of *all* spans. It is one mechanism: it supposes that identifiers and other
text drift by the same number of nats. Drift that depends on how likely a token is, or
on its class, gives other values, often of the other sign. So R1 is printed beside a
figure; it is neither subtracted nor the end of a range, and no test is made against it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from spark_audit.errors import InputError, NotEstimableError
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Estimand, ratio

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


# --- windows for spans, pairwise token-disjoint, exactly ------------------------------


Pick = tuple[int, int]
"""A window as ``(start, cost)``."""

MAX_SPANS_EXACT = 12
"""Spans of a group: all of its 4096 masks may have to be looked at."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The admissible windows of one span.

    Attributes
    ----------
    length
        Tokens of each window.
    starts, costs
        Shape ``(n,)``, int64; starts rise strictly, costs are not negative.
    """

    length: int
    starts: np.ndarray
    costs: np.ndarray

    def without(self, first: int, end: int) -> Choices:
        """Those that share no token with a window."""
        apart = (self.starts >= end) | (self.starts + self.length <= first)
        return Choices(self.length, self.starts[apart], self.costs[apart])


def assign_disjoint(choices: Sequence[Choices]) -> list[Pick | None]:
    """Give each span a window, no token used twice; ``None``: it got none.

    Parameters
    ----------
    choices
        One entry a span, in the order that breaks ties.
    """
    picks: list[Pick | None] = [None] * len(choices)
    left = list(choices)
    group = {i: [i] for i, choice in enumerate(choices) if len(choice.starts)}
    unsolved = list(group.values())
    while unsolved:
        for members in unsolved:
            solution = _dynamic_programme([left[i] for i in members])
            for i, window in zip(members, solution, strict=True):
                picks[i] = window
        unsolved = []
        taken = sorted(
            (window[0], window[0] + choices[i].length, i)
            for i, window in enumerate(picks)
            if window is not None
        )
        # The leftmost two windows that share a token.
        for (first, end, one), (start, _, other) in pairwise(taken):
            if start < end:
                merged = sorted(group[one] + group[other])
                if len(merged) <= MAX_SPANS_EXACT:
                    group.update(dict.fromkeys(merged, merged))
                    unsolved = [merged]
                else:
                    unsolved = [group[other]]
                    for i in group[other]:
                        left[i] = left[i].without(first, end)
                break
    return picks


def _dynamic_programme(choices: Sequence[Choices]) -> list[Pick | None]:
    """The optimum by interval scheduling over masks of the spans that have a window."""
    events: list[tuple[int, int, int, int]] = []
    lengths = [choice.length for choice in choices]
    tokens = sum(lengths)
    for i, choice in enumerate(choices):
        touched = tokens - choice.length
        touched += (len(choices) - 1) * (choice.length - 1)
        cheapest = np.argsort(choice.costs, kind="stable")[: touched + 1]
        windows = np.stack([choice.starts, choice.costs], axis=1)[cheapest].tolist()
        events += [(start + choice.length, start, i, cost) for start, cost in windows]
    events.sort()
    reach = max(lengths)
    # best[n]: mask -> least cost and then earliest windows, of those that end at
    # ends[n] or before. Of one mask the same spans have none.
    nobody: tuple[Pick | None, ...] = (None,) * len(choices)
    ends, best = [0], [{0: (0, nobody)}]
    for end, start, i, cost in events:
        if end > ends[-1]:
            ends.append(end)
            best.append(best[-1].copy())
            # Windows still to come start at end - reach or later.
            old = bisect_right(ends, end - reach) - 1
            if old > 0:
                del ends[:old], best[:old]
        now = best[-1]
        for mask, (total, picks) in best[bisect_right(ends, start) - 1].items():
            known = now.get(mask | 1 << i)
            if mask >> i & 1 or (known is not None and total + cost > known[0]):
                continue
            new = total + cost, (*picks[:i], (start, cost), *picks[i + 1 :])
            if known is None or new < known:
                now[mask | 1 << i] = new
    _, (_, found) = min(
        best[-1].items(), key=lambda one: (-one[0].bit_count(), one[1][0], one[0])
    )
    return list(found)


# --- what regression to the mean would give by itself ---------------------------------


UNLIKE = 0.1
"""Share of a contrast that the drift of other text may differ by between two runs."""
MAX_DRIFT_INTERVAL_SHARE = 0.5
"""Share of a contrast that the interval of that difference may reach to."""


@dataclass(frozen=True)
class Windows:
    """Window means on the reference model: what regression to the mean depends on.

    Parameters
    ----------
    pool
        Shape ``(m,)``: mean NLL of eligible non-overlapping non-PII windows, nats.
    pool_clusters
        Shape ``(m,)``: their cluster codes.
    spans
        Shape ``(s,)``: mean NLL of *all* PII spans, matched or not, nats.
    span_tokens
        Shape ``(s,)``: their lengths; Delta_sel is pooled over tokens.
    span_clusters
        Shape ``(s,)``: their cluster codes.
    n_clusters
        Number C of clusters.
    pool_cells, span_cells
        Shapes ``(m,)`` and ``(s,)``: integer codes of the strata that controls are
        looked for in (same example, same length), each inside one cluster. Slope and
        gap are taken within cells, as matching is: else an example that is hard on
        both models would lift the slope and hide part of the bias.
    """

    pool: np.ndarray
    pool_clusters: np.ndarray
    spans: np.ndarray
    span_tokens: np.ndarray
    span_clusters: np.ndarray
    n_clusters: int
    pool_cells: np.ndarray
    span_cells: np.ndarray


def unlike_drift(
    contrast: float, drift: float, low: float | None, high: float | None
) -> bool:
    """Whether two runs drifted so unequally that no contrast of theirs says anything.

    True where the drift of low-sensitivity text differs between them by more than a
    tenth of the contrast (:data:`UNLIKE`), and its paired interval excludes 0 (or it
    has none), or where that interval reaches half of the contrast
    (:data:`MAX_DRIFT_INTERVAL_SHARE`): too little text to tell. Text that nobody meant
    to change moves in ordinary fine-tuning; where it moves unequally, identifiers and
    equally hard text do too.

    Parameters
    ----------
    contrast
        DiD, nats per token.
    drift, low, high
        NLL of low-sensitivity text on the one minus that on the other, nats per token,
        with its interval, ``None`` where there is none.
    """
    if low is None or high is None:
        return abs(drift) > UNLIKE * abs(contrast)
    clear = (low > 0 or high < 0) and abs(drift) > UNLIKE * abs(contrast)
    return clear or max(-low, high) > MAX_DRIFT_INTERVAL_SHARE * abs(contrast)


def reweighted(
    pii_sum: ArrayLike,
    control_sum: ArrayLike,
    n_tokens: ArrayLike,
    clusters: ArrayLike,
    *,
    n_clusters: int | None = None,
) -> dict[str, Estimand]:
    """Delta_sel averaged over spans, and over sources, by the name of the variant.

    It differs from that over tokens (SPARK's) when the effect depends on size. Over
    sources: the mean over clusters of each cluster's mean over its spans.

    Parameters
    ----------
    pii_sum, control_sum
        Shape ``(s,)``: summed NLL of each matched span and of its control, nats.
    n_tokens
        Shape ``(s,)``: tokens of each span, and as many of its control.
    clusters
        Shape ``(s,)``: cluster codes, below ``n_clusters`` if given.
    """
    apart = np.subtract(pii_sum, control_sum) / np.asarray(n_tokens)
    columns = np.stack([apart, np.ones(len(apart))], axis=1)
    spans = cluster_sums(columns, clusters, n_clusters)
    held = spans[:, 1] > 0
    means = np.divide(spans[:, 0], spans[:, 1], out=np.zeros(len(spans)), where=held)
    return {
        "span-weighted": Estimand(spans, ratio, len(apart)),
        "source-weighted": Estimand(
            np.stack([means, held], axis=1), ratio, int(held.sum())
        ),
    }


def rtm_bias(
    windows: Windows, checkpoint: ArrayLike, baseline: ArrayLike | None = None
) -> Estimand | Estimate:
    """R1 for a checkpoint's Delta_sel, or for its contrast with a baseline.

    ``(1 - beta) * gap`` or ``(beta_baseline - beta_checkpoint) * gap``: both are
    ``-slope * gap`` with the slope of the change in NLL (from the reference or the
    baseline) on the reference's NLL. Slope and gap are re-computed without each
    cluster, so the interval holds the uncertainty of both. An estimate where there is
    none, with the reason.

    Parameters
    ----------
    windows
        The reference model's window means.
    checkpoint, baseline
        Shape ``(m,)``: mean NLL of the pool's windows on these models, nats.
    """
    cells, span_cells = windows.pool_cells, windows.span_cells
    before = windows.pool if baseline is None else np.asarray(baseline)
    # A span whose cell has no window has no candidate: Delta_sel never sees it.
    tokens = np.where(np.isin(span_cells, cells), windows.span_tokens, 0.0)
    size = 1 + max(cells.max(initial=0), span_cells.max(initial=0))
    columns = np.stack([np.ones(len(cells)), windows.pool, checkpoint - before], axis=1)
    ones, *sums = cluster_sums(columns, cells, size).T
    centre, drift = sums / np.maximum(ones, 1)
    x, spans = windows.pool - centre[cells], windows.spans - centre[span_cells]
    change = columns[:, 2] - drift[cells]
    moments = np.stack([columns[:, 0], x, change, x * x, x * change], axis=1)
    pairs = np.stack([tokens, tokens * spans], axis=1)
    of_pool = cluster_sums(moments, windows.pool_clusters, windows.n_clusters)
    of_spans = cluster_sums(pairs, windows.span_clusters, windows.n_clusters)
    table = np.hstack([of_pool, of_spans])
    clusters = int(table.any(axis=1).sum())
    if not tokens.any():
        reason = "no span shares a cell with a window of the pool"
        return Estimate.missing(reason, clusters=clusters)
    if np.isfinite(x).all() and float(x @ x) <= 1e-12 * len(x):
        reason = "the pool's windows do not vary on the reference model"
        return Estimate.missing(reason, clusters=clusters)
    return Estimand(table, _bias, len(x))


def slope(sums: np.ndarray) -> np.ndarray:
    """Slope of the change on the reference's NLL, from what :func:`rtm_bias` sums."""
    n, x, y, xx, xy = np.moveaxis(sums[..., :5], -1, 0)
    spread = xx - x * x / n
    steep = (xy - x * y / n) / np.where(spread > 1e-12 * n, spread, np.nan)
    return np.asarray(steep)


def _bias(sums: np.ndarray) -> np.ndarray:
    """R1 from summed ``n, x, y, xx, xy`` of the pool and ``tokens, x`` of the spans."""
    gap = sums[..., 6] / sums[..., 5] - sums[..., 1] / sums[..., 0]
    return np.asarray(-slope(sums) * gap)

"""Windows for spans, pairwise token-disjoint, at the least total cost.

:func:`assign_disjoint` gives each span one of its admissible windows. The optimum is
lexicographic: most spans with a window, then least total cost, then the smallest mask
of spans (a bit a span, the first span the lowest), then the earliest starts, span by
span. No two assignments tie in this order.

* **Groups.** Each span starts alone with its best window. Where two groups' windows
  clash they are merged and solved together; windows of groups that do not clash are
  optimal together, because each group reached its own optimum and nothing beats the
  sum of optima. (Standley 2010, "Finding optimal solutions to cooperative
  pathfinding problems", calls this independence detection.)
* **Pruning.** A window of ``a`` tokens touches ``a + b - 1`` windows of ``b`` tokens.
  The other spans of a group can together touch only so many windows of a span. One more
  than that number of its cheapest windows is enough, since one stays free.
* **Dynamic programme** over window ends and masks, exact for up to
  :data:`MAX_SPANS_EXACT` spans that clash. Larger groups are not merged: the first
  window stays, and the other group must avoid its tokens. A span can thereby lose its
  window, or its closest one.

A *mask* has one bit for each span of a group, set if the span has a window. Spans are
numbered in the order of ``choices``; costs are whole numbers of any unit.
:mod:`~spark_audit.stats.matching` calls this file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

Pick = tuple[int, int]
"""A window as ``(start, cost)``."""

_Solution: TypeAlias = tuple[int, tuple[Pick | None, ...]]
"""Total cost, and the window of each span; of two for the same mask, the smaller tuple
is better. It is a plain tuple, since there can be thousands for each window.
"""

MAX_SPANS_EXACT = 12
"""Most spans of a group: a group of this size has 4096 masks."""


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

    def without(self, start: int, end: int) -> Choices:
        """Return the windows that share no token with one from ``start`` to ``end``.

        ``end`` is exclusive.
        """
        is_behind = self.starts >= end
        is_before = self.starts + self.length <= start
        is_disjoint = is_behind | is_before
        return Choices(
            length=self.length,
            starts=self.starts[is_disjoint],
            costs=self.costs[is_disjoint],
        )


class _WindowEnd(NamedTuple):
    """A window of a span, end exclusive.

    Sorted, windows stand in the order of ends, which is that of the dynamic programme.
    """

    end: int
    start: int
    span: int
    cost: int


class TakenWindow(NamedTuple):
    """The tokens of a span's window, end exclusive."""

    start: int
    end: int
    span: int


def assign_disjoint(choices: Sequence[Choices]) -> list[Pick | None]:
    """Return a window for each span, without shared tokens; ``None``: no window.

    Parameters
    ----------
    choices
        One entry a span, in the order that breaks ties.

    Examples
    --------
    Both spans are nearest to the window at 0; the second loses least elsewhere:

    >>> first = Choices(length=2, starts=np.array([0, 5]), costs=np.array([1, 9]))
    >>> second = Choices(length=2, starts=np.array([0, 7]), costs=np.array([1, 2]))
    >>> assign_disjoint([first, second])
    [(0, 1), (7, 2)]
    """
    picks: list[Pick | None] = [None] * len(choices)
    admissible = list(choices)

    # Each span that has a window starts as a group by itself.
    group_of_span = {
        span: [span] for span, choice in enumerate(choices) if len(choice.starts)
    }

    unsolved = list(group_of_span.values())
    while unsolved:
        for group in unsolved:
            solution = best_windows([admissible[span] for span in group])
            for span, pick in zip(group, solution, strict=True):
                picks[span] = pick

        unsolved = []
        clash = _leftmost_clash(choices, picks)
        if clash is None:
            break

        first, second = clash
        merged = sorted(group_of_span[first.span] + group_of_span[second.span])
        if len(merged) <= MAX_SPANS_EXACT:
            for span in merged:
                group_of_span[span] = merged
            unsolved.append(merged)
        else:
            # The first window stays, and the other group must avoid its tokens.
            for span in group_of_span[second.span]:
                admissible[span] = admissible[span].without(first.start, first.end)
            unsolved.append(group_of_span[second.span])

    return picks


def _leftmost_clash(
    choices: Sequence[Choices], picks: Sequence[Pick | None]
) -> tuple[TakenWindow, TakenWindow] | None:
    """Return the leftmost two windows that share a token; ``None`` if none do."""
    windows = []
    for span, pick in enumerate(picks):
        if pick is not None:
            start, _ = pick
            end = start + choices[span].length
            windows.append(TakenWindow(start=start, end=end, span=span))

    for first, second in pairwise(sorted(windows)):
        if second.start < first.end:
            return first, second
    return None


def best_windows(choices: Sequence[Choices]) -> list[Pick | None]:
    """Return the windows of one group, at the optimum of :func:`assign_disjoint`.

    Solved by interval scheduling over masks of the spans that have a window, in
    O(windows * 2**spans): groups are kept small by :data:`MAX_SPANS_EXACT`.

    Examples
    --------
    Both windows at 0 cost least, but only one span can have it:

    >>> first = Choices(length=2, starts=np.array([0, 5]), costs=np.array([1, 9]))
    >>> second = Choices(length=2, starts=np.array([0, 7]), costs=np.array([1, 2]))
    >>> best_windows([first, second])
    [(0, 1), (7, 2)]
    """
    longest = max(choice.length for choice in choices)
    nobody: tuple[Pick | None, ...] = (None,) * len(choices)

    # best[k] maps a mask to the best solution among windows that end at ends[k] or
    # before. Both lists grow with the windows' ends.
    ends = [0]
    best: list[dict[int, _Solution]] = [{0: (0, nobody)}]

    for window in _windows_by_end(choices):
        if window.end > ends[-1]:
            ends.append(window.end)
            best.append(best[-1].copy())

            # Later windows start at end - longest or after it.
            n_outdated = bisect_right(ends, window.end - longest) - 1
            if n_outdated > 0:
                del ends[:n_outdated]
                del best[:n_outdated]

        # The window may follow any window that ends before it starts.
        before = best[bisect_right(ends, window.start) - 1]
        _add_window(best[-1], before, window)

    # Prefer most spans, then the least cost, then the smallest mask.
    final = best[-1]
    best_mask = min(
        final,
        key=lambda mask: (-mask.bit_count(), final[mask][0], mask),
    )
    _, best_picks = final[best_mask]
    return list(best_picks)


def _add_window(
    solutions: dict[int, _Solution],
    before: dict[int, _Solution],
    window: _WindowEnd,
) -> None:
    """Put each solution before a window, with the window, among the best solutions.

    Parameters
    ----------
    solutions
        Best solution by mask; changed in place.
    before
        Best solutions among windows that end before this one starts, by mask.
    """
    _, start, span, cost = window
    bit = 1 << span

    for mask, (total, picks) in before.items():
        # A span has one window only.
        if mask & bit:
            continue

        # Compare costs first, which is quicker than making the tuple.
        present = solutions.get(mask | bit)
        if present is not None and total + cost > present[0]:
            continue

        with_window = (*picks[:span], (start, cost), *picks[span + 1 :])
        candidate = (total + cost, with_window)
        if present is None or candidate < present:
            solutions[mask | bit] = candidate


def _windows_by_end(choices: Sequence[Choices]) -> list[_WindowEnd]:
    """Return the windows that can be in an optimum, from the first end to the last.

    For each span these are its cheapest ones: one more than all other spans can touch
    (the pruning in the first lines of this file).
    """
    n_spans = len(choices)
    all_tokens = sum(choice.length for choice in choices)

    windows = []
    for span, choice in enumerate(choices):
        # A window of b tokens touches a + b - 1 windows of a tokens: a = choice.length,
        # and b of the other spans sum up to all_tokens - a.
        n_touched = all_tokens - choice.length
        n_touched += (n_spans - 1) * (choice.length - 1)

        cheapest = np.argsort(choice.costs, kind="stable")[: n_touched + 1]
        starts = choice.starts[cheapest].tolist()
        costs = choice.costs[cheapest].tolist()
        for start, cost in zip(starts, costs, strict=True):
            end = start + choice.length
            windows.append(_WindowEnd(end=end, start=start, span=span, cost=cost))

    return sorted(windows)

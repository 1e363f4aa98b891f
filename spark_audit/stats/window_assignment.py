"""Windows for spans, pairwise token-disjoint, at the least total cost.

:func:`assign_disjoint` gives each span one of its admissible windows. The optimum is
lexicographic: most spans with a window, then least total cost, then the smallest mask
of spans (a bit a span, the first span the lowest), then the earliest starts, span by
span. That order leaves no ties.

* **Groups.** Each span starts alone with its best window. Where two groups' windows
  clash they are merged and solved together; windows of groups that do not clash are
  optimal together, because each group reached its own optimum and nothing beats the
  sum of optima. (Standley 2010, "Finding optimal solutions to cooperative
  pathfinding problems", calls this independence detection.)
* **Pruning.** A window of ``a`` tokens touches ``a + b - 1`` windows of ``b`` tokens.
  Of a span only as many of its cheapest windows are looked at as all others of its
  group can touch together, and one more: that one is free.
* **Dynamic programme** over window ends and masks, exact for up to
  :data:`MAX_SPANS_EXACT` spans that clash. Groups that would hold more are not merged:
  the window that stands first stays, and the other group does without its tokens,
  which can cost a span its window, or a closer one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

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

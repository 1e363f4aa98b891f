"""Windows for spans, pairwise token-disjoint, at the least total cost, exactly.

The optimum is lexicographic: most spans with a window, then least total cost, then the
smallest mask of spans (a bit a span, the first span the lowest), then the earliest
starts, span by span. That order leaves no ties, so every exact way
of solving gives the same answer, and three of them share the work:

* **Groups.** Each span starts alone with its best window. Where two groups' windows
  clash they are merged and solved together; windows of groups that do not clash are
  optimal together, because each group reached its own optimum and nothing beats the
  sum of optima. (Standley 2010, "Finding optimal solutions to cooperative
  pathfinding problems", calls this independence detection.)
* **Pruning.** A window of ``a`` tokens touches at most ``r`` disjoint windows of ``b``
  tokens. Once a span's cheapest windows hold more disjoint ones than all other windows
  of its group can touch together, one of them is always free and no dearer window is
  ever used.
* **Dynamic programme** over window ends and masks. Past ``MAX_STATES`` masks a group
  goes to HiGHS through `scipy.optimize.milp`; among optima of equal cost the choice is
  then HiGHS's own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy

Pick = tuple[int, int]
"""A window as ``(cost, start)``."""

MAX_STATES = 4096
"""Masks that the dynamic programme may have to hold: 12 spans."""


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


def assign_disjoint(choices: Sequence[Choices]) -> list[Pick | None]:
    """Give each span a window, no token used twice; ``None``: it got none.

    Parameters
    ----------
    choices
        One entry a span, in the order that breaks ties.
    """
    picks: list[Pick | None] = [None for _ in choices]
    group = {i: [i] for i, choice in enumerate(choices) if len(choice.starts)}
    unsolved = list(group.values())
    while unsolved:
        for members in unsolved:
            too_large = 1 << len(members) > MAX_STATES
            solve = _integer_programme if too_large else _dynamic_programme
            solution = solve([choices[i] for i in members])
            for i, window in zip(members, solution, strict=True):
                picks[i] = window
        clash = _first_clash(picks, choices)
        unsolved = []
        if clash:
            merged = sorted(group[clash[0]] + group[clash[1]])
            group.update(dict.fromkeys(merged, merged))
            unsolved = [merged]
    return picks


def _first_clash(
    picks: Sequence[Pick | None], choices: Sequence[Choices]
) -> tuple[int, int] | None:
    """The leftmost two spans whose windows share a token."""
    taken = sorted(
        (window[1], window[1] + choices[i].length, i)
        for i, window in enumerate(picks)
        if window is not None
    )
    for (_, end, one), (start, _, other) in pairwise(taken):
        if start < end:
            return one, other
    return None


def _useful(choices: Sequence[Choices]) -> list[list[Pick]]:
    """Windows that an optimum can use, by rising cost."""
    kept: list[list[Pick]] = []
    for i, choice in enumerate(choices):
        touched = sum(
            (other.length - 2) // choice.length + 2
            for j, other in enumerate(choices)
            if j != i
        )
        by_cost = np.argsort(choice.costs, kind="stable")
        starts, costs = choice.starts[by_cost].tolist(), choice.costs[by_cost].tolist()
        disjoint: list[int] = []
        n = 0
        while n < len(starts) and len(disjoint) <= touched:
            if all(abs(starts[n] - s) >= choice.length for s in disjoint):
                disjoint.append(starts[n])
            n += 1
        kept.append(list(zip(costs[:n], starts[:n], strict=True)))
    return kept


def _dynamic_programme(choices: Sequence[Choices]) -> list[Pick | None]:
    """The optimum by interval scheduling over masks of the spans that have a window."""
    kept = _useful(choices)
    events = sorted(
        (start + choices[i].length, start, i, cost)
        for i, windows in enumerate(kept)
        for cost, start in windows
    )
    reach = max(choice.length for choice in choices)
    # best[n]: mask -> least cost and then earliest starts over the windows that end at
    # ends[n] or before.
    nothing: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,) * len(choices))}
    ends, best = [0], [nothing]
    for end, start, i, cost in events:
        if end > ends[-1]:
            ends.append(end)
            best.append(best[-1].copy())
            # Windows still to come start at end - reach or later.
            old = bisect_right(ends, end - reach) - 1
            if old > 0:
                del ends[:old], best[:old]
        now = best[-1]
        for mask, (total, starts) in best[bisect_right(ends, start) - 1].items():
            known = now.get(mask | 1 << i)
            if mask >> i & 1 or (known is not None and total + cost > known[0]):
                continue
            new = total + cost, (*starts[:i], start, *starts[i + 1 :])
            if known is None or new < known:
                now[mask | 1 << i] = new
    mask, (_, starts) = min(
        best[-1].items(), key=lambda one: (-one[0].bit_count(), one[1][0], one[0])
    )
    cost_of = [{start: cost for cost, start in windows} for windows in kept]
    return [
        (cost_of[i][start], start) if mask >> i & 1 else None
        for i, start in enumerate(starts)
    ]


def _integer_programme(choices: Sequence[Choices]) -> list[Pick | None]:
    """The optimum by HiGHS: set packing in two steps, counts first, then cost."""
    kept = _useful(choices)
    owner = np.repeat(np.arange(len(choices)), [len(windows) for windows in kept])
    cost, start = np.array([window for windows in kept for window in windows]).T
    end = start + np.array([choice.length for choice in choices])[owner]
    # Windows that share a token all cover the last start among them.
    points = np.unique(start)[:, None]
    packing = scipy.sparse.csr_array(
        np.vstack(
            [(start <= points) & (points < end), owner == np.unique(owner)[:, None]]
        ).astype(np.float64)
    )
    limits = scipy.optimize.LinearConstraint(packing, -np.inf, 1.0)
    every = np.ones(len(cost))
    most = _solve(-every, limits).sum()
    enough = scipy.optimize.LinearConstraint(every[None, :], most, np.inf)
    picks: list[Pick | None] = [None for _ in choices]
    for j in np.flatnonzero(_solve(cost, limits, enough)):
        picks[owner[j]] = (int(cost[j]), int(start[j]))
    return picks


def _solve(
    objective: np.ndarray, *constraints: scipy.optimize.LinearConstraint
) -> np.ndarray:
    """Minimise over 0/1 variables; shape ``(n,)``, rounded to 0 and 1."""
    result = scipy.optimize.milp(
        objective,
        constraints=constraints,
        integrality=np.ones(len(objective), np.int64),
        bounds=scipy.optimize.Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise RuntimeError(f"HiGHS gave no assignment: {result.message}")
    return np.round(result.x)

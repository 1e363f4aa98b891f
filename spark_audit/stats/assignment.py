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
from typing import Literal

import numpy as np
import scipy

Solver = Literal["dp", "milp"]
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


def assign_disjoint(choices: Sequence[Choices]) -> tuple[list[Pick | None], Solver]:
    """Give each span a window, no token used twice.

    Parameters
    ----------
    choices
        One entry a span, in the order that breaks ties.

    Returns
    -------
    list, str
        The window of each span (``None``: it got none), and ``"milp"`` if any group
        was too large for the dynamic programme, else ``"dp"``.
    """
    picks: list[Pick | None] = [None for _ in choices]
    solver: Solver = "dp"
    group = {i: [i] for i, choice in enumerate(choices) if len(choice.starts)}
    unsolved = list(group.values())
    while unsolved:
        for members in unsolved:
            too_large = 1 << len(members) > MAX_STATES
            solver = "milp" if too_large else solver
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
    return picks, solver


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
    """The optimum by interval scheduling over masks.

    A mask holds which spans have a window. Its value is one integer with the total
    cost in the high bits and below it the starts, first span highest: ``<`` on values
    is the tie rule, and the starts are the back pointers.
    """
    kept = _useful(choices)
    most = sum(windows[-1][0] for windows in kept)
    field = max(int(choice.starts[-1]) for choice in choices).bit_length()
    shifts = [field * (len(choices) - 1 - i) for i in range(len(choices))]
    above = field * len(choices)
    events = sorted(
        (start + choices[i].length, start, i, cost << above)
        for i, windows in enumerate(kept)
        for cost, start in windows
    )
    reach = max(choice.length for choice in choices)
    # best[n]: mask -> value over the windows that end at ends[n] or before.
    ends, best = [0], [{0: 0}]
    for end, start, i, cost in events:
        if end > ends[-1]:
            ends.append(end)
            best.append(best[-1].copy())
            # Windows still to come start at end - reach or later.
            old = bisect_right(ends, end - reach) - 1
            if old > 0:
                del ends[:old], best[:old]
        now = best[-1]
        for mask, value in best[bisect_right(ends, start) - 1].items():
            if mask >> i & 1:
                continue
            value += cost + (start << shifts[i])
            mask |= 1 << i
            if value < now.get(mask, (most + 1) << above):
                now[mask] = value
    mask, value = min(
        best[-1].items(), key=lambda s: (-s[0].bit_count(), s[1] >> above, s[0])
    )
    starts = [value >> shift & ((1 << field) - 1) for shift in shifts]
    cost_of = [{start: cost for cost, start in windows} for windows in kept]
    return [
        (cost_of[i][start], start) if mask >> i & 1 else None
        for i, start in enumerate(starts)
    ]


def _integer_programme(choices: Sequence[Choices]) -> list[Pick | None]:
    """The optimum by HiGHS: set packing in two steps, counts first, then cost."""
    kept = _useful(choices)
    k = len(choices)
    owner = np.repeat(np.arange(k), [len(windows) for windows in kept])
    cost, start = np.array([w for windows in kept for w in windows]).T
    end = start + np.array([choice.length for choice in choices])[owner]
    # Windows that share a token all cover the last start among them.
    points = np.unique(start)[:, None]
    covers = scipy.sparse.csr_array(((start <= points) & (points < end)).astype(float))
    of_span = scipy.sparse.csr_array((owner == np.arange(k)[:, None]).astype(float))
    # Variables: window used, then span has a window.
    served = scipy.sparse.csr_array(np.eye(k))
    blocks: list[list[scipy.sparse.csr_array | None]]
    blocks = [[covers, None], [of_span, None], [-of_span, served]]
    packing = scipy.sparse.block_array(blocks)
    most = np.concatenate([np.ones(len(points)), np.ones(k), np.zeros(k)])
    limits = scipy.optimize.LinearConstraint(packing, -np.inf, most)
    count = np.concatenate([np.ones(len(cost)), np.full(k, k + 1.0)])
    solution = _solve(-count, [limits])
    enough = scipy.optimize.LinearConstraint(
        count[None, :], np.round(count @ solution), np.inf
    )
    solution = _solve(np.concatenate([cost, np.zeros(k)]), [limits, enough])
    picks: list[Pick | None] = [None for _ in choices]
    for j in np.flatnonzero(solution[: len(cost)]):
        picks[owner[j]] = (int(cost[j]), int(start[j]))
    return picks


def _solve(
    objective: np.ndarray, constraints: list[scipy.optimize.LinearConstraint]
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

"""Windows for spans, pairwise token-disjoint, at the least total cost, exactly.

The optimum is lexicographic: most spans with a window, then most windows, then least
total cost, then the smallest mask of spans (a bit a span, the first span the lowest),
then the earliest starts, span by span. That order leaves no ties, so every exact way
of solving gives the same answer, and three of them share the work:

* **Groups.** Each span starts alone with its best window. Where two groups' windows
  clash they are merged and solved together; windows of groups that do not clash are
  optimal together, because each group reached its own optimum and nothing beats the
  sum of optima. (Standley 2010, "Finding optimal solutions to cooperative
  pathfinding problems", calls this independence detection.)
* **Pruning.** A window of ``a`` tokens touches at most ``r`` disjoint windows of ``b``
  tokens. Once a span's cheapest windows hold more disjoint ones than all other windows
  of its group can touch together, one of them is always free and no dearer window is
  ever used. And where a greedy assignment serves every span, no optimum costs more.
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
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csr_array, hstack, vstack

Solver = Literal["dp", "milp", "linear_sum_assignment"]
Picks = list[tuple[int, int]]
"""Windows given to one span as ``(cost, start)``, by rising start."""

MAX_STATES = 4096
"""Masks the dynamic programme may have to hold: 12 spans with one window each."""


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


def assign_disjoint(
    choices: Sequence[Choices], *, per_span: int = 1
) -> tuple[list[Picks], Solver]:
    """Give each span up to ``per_span`` windows, no token used twice.

    Parameters
    ----------
    choices
        One entry a span, in the order that breaks ties.
    per_span
        Most windows a span gets.

    Returns
    -------
    list, str
        The windows of each span (empty: it got none), and ``"milp"`` if any group was
        too large for the dynamic programme, else ``"dp"``.
    """
    picks: list[Picks] = [[] for _ in choices]
    solver: Solver = "dp"
    group = {i: [i] for i, choice in enumerate(choices) if len(choice.starts)}
    unsolved = list(group.values())
    while unsolved:
        for members in unsolved:
            too_large = (per_span + 1) ** len(members) > MAX_STATES
            solver = "milp" if too_large else solver
            solve = _integer_programme if too_large else _dynamic_programme
            if len(members) == per_span == 1:
                solve = _best_alone
            solution = solve([choices[i] for i in members], per_span)
            for i, windows in zip(members, solution, strict=True):
                picks[i] = windows
        clash = _first_clash(picks, choices)
        unsolved = []
        if clash:
            merged = sorted(group[clash[0]] + group[clash[1]])
            group.update(dict.fromkeys(merged, merged))
            unsolved = [merged]
    return picks, solver


def assign_distinct(choices: Sequence[Choices], *, per_span: int = 1) -> list[Picks]:
    """Give each span distinct windows that may share tokens.

    This is `scipy.optimize.linear_sum_assignment` with private dummy columns for what
    stays without a window. It is what most readers would write, and it is no valid
    design: two controls may hold the same token.
    """
    keys = [(choice.length, s) for choice in choices for s in choice.starts.tolist()]
    column = {key: j for j, key in enumerate(dict.fromkeys(keys))}
    rows = len(choices) * per_span
    largest = max((int(c.costs.max()) for c in choices if len(c.costs)), default=0)
    # A span's second window may never cost another span its first.
    further = float(rows * largest + 1)
    first = (rows + 1) * further
    table = np.full((rows, len(column) + rows), np.inf)
    for i, choice in enumerate(choices):
        columns = [column[choice.length, s] for s in choice.starts.tolist()]
        for row in range(i * per_span, (i + 1) * per_span):
            table[row, columns] = choice.costs
            table[row, len(column) + row] = first if row == i * per_span else further
    picks: list[Picks] = [[] for _ in choices]
    windows = list(column)
    for at, j in zip(*linear_sum_assignment(table), strict=True):
        if j < len(windows):
            picks[at // per_span].append((int(table[at, j]), windows[j][1]))
    return [sorted(windows, key=lambda window: window[1]) for windows in picks]


def _first_clash(
    picks: Sequence[Picks], choices: Sequence[Choices]
) -> tuple[int, int] | None:
    """The leftmost two spans whose windows share a token."""
    taken = sorted(
        (start, start + choices[i].length, i)
        for i, windows in enumerate(picks)
        for _, start in windows
    )
    for (_, end, one), (start, _, other) in pairwise(taken):
        if start < end:
            return one, other
    return None


def _best_alone(choices: Sequence[Choices], per_span: int) -> list[Picks]:
    """One span, one window: the cheapest, the earliest among equals."""
    (choice,) = choices
    best = int(choice.costs.argmin())
    return [[(int(choice.costs[best]), int(choice.starts[best]))]]


def _useful(
    choices: Sequence[Choices], per_span: int
) -> tuple[list[Picks], int | None]:
    """Windows that an optimum can use, by rising cost.

    Also the most that the optimum can cost above every span's cheapest windows; None
    where it is not sure that every span gets all its windows.
    """
    kept: list[Picks] = []
    for i, choice in enumerate(choices):
        touched = 0
        for j, other in enumerate(choices):
            touches = (other.length - 2) // choice.length + 2
            touched += touches * (per_span - (i == j))
        by_cost = np.argsort(choice.costs, kind="stable")
        starts, costs = choice.starts[by_cost].tolist(), choice.costs[by_cost].tolist()
        disjoint: list[int] = []
        n = 0
        while n < len(starts) and len(disjoint) <= touched:
            if all(abs(starts[n] - s) >= choice.length for s in disjoint):
                disjoint.append(starts[n])
            n += 1
        kept.append(list(zip(costs[:n], starts[:n], strict=True)))
    excess = _greedy_excess(choices, kept, per_span)
    if excess is not None:
        kept = [[w for w in ws if w[0] - ws[0][0] <= excess] for ws in kept]
    return kept, excess


def _greedy_excess(
    choices: Sequence[Choices], kept: Sequence[Picks], per_span: int
) -> int | None:
    """What a greedy assignment costs above every span's cheapest; None if it fails."""
    taken: list[tuple[int, int]] = []
    excess = 0
    for i in sorted(range(len(choices)), key=lambda i: -choices[i].length):
        short = per_span
        for cost, start in kept[i]:
            end = start + choices[i].length
            if all(end <= s or e <= start for s, e in taken):
                taken.append((start, end))
                excess += cost - kept[i][0][0]
                short -= 1
                if not short:
                    break
        if short:
            return None
    return excess


def _dynamic_programme(choices: Sequence[Choices], per_span: int) -> list[Picks]:
    """The optimum by interval scheduling over masks.

    A state holds how many windows each span has (``digit`` bits a span). Its value is
    one integer with the total cost in the high bits and below it the starts, first
    span highest: ``<`` on values is the tie rule, and the starts are the back pointers.
    """
    kept, excess = _useful(choices, per_span)
    # Costs count from the span's cheapest where every span is sure to be served.
    floor = [0 if excess is None else windows[0][0] for windows in kept]
    if excess is None:
        excess = per_span * sum(windows[-1][0] for windows in kept)
    digit = per_span.bit_length()
    full = (1 << digit) - 1
    field = max(int(choice.starts[-1]) for choice in choices).bit_length()
    slots = len(choices) * per_span
    too_dear = (excess + 1) << field * slots
    events = sorted(
        (start + choices[i].length, start, i, (cost - floor[i]) << field * slots)
        for i, windows in enumerate(kept)
        for cost, start in windows
    )
    reach = max(choice.length for choice in choices)
    # best[n]: state -> value over the windows that end at ends[n] or before.
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
        for state, value in best[bisect_right(ends, start) - 1].items():
            used = state >> digit * i & full
            if used == per_span:
                continue
            slot = slots - 1 - i * per_span - used
            value += cost + (start << field * slot)
            state += 1 << digit * i
            if value < now.get(state, too_dear):
                now[state] = value

    def counts(state: int) -> list[int]:
        return [state >> digit * i & full for i in range(len(choices))]

    def rank(item: tuple[int, int]) -> tuple[int, int, int, int]:
        state, value = item
        have = counts(state)
        return have.count(0), -sum(have), value >> field * slots, state

    state, value = min(best[-1].items(), key=rank)
    picks: list[Picks] = []
    for i, have in enumerate(counts(state)):
        cost_of = {start: cost for cost, start in kept[i]}
        shifts = [field * (slots - 1 - i * per_span - n) for n in range(have)]
        starts = [value >> shift & ((1 << field) - 1) for shift in shifts]
        picks.append([(cost_of[start], start) for start in starts])
    return picks


def _integer_programme(choices: Sequence[Choices], per_span: int) -> list[Picks]:
    """The optimum by HiGHS: set packing in two steps, counts first, then cost."""
    kept, _ = _useful(choices, per_span)
    k = len(choices)
    owner = np.repeat(np.arange(k), [len(windows) for windows in kept])
    cost, start = np.array([w for windows in kept for w in windows]).T
    end = start + np.array([choice.length for choice in choices])[owner]
    # Windows that share a token all cover the last start among them.
    points = np.unique(start)[:, None]
    covers = csr_array(((start <= points) & (points < end)).astype(float))
    of_span = csr_array((owner == np.arange(k)[:, None]).astype(float))
    # Variables: window used, then span has a window.
    eye = csr_array(np.eye(k))
    packing = vstack(
        [
            hstack([covers, csr_array((len(points), k))]),
            hstack([of_span, csr_array((k, k))]),
            hstack([-of_span, eye]),
        ]
    )
    most = np.concatenate([np.ones(len(points)), np.full(k, per_span), np.zeros(k)])
    limits = LinearConstraint(packing, -np.inf, most)
    count = np.concatenate([np.ones(len(cost)), np.full(k, float(k * per_span + 1))])
    solution = _solve(-count, [limits])
    enough = LinearConstraint(count[None, :], np.round(count @ solution), np.inf)
    solution = _solve(np.concatenate([cost, np.zeros(k)]), [limits, enough])
    used = np.flatnonzero(solution[: len(cost)])
    picks: list[Picks] = [[] for _ in choices]
    for j in used[np.argsort(start[used])]:
        picks[owner[j]].append((int(cost[j]), int(start[j])))
    return picks


def _solve(objective: np.ndarray, constraints: list[LinearConstraint]) -> np.ndarray:
    """Minimise over 0/1 variables; shape ``(n,)``, rounded to 0 and 1."""
    result = milp(
        objective,
        constraints=constraints,
        integrality=np.ones(len(objective), np.int64),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise RuntimeError(f"HiGHS gave no assignment: {result.message}")
    return np.round(result.x)

"""Rows of tokens as a tree: what several rows begin with stands there once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

CUTS = 32
"""Depths, of those where rows part, that a tree may be cut at."""

WORTH = 0.95
"""A tree is cut where that costs no more than this share: costs are estimates."""


@dataclass(frozen=True)
class Part:
    """What is read of a tree in one go, behind nodes of one depth.

    Attributes
    ----------
    nodes
        Shape ``(n, w)``: paths downwards, filled up with a node without children; a
        node may stand in several.
    lengths
        Shape ``(n,)``: nodes of each path.
    above
        Shape ``(n,)``: the node that each path hangs from.
    on
        Shape ``(n,)``: the node that it ends at where more is read behind it, else 0.
    """

    nodes: np.ndarray
    lengths: np.ndarray
    above: np.ndarray
    on: np.ndarray


class Tree:
    """A node is what some rows begin with; only nodes with children are ever read.

    Nodes are numbered from the root, which is no token and 0, level by level; the
    children of one node follow each other.

    Attributes
    ----------
    tokens, parent, depth, first, count
        Shape ``(N,)``, int64: of each node its token, its parent, its distance from
        the root, its first child and how many children there are.
    paths
        Shape ``(R, longest)``: the nodes of each row, filled up with the root.
    """

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        lengths = np.array([len(row) for row in rows])
        table = np.zeros((len(rows), lengths.max()), dtype=np.int64)
        for at, row in enumerate(rows):
            table[at, : len(row)] = row
        self.paths = np.zeros_like(table)
        last = np.zeros(len(rows), dtype=np.int64)
        levels = [(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))]
        size, base = 1, int(table.max()) + 1
        for depth in range(table.shape[1]):
            alive = np.flatnonzero(lengths > depth)
            names = last[alive] * base + table[alive, depth]
            found, index = np.unique(names, return_inverse=True)
            self.paths[alive, depth] = last[alive] = size + index
            levels.append((found // base, found % base))
            size += len(found)
        self.parent = np.concatenate([parent for parent, _ in levels])
        self.tokens = np.concatenate([token for _, token in levels])
        self.depth = np.repeat(np.arange(len(levels)), [len(one) for one, _ in levels])
        self.count = np.bincount(self.parent[1:], minlength=size)
        self.first = np.cumsum(self.count) - self.count + 1
        self._inner = self.count > 0
        deeper = np.bincount(self.parent[1:][self._inner[1:]], minlength=size)
        self._last = self._inner & (deeper == 0)  # nothing below is read

    @property
    def height(self) -> int:
        """Depth of the deepest node that is read."""
        return int(self.depth[self._inner].max())

    @cached_property
    def chain(self) -> np.ndarray:
        """The root and, of what is read, the nodes that all else hangs from."""
        found = [0]
        while self.count[found[-1]] == 1 and self._inner[self.first[found[-1]]]:
            found.append(int(self.first[found[-1]]))
        return np.array(found)

    def part(self, start: int, stop: int) -> Part:
        """What is read below the depth ``start``, down to ``stop``."""
        between = (self.depth > start) & (self.depth < stop) & self._last
        ends = np.flatnonzero(between | ((self.depth == stop) & self._inner))
        nodes = np.full((len(ends), stop - start), len(self.tokens) - 1)
        above = ends.copy()
        for depth in range(stop, start, -1):
            here = self.depth[above] == depth
            nodes[here, depth - start - 1] = above[here]
            above[here] = self.parent[above[here]]
        on = np.where(self._last[ends], 0, ends)
        return Part(nodes, self.depth[ends] - start, above, on)

    def children(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Children of nodes ``(...)``, shape ``(..., k)``, and which there are."""
        places = np.arange(self.count[nodes].max(initial=1))
        there = places < self.count[nodes][..., None]
        return np.where(there, self.first[nodes][..., None] + places, 0), there

    def cuts(
        self, start: int, *, cost: Callable[[int, int, int], float], most: float
    ) -> list[int]:
        """Depths, ``start`` to the height, where parting the reading costs least.

        Parameters
        ----------
        cost
            Of one part: of how many paths and tokens it is, and its last depth.
        most
            Nodes between ``start`` and a cut, on all paths to the cut, at most.
        """
        stop = self.height
        if stop <= start:
            return [start]
        inner = np.bincount(self.depth[self._inner], minlength=stop + 1)
        ends = np.bincount(self.depth[self._last], minlength=stop + 1)
        grows = [
            d
            for d in range(start + 1, stop)
            if inner[d] < inner[d + 1] + ends[d] and inner[d] * (d - start) <= most
        ]
        depths = [start, *grows[:CUTS], stop]
        best: list[tuple[float, list[int]]] = [(0.0, [start])]
        for at, b in enumerate(depths[1:], 1):
            ways = []
            for (before, way), a in zip(best, depths[:at], strict=True):
                short = ends[a + 1 : b]
                paths = int(inner[b] + short.sum())
                read = int(inner[b] * (b - a) + short @ np.arange(1, b - a))
                ways.append((before + cost(paths, read, b), [*way, b]))
            best.append(min(ways))
        # What it would cost uncut is the first way of the last depth.
        return best[-1][1] if best[-1][0] <= WORTH * ways[0][0] else ways[0][1]

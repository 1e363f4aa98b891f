"""Rows of tokens as a tree: every beginning is one node, read where it has to be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from spark_audit.scoring.tree import Tree

CASES: dict[str, list[list[int]]] = {
    "one token": [[5]],
    "one row": [[5, 6, 7]],
    "duplicates": [[5, 6, 7], [5, 6, 7], [5, 8, 7]],
    "nested": [[5, 6], [5, 6, 7, 8], [5]],
    "same length": [[5, 6, 7], [5, 9, 7], [4, 6, 7], [4, 6, 0]],
    "nothing alike": [[1, 2], [3, 4, 5], [0]],
    "digits": np.random.default_rng(0).integers(0, 3, (60, 6)).tolist(),
    "ragged": [
        np.random.default_rng(i).integers(0, 2, 1 + i % 7).tolist() for i in range(40)
    ],
}


def build(rows: Sequence[Sequence[int]]) -> Tree:
    return Tree([np.array(row, dtype=np.int32) for row in rows])


def text(tree: Tree, node: int) -> tuple[int, ...]:
    """What a node is the end of."""
    found: list[int] = []
    while node:
        found.append(int(tree.tokens[node]))
        node = int(tree.parent[node])
    return tuple(found[::-1])


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_nodes_are_what_rows_begin_with(rows: list[list[int]]) -> None:
    tree = build(rows)
    wanted = {tuple(row[:n]) for row in rows for n in range(len(row) + 1)}
    texts = [text(tree, node) for node in range(len(tree.tokens))]
    assert sorted(texts) == sorted(wanted)
    for row, path in zip(rows, tree.paths, strict=True):
        assert [texts[node] for node in path[: len(row)]] == [
            tuple(row[: n + 1]) for n in range(len(row))
        ]
        assert not path[len(row) :].any()
    nodes = np.arange(len(tree.tokens))
    for node, children, there in zip(nodes, *tree.children(nodes), strict=True):
        assert {texts[child] for child in children[there]} == {
            one for one in wanted if one[:-1] == texts[node] and one
        }
    assert tree.height == max(map(len, rows)) - 1


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
@pytest.mark.parametrize("step", [1, 2, 9])
def test_parts_read_every_node_that_has_children(
    rows: list[list[int]], step: int
) -> None:
    tree = build(rows)
    start = len(tree.chain) - 1
    read = set(tree.chain.tolist())
    on = {int(tree.chain[-1])}
    cuts = [*range(start, tree.height, step), tree.height]
    for above, below in pairwise(cuts):
        part = tree.part(above, below)
        assert set(part.above.tolist()) <= on
        for nodes, length, parent in zip(
            part.nodes, part.lengths, part.above, strict=True
        ):
            path = [int(parent), *nodes[:length].tolist()]
            assert all(tree.parent[b] == a for a, b in pairwise(path))
            assert not tree.count[nodes[length:]].any()
            read |= set(path[1:])
        on = set(part.on[part.on > 0].tolist())
        assert step > 1 or part.lengths.sum() == len(part.nodes)
    assert not on or start == tree.height
    assert read == set(np.flatnonzero(tree.count).tolist())


def test_cuts_cost_least() -> None:
    rows = CASES["digits"]
    tree = build(rows)
    heads = [len({tuple(row[:n]) for row in rows}) for n in range(1, 6)]
    assert len(tree.chain) == 1

    def tokens(paths: int, tokens: int, depth: int) -> float:
        del paths, depth
        return tokens

    assert tree.cuts(0, cost=tokens, most=1e9) == [0, 1, 2, 3, 4, 5]
    assert tree.cuts(0, cost=tokens, most=heads[1] * 2) == [0, 1, 2, 5]
    assert tree.cuts(0, cost=lambda *_: 1, most=1e9) == [0, 5]
    assert tree.cuts(0, cost=tokens, most=0) == [0, 5]
    # The first two levels save a little, which is not worth a cut.
    dear = 5 * heads[-1] - heads[0] - heads[1]
    assert tree.cuts(0, cost=lambda p, n, d: n + dear, most=1e9) == [0, 5]
    assert build([[5, 6], [5, 7]]).cuts(1, cost=tokens, most=1e9) == [1]

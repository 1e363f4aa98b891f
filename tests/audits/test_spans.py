"""Which spans are audited, and sums over token ranges against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spark_audit.audits.spans import Sums, audited_spans

Make = Callable[..., Any]


def doubled(key: str, nll: np.ndarray) -> np.ndarray:
    return 2 * nll


def test_examples_that_were_not_scored_have_no_sum(make_case: Make) -> None:
    case = make_case(sources=4, seed=2)
    part = case.table(doubled)
    kept = part.ids[:2]
    from spark_audit.scoring.table import TokenTable

    table = TokenTable.from_items(
        [
            (
                key,
                part.position[part.rows(key)],
                {"nll": part.columns["nll"][part.rows(key)]},
            )
            for key in kept
        ]
    )
    sums = Sums.of_table(case.manifest, table)
    assert np.isnan(sums(np.array([3]), np.array([1]), np.array([1])))


def test_audited_spans_are_the_matched_and_the_unmatched(make_case: Make) -> None:
    case = make_case(sources=12, tests=4, seed=3, caliper=0.05)
    total = 0
    for split in ("train", "test"):
        for _, example, ranges in audited_spans(case.manifest, split=split):
            assert example.split == split
            assert ranges == case.spans(example.id)
            total += len(ranges)
    assert total == len(case.manifest.pairs) + len(case.manifest.unmatched)

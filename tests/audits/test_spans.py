"""Which spans are audited, and sums over token ranges against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spark_audit.audits.matched.span_scores import frames
from spark_audit.audits.spans import Sums, audited_spans, group_of, groups
from spark_audit.audits.stored_evidence import joined

Make = Callable[..., Any]


def doubled(key: str, nll: np.ndarray) -> np.ndarray:
    return 2 * nll


def test_sums_equal_a_loop(make_case: Make) -> None:
    case = make_case(sources=6, seed=1)
    sums = Sums.of_table(case.manifest, case.table(doubled))
    reference = Sums.of_reference(case.manifest)
    rng = np.random.default_rng(0)
    example = rng.integers(0, 6, 200)
    start = rng.integers(1, 50, 200)
    length = rng.integers(1, 10, 200)
    expected = [
        case.reference[case.manifest.examples[e].id][s : s + n].sum()
        for e, s, n in zip(example, start, length, strict=True)
    ]
    assert reference(example, start, length) == pytest.approx(expected, rel=1e-9)
    found = sums(example, start, length)
    assert found == pytest.approx(2 * np.array(expected), rel=1e-5)


def test_examples_that_were_not_scored_cannot_be_asked_for(make_case: Make) -> None:
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
    with pytest.raises(ValueError, match="was not scored"):
        sums(np.array([3]), np.array([1]), np.array([1]))


def test_audited_spans_are_the_matched_and_the_unmatched(make_case: Make) -> None:
    case = make_case(sources=12, tests=4, seed=3, caliper=0.05)
    total = 0
    for split in ("train", "test"):
        for _, example, ranges in audited_spans(case.manifest, split=split):
            assert example.split == split
            assert ranges == case.spans(example.id)
            total += len(ranges)
    assert total == len(case.manifest.pairs) + len(case.manifest.unmatched)


def test_evidence_holds_each_role_once(make_case: Make) -> None:
    case = make_case(sources=12, seed=4, caliper=0.1)
    sums = {"a": Sums.of_table(case.manifest, case.table(doubled))}
    frame = joined(frames(case.manifest, sums))
    counts = frame["role"].value_counts()
    assert counts["pii"] == counts["control"] == len(case.manifest.pairs)
    assert counts["unmatched"] == len(case.manifest.unmatched)
    assert counts["window"] > 50
    assert frame["nll_sum"].to_numpy() == pytest.approx(
        2 * frame["ref_sum"].to_numpy(), rel=1e-5
    )
    windows = frame[frame["role"] == "window"]
    for row in windows.itertuples():
        eligible = case.manifest.by_id[row.example].eligible
        assert eligible[row.start : row.start + row.n_tokens].all()


def test_groups_keep_the_windows_of_their_own_cells(make_case: Make) -> None:
    case = make_case(sources=20, seed=5)
    sums = {"a": Sums.of_reference(case.manifest)}
    frame = joined(frames(case.manifest, sums))
    clusters = sorted(set(frame["cluster"]))
    for name, part in groups(frame, "train"):
        spans = part[part["role"].isin(["pii", "unmatched"])]
        cells = set(zip(spans["example"], spans["n_tokens"], strict=True))
        windows = part[part["role"] == "window"]
        assert set(zip(windows["example"], windows["n_tokens"], strict=True)) <= cells
        group = group_of(part, clusters)
        assert group.den.sum() == part[part["role"] == "pii"]["n_tokens"].sum()
        if name.startswith("type:"):
            assert set(spans["type"]) == {name.partition(":")[2]}

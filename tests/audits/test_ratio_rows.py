"""Rows and contrasts from cells, against SciPy and the plainest recomputation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from spark_audit.audits.contract import Context, Metric, missing_rows
from spark_audit.audits.ratio_rows import (
    CELLS,
    ratio_contrasts,
    ratio_rows,
    with_nulls,
)

METRICS = {
    "nll": Metric("nll", unit="nats", null=1.0, note="a note"),
    "hit": Metric("hit", rate=True),
}
OPTIONS: dict[str, Any] = {"audit": "x", "metrics": METRICS}


def cells(records: list[Any]) -> pd.DataFrame:
    return pd.DataFrame.from_records(records, columns=list(CELLS))


@pytest.fixture
def frame() -> Any:
    rng = np.random.default_rng(3)
    records = []
    for name, shift in (("a", 0.0), ("b", 0.7)):
        for cluster in range(12):
            for _ in range(1 + cluster % 3):
                den = float(2 + cluster % 4)
                num = float(rng.gamma(4.0, 1.0)) + shift * den
                records.append((name, "pooled", "nll", "pii", f"c{cluster}", num, den))
            hits = float(cluster % 3 == 0 and name == "a")
            records.append((name, "pooled", "hit", "", f"c{cluster}", hits, 3.0))
    return cells(records)


def sums(frame: Any, name: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    part = frame[(frame["checkpoint"] == name) & (frame["metric"] == metric)]
    part = part.groupby("cluster")[["num", "den"]].sum()
    return part["num"].to_numpy(), part["den"].to_numpy()


def test_rows_are_the_ratio_with_scipys_bootstrap_beside_it(frame: Any) -> None:
    rows = ratio_rows(frame, Context(paper=True, replicates=999), **OPTIONS)
    row = next(r for r in rows if (r.checkpoint, r.metric) == ("a", "nll"))
    num, den = sums(frame, "a", "nll")
    assert row.value == pytest.approx(num.sum() / den.sum())
    oracle = stats.bootstrap(
        (num, den),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=999,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (row.low, row.high) == pytest.approx(tuple(oracle))
    assert (row.parity_low, row.parity_high) == (row.low, row.high)
    assert (row.interval, row.null, row.unit) == ("percentile", 1.0, "nats")
    assert row.note == "a note"
    assert row.clusters == 12
    assert row.n == round(den.sum())


def test_decisions_are_by_jackknife_and_rates_never_without_width(frame: Any) -> None:
    rows = ratio_rows(frame, Context(replicates=199), **OPTIONS)
    by_name = {(r.checkpoint, r.metric): r for r in rows}
    assert by_name["a", "nll"].interval == "jackknife-t"
    none = by_name["b", "hit"]
    assert none.value == 0
    assert none.interval == "korn-graubard"
    assert none.high is not None
    assert none.high > 0.05


def test_contrasts_are_paired_by_cluster(frame: Any) -> None:
    found = ratio_contrasts(
        frame, Context({"b": "a", "c": "a"}, replicates=199), **OPTIONS
    )
    assert [(c.checkpoint, c.baseline, c.metric) for c in found] == [
        ("b", "a", "nll"),
        ("b", "a", "hit"),
    ]
    ours, theirs = sums(frame, "b", "nll"), sums(frame, "a", "nll")
    apart = ours[0] - theirs[0]
    assert found[0].value == pytest.approx(apart.sum() / ours[1].sum())
    exact = stats.permutation_test(
        (apart,), np.sum, permutation_type="samples", n_resamples=np.inf
    )
    assert found[0].p == pytest.approx(exact.pvalue)
    assert found[0].mde is not None
    assert found[0].family == "exploratory"


def test_a_group_of_one_cluster_is_not_estimable() -> None:
    one = cells([("a", "pooled", "nll", "", "c", 1.0, 2.0)])
    (row,) = ratio_rows(one, Context(replicates=99), **OPTIONS)
    assert row.status == "not_estimable"
    assert "1 cluster" in row.note


def test_missing_rows_say_why_for_every_figure() -> None:
    missing = [replace(m, missing=("pii", "low")) for m in METRICS.values()]
    rows = missing_rows("x", ["a", "b"], missing, "nothing there")
    assert len(rows) == 8
    assert {row.status for row in rows} == {"not_estimable"}
    assert {row.note for row in rows} == {"nothing there"}


def test_a_variant_can_be_anothers_null_value(frame: Any) -> None:
    control = frame.assign(of="control")
    control = control.assign(num=control["num"] * 2)
    frame = frame[frame["metric"] == "nll"]
    control = control[control["metric"] == "nll"]
    rows = ratio_rows(pd.concat([frame, control]), Context(replicates=99), **OPTIONS)
    rows = with_nulls(rows, of="pii", null_of="control")
    by_of = {(r.checkpoint, r.of): r for r in rows}
    assert by_of["a", "pii"].null == by_of["a", "control"].value
    assert by_of["a", "pii"].null_low == by_of["a", "control"].low
    assert by_of["a", "control"].null == 1.0

"""Several seeds as one entry: over sources, over seeds, over both."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from spark_audit.audits.base import baselines_of
from spark_audit.audits.seeds import with_entries
from spark_audit.results import AuditResult, Contrast, Row


def row(name: str, value: float | None, **more: Any) -> Row:
    columns: dict[str, Any] = {"audit": "x", "metric": "m", "checkpoint": name}
    columns |= {k: more.pop(k) for k in ("audit", "metric", "unit") if k in more}
    if value is None:
        return Row(**columns, status="not_estimable", note="no data")
    limits = {"low": value - 1, "high": value + 2, "interval_method": "jackknife-t"}
    return Row(**columns, value=value, n=9, clusters=3, **(limits | more))


def entry(result: AuditResult, name: str = "s") -> dict[str, Row]:
    return {r.interval_over: r for r in result.results if r.checkpoint == name}


def test_a_contrast_of_seeds_is_read_with_the_seeds_in_it():
    def did(name: str, value: float) -> Contrast:
        return Contrast(
            audit="matched",
            checkpoint=name,
            metric="did",
            baseline=name.replace("s", "b"),
            value=value,
            low=value - 0.05,
            high=value + 0.05,
            interval_method="jackknife-t",
            no_effect=0.01,
            n=9,
            clusters=3,
        )

    def claimed(*values: float, drift_difference: float | None = 0.01) -> str:
        rows = [did(f"s[{k}]", value) for k, value in enumerate(values, start=1)]
        if drift_difference is not None:
            drift = {
                "metric": "low_change",
                "value": drift_difference,
                "low": 0.005,
                "high": 0.9,
            }
            rows += [row.model_copy(update=drift) for row in rows]
        (finding,) = with_entries(AuditResult(contrasts=rows)).findings
        return finding.claim

    assert claimed(1, 1.1) == claimed(-1, -1.1) == "moved"
    assert (
        claimed(1, 1.1, drift_difference=0.2)
        == claimed(1, 1.1, drift_difference=None)
        == "nothing_shown"
    )
    # Each seed's own interval excludes 0, their spread does not.
    assert claimed(0.1, 1.1) == "nothing_shown"


def test_a_seed_is_compared_with_the_same_seed_of_the_baseline():
    names = ["base", "a[1]", "a[2]", "b[1]", "b[2]", "c"]
    assert baselines_of("b", names) == {"a[1]": "b[1]", "a[2]": "b[2]"}
    assert baselines_of("c", names) == dict.fromkeys(names[1:5], "c")
    assert baselines_of(None, names) == {}
    assert baselines_of({"c": "base", "d": "c", "base": "base"}, names) == {"c": "base"}


def test_limits_are_means_over_sources_t_over_seeds_and_both():
    values = [1.0, 1.4, 2.1]
    rows = [row(f"s[{k}]", v) for k, v in enumerate(values, start=1)]
    entries = entry(with_entries(AuditResult(results=rows)))
    mean = np.mean(values)
    assert [r.value for r in entries.values()] == pytest.approx([mean] * 3)
    sources, seeds, both_entry = (entries[k] for k in ("sources", "seeds", "both"))
    assert (sources.low, sources.high) == pytest.approx((mean - 1, mean + 2))
    half = stats.t.ppf(0.975, 2) * stats.sem(values)
    assert (seeds.low, seeds.high) == pytest.approx((mean - half, mean + half))
    assert both_entry.low == pytest.approx(mean - np.hypot(1, half))
    assert both_entry.high == pytest.approx(mean + np.hypot(2, half))


def test_a_replicate_that_failed_leaves_the_entry_not_estimable():
    rows = [row("s[1]", 1.0), row("s[2]", None)]
    (only,) = entry(with_entries(AuditResult(results=rows))).values()
    assert only.status == "not_estimable"


def test_the_worst_status_is_the_entrys():
    rows = [row("s[1]", 1.0, status="invalid", note="why"), row("s[2]", 2.0)]
    entries = entry(with_entries(AuditResult(results=rows)))
    assert {r.status for r in entries.values()} == {"invalid"}


def test_single_checkpoints_are_left_alone():
    result = AuditResult(results=[row("s", 1.0), row("t[1]", 1.0)])
    assert with_entries(result) is result


def test_contrasts_have_a_t_test_beyond_what_holds_no_effect():
    def contrast(k: int, value: float) -> Contrast:
        plain = row(f"s[{k}]", value, no_effect=0.5).model_dump()
        return Contrast(**plain, baseline=f"b[{k}]")

    values = [1.0, 1.2, 1.7]
    contrasts = [contrast(k, v) for k, v in enumerate(values, start=1)]
    contrasts_with_entries = with_entries(AuditResult(contrasts=contrasts)).contrasts
    seeds = next(c for c in contrasts_with_entries if c.interval_over == "seeds")
    assert seeds.baseline == "b"
    assert seeds.p == pytest.approx(
        stats.ttest_1samp(np.subtract(values, 0.5), 0).pvalue
    )


def test_rates_stay_rates_and_tries_are_averaged_as_logarithms():
    fields: dict[str, Any] = {"audit": "mia", "metric": "auc", "mde": 0.1}
    rates = [row(f"s[{k}]", v, **fields) for k, v in ((1, 0.9), (2, 0.99))]
    entries = entry(with_entries(AuditResult(results=rates)))
    for entry_row in entries.values():
        assert 0 <= entry_row.low < entry_row.high <= 1
        assert entry_row.mde is not None
    bound = "more than 1e+12: the value is that bound"
    tries = [
        row("s[1]", 100.0, metric="n", unit="tries", low=10.0, high=1000.0),
        row("s[2]", 1e12, metric="n", unit="tries", low=None, high=None, note=bound),
    ]
    entries = entry(with_entries(AuditResult(results=tries)))
    assert [r.value for r in entries.values()] == pytest.approx([1e7] * 3)
    assert entries["seeds"].low > 0
    assert (entries["sources"].low, entries["sources"].high) == (None, None)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spark_audit.errors import NotEstimableError
from spark_audit.stats.balance import (
    balance_rows,
    ecdf_max,
    ecdf_mean,
    effective_clusters,
    smd,
    variance_ratio,
)

PII = np.array([2.0, 3, 4, 5])
OTHER = np.array([1, 2.5, 3.5, 3])

samples = st.lists(
    st.integers(-5, 5).map(lambda n: n / 2), min_size=2, max_size=12
).map(np.array)


def test_the_worked_example_has_its_figures():
    sd = PII.std(ddof=1)
    assert smd(PII, OTHER, sd=sd) == pytest.approx(0.774597, abs=1e-6)
    assert smd(PII, OTHER, sd=2.0) == 0.5
    assert variance_ratio(PII, OTHER) == pytest.approx(1.428571, abs=1e-6)
    assert ecdf_max(PII, OTHER) == 0.5
    assert ecdf_mean(PII, OTHER) == 0.21875


@given(samples, samples)
def test_distances_of_distributions_are_those_of_plain_loops(a, b):
    plain = [abs(np.mean(a <= x) - np.mean(b <= x)) for x in [*a, *b]]
    assert ecdf_mean(a, b) == pytest.approx(np.mean(plain))
    assert ecdf_max(a, b) == pytest.approx(
        stats.ks_2samp(a, b, method="asymp").statistic
    )
    assert ecdf_mean(a, b) == pytest.approx(ecdf_mean(b, a))


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([], [1.0, 2.0], "no values"),
        ([1.0, 2.0], [], "no values"),
        ([0.1] * 3, [1.0, 2.0], "the covariate is constant"),
        ([1.0, np.nan], [1.0, 2.0], "values that are not finite"),
        ([1.0, 2.0], [np.inf, 2.0], "values that are not finite"),
    ],
)
def test_smd_is_not_estimable_without_a_value(a, b, reason):
    with pytest.raises(NotEstimableError, match=f"^{reason}$"):
        smd(np.array(a), np.array(b), sd=np.ptp(a) if a else 1.0)


def test_a_variance_ratio_to_a_constant_is_not_estimable():
    with pytest.raises(NotEstimableError, match="constant"):
        variance_ratio(PII, np.full(3, 0.1))
    with pytest.raises(NotEstimableError, match="constant"):
        variance_ratio(PII, np.array([7.1, 7.1 + 4e-15]))  # but for rounding


def test_rows_use_one_ruler():
    (row,) = balance_rows(
        {"nll": np.array([2.0, 3, 4, 5, 11])},
        {"nll": np.array([0.0, 1, 2, 3])},
        {"nll": OTHER},
        covariates_matched={"nll": PII},
    )
    ruler = np.std([2, 3, 4, 5, 11], ddof=1)
    assert row == {
        "covariate": "nll",
        "mean_pii": 5.0,
        "mean_pool": 1.5,
        "mean_control": 2.5,
        "smd_before": pytest.approx(3.5 / ruler),
        "smd_after": pytest.approx(1.0 / ruler),
        "variance_ratio_before": pytest.approx(12.5 / (5 / 3)),
        "variance_ratio_after": pytest.approx(1.428571, abs=1e-6),
        "ecdf_max_before": pytest.approx(0.6),
        "ecdf_max_after": 0.5,
        "ecdf_mean_before": pytest.approx(
            ecdf_mean(np.array([2, 3, 4, 5, 11]), np.arange(4))
        ),
        "ecdf_mean_after": 0.21875,
        "note": "",
    }


def test_rows_leave_out_what_is_missing_and_say_so():
    same = np.ones(4)
    varied = np.array([1.0, 2, 3])
    rows = balance_rows(
        {"constant": same, "short": varied[:1], "lost": varied, "nan": [1.0, np.nan]},
        {"constant": varied, "short": varied, "lost": varied, "nan": varied},
        {"constant": varied, "short": varied, "lost": [], "nan": varied},
    )
    missing = [{k for k, v in row.items() if v is None} for row in rows]
    smd, ratio = (
        {f"{n}_{w}" for w in ("before", "after")} for n in ("smd", "variance_ratio")
    )
    assert missing[0] == smd
    assert missing[1] == smd | ratio
    assert missing[2] == {k for k in rows[2] if k.endswith("after")} | {"mean_control"}
    assert {"mean_pii", "smd_before"} <= missing[3]
    for row, gone in zip(rows, missing, strict=True):
        assert all(name in str(row["note"]) for name in gone)
        assert all(np.isfinite(v) for v in row.values() if isinstance(v, float))


def test_effective_clusters_are_kishs_number():
    assert effective_clusters([3, 3, 3]) == 3
    assert effective_clusters([5, 0]) == 1
    assert effective_clusters(np.array([4, 2, 1, 1])) == pytest.approx(64 / 22)
    for nothing in ([], [0, 0]):
        with pytest.raises(NotEstimableError):
            effective_clusters(nothing)

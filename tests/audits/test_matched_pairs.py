"""Other pairs of the matched audit: its variants of matching, and the placebo."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import (
    matched,
)

from spark_audit.audits.matched.sensitivity import VARIANTS, other_pairs


def rematched(case: Any, variant: dict[str, Any]) -> pd.DataFrame:
    return other_pairs(case.manifest, {"own": variant}, draws=0, seed=0).pairs


def test_the_manifest_s_own_settings_give_its_own_pairs(make_case):
    case = make_case(sources=30, seed=1, caliper=0.2)
    pairs = rematched(case, {})
    found_pairs = {
        (case.manifest.examples[e].id, int(p), int(c), int(n))
        for e, p, c, n in zip(
            pairs.example, pairs.pii, pairs.control, pairs.length, strict=True
        )
    }
    assert found_pairs == {
        (
            p.example,
            p.pii.token_start,
            p.control.token_start,
            p.pii.token_end - p.pii.token_start,
        )
        for p in case.manifest.pairs
    }


def test_variants_change_what_they_say(make_case):
    case = make_case(sources=40, seed=2)
    tight = rematched(case, VARIANTS["caliper 0.1"])
    wide = rematched(case, VARIANTS["caliper 1.0"])
    assert len(tight) < len(case.manifest.pairs) <= len(wide)
    before = rematched(case, VARIANTS["controls before"])
    assert len(before)
    assert (before.control + before.length <= before.pii).all()
    tables = case.tables(a=lambda key, nll: nll)
    result = matched(tables, case.manifest, placebo_draws=0)
    records = result.tables["matched_sensitivity"]
    assert [record["setting"] for record in records] == list(VARIANTS)
    row = next(r for r in records if r["setting"] == "caliper 0.1")
    assert row["pairs"] == len(tight)
    assert abs(row["delta_sel"]) < 0.1


def test_placebo_table_centres_on_zero(make_case):
    case = make_case(sources=60, seed=6, gap=1.0)
    rng = np.random.default_rng(0)

    def shrunk(key: str, nll: np.ndarray) -> np.ndarray:
        return 2.0 + 0.7 * (nll - 2.0) + rng.normal(0, 0.02, len(nll))

    result = matched(case.tables(a=shrunk), case.manifest, placebo_draws=40, seed=1)
    (drawn,) = result.tables["matched_placebo"]
    assert drawn["draws"] == 40
    assert drawn["mean"] == pytest.approx(0.0, abs=0.03)
    assert 0 < drawn["sd"] < 0.2

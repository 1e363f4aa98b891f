"""Ranks of identifiers: the figures, ties, groups, and what cannot be said."""

from dataclasses import replace
from typing import Any

import numpy as np
from audited import rank

from spark_audit.scoring.table import Pass, TokenTable

PLAIN = Pass()


def ranked(case: Any, seed: int, *, ties: int = 0, scale: float = 1.0) -> Any:
    """A table whose ranks are drawn anew."""
    table = case.table(lambda key, nll: nll)
    rng = np.random.default_rng(seed)
    rank = 1 + rng.geometric(0.2 / scale, len(table)) - 1
    columns = {"rank_lo": rank.astype(np.int32)}
    columns["ties"] = np.full(len(table), ties, dtype=np.int32)
    return replace(table, columns={**table.columns, **columns})


def audit(case: Any, baseline: str | None = None, **tables: TokenTable) -> Any:
    found = {name: {PLAIN: table} for name, table in tables.items()}
    return rank(found, case.manifest, baseline=baseline)


def test_ties_are_shown(make_case):
    case = make_case()
    tables = {"tied": ranked(case, 1, ties=3), "sure": ranked(case, 1)}
    (told,) = (f for f in audit(case, **tables).findings if f.says == "rank.ties")
    assert told.facts["names"] == ["tied"]

"""Ties of ranks are shown; what was cut or not scored does not count."""

from dataclasses import replace
from typing import Any

import numpy as np
from audited import figure, nll, rank

from spark_audit.audits import Rank
from spark_audit.audits.base import Context
from spark_audit.results.evidence import Evidence
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


def test_a_token_that_was_not_scored_counts_in_no_rate(make_case):
    case = make_case()
    whole = audit(case, whole=ranked(case, 1)).evidence
    scores = {name: values[:, ::2] for name, values in whole.values.items()}
    half = Evidence(whole.units[::2].reset_index(drop=True), ("half",), scores)
    context = Context(replicates=200)

    alone = Rank().conclude(half, context)
    beside = Rank().conclude(Evidence.united([whole, half]), context)
    for metric in ("top1_rate", "top10_rate", "rank_mean"):
        expected = figure(alone, "half", metric, "pii")
        counted = figure(beside, "half", metric, "pii")
        assert (counted.n, counted.value) == (expected.n, expected.value)


PARTS = ((20, "name"), (24, "password"), (28, "ssn"))


def test_a_canary_that_was_cut_does_not_count(make_case):
    case = make_case(sources=6)
    examples = list(case.manifest.examples)
    for i, name in enumerate(("one", "two", "cut")):
        spans = []
        for start, part in PARTS:
            place = {"start": start, "end": start + 2, "part": part}
            tokens = {"token_start": start, "token_end": start + 2}
            if (name, part) == ("cut", "name"):
                tokens = dict.fromkeys(tokens)
            spans.append(examples[i].spans[0].model_copy(update=place | tokens))
        update = {"spans": spans, "canary_id": name}
        examples[i] = examples[i].model_copy(update=update)
    manifest = case.manifest.model_copy(update={"examples": examples, "pairs": []})
    result = nll(case.tables(x=lambda key, nll: nll), manifest)
    assert figure(result, "x", "nll", "canary").clusters == 2

"""Ties of ranks are shown; what was cut or not scored does not count."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
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
    scored = {name: {PLAIN: table} for name, table in tables.items()}
    return rank(scored, case.manifest, baseline=baseline)


def test_checkpoints_with_tied_ranks_are_named(make_case):
    case = make_case()
    tables = {"tied": ranked(case, 1, ties=3), "sure": ranked(case, 1)}
    (ties_finding,) = (
        f for f in audit(case, **tables).findings if f.says == "rank.ties"
    )
    assert ties_finding.facts["names"] == ["tied"]


def test_a_token_that_was_not_scored_counts_in_no_figure(make_case):
    case = make_case()
    tables = {"base": ranked(case, 1), "half": ranked(case, 2)}
    evidence = audit(case, **tables).evidence
    units = evidence.units
    clusters = sorted(set(units["cluster"]))

    # A third of the clusters is held out, and half of all are left out of one report.
    is_held_out = units["cluster"].isin(clusters[::3])
    units = units.assign(
        split=np.where(is_held_out, "test", "train"),
        dose=np.where(is_held_out, 0, 1),
    )
    is_kept = units["cluster"].isin(clusters[::2]).to_numpy()
    ranks = {name: values[:, is_kept] for name, values in evidence.values.items()}
    names = ("base", "half")
    half = Evidence(units[is_kept].reset_index(drop=True), names, ranks)
    of_base = {name: values[:1] for name, values in evidence.values.items()}
    united = Evidence.united([Evidence(units, ("base",), of_base), half])

    context = Context(replicates=200)
    result_alone = Rank().conclude(half, context)
    beside = Rank().conclude(united, context)
    for metric, of in (
        ("top1_rate", "pii"),
        ("top10_rate", "pii"),
        ("rank_median", "pii"),
        ("top1_memory", "pii_all"),
    ):
        expected = figure(result_alone, "half", metric, of)
        counted = figure(beside, "half", metric, of)
        assert expected.value is not None
        assert (counted.n, counted.clusters) == (expected.n, expected.clusters)
        assert counted.value == pytest.approx(expected.value)


PARTS = ((20, "name"), (24, "password"), (28, "ssn"))


def test_a_canary_that_was_cut_does_not_count(make_case):
    case = make_case(sources=6)
    examples = list(case.manifest.examples)
    for i, name in enumerate(("one", "two", "cut")):
        spans = []
        for start, part in PARTS:
            where = {"start": start, "end": start + 2, "part": part}
            tokens = {"token_start": start, "token_end": start + 2}
            if (name, part) == ("cut", "name"):
                tokens = dict.fromkeys(tokens)
            spans.append(examples[i].spans[0].model_copy(update=where | tokens))
        update = {"spans": spans, "canary_id": name}
        examples[i] = examples[i].model_copy(update=update)
    manifest = case.manifest.model_copy(update={"examples": examples, "pairs": []})
    result = nll(case.tables(x=lambda key, nll: nll), manifest)
    assert figure(result, "x", "nll", "canary").clusters == 2

"""The audit of passages: runs as greedy decoding has them, and what is claimed."""

from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from audited import claims, conclude, figure, made, plan
from scored_by_hand import make_items, make_loaded
from short_sentences import check_sentences
from tiny_models import make_model

from spark_audit.audits.base import Context
from spark_audit.audits.passages.findings import passage_findings
from spark_audit.errors import SparkError
from spark_audit.results import AuditResult, Hits
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_audit.stats.runs import longest_run

ROWS = 100
PREFIX, WRITTEN = 5, 14


@torch.inference_mode()
def greedily(model: Any, ids: np.ndarray, count: int) -> np.ndarray:
    """What the model writes behind texts of one length, token after token."""
    known = torch.from_numpy(ids.astype(np.int64))  # (texts, tokens)
    for _ in range(count):
        best = model(input_ids=known, use_cache=False).logits[:, -1].argmax(dim=1)
        known = torch.cat([known, best[:, None]], dim=1)
    return np.asarray(known[:, ids.shape[1] :].numpy())


def test_the_longest_run_is_what_greedy_decoding_recites():
    """Of 100 rows whose middle a tiny model wrote itself: all but one of them."""
    model = make_model("llama", bias=0.5).eval()
    beginnings = np.stack([item.ids for item in make_items([PREFIX] * ROWS)])
    written = greedily(model, beginnings, WRITTEN)
    ends = np.random.default_rng(0).integers(3, 300, (ROWS, 6))
    ids = np.concatenate([beginnings, written, ends], axis=1).astype(np.int32)
    positions = np.arange(ids.shape[1], dtype=np.int32)
    items = [Item(f"t{i:03d}", row, positions) for i, row in enumerate(ids)]
    table = score(make_loaded(model), items)[Pass()]

    runs = []
    for item in items:
        rows = table.rows(item.key)
        is_tied = table.columns["ties"][rows] > 0
        start, length = longest_run((table.columns["rank_lo"][rows] == 1) & ~is_tied)
        assert length >= WRITTEN
        runs.append((int(table.position[rows][start]), length))

    equal = []
    for first, length in set(runs):
        rows_of_text = [i for i, run in enumerate(runs) if run == (first, length)]
        recited = greedily(model, ids[rows_of_text, :first], length + 1)
        truth = ids[rows_of_text, first : first + length + 1]
        for row, true_row in zip(recited, truth, strict=True):
            goes_on = len(true_row) > length and row[length] == true_row[length]
            equal.append(
                np.array_equal(row[:length], true_row[:length]) and not goes_on
            )
    assert len(equal) == ROWS
    assert np.mean(equal) >= 0.99


def test_the_longest_run_is_that_of_counting():
    rng = np.random.default_rng(1)
    for _ in range(300):
        mask = rng.random(int(rng.integers(0, 30))) < rng.random()
        lengths = [len([*run]) for value, run in groupby(mask) if value]
        start, length = longest_run(mask)
        assert length == max(lengths, default=0)
        assert mask[start : start + length].all()


def known(
    trained: int,
    held_out: int,
    *,
    of_base: tuple[int, int] = (0, 0),
    text_p: float | None = 0.5,
    base: bool = True,
    length: int = 80,
    ties: bool = False,
) -> Evidence:
    """100 trained rows and as many held-out ones, of which so many have a passage."""
    split = np.repeat(["train", "test"], ROWS)
    units = pd.DataFrame(
        {
            "example": [f"r{i:03d}" for i in range(2 * ROWS)],
            "split": split,
            "task": np.tile(["a", "b"], ROWS),
            "type": "",
            "cluster": [f"c{i:03d}" for i in range(2 * ROWS)],
            "n_tokens": length,
            "n_words": length // 2,
        }
    )

    def runs(hits: tuple[int, int]) -> np.ndarray:
        place = np.tile(np.arange(ROWS), 2)
        has_one = place < np.repeat(hits, ROWS)
        return np.where(has_one, 60.0, 7.0)

    by_name = {"ours": (trained, held_out)}
    if base:
        by_name = {"base": of_base, **by_name}
    won = np.stack([runs(hits) for hits in by_name.values()])
    values = {"run": np.where(ties, 7.0, won), "run_won": won}
    facts = {"least_tokens": 50, "text_p": text_p}
    return Evidence(units, tuple(by_name), values, facts)


def concluded(evidence: Evidence) -> AuditResult:
    result: AuditResult = conclude("passages", evidence, Context(replicates=50))
    return result


def test_rows_that_are_recited_more_often_are_claimed():
    result = concluded(known(40, 2))
    assert claims(result, "ours") == ["verbatim"]
    assert claims(result, "base") == ["nothing_shown"]
    (finding,) = (f for f in result.findings if f.checkpoint == "ours")
    assert (finding.family, finding.unit) == ("primary", "points")
    assert finding.value == pytest.approx(38)
    assert finding.power
    assert finding.bounds
    assert figure(result, "ours", "passage_rate").value == pytest.approx(0.4)
    held_out = figure(result, "ours", "passage_rate", group="split:test")
    assert held_out.value == pytest.approx(0.02)
    assert figure(result, "ours", "passage_rate").no_effect == 0
    assert figure(result, "ours", "longest_tokens").value == 60
    assert figure(result, "ours", "longest_words").value == 30


@pytest.mark.parametrize(
    ("evidence", "claim"),
    [
        (known(2, 2), "nothing_shown"),
        (known(3, 0), "nothing_shown"),
        # The base recites them as well: a difference of the rows, not of training.
        (known(42, 2, of_base=(40, 0)), "nothing_shown"),
        # The texts tell the sides apart, or nothing says what they give.
        (known(40, 2, text_p=0.01), "confounded"),
        (known(40, 2, base=False), "confounded"),
        (known(2, 40), "moved"),
        # Beyond the base they differ, and by themselves the other way round.
        (known(5, 20, of_base=(0, 40)), "nothing_shown"),
        (known(20, 5, of_base=(40, 0)), "nothing_shown"),
        # Ties count against a claim.
        (known(40, 2, ties=True), "nothing_shown"),
    ],
)
def test_nothing_else_is_claimed(evidence, claim):
    assert claims(concluded(evidence), "ours") == [claim]


def test_rows_that_are_too_short_are_no_evidence():
    result = concluded(known(0, 0, length=49))
    assert [finding.claim for finding in result.findings] == ["not_tested"]
    assert {row.status for row in result.results} == {"not_estimable"}


def test_of_null_models_few_are_claimed():
    """Rates of trained and held-out rows alike: of 60 at most as many as 5% gives."""
    rng = np.random.default_rng(2)
    false = []
    for _ in range(60):
        rate = rng.choice([0.02, 0.1, 0.3])
        evidence = known(
            *rng.binomial(ROWS, rate, 2), of_base=tuple(rng.binomial(ROWS, rate / 2, 2))
        )
        rates = [figure(NULL_RESULT, "ours", "passage_rate")]
        (finding,) = (
            f
            for f in passage_findings(evidence, rates, n_tokens=50, text_p=0.5)
            if f.checkpoint == "ours"
        )
        false.append(finding.claim == "verbatim")
    assert np.sum(false) <= 6


NULL_RESULT = concluded(known(1, 1))
"""The row of a rate that findings are on; they take the difference from evidence."""


def test_it_adds_no_text_to_those_of_membership(make_case):
    case = make_case(sources=20, tests=20)
    content = case.manifest
    ours = plan("passages", content)
    membership = plan("mia", content)
    assert ours.keys() <= membership.keys()
    for wanted, keys in ours.items():
        assert {*keys} <= {*membership[wanted]}


def remarks(evidence: Evidence) -> set[str]:
    """The keys of what is said of ``ours`` behind its claim."""
    (finding,) = (f for f in concluded(evidence).findings if f.checkpoint == "ours")
    return {key.removeprefix("passages.") for key in finding.further}


def test_what_the_base_recites_stands_beside_what_counts_beyond_it():
    """Else 42 rows next to 2 held-out ones would be called no more than these."""
    (finding,) = (
        f
        for f in concluded(known(42, 2, of_base=(40, 1))).findings
        if f.checkpoint == "ours"
    )
    counts = {
        key: (fact.count, fact.of)
        for key, fact in finding.facts.items()
        if isinstance(fact, Hits)
    }
    assert counts == {
        "recited": (42, 100),
        "unseen": (2, 100),
        "before": (40, 100),
        "before_unseen": (1, 100),
    }
    assert "beyond_base" in remarks(known(42, 2, of_base=(40, 1)))
    assert "beyond_base" not in remarks(known(42, 2, base=False))


def test_the_longest_run_is_called_a_passage_only_if_it_is_one():
    assert "longest" in remarks(known(1, 0))
    assert "longest" not in remarks(known(0, 3))


@pytest.mark.parametrize("passages", [0, -3])
def test_a_passage_has_at_least_a_token(passages):
    with pytest.raises(SparkError, match="--passages"):
        made("passages", {"passages": passages})


def test_all_that_is_said_of_passages_is_short():
    cases = (
        known(40, 2),
        known(2, 2),
        known(2, 40),
        known(40, 2, text_p=0.01),
        known(40, 2, of_base=(40, 0)),
        known(0, 0, length=49),
    )
    keys = set()
    for evidence in cases:
        keys |= check_sentences(concluded(evidence))
    expected = {"recites", "nothing", "fewer", "texts_differ", "splits_differ"}
    assert {f"passages.{key}" for key in expected} <= keys

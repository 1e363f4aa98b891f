"""Scores of other tools are read, and claim no more than ours may."""

import hashlib
import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from spark_audit.audits.base import Context
from spark_audit.audits.mia.estimates import Group, Known
from spark_audit.audits.mia.membership_guards import Findings
from spark_audit.audits.mia.referee import given_files, judged_scores, read_scores
from spark_audit.audits.mia.scores import FPRS
from spark_audit.errors import InputError

ROWS = 240


def verdicts(
    attack: Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray],
    *,
    times: int,
    shift: float = 0.0,
    base: bool = False,
) -> list[str]:
    """What is said of an attack on sets of rows whose topics are ``shift`` apart.

    ``attack`` gets the sides and what a perfect reader of the texts would see.
    """
    said = []
    for seed in range(times):
        rng = np.random.default_rng([11, seed])
        member = np.arange(ROWS) % 2 == 0
        topic = rng.normal(shift * member, 1)
        facts = pd.DataFrame({"task": "t", "member": member})
        facts["cluster"] = [f"c{i}" for i in range(ROWS)]
        texts = topic + rng.normal(0, 0.5, ROWS)
        own = {"texts": texts, "x": attack(rng, member, topic)}
        scores = {"base": {"texts": texts}, "mine": own}
        if base:
            scores["base"]["x"] = topic + rng.normal(0, 0.3, ROWS)
        else:
            scores["base"]["x"] = np.full(ROWS, np.nan)
        known = Known(facts, scores, Context(replicates=20), FPRS, 1)
        pooled = Group(known, "pooled", np.arange(ROWS), 2)
        (record,) = judged_scores(pooled, ["base", "mine"], ["x"], Findings())
        said.append(record["says"])
    return said


def test_scores_that_know_nothing_are_claimed_in_one_of_twenty():
    said = verdicts(lambda rng, member, topic: rng.random(ROWS), times=200)
    assert said.count("detected") <= 10


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("base", [False, True])
def test_a_score_that_reads_the_text_alone_claims_nothing(shift, base):
    said = verdicts(
        lambda rng, member, topic: topic + rng.normal(0, 0.3, ROWS),
        times=100,
        shift=shift,
        base=base,
    )
    assert said.count("detected") <= 5


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_a_score_that_knows_the_rows_is_detected(shift):
    said = verdicts(
        lambda rng, member, topic: topic + rng.normal(2.5 * member, 0.5),
        times=40,
        shift=shift,
    )
    assert said.count("detected") >= 32


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("peer", "is no file; write NAME=FILE"),
        ("=x.csv", "is no file"),
        ("loss=x.csv", "'loss' is the name of another score"),
        ("a=x.csv,a=y.csv", "'a' is the name of another score"),
    ],
)
def test_what_names_no_file_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        given_files(text)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "x", "is no table"),
        ("b.csv", None, "cannot be read"),
        ("a.csv", "", "cannot be read as a table"),
        (
            "a.csv",
            "id,value\na,1\n",
            r"id \(or text_sha256\) and score \(columns: id, v",
        ),
        ("a.csv", "id,score\na,high\n", "has scores that are no numbers"),
        ("a.csv", "id,score\na,1\na,2\n", "has several scores of one text"),
        ("a.csv", "id,score,checkpoint\na,1,er\n", "'er' is none of the checkpoints"),
        ("a.jsonl", "{", "cannot be read as a table"),
        ("a.parquet", "x", "cannot be read as a table"),
    ],
)
def test_what_is_no_table_of_scores_is_refused(name, content, said, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    (given,) = given_files(f"peer={tmp_path / name}")
    with pytest.raises(InputError, match=said):
        read_scores(given, ["base", "mine"])


def test_files_of_mimir_hold_their_texts(tmp_path):
    content = {
        "name": "min_k_threshold",
        "predictions": {"member": [1.5, 2.0], "nonmember": [3.0]},
        "raw_results": {"member": [["One."], ["Two."]], "nonmember": [["Three."]]},
        "metrics": {"roc_auc": 1.0},
    }
    path = tmp_path / "min_k_results.json"
    path.write_text(json.dumps(content))
    frame = read_scores(given_files(f"min_k={path}")[0], ["mine"])
    assert frame["score"].tolist() == [-1.5, -2.0, -3.0]
    hashed = hashlib.sha256(b"Three.").hexdigest()
    assert frame["text_sha256"].iloc[2] == hashed
    for broken in ({}, [], {**content, "predictions": {"member": [1]}}):
        path.write_text(json.dumps(broken))
        with pytest.raises(InputError, match="cannot be read as a table"):
            read_scores(given_files(f"min_k={path}")[0], ["mine"])


def test_whose_scores_they_are_must_be_known(tmp_path):
    (tmp_path / "a.csv").write_text("id,score\na,1\nb,-2\n")
    (given,) = given_files(f"peer=-{tmp_path / 'a.csv'}")
    frame = read_scores(given, ["base", "mine"])
    assert frame.to_dict("list") == {
        "checkpoint": ["mine", "mine"],
        "id": ["a", "b"],
        "score": [-1, 2],
    }
    with pytest.raises(InputError, match="add a column checkpoint with: er, mine"):
        read_scores(given, ["er", "mine"])

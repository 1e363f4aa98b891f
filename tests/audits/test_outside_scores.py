"""Scores of other tools are read, and claim no more than ours may."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_audit.audits.base import Context
from spark_audit.audits.mia.estimates import MembershipGroup
from spark_audit.audits.mia.guards import ScoreGuards
from spark_audit.audits.mia.judged_scores import judged_scores
from spark_audit.audits.mia.outside_scores import given_files, read_scores
from spark_audit.audits.mia.score_tables import MEMBERSHIP_FPRS
from spark_audit.errors import InputError

ROWS = 240


def verdicts(
    attack: Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray],
    *,
    times: int,
    shift: float = 0.0,
    base: bool = False,
    folder: Path | None = None,
) -> list[str]:
    """What is said of an attack on sets of rows whose topics are ``shift`` apart.

    ``attack`` gets the sides and what a perfect reader of the texts would see. With a
    folder its scores go through a file that names no row.
    """
    claims = []
    for seed in range(times):
        rng = np.random.default_rng([11, seed])
        member = np.arange(ROWS) % 2 == 0
        topic = rng.normal(shift * member, 1)
        facts = pd.DataFrame({"task": "t", "member": member})
        facts["cluster"] = [f"c{i}" for i in range(ROWS)]
        texts = topic + rng.normal(0, 0.5, ROWS)
        scored = attack(rng, member, topic)
        scored_files = {
            "texts": texts,
            "x": scored if folder is None else filed(scored, folder),
        }
        scores = {"base": {"texts": texts}, "mine": scored_files}
        if base:
            scores["base"]["x"] = topic + rng.normal(0, 0.3, ROWS)
        else:
            scores["base"]["x"] = np.full(ROWS, np.nan)
        common = facts, scores, Context(replicates=20), MEMBERSHIP_FPRS, 1
        pooled = MembershipGroup(*common, "pooled", np.arange(ROWS), 2)
        (record,) = judged_scores(["base", "mine"], ["x"], ScoreGuards(pooled))
        claims.append(record["says"])
    return claims


def filed(scores: np.ndarray, folder: Path) -> np.ndarray:
    """Scores that were written by place, members first and 12 of each side twice."""
    rng = np.random.default_rng(len(scores))
    sides = [np.arange(side, ROWS, 2) for side in (0, 1)]
    order = np.concatenate([rng.permutation([*side, *side[:12]]) for side in sides])
    rows = pd.DataFrame({"id": order.astype(str), "label": 1 - order % 2})
    np.savez(
        folder / "a.npz",
        train_scores=scores[order[:132]],
        test_scores=scores[order[132:]],
    )
    frame = read_scores(given_files(f"x={folder / 'a.npz'}")[0], ["mine"], rows)
    return frame.set_index(frame["id"].astype(int))["score"].sort_index().to_numpy()


@pytest.mark.parametrize("placed", [False, True])
def test_scores_that_know_nothing_are_claimed_in_one_of_twenty(placed, tmp_path):
    folder = tmp_path if placed else None
    claims = verdicts(lambda rng, *_: rng.random(ROWS), times=60, folder=folder)
    assert claims.count("detected") <= 3


@pytest.mark.parametrize(("shift", "base"), [(0.5, False), (1.0, True), (2.0, False)])
def test_a_score_that_reads_the_text_alone_claims_nothing(shift, base):
    claims = verdicts(
        lambda rng, member, topic: topic + rng.normal(0, 0.3, ROWS),
        times=60,
        shift=shift,
        base=base,
    )
    assert claims.count("detected") <= 3


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_a_score_that_knows_the_rows_is_detected(shift):
    claims = verdicts(
        lambda rng, member, topic: topic + rng.normal(2.5 * member, 0.5),
        times=20,
        shift=shift,
    )
    assert claims.count("detected") >= 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peer", "is no file; write NAME=FILE"),
        ("=x.csv", "is no file"),
        ("loss=x.csv", "'loss' is the name of another score"),
        ("a=x.csv,a=y.csv", "'a' is the name of another score"),
    ],
)
def test_what_names_no_file_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        given_files(text)


@pytest.mark.parametrize(
    ("name", "content", "message"),
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
        ("a.csv", "id,score,checkpoint\na,1,er\n", "'er' is unknown"),
        ("a.jsonl", "{", "cannot be read as a table"),
        ("a.parquet", "x", "cannot be read as a table"),
    ],
)
def test_what_is_no_table_of_scores_is_refused(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    (score_file,) = given_files(f"peer={tmp_path / name}")
    with pytest.raises(InputError, match=message):
        read_scores(score_file, ["base", "mine"])


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
        with pytest.raises(InputError, match=str(path)):
            read_scores(given_files(f"min_k={path}")[0], ["mine"])


def test_whose_scores_they_are_must_be_known(tmp_path):
    (tmp_path / "a.csv").write_text("id,score\na,1\nb,-2\n")
    (score_file,) = given_files(f"peer=-{tmp_path / 'a.csv'}")
    frame = read_scores(score_file, ["base", "mine"])
    assert frame.to_dict("list") == {
        "checkpoint": ["mine", "mine"],
        "id": ["a", "b"],
        "score": [-1, 2],
    }
    with pytest.raises(InputError, match="NAME:CHECKPOINT=FILE.*er, mine$"):
        read_scores(score_file, ["er", "mine"])
    score_files = given_files(
        f"peer:er={tmp_path / 'a.csv'},peer:base={tmp_path / 'a.csv'}"
    )
    whose = [
        read_scores(score_file, ["base", "er", "mine"]) for score_file in score_files
    ]
    assert [{*frame["checkpoint"]} for frame in whose] == [{"er"}, {"base"}]
    with pytest.raises(InputError, match="'other'"):
        read_scores(score_files[0]._replace(checkpoint="other"), ["base", "er"])
    (tmp_path / "b.csv").write_text("id,score,checkpoint\na,1,er\n")
    with pytest.raises(InputError, match="p=FILE"):
        read_scores(given_files(f"p:er={tmp_path / 'b.csv'}")[0], ["er"])


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_ids_of_digits_stay_as_they_are(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    frame = pd.DataFrame({"id": ["007", "1e3"]})
    frame["score"] = [1.0, 2.0]
    if suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="," if suffix == "csv" else "\t")
    (score_file,) = given_files(f"peer={path}")
    assert read_scores(score_file, ["mine"])["id"].tolist() == ["007", "1e3"]


def test_the_chosen_attack_is_the_score_beside_a_column_score(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,score,loss\na,1,5\nb,2,7\n")

    def scores(spec: str) -> dict[str, float]:
        frame = read_scores(given_files(f"peer={spec}")[0], ["mine"])
        return dict(zip(frame["id"], frame["score"], strict=True))

    assert scores(f"{path}#loss") == {"a": 5, "b": 7}
    assert scores(f"{path}#score") == scores(f"{path}") == {"a": 1, "b": 2}
    with pytest.raises(InputError, match="'id'.*score, loss$"):
        scores(f"{path}#id")


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_lists_keep_their_ids(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    lists = {"id": ["b", "a"], "score": [2.0, 1.0], "loss": [7.0, 5.0]}
    if suffix == "json":
        path.write_text(json.dumps(lists))
    else:
        np.savez(path, **{name: np.array(values) for name, values in lists.items()})

    for attack, expected in (("", [2, 1]), ("#loss", [7, 5])):
        frame = read_scores(given_files(f"peer={path}{attack}")[0], ["mine"])
        assert frame["id"].tolist() == ["b", "a"]
        assert frame["score"].tolist() == expected


@pytest.mark.parametrize(
    "lists",
    [
        {"signal_values": [1.0, 2.0], "true_labels": [1, 0]},
        {"train_scores": [1.0], "test_scores": [2.0]},
        {"predictions": {}, "raw_results": {}},
    ],
)
def test_an_attack_is_refused_where_a_file_names_none(lists, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(lists))
    with pytest.raises(InputError, match="'loss'.*#ATTACK"):
        read_scores(given_files(f"peer={path}#loss")[0], ["mine"])

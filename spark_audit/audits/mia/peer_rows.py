"""The rows that other tools' scores are of: as they were written for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.mia.score_files import HASH, text_hash
from spark_audit.errors import InputError
from spark_audit.files import data_bytes, read_regular
from spark_audit.manifest.schema import Manifest

ROWS_OPTION = "--scores-rows"

WRITE = "write them with `spark-audit manifest rows`"

TWICE = 12
"""Rows of each side that stand twice."""

LEVEL, DRAWS = 0.001, 3999
"""Scores in another order pass for scores in this one so seldom."""

ALIKE, APART = 0.01, 0.2
"""Of all ranks: where a quarter of the repeats differ by less, none may by more."""


def peer_rows(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """The rows that membership is tested on: ``id``, texts, ``label`` (1: member).

    The digest of the manifest gives their order, and which stand twice.

    Raises
    ------
    InputError
        If the manifest has no members or no non-members.
    """
    sides = manifest.membership
    if not sides.members or not sides.non_members:
        raise InputError("has no members or no non-members", where=manifest.name)
    rng = np.random.default_rng(int(manifest.digest, 16))
    for label, keys in ((1, sorted(sides.members)), (0, sorted(sides.non_members))):
        twice = rng.permutation(len(keys))[:TWICE]
        for at in rng.permutation(np.concatenate([np.arange(len(keys)), twice])):
            one = manifest.by_id[keys[at]]
            row = {"id": one.id, "text": one.text, "label": label}
            yield row | {"prompt": one.prompt, "response": one.response}


def read_rows(path: Path) -> pd.DataFrame:
    """``id``, ``label`` and ``text_sha256`` of the rows of a file, in their order.

    Raises
    ------
    InputError
        If they are not rows of :func:`peer_rows`.
    """
    where = f"{ROWS_OPTION} {path}"
    try:
        lines = read_regular(path, follow=True, most=data_bytes()).splitlines()
        rows = [
            (str(row["id"]), int(row["label"]), text_hash(row["text"]))
            for row in map(json.loads, lines)
        ]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=where) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError("has no rows", where=where, fix=WRITE) from error
    frame = pd.DataFrame(rows, columns=["id", "label", HASH])
    if not frame["id"].duplicated().any():
        raise InputError("has no row twice", where=where, fix=WRITE)
    return frame


def by_place(scores: pd.DataFrame, rows: pd.DataFrame, where: str) -> pd.DataFrame:
    """Scores with the ``id`` of the row at their place, each row once.

    Raises
    ------
    InputError
        If their number, their labels or the scores of repeated rows show that they are
        not in the order of these rows.
    """
    fix = "score all rows of the file, in its order, and give the same file here"
    what = ""
    if len(scores) != len(rows):
        what = f"has {len(scores)} scores, and there are {len(rows)} rows"
    elif "label" in scores and (other := (scores["label"] != rows["label"]).sum()):
        what = f"has another label than the rows at {other} of {len(rows)} places"
    elif not _in_order(scores["score"], rows):
        what = "scores rows that stand twice no more alike than any others"
        fix = f"{fix}; of an attack that does so, give a table with a column id"
    if what:
        raise InputError(what, where=where, fix=fix)
    return scores.assign(id=rows["id"])[~rows["id"].duplicated()]


def _in_order(scores: pd.Series, rows: pd.DataFrame) -> bool:
    """Whether rows that stand twice have nearer scores than rows of a side at random.

    Some that are far apart where others are equal are scores out of place.
    """
    ranks = scores.groupby(rows["label"]).rank(pct=True).to_numpy()
    label = rows["label"].to_numpy()
    pairs = [at[:2] for at in rows.groupby("id").indices.values() if len(at) > 1]
    first, second = np.array(pairs).T
    known = np.isfinite(ranks[first] - ranks[second])
    first, apart = first[known], np.abs(ranks[first] - ranks[second])[known]
    rng, drawn = np.random.default_rng(0), np.zeros(DRAWS)
    for side in np.unique(label[first]):
        own = ranks[(label == side) & np.isfinite(ranks)]
        two = rng.choice(own, (2, DRAWS, (label[first] == side).sum()))
        drawn += np.abs(two[0] - two[1]).sum(axis=1)
    p = (1 + (drawn <= apart.sum() + 1e-9).sum()) / (1 + DRAWS)
    exact = p <= LEVEL and np.quantile(apart, 0.25) < ALIKE
    return bool(p <= LEVEL and not (exact and apart.max() > APART))

"""Files of scores, in the formats of other tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.errors import InputError

HASH = "text_sha256"
"""The column with the hash of a row's text."""


class Format(NamedTuple):
    """Where a tool's file has its scores.

    ``scores`` names the list of all rows, or that of members and that of non-members,
    ``labels`` the list with 1 for members; ``sign`` is -1 where a member scores lower.
    """

    tool: str
    scores: tuple[str, ...]
    labels: str = ""
    sign: int = 1


PEER_FORMATS = (
    Format("LeakPro", ("signal_values",), "true_labels"),
    Format("PrivacyGuard", ("train_scores", "test_scores")),
    Format("open-unlearning", ("forget", "holdout"), sign=-1),
)
"""Fast-MIA writes a table: ``label``, and a column for each attack."""

NO_SCORES = ("label", "user_id", "index", "checkpoint", "Unnamed: 0")
"""Columns of tables that are no scores."""

_ID = {"id": str, HASH: str}

SCORE_FILE_READERS: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": lambda path: pd.read_csv(path, dtype=_ID),
    ".tsv": lambda path: pd.read_csv(path, sep="\t", dtype=_ID),
    ".jsonl": lambda path: pd.read_json(path, lines=True, dtype=_ID),
    ".parquet": pd.read_parquet,
}

ARRAYS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".npy": lambda path: {"score": np.load(path, allow_pickle=False)},
}


def read_file(path: Path, attack: str, where: str) -> pd.DataFrame:
    """The column ``score`` of a file, the higher the likelier a member.

    With ``id`` or ``text_sha256`` where the file says which row is whose, else with
    ``label`` where it says which are members; with ``checkpoint`` if it has it.

    Raises
    ------
    InputError
        If it holds no scores, or several attacks' and none is chosen.
    """
    suffix = path.suffix.lower()
    if suffix not in {*SCORE_FILE_READERS, *ARRAYS}:
        fix = f"give {', '.join((*SCORE_FILE_READERS, *ARRAYS))}; no pickle is opened"
        raise InputError("is no table", where=where, fix=fix)
    try:
        if suffix in ARRAYS:
            arrays = ARRAYS[suffix](path)
            mimir = "raw_results" in arrays
            return _of_mimir(arrays) if mimir else _without_ids(arrays, attack, where)
        table = SCORE_FILE_READERS[suffix](path)
        if {"id", HASH}.isdisjoint(table):
            return _without_ids(table, attack, where)
        column = _one_of(table, attack, where) if attack else "score"
        return table.rename(columns={column: "score"})
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=where) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError("cannot be read as a table", where=where) from error


def _of_mimir(content: Mapping[str, Any]) -> pd.DataFrame:
    """Scores as mimir writes them, with texts; the lower, the likelier a member."""
    rows = []
    for side in ("member", "nonmember"):
        scores, samples = (content[k][side] for k in ("predictions", "raw_results"))
        for score, sample in zip(scores, samples, strict=True):
            rows.append((text_hash(sample[0]), -score))
    return pd.DataFrame(rows, columns=[HASH, "score"])


def _without_ids(
    content: Mapping[str, Any] | pd.DataFrame, attack: str, where: str
) -> pd.DataFrame:
    """Scores, and labels where there are, in the order of the file."""
    for form in PEER_FORMATS:
        # open-unlearning's files have these lists once for each attack.
        inner = {k: v for k, v in content.items() if {*form.scores} <= _keys(v)}
        found = inner[_one_of(inner, attack, where)] if inner else content
        if {*form.scores} <= {*found}:
            lists = [_listed(found[key]) for key in form.scores]
            sides = np.repeat([1, 0][: len(lists)], [len(one) for one in lists])
            labels = found[form.labels] if form.labels else sides
            scores = form.sign * np.concatenate(lists)
            return pd.DataFrame({"score": scores, "label": labels})
    names = [name for name in content if name not in NO_SCORES]
    column = "score" if "score" in names and not attack else ""
    kept = {key: content[key] for key in ("label", "checkpoint") if key in content}
    column = column or _one_of(names, attack, where)
    return pd.DataFrame({"score": content[column], **kept})


def text_hash(text: str) -> str:
    """Return the hash by which a file may name a row: of its whole text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _keys(value: Any) -> set[str]:
    return set(value) if isinstance(value, Mapping) else set()


def _one_of(names: Any, attack: str, where: str) -> str:
    """The attack that is chosen, or the only one there is."""
    known = list(map(str, names))
    if (attack or len(known) > 1) and attack not in known:
        fix = f"write FILE#ATTACK with one of: {', '.join(known)[:200]}"
        raise InputError("has scores of several attacks", where=where, fix=fix)
    return attack or known[0]


def _listed(value: Any) -> np.ndarray:
    """A list of scores, which open-unlearning writes as one record for each index."""
    if "value_by_index" in _keys(value):
        records = value["value_by_index"]
        value = [records[str(at)]["score"] for at in range(len(records))]
    return np.asarray(value, dtype=np.float64)

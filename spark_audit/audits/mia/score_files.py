"""Files of scores, in the formats of other tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.errors import InputError

HASH = "text_sha256"
"""The column with the hash of a row's text."""


class Format(NamedTuple):
    """Where a tool's file has its scores.

    Attributes
    ----------
    scores
        Name of the list of all rows; or of that of members, then that of non-members.
    labels
        Name of the list with 1 for members; empty: members have a list of their own.
    sign
        -1 where members score lower, else 1.
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

MAX_NAMES_SHOWN = 200
"""Characters of the names of attacks that an error lists."""

NO_SCORES = ("label", "user_id", "index", "checkpoint", "Unnamed: 0")
"""Columns of tables that are no scores."""

_ID = {"id": str, HASH: str}

SCORE_FILE_READERS: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": lambda path: pd.read_csv(path, dtype=_ID),
    ".tsv": lambda path: pd.read_csv(path, sep="\t", dtype=_ID),
    ".jsonl": lambda path: pd.read_json(path, lines=True, dtype=_ID),
    ".parquet": pd.read_parquet,
}
"""Readers of tables."""

ARRAYS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".npy": lambda path: {"score": np.load(path, allow_pickle=False)},
}
"""Readers of files that hold lists by name, and no table."""


def read_file(path: Path, attack: str, where: str) -> pd.DataFrame:
    """Return the column ``score`` of a file, the higher the likelier a member.

    Parameters
    ----------
    attack
        Which scores of the file; empty: it holds those of one attack.

    Returns
    -------
    ``score``; with ``id`` or ``text_sha256`` where the file says which row is whose,
    else with ``label`` where it says which are members; with ``checkpoint`` if it has
    it.

    Raises
    ------
    InputError
        If it holds no scores, or several attacks' and none is chosen.
    """
    suffix = path.suffix.lower()
    suffixes = [*SCORE_FILE_READERS, *ARRAYS]
    if suffix not in suffixes:
        fix = f"give {', '.join(suffixes)}; no pickle is opened"
        raise InputError("is no table", where=where, fix=fix)

    try:
        if suffix in ARRAYS:
            return _scores_of_arrays(ARRAYS[suffix](path), attack, where)
        return _scores_of_table(SCORE_FILE_READERS[suffix](path), attack, where)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=where) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError("cannot be read as a table", where=where) from error


def _scores_of_arrays(
    arrays: Mapping[str, Any], attack: str, where: str
) -> pd.DataFrame:
    """Return the scores of a file that holds lists by name."""
    # Only mimir keeps the texts with the scores.
    if "raw_results" in arrays:
        return _scores_of_mimir(arrays)
    return _scores_without_ids(arrays, attack, where)


def _scores_of_table(table: pd.DataFrame, attack: str, where: str) -> pd.DataFrame:
    """Return the scores of a table, whose column is named after the attack."""
    if {"id", HASH}.isdisjoint(table):
        return _scores_without_ids(table, attack, where)

    # It has the name of the attack where one is chosen.
    column = "score"
    if attack:
        column = _chosen_attack(list(table), attack, where)

    return table.rename(columns={column: "score"})


def _scores_of_mimir(content: Mapping[str, Any]) -> pd.DataFrame:
    """Return the scores of mimir, with texts; the lower, the likelier a member."""
    records = []
    for side in ("member", "nonmember"):
        scores = content["predictions"][side]
        samples = content["raw_results"][side]
        for score, sample in zip(scores, samples, strict=True):
            records.append((text_hash(sample[0]), -score))
    return pd.DataFrame(records, columns=[HASH, "score"])


def _scores_without_ids(
    content: Mapping[str, Any] | pd.DataFrame, attack: str, where: str
) -> pd.DataFrame:
    """Return scores, and labels where there are, in the order of the file.

    Parameters
    ----------
    content
        Lists by name, or a table.
    attack
        Which scores; empty: those of the only attack.
    """
    for form in PEER_FORMATS:
        lists_needed = set(form.scores)

        # The files of open-unlearning have these lists once for each attack.
        by_attack = {
            key: value
            for key, value in content.items()
            if lists_needed <= _keys_of(value)
        }
        lists: Any = content
        if by_attack:
            lists = by_attack[_chosen_attack(list(by_attack), attack, where)]

        if lists_needed <= set(lists):
            return _scores_of_peer(lists, form)

    # A table without ids: its columns are attacks, but for a few.
    names = [name for name in content if name not in NO_SCORES]
    column = "score"
    if attack or "score" not in names:
        column = _chosen_attack(names, attack, where)

    columns = {"score": content[column]}
    for key in ("label", "checkpoint"):
        if key in content:
            columns[key] = content[key]
    return pd.DataFrame(columns)


def _scores_of_peer(
    lists: Mapping[str, Any] | pd.DataFrame, form: Format
) -> pd.DataFrame:
    """Return ``score`` and ``label`` from the lists of a tool's format."""
    scores_of_lists = [_score_array(lists[key]) for key in form.scores]
    if form.labels:
        labels = lists[form.labels]
    else:
        # Members come first, then non-members.
        label_of_list = [1, 0]
        n_scores = [len(scores) for scores in scores_of_lists]
        labels = np.repeat(label_of_list, n_scores)  # (rows,)
    scores = form.sign * np.concatenate(scores_of_lists)  # (rows,)
    return pd.DataFrame({"score": scores, "label": labels})


def text_hash(text: str) -> str:
    """Return the hash by which a file may name a row: of its whole text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _keys_of(value: Any) -> set[str]:
    """Return the keys of a mapping; none of anything else."""
    return set(value) if isinstance(value, Mapping) else set()


def _chosen_attack(names: Sequence[Any], attack: str, where: str) -> str:
    """Return the attack that is chosen, or the only one there is."""
    attacks = [str(name) for name in names]

    # A single attack need not be named; a wrong name is refused, too.
    must_choose = attack or len(attacks) > 1
    if must_choose and attack not in attacks:
        shown = ", ".join(attacks)[:MAX_NAMES_SHOWN]
        raise InputError(
            "has scores of several attacks",
            where=where,
            fix=f"write FILE#ATTACK with one of: {shown}",
        )
    return attack or attacks[0]


def _score_array(value: Any) -> np.ndarray:
    """Return a list of scores as an array, shape ``(rows,)``.

    open-unlearning writes it as one record for each index.
    """
    if "value_by_index" in _keys_of(value):
        records = value["value_by_index"]
        value = [records[str(i)]["score"] for i in range(len(records))]
    return np.asarray(value, dtype=np.float64)

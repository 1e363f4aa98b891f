"""Files of scores, in the formats of other tools.

A file is a table (a line per scored text, a column per attack), or holds lists by name
(a list per attack, or one for members and one for non-members). ``where`` is how errors
name it.

The steps are: :func:`read_file` opens the file by its suffix; a file with ids or hashes
is a table; another one may have the format of a tool (:data:`PEER_FORMATS`), or is
taken as a table without ids. A further tool whose file holds lists is a line of
:data:`PEER_FORMATS`, a further suffix one of :data:`TABLE_READERS`.
"""

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
"""The column with the hash of a scored text (:func:`text_hash`)."""


class PeerFormat(NamedTuple):
    """The names of the lists in which a tool's file holds its scores.

    Attributes
    ----------
    score_lists
        Name of the list of all scores; or of that of members, then that of
        non-members.
    label_list
        Name of the list with 1 for members and 0 for non-members; empty: members have
        a list of their own.
    sign
        1 where members score higher, -1 where they score lower.
    """

    tool: str
    score_lists: tuple[str, ...]
    label_list: str = ""
    sign: int = 1


PEER_FORMATS = (
    PeerFormat("LeakPro", ("signal_values",), "true_labels"),
    PeerFormat("PrivacyGuard", ("train_scores", "test_scores")),
    PeerFormat("open-unlearning", ("forget", "holdout"), sign=-1),
)
"""Tools whose files hold lists. Fast-MIA writes a table; mimir has a reader below."""

MAX_NAMES_SHOWN = 200
"""Most characters of names of attacks in an error."""

KEY_COLUMNS = ("id", HASH)
"""Columns that say which text a line scores; a file has one of them, or none."""

NO_SCORES = ("label", "user_id", "index", "checkpoint", "Unnamed: 0")
"""Further columns that are no scores."""

TYPES_OF_KEYS = {"id": str, HASH: str}
"""Types of columns: an id of digits, such as 007, stays as it is written."""

# The errors of a reader become one line of an error (see `read_file`). No reader
# unpickles.
TABLE_READERS: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": lambda path: pd.read_csv(path, dtype=TYPES_OF_KEYS),
    ".tsv": lambda path: pd.read_csv(path, sep="\t", dtype=TYPES_OF_KEYS),
    ".jsonl": lambda path: pd.read_json(path, lines=True, dtype=TYPES_OF_KEYS),
    ".parquet": pd.read_parquet,
}
"""File suffix -> reader of a table."""

LIST_READERS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".npy": lambda path: {"score": np.load(path, allow_pickle=False)},
}
"""File suffix -> reader of lists by name."""


def read_file(path: Path, attack: str, where: str) -> pd.DataFrame:
    """Return the scores of one attack: the higher, the likelier a member.

    Parameters
    ----------
    attack
        Which attack's scores; empty: the file holds those of one attack.
    where
        How errors name the file.

    Returns
    -------
    A line per scored text. Columns: ``score``; ``id`` or ``text_sha256`` where the file
    says which text a line scores, else ``label`` (1: member) where it says that;
    ``checkpoint`` where it has it. A table with ``id`` or ``text_sha256`` comes with
    all its columns, and without ``score`` if it has none and no attack is chosen: the
    caller refuses that.

    Raises
    ------
    InputError
        If the file cannot be read, or if it is not clear which of its attacks is meant.
    """
    suffix = path.suffix.lower()
    suffixes = [*TABLE_READERS, *LIST_READERS]
    if suffix not in suffixes:
        fix = f"give {', '.join(suffixes)}; no pickle is opened"
        raise InputError("is no table", where=where, fix=fix)

    try:
        if suffix in LIST_READERS:
            return _scores_of_lists(LIST_READERS[suffix](path), attack, where)
        return _scores_of_table(TABLE_READERS[suffix](path), attack, where)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=where) from error
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError("cannot be read as a table", where=where) from None


def _scores_of_lists(lists: Mapping[str, Any], attack: str, where: str) -> pd.DataFrame:
    """Return the scores of a file that holds lists by name.

    For the columns see :func:`read_file`.
    """
    # Only mimir stores texts with the scores.
    if "raw_results" in lists:
        _refuse_attack(attack, where)
        return _scores_of_mimir(lists)

    # Beside a list of ids, the other lists are columns of the same table.
    for key in KEY_COLUMNS:
        if key in lists and isinstance(lists[key], (list, dict, np.ndarray)):
            return _scores_of_table(pd.DataFrame({**lists}), attack, where)

    return _scores_without_ids(lists, attack, where)


def _scores_of_table(table: pd.DataFrame, attack: str, where: str) -> pd.DataFrame:
    """Return the scores of a table; see :func:`read_file` for its columns."""
    if set(KEY_COLUMNS).isdisjoint(table):
        return _scores_without_ids(table, attack, where)
    if not attack:
        return table

    # The chosen attack's column is the score, even beside a column of that name.
    column = _chosen_attack(_attack_columns(table), attack, where)
    if column != "score":
        table = table.drop(columns="score", errors="ignore")
    return table.rename(columns={column: "score"})


def _scores_of_mimir(content: Mapping[str, Any]) -> pd.DataFrame:
    """Return the scores of a file of mimir, by the hash of their texts.

    The file's scores are lower for members, so that their signs are changed. The hash
    is of the text that was scored, which is the first one of each sample.
    """
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
    """Return scores, and labels where the file has them, in the order of the file.

    Parameters
    ----------
    content
        Lists by name, or a table.
    attack
        Which attack's scores; empty: those of the only attack.
    """
    for peer_format in PEER_FORMATS:
        lists = _lists_of_format(content, peer_format, attack, where)
        if lists is not None:
            return _scores_of_peer(lists, peer_format)

    # In a table without ids, all columns but a few are attacks.
    attacks = _attack_columns(content)
    column = "score"
    if attack or "score" not in attacks:
        column = _chosen_attack(attacks, attack, where)

    # Keep the columns that say more on a line: its side, and the checkpoint.
    columns = {"score": content[column]}
    for key in ("label", "checkpoint"):
        if key in content:
            columns[key] = content[key]
    return pd.DataFrame(columns)


def _lists_of_format(
    content: Mapping[str, Any] | pd.DataFrame,
    peer_format: PeerFormat,
    attack: str,
    where: str,
) -> Mapping[str, Any] | pd.DataFrame | None:
    """Return the lists of one attack if a file has this format; ``None``: it has not.

    A file holds the format's lists once for each attack, by the attack's name
    (open-unlearning), or the lists of a single attack without a name.
    """
    needed = set(peer_format.score_lists)

    lists_by_attack: dict[str, Mapping[str, Any]] = {}
    for name, lists in content.items():
        if isinstance(lists, Mapping) and needed <= set(lists):
            lists_by_attack[str(name)] = lists
    if lists_by_attack:
        chosen = _chosen_attack(list(lists_by_attack), attack, where)
        return lists_by_attack[chosen]

    if needed <= set(content):
        _refuse_attack(attack, where)
        return content
    return None


def _scores_of_peer(
    lists: Mapping[str, Any] | pd.DataFrame, peer_format: PeerFormat
) -> pd.DataFrame:
    """Return ``score`` (higher: likelier a member) and ``label`` (1: member).

    Parameters
    ----------
    lists
        Those that the format names.
    """
    score_lists = [_score_array(lists[key]) for key in peer_format.score_lists]
    if peer_format.label_list:
        labels = lists[peer_format.label_list]
    else:
        # The list of members comes first, then that of non-members.
        label_of_list = [1, 0]
        n_scores = [len(scores) for scores in score_lists]
        labels = np.repeat(label_of_list, n_scores)  # (texts,)
    scores = peer_format.sign * np.concatenate(score_lists)  # (texts,)
    return pd.DataFrame({"score": scores, "label": labels})


def text_hash(text: str) -> str:
    """Return the hash by which a file may name a text: of all its characters."""
    return hashlib.sha256(text.encode()).hexdigest()


def _attack_columns(content: Mapping[str, Any] | pd.DataFrame) -> list[Any]:
    """Return the names of lists or columns that may be scores of an attack.

    Only names in :data:`KEY_COLUMNS` and :data:`NO_SCORES` are none.
    """
    return [name for name in content if name not in (*KEY_COLUMNS, *NO_SCORES)]


def _chosen_attack(names: Sequence[Any], attack: str, where: str) -> str:
    """Return the chosen attack, or the only one.

    Raises
    ------
    InputError
        If there is no attack of that name, or none is chosen of several.
    """
    attacks = [str(name) for name in names]
    shown = ", ".join(attacks)[:MAX_NAMES_SHOWN]
    fix = f"write FILE#ATTACK with one of: {shown}"

    if attack and attack not in attacks:
        raise InputError(f"has no scores of {attack!r}", where=where, fix=fix)
    if not attack and len(attacks) > 1:
        raise InputError("has scores of several attacks", where=where, fix=fix)
    return attack or attacks[0]


def _refuse_attack(attack: str, where: str) -> None:
    """Refuse the name of an attack for a file that holds the scores of one, unnamed."""
    if attack:
        raise InputError(
            f"names no attacks, so that {attack!r} cannot be chosen",
            where=where,
            fix="write FILE without #ATTACK",
        )


def _score_array(value: Any) -> np.ndarray:
    """Return a list of scores as an array, shape ``(texts,)``.

    open-unlearning writes the list as one record per index: ``{"value_by_index": {"0":
    {"score": 1.5}, ...}}``.
    """
    if isinstance(value, Mapping) and "value_by_index" in value:
        records = value["value_by_index"]
        value = [records[str(i)]["score"] for i in range(len(records))]
    return np.asarray(value, dtype=np.float64)

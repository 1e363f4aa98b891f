"""Scores of other tools' attacks, judged as ours are.

A file of scores is a table (CSV, TSV, JSON lines or Parquet) with a column ``id`` (the
example's) or ``text_sha256`` (of its whole text), a column ``score`` and, where several
checkpoints are audited, a column ``checkpoint``. The higher the score, the likelier a
member; ``NAME=-FILE`` turns it round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.mia.scores import ALL_SCORES, BASELINE_VARIANTS
from spark_audit.errors import InputError, one_of
from spark_audit.files import data_bytes, read_regular
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE

OPTION = "--scores-file"


class Given(NamedTuple):
    """A file of scores: the attack's name, where it lies, and 1, or -1 if turned.

    ``checkpoint`` is whose scores they are, ``attack`` which scores of the file; both
    are empty where they need not be said.
    """

    name: str
    path: Path
    sign: int
    checkpoint: str = ""
    attack: str = ""


def given_files(text: str | None) -> list[Given]:
    """Read ``NAME=FILE,NAME=-FILE,NAME:CHECKPOINT=FILE#ATTACK``.

    Raises
    ------
    InputError
        If it is not written so, or a name is one of ours.
    """
    found: list[Given] = []
    for part in (text or "").split(",") if text else ():
        left, equals, path = (one.strip() for one in part.partition("="))
        name, _, checkpoint = left.partition(":")
        path, _, attack = path.partition("#")
        taken = {*ALL_SCORES, *BASELINE_VARIANTS}
        taken |= {one.name for one in found if one.checkpoint == checkpoint}
        if not name or not equals or not path.lstrip("-"):
            raise InputError(
                f"{part!r} is no file", where=OPTION, fix="write NAME=FILE"
            )
        if name in taken:
            what = f"{name!r} is the name of another score"
            raise InputError(what, where=OPTION, fix="choose another name")
        sign = -1 if path.startswith("-") else 1
        file = Path(path.lstrip("-")).expanduser()
        found.append(Given(name, file, sign, checkpoint, attack))
    return found


def read_scores(
    one: Given, names: Sequence[str], rows: pd.DataFrame | None = None
) -> pd.DataFrame:
    """A file's ``checkpoint``, ``id`` or ``text_sha256``, and ``score``.

    Parameters
    ----------
    names
        Checkpoints that are audited.
    rows
        Of :func:`~spark_audit.audits.mia.referee.read_rows`: what scores belong to
        that say neither text nor id.

    Raises
    ------
    InputError
        If it is no such file, or it is not known whose scores they are, or of which
        rows.
    """
    where = f"{OPTION} {one.path}"
    refused = partial(InputError, where=where)
    frame = read_file(one.path, one.attack, where)
    if "score" not in frame:
        columns = ", ".join(map(str, frame.columns))
        fix = f"name them id (or {HASH}) and score (columns: {columns[:200]})"
        raise refused("has not the columns of scores", fix=fix)
    key = next((name for name in ("id", HASH) if name in frame), "")
    if not key and rows is None:
        fix = f"add a column id or {HASH}, or give the rows with {ROWS_OPTION}"
        raise refused("does not say which rows it scores", fix=fix)
    if not key and rows is not None:
        frame, key = by_place(frame, rows, where), "id"
    if one.checkpoint and "checkpoint" in frame:
        fix = f"write {one.name}=FILE"
        raise refused("has a column checkpoint of its own", fix=fix)
    if "checkpoint" not in frame:
        own = [one.checkpoint] if one.checkpoint else [n for n in names if n != BASE]
        if len(own) != 1:
            fix = "write NAME:CHECKPOINT=FILE, or add a column checkpoint with: "
            fix += ", ".join(own)
            raise refused("does not say whose scores they are", fix=fix)
        frame["checkpoint"] = own[0]
    found = frame[["checkpoint", key]].astype(str)
    for name in sorted({*found["checkpoint"]} - {BASE}):
        one_of(name, where, names)
    score = pd.to_numeric(frame["score"], errors="coerce")
    if (score.isna() & frame["score"].notna()).any():
        raise refused("has scores that are no numbers")
    if found.duplicated().any():
        raise refused("has several scores of one text")
    score = one.sign * score.astype(float)
    return found.assign(score=score.groupby(found["checkpoint"]).transform(ordered))


def ordered(scores: pd.Series) -> pd.Series:
    """Return finite scores in the same order: infinite ones are the ends of it.

    An attack divides by a probability of 0, say. All that is made of scores follows
    from their order, so ranks stand for them; finite scores are returned as they are.
    """
    if not np.isinf(scores).any():
        return scores
    return scores.rank(method="dense")


def outside_scores(
    files: Sequence[Given],
    manifest: Manifest,
    ids: Sequence[str],
    names: Sequence[str],
    rows: Path | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Scores of the examples by checkpoint and attack, shape ``(n,)``; NaN: none.

    Raises
    ------
    InputError
        If a file holds no score of any of these examples, or the rows are others.
    """
    found = {n: {one.name: np.full(len(ids), np.nan) for one in files} for n in names}
    own = pd.DataFrame({"id": ids})
    own[HASH] = [_hash(manifest.by_id[key].text) for key in ids]
    own["label"] = own["id"].isin(manifest.membership.members).astype(int)
    order = None
    if rows is not None:
        order = read_rows(rows)
        # Of a part of the manifest (--limit) the file has more rows.
        given = order[order["id"].isin(own["id"])]
        if len(given.merge(own)) < len(given):
            what, where = "has other rows than the manifest", f"{ROWS_OPTION} {rows}"
            raise InputError(what, where=where, fix=WRITE)
    places = own.drop(columns="label").reset_index(names="at")
    for one in files:
        known = read_scores(one, names, order).merge(places)
        if known.empty:
            what = "holds no score of any row of the manifest"
            fix = "give the ids of the data, or the SHA-256 of whole texts"
            raise InputError(what, where=f"{OPTION} {one.path}", fix=fix)
        for name, part in known.groupby("checkpoint"):
            if name in found:  # the base may be left out
                found[str(name)][one.name][part["at"]] = part["score"]
    return found


# --- the rows -------------------------------------------------------------------------


HASH = "text_sha256"
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
            (str(row["id"]), int(row["label"]), _hash(row["text"]))
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


# --- the files ------------------------------------------------------------------------


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
            rows.append((_hash(sample[0]), -score))
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


def _hash(text: str) -> str:
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

"""Scores of other tools' attacks, judged as ours are.

A file of scores is a table (CSV, TSV, JSON lines or Parquet) with a column ``id`` (the
example's) or ``text_sha256`` (of its whole text), a column ``score`` and, where several
checkpoints are audited, a column ``checkpoint``. The higher the score, the likelier a
member; ``NAME=-FILE`` turns it round.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.mia.peer_rows import (
    ROWS_OPTION,
    WRITE,
    by_place,
    read_rows,
)
from spark_audit.audits.mia.score_files import HASH, read_file, text_hash
from spark_audit.audits.mia.score_tables import ALL_SCORES, BASELINE_VARIANTS
from spark_audit.errors import InputError, one_of
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
        Of :func:`~spark_audit.audits.mia.peer_rows.read_rows`: what scores belong to
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
    own[HASH] = [text_hash(manifest.by_id[key].text) for key in ids]
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

"""Scores of other tools' attacks, judged as ours are.

A file of scores is a table (CSV, TSV, JSON lines or Parquet) with a column ``id`` (the
example's) or ``text_sha256`` (of its whole text), a column ``score`` and, where several
checkpoints are audited, a column ``checkpoint``. The higher the score, the likelier a
member; ``NAME=-FILE`` turns it round. Files that tools write themselves are read by
``peer_files``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.mia.estimates import Group
from spark_audit.audits.mia.membership_guards import Findings
from spark_audit.audits.mia.peer_files import (
    HASH,
    ROWS_OPTION,
    WRITE,
    by_place,
    read_file,
    read_rows,
)
from spark_audit.audits.mia.scores import ATTACKS, BESIDE
from spark_audit.errors import InputError, choose
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.stats.bootstrap import holm

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
        taken = {*ATTACKS, *BESIDE}
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
        Of :func:`~spark_audit.audits.mia.peer_files.read_rows`: what scores belong to
        that say neither text nor id.

    Raises
    ------
    InputError
        If it is no such file, or it is not known whose scores they are, or of which
        rows.
    """
    where = f"{OPTION} {one.path}"
    frame = read_file(one.path, one.attack, where)
    keys = [key for key in ("id", HASH) if key in frame]
    if "score" not in frame:
        columns = ", ".join(map(str, frame.columns))
        fix = f"name them id (or {HASH}) and score (columns: {columns[:200]})"
        raise InputError("has not the columns of scores", where=where, fix=fix)
    if not keys and rows is None:
        fix = f"add a column id or {HASH}, or give the rows with {ROWS_OPTION}"
        raise InputError("does not say which rows it scores", where=where, fix=fix)
    if not keys and rows is not None:
        frame, keys = by_place(frame, rows, where), ["id"]
    own = [one.checkpoint] if one.checkpoint else [n for n in names if n != BASE]
    if one.checkpoint and "checkpoint" in frame:
        fix = f"write {one.name}=FILE"
        raise InputError("has a column checkpoint of its own", where=where, fix=fix)
    if "checkpoint" not in frame:
        if len(own) != 1:
            fix = "write NAME:CHECKPOINT=FILE, or add a column checkpoint with: "
            fix += ", ".join(own)
            raise InputError("does not say whose scores they are", where=where, fix=fix)
        frame["checkpoint"] = own[0]
    whose = frame["checkpoint"].astype(str)
    if unknown := sorted({*whose} - {*names, BASE}):
        what = f"{unknown[0]!r} is none of the checkpoints"
        raise InputError(what, where=where, fix=choose(unknown[0], names))
    score = pd.to_numeric(frame["score"], errors="coerce")
    if (score.isna() & frame["score"].notna()).any():
        raise InputError("has scores that are no numbers", where=where)
    key = frame[keys[0]].astype(str)
    if pd.DataFrame({"whose": whose, "key": key}).duplicated().any():
        raise InputError("has several scores of one text", where=where)
    return pd.DataFrame({"checkpoint": whose, keys[0]: key, "score": one.sign * score})


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
    hashes = {_hash(manifest, key): at for at, key in enumerate(ids)}
    places = {"id": {key: at for at, key in enumerate(ids)}, HASH: hashes}
    order = None
    if rows is not None:
        order, members = read_rows(rows), {*manifest.membership.members}
        own = {key: (_hash(manifest, key), key in members) for key in ids}
        given = zip(order[HASH], order["label"] == 1, strict=True)
        # Of a part of the manifest (--limit) the file has more rows.
        if any(
            own.get(key, one) != one
            for key, one in zip(order["id"], given, strict=True)
        ):
            what, where = "has other rows than the manifest", f"{ROWS_OPTION} {rows}"
            raise InputError(what, where=where, fix=WRITE)
    for one in files:
        frame = read_scores(one, names, order)
        key = "id" if "id" in frame else HASH
        at = frame[key].map(places[key])
        known = frame[at.notna()].assign(at=at.dropna().astype(int))
        if known.empty:
            raise InputError(
                "holds no score of any row of the manifest",
                where=f"{OPTION} {one.path}",
                fix="give the ids of the data, or the SHA-256 of whole texts",
            )
        for name, part in known.groupby("checkpoint"):
            if name in found:  # the base may be left out
                found[str(name)][one.name][part["at"]] = part["score"]
    return found


def _hash(manifest: Manifest, key: str) -> str:
    return hashlib.sha256(manifest.by_id[key].text.encode()).hexdigest()


def judged_scores(
    pooled: Group, names: Sequence[str], attacks: Sequence[str], judged: Findings
) -> list[dict[str, Any]]:
    """What each attack shows of each checkpoint, by the guards of our own scores.

    It detects where it scores trained rows higher than the base did (or, without scores
    of the base, than chance), and exceeds the best guess from the texts alone; p values
    are corrected (Holm) over attacks and checkpoints.
    """
    records: list[dict[str, Any]] = []
    ps: list[float] = []
    for name in (one for one in names if one != BASE):
        for attack in attacks:
            record: dict[str, Any] = {"checkpoint": name, "of": attack}
            estimate = pooled.auc(name, attack)
            above = pooled.above_texts(name, attack, more=True)
            record |= {"rows": estimate.n, "score": estimate.value}
            if estimate.value is None or above is None:
                says = estimate.note or "the texts alone were not tested beside it"
                records.append(record | {"says": f"not estimable: {says}"})
                continue
            moved, p = estimate.value - 0.5, pooled.p(name, attack)
            if not pooled.usable(BASE, attack):
                pair = (name, attack), (BASE, attack)
                (_, change, p), *_ = pooled.differences(*pair)
                moved = change.value or 0.0
            rising = 1.0 if p is None or moved <= 0 else p
            told = above.told or judged.texts
            ps.append(max(rising, above.excess_p(told=told)))
            apart = above.difference
            record |= {"texts": above.texts, "difference": apart.value}
            record |= {key: getattr(apart, key) for key in ("low", "high", "mde")}
            confounded = told and rising < 0.05
            state, _ = judged.of(attack)
            says = "confounded" if confounded else "not shown"
            records.append(record | {"p": ps[-1], "status": state, "says": says})
    tested = [one for one in records if "p" in one]
    for one, p in zip(tested, holm(ps), strict=True):
        one["p_adjusted"] = float(p)
        if p < 0.05:
            one["says"] = "detected" if one["status"] == "ok" else one["status"]
    return records

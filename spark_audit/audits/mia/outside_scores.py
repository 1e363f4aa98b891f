"""Scores of other tools' attacks: the files of ``--scores-file``, matched to the rows.

:mod:`~spark_audit.audits.mia.score_files` reads the formats. This module reads the
option and assigns each score to its checkpoint and row: by ``id`` (of the example), by
``text_sha256`` (of its whole text), or by its place in the rows of ``--scores-rows``. A
higher score means a likelier member; ``NAME=-FILE`` reverses that.
:mod:`~spark_audit.audits.mia.judged_scores` judges the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
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

MAX_COLUMNS_SHOWN = 200
"""Most characters of column names in an error."""


class ScoresFile(NamedTuple):
    """A file of scores as the option names it.

    Attributes
    ----------
    name
        Name of the attack in the report.
    sign
        -1 where the option reverses the scores of the file, else 1. Formats that are
        known to score members lower are turned by ``read_file`` already.
    checkpoint
        The checkpoint of the scores; empty: the file names it, or there is only one.
    attack
        Name of the attack in the file; empty: the file holds only one.
    """

    name: str
    path: Path
    sign: int
    checkpoint: str = ""
    attack: str = ""


def given_files(text: str | None) -> list[ScoresFile]:
    """Read ``NAME=FILE,NAME=-FILE,NAME:CHECKPOINT=FILE#ATTACK``.

    Raises
    ------
    InputError
        If the option has another form, or a name is one of our own scores.
    """
    files: list[ScoresFile] = []
    if not text:
        return files

    for item in text.split(","):
        label, equals, target = (piece.strip() for piece in item.partition("="))
        name, _, checkpoint = label.partition(":")
        signed_path, _, attack = target.partition("#")
        path = signed_path.removeprefix("-")
        if not name or not equals or not path:
            raise InputError(
                f"{item!r} is no file", where=OPTION, fix="write NAME=FILE"
            )

        # An attack may have one file per checkpoint.
        taken = {*ALL_SCORES, *BASELINE_VARIANTS}
        taken |= {file.name for file in files if file.checkpoint == checkpoint}
        if name in taken:
            raise InputError(
                f"{name!r} is the name of another score",
                where=OPTION,
                fix="choose another name",
            )

        file = ScoresFile(
            name=name,
            path=Path(path).expanduser(),
            sign=-1 if signed_path.startswith("-") else 1,
            checkpoint=checkpoint,
            attack=attack,
        )
        files.append(file)
    return files


def read_scores(
    file: ScoresFile, names: Sequence[str], rows: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return a file's ``checkpoint``, ``id`` or ``text_sha256``, and ``score``.

    Parameters
    ----------
    names
        Checkpoints that are audited.
    rows
        From :func:`~spark_audit.audits.mia.peer_rows.read_rows`: the rows of scores
        without text and id.

    Raises
    ------
    InputError
        If the file has another format, or the checkpoint or rows of its scores are
        unknown.
    """
    where = f"{OPTION} {file.path}"
    frame = read_file(file.path, file.attack, where)
    if "score" not in frame:
        columns = ", ".join(str(column) for column in frame.columns)
        shown = columns[:MAX_COLUMNS_SHOWN]
        raise InputError(
            "has not the columns of scores",
            where=where,
            fix=f"name them id (or {HASH}) and score (columns: {shown})",
        )

    # Find the row and the checkpoint of each line.
    frame, key = _with_key(frame, rows, where)
    frame = _with_checkpoint(frame, file, names, where)
    keys = frame[["checkpoint", key]].astype(str)
    for name in sorted(set(keys["checkpoint"]) - {BASE}):
        one_of(name, where, names)

    # A score may be missing, but not be text.
    score = pd.to_numeric(frame["score"], errors="coerce")
    if (score.isna() & frame["score"].notna()).any():
        raise InputError("has scores that are no numbers", where=where)
    if keys.duplicated().any():
        raise InputError("has several scores of one text", where=where)

    # Scores with infinite values become ranks within each checkpoint.
    signed = file.sign * score.astype(float)
    by_checkpoint = signed.groupby(keys["checkpoint"])
    return keys.assign(score=by_checkpoint.transform(ordered))


def _with_key(
    frame: pd.DataFrame, rows: pd.DataFrame | None, where: str
) -> tuple[pd.DataFrame, str]:
    """Return the scores with a column that names their rows, and its name.

    Parameters
    ----------
    rows
        The rows in the order of the scores, if these name none.
    """
    for key in ("id", HASH):
        if key in frame:
            return frame, key

    if rows is None:
        raise InputError(
            "does not say which rows it scores",
            where=where,
            fix=f"add a column id or {HASH}, or give the rows with {ROWS_OPTION}",
        )
    return by_place(frame, rows, where), "id"


def _with_checkpoint(
    frame: pd.DataFrame, file: ScoresFile, names: Sequence[str], where: str
) -> pd.DataFrame:
    """Return the scores with the column ``checkpoint``: from the file or the option."""
    if "checkpoint" in frame:
        if file.checkpoint:
            raise InputError(
                "has a column checkpoint of its own",
                where=where,
                fix=f"write {file.name}=FILE",
            )
        return frame

    checkpoints = [file.checkpoint]
    if not file.checkpoint:
        checkpoints = [name for name in names if name != BASE]
    if len(checkpoints) != 1:
        raise InputError(
            "does not say whose scores they are",
            where=where,
            fix="write NAME:CHECKPOINT=FILE, or add a column checkpoint with: "
            + ", ".join(checkpoints or names),
        )
    return frame.assign(checkpoint=checkpoints[0])


def ordered(scores: pd.Series) -> pd.Series:
    """Return finite scores in the same order.

    An attack may give infinite scores, such as by dividing by a probability of 0. All
    results follow from the order of scores, so if any is infinite their ranks are
    returned. Finite scores are returned unchanged.

    Parameters
    ----------
    scores
        Shape ``(n,)``.
    """
    if not np.isinf(scores).any():
        return scores
    return scores.rank(method="dense")


def outside_scores(
    files: Sequence[ScoresFile],
    manifest: Manifest,
    ids: Sequence[str],
    names: Sequence[str],
    rows_path: Path | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores of the examples, by checkpoint and attack.

    Parameters
    ----------
    ids
        Example ids, ``n`` of them.
    names
        Checkpoints; the scores of the base may be left out.
    rows_path
        File of the rows in the order of the scores.

    Returns
    -------
    Shape ``(n,)`` each; NaN: no score.

    Raises
    ------
    InputError
        If a file has no score of any of these examples, or other rows.
    """
    examples = pd.DataFrame({"id": ids})
    examples[HASH] = [text_hash(manifest.by_id[key].text) for key in ids]
    rows: pd.DataFrame | None = None
    if rows_path is not None:
        rows = read_rows(rows_path)
        _check_rows(rows, examples, manifest, f"{ROWS_OPTION} {rows_path}")

    # A score stays NaN unless a file contains it.
    scores: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        scores[name] = {file.name: np.full(len(ids), np.nan) for file in files}

    # Merge by the key of the file: the id or the hash of the text.
    with_index = examples.reset_index(names="index")
    for file in files:
        scored = read_scores(file, names, rows).merge(with_index)
        if scored.empty:
            raise InputError(
                "holds no score of any row of the manifest",
                where=f"{OPTION} {file.path}",
                fix="give the ids of the data, or the SHA-256 of whole texts",
            )
        for checkpoint, of_checkpoint in scored.groupby("checkpoint"):
            if checkpoint in scores:
                values = scores[str(checkpoint)][file.name]  # (n,)
                values[of_checkpoint["index"]] = of_checkpoint["score"]
    return scores


def _check_rows(
    rows: pd.DataFrame, examples: pd.DataFrame, manifest: Manifest, where: str
) -> None:
    """Refuse rows that are not those of the manifest.

    Parameters
    ----------
    rows
        ``id``, ``label`` and ``text_sha256``, as written.
    examples
        ``id`` and ``text_sha256`` of the examples that are audited.
    """
    is_member = examples["id"].isin(manifest.membership.members)
    labelled = examples.assign(label=is_member.astype(int))

    # With --limit the file has rows that are not audited.
    audited = rows[rows["id"].isin(examples["id"])]
    if len(audited.merge(labelled)) < len(audited):
        raise InputError("has other rows than the manifest", where=where, fix=WRITE)

"""Scores of other tools' attacks: the files of ``--scores-file``, matched to the rows.

:mod:`~spark_audit.audits.mia.score_files` reads the formats. This module reads the
option and assigns each score to its checkpoint and its row. A row is found by ``id``
(of the example), by ``text_sha256`` (of its whole text), or by the line of the score,
which is that of its row in ``--scores-rows``. A higher score means a likelier member;
``NAME=-FILE`` reverses that.

An *attack* is one tool's score under the name that the option gives it; ``where`` is
how errors name a file.

:mod:`~spark_audit.audits.mia.judged_scores` judges the scores.
"""

from __future__ import annotations

import os
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

SCORES_FILE_OPTION = "--scores-file"

MAX_COLUMNS_SHOWN = 200
"""Most characters of column names in an error."""


class ScoresFile(NamedTuple):
    """A file of scores as the option names it.

    Attributes
    ----------
    name
        Name of the attack in the report.
    path
        The file.
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
    """Return the files that the option names; none without the option.

    An example of its form: ``NAME=FILE,NAME=-FILE,NAME:CHECKPOINT=FILE#ATTACK``.

    Raises
    ------
    InputError
        If the option has another form, or a name is that of another score: one of our
        own, or one that the option gives for the same checkpoint.
    """
    files: list[ScoresFile] = []
    if not text:
        return files

    for item in text.split(","):
        # NAME:CHECKPOINT = -FILE#ATTACK, of which only NAME and FILE are needed.
        left, equals, right = (piece.strip() for piece in item.partition("="))
        name, _, checkpoint = left.partition(":")
        signed_path, _, attack = right.partition("#")
        path = signed_path.removeprefix("-")
        if not name or not equals or not path:
            raise InputError(
                f"{item!r} is no file", where=SCORES_FILE_OPTION, fix="write NAME=FILE"
            )

        # An attack may have one file per checkpoint.
        taken_names = {*ALL_SCORES, *BASELINE_VARIANTS}
        for file in files:
            if file.checkpoint == checkpoint:
                taken_names.add(file.name)
        if name in taken_names:
            raise InputError(
                f"{name!r} is the name of another score",
                where=SCORES_FILE_OPTION,
                fix="choose another name",
            )

        files.append(
            ScoresFile(
                name=name,
                path=Path(os.path.expanduser(path)),
                sign=-1 if signed_path.startswith("-") else 1,
                checkpoint=checkpoint,
                attack=attack,
            )
        )
    return files


def read_scores(
    file: ScoresFile, checkpoints: Sequence[str], rows: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the scores of a file, each with its checkpoint and row.

    Parameters
    ----------
    checkpoints
        Names of the checkpoints that are audited.
    rows
        From :func:`~spark_audit.audits.mia.peer_rows.read_rows`: the rows in the order
        of the scores, for a file that names no rows.

    Returns
    -------
    Columns ``checkpoint``, ``id`` or ``text_sha256`` (as the file names its rows), and
    ``score``: the higher, the likelier a member; NaN: no score. Infinite scores are
    replaced by ranks.

    Raises
    ------
    InputError
        If the file has another format, or the checkpoint or rows of its scores are
        unknown.
    """
    where = f"{SCORES_FILE_OPTION} {file.path}"
    frame = read_file(file.path, file.attack, where)
    if "score" not in frame:
        columns = ", ".join(str(column) for column in frame.columns)
        shown = columns[:MAX_COLUMNS_SHOWN]
        raise InputError(
            "has not the columns of scores",
            where=where,
            fix=f"name them id (or {HASH}) and score (columns: {shown})",
        )

    # Find the row and the checkpoint of each score.
    frame, key_column = _with_key(frame, rows, where)
    frame = _with_checkpoint(frame, file, checkpoints, where)

    # A table may hold ids and checkpoints as numbers, but the manifest has text.
    scored_rows = frame[["checkpoint", key_column]].astype(str)

    # Scores of the base may be given although it is not audited.
    for checkpoint in sorted(set(scored_rows["checkpoint"]) - {BASE}):
        one_of(checkpoint, where, checkpoints)

    # A score may be missing, but not be text.
    score = pd.to_numeric(frame["score"], errors="coerce")
    if (score.isna() & frame["score"].notna()).any():
        raise InputError("has scores that are no numbers", where=where)
    if scored_rows.duplicated().any():
        raise InputError("has several scores of one text", where=where)

    # If a checkpoint has infinite scores, all of its scores become ranks.
    signed = file.sign * score.astype(float)
    by_checkpoint = signed.groupby(scored_rows["checkpoint"])
    return scored_rows.assign(score=by_checkpoint.transform(_finite_or_ranks))


def _with_key(
    frame: pd.DataFrame, rows: pd.DataFrame | None, where: str
) -> tuple[pd.DataFrame, str]:
    """Return the scores with a column that names their rows, and that column's name.

    Scores that name no rows get the ids of ``rows``, line by line. Their order is
    checked, and each row is kept once.

    Parameters
    ----------
    frame
        The scores, from ``read_file``.
    rows
        The rows in the order of the scores; ``None``: not given.
    """
    for column in ("id", HASH):
        if column in frame:
            return frame, column

    if rows is None:
        raise InputError(
            "does not say which rows it scores",
            where=where,
            fix=f"add a column id or {HASH}, or give the rows with {ROWS_OPTION}",
        )
    return by_place(frame, rows, where), "id"


def _with_checkpoint(
    frame: pd.DataFrame, file: ScoresFile, checkpoints: Sequence[str], where: str
) -> pd.DataFrame:
    """Return the scores with the column ``checkpoint``.

    The file has this column, or the option names the checkpoint, or only one checkpoint
    besides the base is audited.

    Parameters
    ----------
    frame
        The scores, from :func:`_with_key`.
    checkpoints
        Names of the checkpoints that are audited.
    """
    if "checkpoint" in frame:
        if file.checkpoint:
            raise InputError(
                "has a column checkpoint of its own",
                where=where,
                fix=f"write {file.name}=FILE",
            )
        return frame

    if file.checkpoint:
        candidates = [file.checkpoint]
    else:
        candidates = [name for name in checkpoints if name != BASE]

    if len(candidates) != 1:
        raise InputError(
            "does not say whose scores they are",
            where=where,
            fix="write NAME:CHECKPOINT=FILE, or add a column checkpoint with: "
            + ", ".join(candidates or checkpoints),
        )
    return frame.assign(checkpoint=candidates[0])


def _finite_or_ranks(scores: pd.Series) -> pd.Series:
    """Return the scores, or their ranks if any of them is infinite.

    An attack may give infinite scores, such as by dividing by a probability of 0. Ranks
    are finite and give the same results, since these follow from the order of scores.

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
    checkpoints: Sequence[str],
    rows_path: Path | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores of the examples, by checkpoint and attack.

    Parameters
    ----------
    ids
        Example ids, ``n`` of them.
    checkpoints
        Names of the checkpoints whose scores are returned. The base may be missing
        among them, and its scores are then not used.
    rows_path
        File of the rows in the order of the scores, for files that name no rows.

    Returns
    -------
    Checkpoint -> attack -> scores, shape ``(n,)``; NaN: no score.

    Raises
    ------
    InputError
        If a file has no score of any of these examples or cannot be used, or if the
        file of the rows has other rows than the manifest.
    """
    examples = pd.DataFrame({"id": ids})
    examples[HASH] = [text_hash(manifest.by_id[example_id].text) for example_id in ids]

    rows: pd.DataFrame | None = None
    if rows_path is not None:
        rows = read_rows(rows_path)
        _check_rows(rows, examples, manifest, f"{ROWS_OPTION} {rows_path}")

    # Checkpoint -> attack -> scores; a score stays NaN unless a file contains it.
    scores: dict[str, dict[str, np.ndarray]] = {}
    for checkpoint in checkpoints:
        scores[checkpoint] = {file.name: np.full(len(ids), np.nan) for file in files}

    examples_with_index = examples.reset_index(names="index")
    for file in files:
        # Find the examples by the column in which the file names its rows.
        scores_of_file = read_scores(file, checkpoints, rows)
        key_column = "id" if "id" in scores_of_file else HASH
        scored = scores_of_file.merge(examples_with_index, on=key_column)
        if scored.empty:
            raise InputError(
                "holds no score of any row of the manifest",
                where=f"{SCORES_FILE_OPTION} {file.path}",
                fix="give the ids of the data, or the SHA-256 of whole texts",
            )

        for key, scored_by_checkpoint in scored.groupby("checkpoint"):
            # A file may hold scores of the base although they are not asked for.
            checkpoint = str(key)
            if checkpoint not in scores:
                continue

            values = scores[checkpoint][file.name]  # (n,)
            values[scored_by_checkpoint["index"]] = scored_by_checkpoint["score"]
    return scores


def _check_rows(
    rows: pd.DataFrame, examples: pd.DataFrame, manifest: Manifest, where: str
) -> None:
    """Refuse rows of audited examples that differ from those of the manifest.

    Parameters
    ----------
    rows
        ``id``, ``label`` (1: member) and ``text_sha256``, as the file has them.
    examples
        ``id`` and ``text_sha256`` of the examples that are audited.
    """
    is_member = examples["id"].isin(manifest.membership.members)
    labelled = examples.assign(label=is_member.astype(int))  # 1: member

    # With --limit the file also has rows that are not audited.
    audited = rows[rows["id"].isin(examples["id"])]

    # The merge keeps the rows that agree with their example in all columns.
    agreeing = audited.merge(labelled, on=["id", "label", HASH])
    if len(agreeing) < len(audited):
        raise InputError("has other rows than the manifest", where=where, fix=WRITE)

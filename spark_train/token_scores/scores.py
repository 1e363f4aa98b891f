"""Sensitivity scores of training rows: which tokens are replayed, which distilled.

The score itself is :mod:`spark_audit.data.sensitivity_score`'s. Which tokens are
identifiers is said by ``TrainRow.pii``, never by ``score == 1``: the formula rounds to
1 for unlikely tokens of plain text, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from spark_audit.data.sensitivity_score import score2, sensitivity, token_counts
from spark_audit.scoring.table import TokenTable
from spark_train.data import TrainRow


def task_counts(rows: Iterable[TrainRow], *, vocab_size: int) -> np.ndarray:
    """How often each token occurs in one task's rows: shape ``(V,)``, int64.

    Special tokens (a BOS, EOS) are left out: every row has them, so that they would
    count as the most frequent token of short texts.
    """
    texts = (np.delete(row.ids, row.special) for row in rows)
    return token_counts(texts, vocab_size=vocab_size)


def row_scores(
    rows: Sequence[TrainRow],
    nll: Sequence[np.ndarray],
    counts: Mapping[str, np.ndarray],
    *,
    alpha: float,
) -> list[np.ndarray]:
    """Sensitivity score of every token of some rows (SPARK, Eq. "sensitivity").

    Parameters
    ----------
    nll
        One array of shape ``(T - 1,)`` a row, nats: Score_1 of all tokens but the
        first, which has no prediction.
    counts
        :func:`task_counts` by task, of the tasks seen so far in training **[ours]**:
        their number is the N of Score_2.
    alpha
        Weight of Score_1.

    Returns
    -------
    list of np.ndarray
        One array of shape ``(T,)`` a row, float32 in ``[0, 1]``, computed in float64:
        1 on identifiers, else 0 on fixed wording and stop words, 0 at the first token.

    Raises
    ------
    InputError
        If there is no task, a task without any token, an ``alpha`` outside ``[0, 1]``,
        or an NLL that is NaN.
    """
    second = score2(counts)
    scores = [np.zeros(len(row), dtype=np.float32) for row in rows]
    for row, given, score in zip(rows, nll, scores, strict=True):
        score[1:] = sensitivity(
            given,
            second[row.ids[1:]],
            alpha=alpha,
            pii_mask=row.pii[1:],
            zero_mask=row.fixed[1:],
        )
    return scores


def write_scores(
    path: Path, rows: Sequence[TrainRow], scores: Sequence[np.ndarray]
) -> None:
    """Write scores to Parquet, whole or not at all, readable by the owner only.

    One row a token that has a prediction, so none for the first of a training row:
    ``example`` (id), ``position`` (int32, index into ``TrainRow.ids``), ``score``
    (float32), ``pii``, ``response`` (bool). No text and no token id.

    Parameters
    ----------
    rows
        With ids that differ.
    scores
        What :func:`row_scores` gave for them.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    parts = list(zip(rows, scores, strict=True))
    lengths = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    TokenTable(
        ids=tuple(row.id for row in rows),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        position=_joined([np.arange(1, len(row)) for row in rows], np.int32),
        columns={
            "score": _joined([score[1:] for _, score in parts], np.float32),
            "pii": _joined([row.pii[1:] for row in rows], np.bool_),
            "response": _joined([row.response[1:] for row in rows], np.bool_),
        },
    ).write(path)


def _joined(parts: Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)

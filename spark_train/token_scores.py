"""Compute sensitivity scores of training rows, which divide replayed tokens.

The score itself is in :mod:`spark_audit.data.sensitivity`. ``TrainRow.pii`` tells which
tokens are identifiers, never ``score == 1``: the formula also rounds to 1 for unlikely
tokens of plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from spark_audit.data.sensitivity import score2, sensitivity
from spark_train.training_rows import TrainRow


def task_counts(rows: Iterable[TrainRow], *, vocab_size: int) -> np.ndarray:
    """Count each token in one task's rows: shape ``(V,)``, int64.

    Special tokens (a BOS, EOS) are left out: every row has them, and they would count
    as the most frequent token of short texts.
    """
    counts = np.zeros(vocab_size, np.int64)
    for row in rows:
        np.add.at(counts, np.delete(row.ids, row.special), 1)
    return counts


def row_scores(
    rows: Sequence[TrainRow],
    nll: Sequence[np.ndarray],
    counts: Mapping[str, np.ndarray],
    *,
    alpha: float,
) -> list[np.ndarray]:
    """Return the sensitivity score of every token (SPARK, Eq. "sensitivity").

    Parameters
    ----------
    nll
        For each row an array of shape ``(T - 1,)``, nats: Score_1 of all tokens but the
        first, which has no prediction.
    counts
        :func:`task_counts` by task, of the tasks seen so far in training **[ours]**:
        their number is the N of Score_2.
    alpha
        Weight of Score_1.

    Returns
    -------
    list of np.ndarray
        For each row an array of shape ``(T,)``, float32 in ``[0, 1]``, computed in
        float64: 1 on identifiers, else 0 on fixed wording and stop words, and 0 at the
        first token, whatever it is.

    Raises
    ------
    InputError
        If an NLL is NaN.
    """
    score2_of_token = score2([*counts.values()])  # (V,): by token id
    scores = []
    for row, score1 in zip(rows, nll, strict=True):
        score = sensitivity(
            score1,
            score2_of_token[row.ids[1:]],
            alpha=alpha,
            pii_mask=row.pii[1:],
            zero_mask=row.fixed[1:],
        )  # (T - 1,)
        # The first token has no prediction.
        scores.append(np.append(np.float32(0), score.astype(np.float32)))
    return scores

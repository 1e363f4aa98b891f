"""The best guess of who is a member, without any audited checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.mia.texts import (
    FOLDS,
    Features,
    dealt,
    enough,
    fitted,
    hashed,
    mean_auc,
    remembered,
    subsample,
    word_features,
)
from spark_audit.stats.clustered_roc import Design

CHARACTERS = (3, 4)
"""Lengths of character n-grams, inside words."""

GRAMS = 1 << 15

SAME_DIGIT = str.maketrans("012345678", "9" * 9)

BEST = 1e-3
"""An AUC must be higher by this to be better: the first of equals is taken."""


@remembered
def best_guess(
    texts: Sequence[str],
    label: np.ndarray,
    sides: Design,
    base: Mapping[str, np.ndarray],
    *,
    seed: int,
) -> np.ndarray:
    """Out-of-fold scores of the best classifier.

    Parameters
    ----------
    texts
        ``n`` texts.
    label
        Shape ``(n,)``, codes within the task.
    base
        Scores of the untrained model, shape ``(n,)`` each, NaN where there is none.
    sides
        Folds keep clusters whole, stratified by task and side.

    Returns
    -------
    Shape ``(n,)``: ranks within fold and task, from 0 to 1, so that folds which chose
    differently are on one scale; NaN where a row was not drawn, and of all rows where
    there are too few clusters.
    """
    rng = np.random.default_rng(seed)
    drawn, everywhere = subsample(sides, rng), np.full(len(sides.member), np.nan)
    used = sides.take(drawn)
    if not enough(used, FOLDS):
        return everywhere
    numbers = [values[drawn] for values in base.values() if np.isfinite(values).any()]
    chosen = [texts[i] for i in drawn]
    length = np.array([*map(len, chosen)])
    words = word_features(chosen, label[drawn], used.task)
    found: list[Features] = [words, characters(chosen)]
    parts = [[length], *([each] for each in numbers), *([numbers] if numbers else [])]
    found += [_dense(each, used.task) for each in parts]
    order = rng.permutation(len(np.unique(used.cluster)))
    everywhere[drawn] = _nested(found, used, dealt(used, used.member, order))
    return everywhere


def _nested(found: Sequence[Features], sides: Design, fold: np.ndarray) -> np.ndarray:
    """Scores of each fold by the classifier that is best in the others.

    Without folds j and k, one model scores both: fold j's score counts for the choice
    in fold k, and k's for that in j.
    """
    inner = np.full((len(found), FOLDS, len(fold)), np.nan)
    for which, features in enumerate(found):
        for j, k in combinations(range(FOLDS), 2):
            rest = ~np.isin(fold, (j, k))
            score = fitted(features, sides.member, sides.task, rest)
            for own, other in ((j, k), (k, j)):
                at = fold == own
                inner[which, other, at] = _ranks(score(at), sides.task[at])
    scores = np.zeros(len(fold))
    for k in range(FOLDS):
        at, rest = fold == k, fold != k
        part = sides.take(np.flatnonzero(rest))
        areas = [mean_auc(part, part.member, each[k][rest]) for each in inner]
        best = next(i for i, area in enumerate(areas) if area > max(areas) - BEST)
        score = fitted(found[best], sides.member, sides.task, rest)
        scores[at] = _ranks(score(at), sides.task[at])
    return scores


def characters(
    texts: Sequence[str], lengths: tuple[int, int] = CHARACTERS
) -> scipy.sparse.csr_matrix:
    """Presence of character n-grams inside words (hashed), shape ``(n, GRAMS)``.

    Of each text, and of the text with every digit as 9: how numbers are written is
    seldom alike in rows from two sources, their digits are.
    """
    both = [f"{text} {text.translate(SAME_DIGIT)}" for text in texts]
    return hashed(both, n_features=GRAMS, analyzer="char_wb", ngram_range=lengths)


def _dense(columns: Sequence[np.ndarray], task: np.ndarray) -> np.ndarray:
    """Normal scores of each column within its task, and their squares."""
    ranks = np.stack([_ranks(each, task) for each in columns])
    scores = scipy.special.ndtri(np.clip(ranks, 1e-3, 1 - 1e-3))
    return np.concatenate([scores, scores**2 - 1]).T


def _ranks(values: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Mid-ranks within the task, from 0 to 1; what is missing is in the middle."""
    known = pd.Series(np.where(np.isfinite(values), values, np.nan)).groupby(task)
    ranks = (known.rank() - 0.5) / known.transform("count")
    return np.asarray(ranks.fillna(0.5))

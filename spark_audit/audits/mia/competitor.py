"""The best guess at membership that needs no audited checkpoint.

Out-of-fold scores of whichever classifier is best, over the words of a text, its
character n-grams, its length, or what the untrained model gives it. What a checkpoint
shows beyond that is its own. Which one is best is decided inside each fold, on folds of
its own, so that the choice takes nothing from the rows it is judged by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.mia.texts import (
    FOLDS,
    Features,
    both_sides,
    clusters_by_side,
    dealt,
    fitted,
    hashed,
    mean_auc,
    remembered,
    subsample,
    word_features,
)
from spark_audit.stats.roc import Design

CHARACTERS = (3, 4)
"""Lengths of character n-grams, inside words."""
FEATURES = 1 << 15
SAME_DIGIT = str.maketrans("012345678", "9" * 9)
BEST = 1e-3
"""An AUC must be higher by this to be better: the first of equals is taken."""


@remembered
def best_guess(
    texts: Sequence[str] | None,
    label: np.ndarray,
    base: Mapping[str, np.ndarray],
    sides: Design,
    *,
    seed: int,
) -> np.ndarray | None:
    """Out-of-fold scores of the best classifier; ``None`` with too few clusters.

    Parameters
    ----------
    texts
        ``n`` texts; ``None`` where there are none: the untrained model is left.
    label
        Shape ``(n,)``, codes within the task.
    base
        Scores of the untrained model, shape ``(n,)`` each, NaN where there is none.
    sides
        Folds keep clusters whole, stratified by task and side.

    Returns
    -------
    Shape ``(n,)``: ranks within fold and task, from 0 to 1, so that folds which chose
    differently are on one scale; NaN where a row was not drawn.
    """
    rng = np.random.default_rng(seed)
    drawn = subsample(sides, rng)
    used = sides.take(drawn)
    if not both_sides(used) or min(clusters_by_side(used)) < FOLDS:
        return None
    numbers = [values[drawn] for values in base.values() if np.isfinite(values).any()]
    found: list[Features] = []
    if texts is not None:
        chosen = [texts[i] for i in drawn]
        found = [word_features(chosen, label[drawn], used.task), characters(chosen)]
        found.append(_dense([np.array([len(text) for text in chosen])], used.task))
    if numbers:
        found += [_dense([each], used.task) for each in numbers]
        found.append(_dense(numbers, used.task))
    if not found:
        return None
    order = rng.permutation(len(np.unique(used.cluster)))
    everywhere = np.full(len(sides.member), np.nan)
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
    """Presence of character n-grams inside words (hashed), shape ``(n, FEATURES)``.

    Of each text, and of the text with every digit as 9: how numbers are written is
    seldom alike in rows from two sources, their digits are.
    """
    both = [f"{text} {text.translate(SAME_DIGIT)}" for text in texts]
    grams: Any = {"analyzer": "char_wb", "ngram_range": lengths}
    return hashed(both, n_features=FEATURES, **grams)


def _dense(columns: Sequence[np.ndarray], task: np.ndarray) -> np.ndarray:
    """Normal scores of each column within its task, and their squares."""
    scores = np.stack(
        [
            scipy.special.ndtri(np.clip(_ranks(each, task), 1e-3, 1 - 1e-3))
            for each in columns
        ]
    )
    return np.concatenate([scores, scores**2 - 1]).T


def _ranks(values: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Mid-ranks within the task, from 0 to 1; what is missing is in the middle."""
    known = pd.Series(np.where(np.isfinite(values), values, np.nan)).groupby(task)
    ranks = (known.rank() - 0.5) / known.transform("count")
    return np.asarray(ranks.fillna(0.5))

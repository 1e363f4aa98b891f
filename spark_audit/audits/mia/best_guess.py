"""The best guess of who is a member, without any audited checkpoint.

Several classifiers of the texts, and of the untrained model's scores of them, compete;
the best of them is the bar that a membership score must exceed. Its scores are called
``texts`` in evidence and reports.

The choice is nested: the classifier that scores a fold is chosen and fitted in the
other folds alone. Each classifier is a logistic regression on a *candidate*, a matrix
of features; a further one is a line of :func:`_candidates`. For ``sides``, folds and
fitting see :mod:`spark_audit.audits.mia.text_classifiers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.mia.text_classifiers import (
    FOLDS,
    Features,
    fit_scorer,
    folds_of,
    has_enough_clusters,
    hash_features,
    mean_auc,
    remember_last,
    subsample,
    word_features,
)
from spark_audit.stats.clustered_roc import Design

CHARACTERS = (3, 4)
"""Least and largest length of character n-grams, inside words."""

COLUMNS_OF_GRAMS = 1 << 15
"""Columns that character n-grams are hashed to."""

SAME_DIGIT = str.maketrans("012345678", "9" * 9)
"""Translation that turns every digit of a text into a 9."""

MIN_AUC_GAIN = 1e-3
"""Candidates whose AUC is less than this below the highest one count as equal; the
first of them is chosen.
"""

MIN_RANK = 1e-3
"""Least distance of ranks from 0 and 1, where normal scores are infinite."""


@remember_last
def best_guess(
    texts: Sequence[str],
    label: np.ndarray,
    sides: Design,
    base: Mapping[str, np.ndarray],
    *,
    seed: int,
) -> np.ndarray:
    """Return out-of-fold scores of the best classifier of texts and base scores.

    Parameters
    ----------
    texts
        ``n`` texts.
    label
        Shape ``(n,)``, codes within the task.
    sides
        Folds keep clusters whole, stratified by task and side.
    base
        Name -> scores of the untrained model, shape ``(n,)``; NaN: no score. The order
        decides ties.

    Returns
    -------
    Shape ``(n,)``: ranks within fold and task, from 0 to 1, the higher, the likelier a
    member. Ranks put folds with different classifiers on one scale. NaN for examples
    that were not drawn, and for all if there are too few clusters.
    """
    rng = np.random.default_rng(seed)
    drawn = subsample(sides, rng)  # (drawn,), indices of examples
    scores = np.full(len(sides.member), np.nan)
    sides_drawn = sides.take(drawn)
    if not has_enough_clusters(sides_drawn, FOLDS):
        return scores

    texts_drawn = [texts[i] for i in drawn]
    base_scores = [
        values[drawn] for values in base.values() if np.isfinite(values).any()
    ]
    candidates = _candidates(texts_drawn, label[drawn], sides_drawn.task, base_scores)

    turns_of_clusters = rng.permutation(len(np.unique(sides_drawn.cluster)))
    fold = folds_of(sides_drawn, sides_drawn.member, turns_of_clusters)  # (drawn,)
    scores[drawn] = _scores_of_best(candidates, sides_drawn, fold)
    return scores


def _candidates(
    texts: Sequence[str],
    label: np.ndarray,
    task: np.ndarray,
    base_scores: Sequence[np.ndarray],
) -> list[Features]:
    """Return the features of each classifier, in the order that decides ties.

    They are words, characters, the length, each score of the base, and all scores of
    the base together.

    Parameters
    ----------
    label, task
        Shape ``(examples,)``, codes.
    base_scores
        Shape ``(examples,)`` each.

    Returns
    -------
    Shape ``(examples, features)`` each.
    """
    length = np.array([len(text) for text in texts])  # (examples,), characters
    candidates: list[Features] = [
        word_features(texts, label, task),
        character_features(texts),
        _normal_scores([length], task),
    ]
    candidates += [_normal_scores([scores], task) for scores in base_scores]
    if base_scores:
        candidates.append(_normal_scores(base_scores, task))
    return candidates


def _scores_of_best(
    candidates: Sequence[Features], sides: Design, fold: np.ndarray
) -> np.ndarray:
    """Return the scores of each fold by the classifier that is best in the other folds.

    Parameters
    ----------
    fold
        Shape ``(examples,)``, 0 to ``FOLDS - 1``.

    Returns
    -------
    Shape ``(examples,)``: ranks within fold and task, from 0 to 1.
    """
    inner_scores = _inner_scores(candidates, sides, fold)

    scores = np.zeros(len(fold))
    for k in range(FOLDS):
        in_fold = fold == k

        # AUC of each candidate in the other folds.
        sides_of_others = sides.take(np.flatnonzero(~in_fold))
        aucs = []
        for c in range(len(candidates)):
            scores_of_others = inner_scores[c, k, ~in_fold]
            aucs.append(
                mean_auc(sides_of_others, sides_of_others.member, scores_of_others)
            )

        # Fit the best candidate (the first of equals) to all other folds.
        is_best = [auc > max(aucs) - MIN_AUC_GAIN for auc in aucs]
        best = candidates[is_best.index(True)]
        score = fit_scorer(best, sides.member, sides.task, ~in_fold)
        scores[in_fold] = _ranks(score(in_fold), sides.task[in_fold])
    return scores


def _inner_scores(
    candidates: Sequence[Features], sides: Design, fold: np.ndarray
) -> np.ndarray:
    """Return the scores that decide the choice of each fold's classifier.

    One model is fitted without folds j and k and scores both. Its scores of fold j
    count for the choice in fold k, and those of fold k for the choice in fold j.

    Returns
    -------
    Shape ``(candidates, FOLDS, examples)``: ``[c, k]`` are scores of candidate ``c``
    for the choice in fold ``k``, NaN for the examples of fold ``k`` itself. They are
    ranks within fold and task, from 0 to 1.
    """
    inner_scores = np.full((len(candidates), FOLDS, len(fold)), np.nan)
    for c, features in enumerate(candidates):
        for j, k in combinations(range(FOLDS), 2):
            in_neither = ~np.isin(fold, (j, k))
            score = fit_scorer(features, sides.member, sides.task, in_neither)
            for scored_fold, fold_of_choice in ((j, k), (k, j)):
                is_scored = fold == scored_fold
                ranks = _ranks(score(is_scored), sides.task[is_scored])
                inner_scores[c, fold_of_choice, is_scored] = ranks
    return inner_scores


def character_features(
    texts: Sequence[str], lengths: tuple[int, int] = CHARACTERS
) -> scipy.sparse.csr_matrix:
    """Return the presence of character n-grams inside words (hashed).

    The n-grams are those of each text and of the text with every digit as 9, since two
    sources often differ in the format of numbers, but not in their digits.

    Returns
    -------
    Shape ``(n, COLUMNS_OF_GRAMS)``.
    """
    with_same_digits = [f"{text} {text.translate(SAME_DIGIT)}" for text in texts]
    return hash_features(
        with_same_digits,
        n_features=COLUMNS_OF_GRAMS,
        analyzer="char_wb",
        ngram_range=lengths,
    )


def _normal_scores(columns: Sequence[np.ndarray], task: np.ndarray) -> np.ndarray:
    """Return normal scores of each column within its task, and their squares.

    A normal score is the quantile of the standard normal distribution at a rank. The
    square lets a classifier prefer values in the middle, or at both ends; its mean is
    1, which is subtracted.

    Parameters
    ----------
    columns
        Shape ``(examples,)`` each.

    Returns
    -------
    Shape ``(examples, 2 * columns)``: the scores of all columns, then their squares.
    """
    ranks = np.stack([_ranks(column, task) for column in columns])
    ranks = np.clip(ranks, MIN_RANK, 1 - MIN_RANK)  # (columns, examples)
    scores = scipy.special.ndtri(ranks)
    return np.concatenate([scores, scores**2 - 1]).T


def _ranks(values: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Return mid-ranks within the task, from 0 to 1; 0.5 where a value is missing.

    Parameters
    ----------
    values, task
        Shape ``(examples,)``.
    """
    finite = pd.Series(np.where(np.isfinite(values), values, np.nan))  # (examples,)
    by_task = finite.groupby(task)
    ranks = (by_task.rank() - 0.5) / by_task.transform("count")
    return np.asarray(ranks.fillna(0.5))

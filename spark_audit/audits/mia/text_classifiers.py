"""Tools of the classifiers that read texts alone: drawing, features, folds and fitting.

Three tests use them, each with its own choice of features:

- the blind classifier (:mod:`spark_audit.audits.mia.texts`),
- the best guess without a checkpoint (:mod:`spark_audit.audits.mia.best_guess`), and
- the test of identifiers' texts (:mod:`spark_audit.audits.identifier_texts`).

``sides`` is a :class:`~spark_audit.stats.clustered_roc.Design`: whether each example is
a member, its cluster and its task, shape ``(n,)`` each; clusters and tasks are codes
from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import numpy as np
import scipy

from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.roc import auc

FOLDS = 5

MAX_ROWS_FOR_TEXTS = 1500
"""Most examples that a classifier reads."""

COLUMNS_OF_WORDS = 1 << 14
"""Columns that words are hashed to."""

CHARACTERS_OF_LENGTH_0 = 1000
"""A text of this many characters has the length feature 0."""

LABEL_WEIGHT = 0.5
"""Value of the column of a text's label; its words together have length 1."""

R = TypeVar("R")

Features: TypeAlias = "scipy.sparse.csr_matrix | np.ndarray"
"""Shape ``(examples, features)``."""


def remember_last(function: Callable[..., R]) -> Callable[..., R]:
    """Return a function that keeps its last result and reuses it for equal arguments.

    Classifiers of texts are slow, and a second report on the same texts asks for the
    same results.
    """
    last: tuple[str, Any] = ("", None)  # hash of the arguments, and the result

    @wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        import joblib

        nonlocal last
        arguments = joblib.hash((args, options))
        # Read the last result once, since another thread may replace it.
        stored_arguments, result = last
        if stored_arguments != arguments:
            result = function(*args, **options)
            last = (arguments, result)
        return result

    return run


def has_enough_clusters(sides: Design, least: int) -> bool:
    """Return whether a task has both sides, and each side has enough clusters.

    Parameters
    ----------
    least
        Clusters that each side needs, over all tasks.
    """
    has_both_sides = any(
        len(members) > 0 and len(others) > 0 for members, others in sides.tasks
    )
    if not has_both_sides:
        return False

    n_member_clusters = len(np.unique(sides.cluster[sides.member]))
    n_other_clusters = len(np.unique(sides.cluster[~sides.member]))
    return min(n_member_clusters, n_other_clusters) >= least


def subsample(sides: Design, rng: np.random.Generator) -> np.ndarray:
    """Return the sorted indices of the examples that a classifier reads.

    Whole clusters are drawn in random order; only the last one of a side may be cut.

    Returns
    -------
    Shape ``(drawn,)``: all examples, or :data:`MAX_ROWS_FOR_TEXTS` of them.
    """
    n_examples = len(sides.member)
    if n_examples <= MAX_ROWS_FOR_TEXTS:
        return np.arange(n_examples)

    # The smaller side gets up to half of the examples, since it limits the precision of
    # an AUC.
    members = np.flatnonzero(sides.member)
    others = np.flatnonzero(~sides.member)
    size_of_smaller = min(len(members), len(others))
    n_from_smaller = min(size_of_smaller, MAX_ROWS_FOR_TEXTS // 2)
    n_from_larger = MAX_ROWS_FOR_TEXTS - n_from_smaller

    drawn = []
    for indices in (members, others):
        is_smaller = len(indices) == size_of_smaller
        n_wanted = n_from_smaller if is_smaller else n_from_larger
        _, cluster = np.unique(sides.cluster[indices], return_inverse=True)
        # Each cluster has a random turn, and its examples have the same one.
        turn = rng.permutation(cluster.max() + 1)[cluster]  # (examples of the side,)
        drawn.append(indices[np.argsort(turn, kind="stable")][:n_wanted])
    return np.sort(np.concatenate(drawn))


def hash_features(
    texts: Sequence[str],
    *,
    n_features: int,
    analyzer: str = "word",
    ngram_range: tuple[int, int] = (1, 1),
) -> scipy.sparse.csr_matrix:
    """Return the presence of words or n-grams, each text of unit length.

    Hashing needs no fitted vocabulary.

    Parameters
    ----------
    analyzer, ngram_range
        As in scikit-learn's ``HashingVectorizer``.

    Returns
    -------
    Shape ``(n, n_features)``.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        n_features=n_features,
        analyzer=analyzer,
        ngram_range=ngram_range,
        token_pattern=r"(?u)\b\w+\b" if analyzer == "word" else None,
        alternate_sign=False,
        binary=True,
        norm="l2",
    )
    features: scipy.sparse.csr_matrix = vectorizer.transform(texts)
    return features


def word_features(
    texts: Sequence[str], label: np.ndarray, task: np.ndarray
) -> scipy.sparse.csr_matrix:
    """Return the presence of words (hashed), the length and the label of each text.

    Parameters
    ----------
    label, task
        Shape ``(n,)``, codes; a label is one within its task.

    Returns
    -------
    Shape ``(n, features)``: words, the length and its square, labels of tasks.
    """
    words = hash_features(texts, n_features=COLUMNS_OF_WORDS)

    # The length is scaled to about -1 to 1, with its square.
    n_characters = [len(text) for text in texts]
    length = np.log1p(n_characters) / np.log(CHARACTERS_OF_LENGTH_0) - 1  # (n,)
    lengths = scipy.sparse.csr_matrix(np.stack([length, 2 * length**2], axis=1))

    # Add one column for each label of each task.
    _, column = np.unique(np.stack([task, label]), axis=1, return_inverse=True)
    weights = np.full(len(texts), LABEL_WEIGHT)
    labels = scipy.sparse.csr_matrix((weights, (np.arange(len(texts)), column.ravel())))
    return scipy.sparse.csr_matrix(scipy.sparse.hstack([words, lengths, labels]))


def folds_of(sides: Design, is_member: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the fold of each example: clusters are dealt in turn within task and side.

    Parameters
    ----------
    is_member
        Sides that the folds are stratified by, in place of those of the design; shape
        ``(n,)``, bool.
    order
        Turn of each cluster within its task and side, shape ``(clusters,)``: a random
        permutation.

    Returns
    -------
    Shape ``(n,)``, 0 to ``FOLDS - 1``.
    """
    _, first_example, cluster = np.unique(
        sides.cluster, return_index=True, return_inverse=True
    )
    # Sort clusters by task, then by side, then by turn: the last key goes first. The
    # side of a cluster with both is that of its first example.
    sorted_clusters = np.lexsort(
        (order, is_member[first_example], sides.task[first_example])
    )
    n_clusters = len(first_example)
    fold_of_cluster = np.empty(n_clusters, dtype=np.int64)
    fold_of_cluster[sorted_clusters] = np.arange(n_clusters) % FOLDS
    return fold_of_cluster[cluster]


def fit_scorer(
    features: Features, is_member: np.ndarray, task: np.ndarray, is_train: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a logistic regression to the train examples; return a function that scores.

    Parameters
    ----------
    features
        Shape ``(n, features)``.
    is_member, is_train
        Shape ``(n,)``, bool.
    task
        Shape ``(n,)``, codes; both sides weigh alike in every task.

    Returns
    -------
    A function of the examples to score, a mask of shape ``(n,)``, that returns their
    scores: the higher, the likelier a member.
    """
    from sklearn.linear_model import LogisticRegression

    # With many sparse features the dual problem is faster, and less precision is
    # enough.
    is_dense = isinstance(features, np.ndarray)
    model = LogisticRegression(
        C=1.0,
        max_iter=100,
        random_state=0,
        solver="liblinear",
        dual=not is_dense,
        tol=0.01 if is_dense else 0.1,
    )
    # Sparse matrices take indices in place of a mask.
    train = np.flatnonzero(is_train)
    weight = balancing_weights(is_member[train], task[train])
    model.fit(features[train], is_member[train], sample_weight=weight)

    def score(is_scored: np.ndarray) -> np.ndarray:
        """Return the scores of the examples of a mask, shape ``(n,)`` bool."""
        return np.asarray(model.decision_function(features[np.flatnonzero(is_scored)]))

    return score


def balancing_weights(is_member: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Return weights that give both sides of every task the same total.

    Their mean is 1 in each task that has both sides; in a task of one side it is 0.5.

    Parameters
    ----------
    is_member, task
        Shape ``(n,)``.

    Returns
    -------
    Shape ``(n,)``.
    """
    side = 2 * task + is_member  # (n,), codes of task and side
    n_examples_of_task = np.bincount(task)[task]  # (n,)
    n_examples_of_side = np.bincount(side)[side]  # (n,)
    return np.asarray(n_examples_of_task / (2 * n_examples_of_side))


def mean_auc(sides: Design, is_member: np.ndarray, scores: np.ndarray) -> float:
    """Return the AUC averaged over the tasks with both sides.

    Parameters
    ----------
    is_member
        Sides that count, in place of those of the design; shape ``(n,)``, bool.
    scores
        Shape ``(n,)``: the higher, the likelier a member.
    """
    areas = []
    for members, others in Design(is_member, sides.cluster, sides.task).tasks:
        if len(members) and len(others):
            areas.append(auc(scores[members], scores[others]))
    return float(np.mean(areas))

"""Tests whether texts alone distinguish members: blind classifier and labels.

The best guess without a checkpoint (:mod:`spark_audit.audits.mia.best_guess`) uses the
same folds, features and logistic regression. The test that texts of identifiers differ
(:mod:`spark_audit.audits.identifier_texts`) shares folds and features.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import scipy

from spark_audit.data.examples import parts_outside
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.provenance import seed_for
from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.duplicates import duplicate_groups
from spark_audit.stats.roc import auc

MOST_COMPARED = 20
"""Most labels of a task for comparing the sides; with more, each is too rare."""

FOLDS = 5

MAX_ROWS_FOR_TEXTS = 1500
"""Most rows that the blind classifier draws."""

FEATURES = 1 << 14
"""Columns that words are hashed to."""

BLIND_EXCEEDANCES_TO_STOP = 20
"""Stop permuting once this many permutations reach the observed AUC."""

ROUNDING_OF_STATISTIC = 1e-9
"""Tolerance with which a permuted chi-square counts as equal to the observed one."""

ROUNDING_OF_AUC = 1e-12
"""Tolerance with which a permuted AUC counts as equal to the observed one."""

R = TypeVar("R")

Features: TypeAlias = "scipy.sparse.csr_matrix | np.ndarray"
"""Shape ``(examples, features)``."""


class WithoutModel(NamedTuple):
    """Everything that is known about the examples without a checkpoint.

    Attributes
    ----------
    units
        One line per example: ``example``, ``task``, ``cluster``, ``member`` (bool),
        ``label`` (a number within the task, -1 where responses are free), ``length``
        (characters), ``zlib_bytes`` and ``dose`` (members among its near-duplicates,
        itself included).
    figures
        ``duplicates_left``, ``duplicates_removed``, and those of
        :func:`blind_classifier`.
    scores
        Scores of the blind classifier, shape ``(n,)``; NaN: no score.
    """

    units: pd.DataFrame
    figures: dict[str, float]
    scores: np.ndarray


def remember_last(function: Callable[..., R]) -> Callable[..., R]:
    """Return a function that keeps its last result and reuses it for equal arguments.

    Repeated looks at one model ask for the same results on the texts.
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


def compressed_bytes(text: str) -> int:
    """Return the size of a text under zlib at level 6, in bytes."""
    return len(zlib.compress(text.encode(), 6))


def permute_sides(sides: Design, rng: np.random.Generator) -> np.ndarray:
    """Return randomly permuted sides, shape ``(n,)`` bool.

    Whole clusters swap sides within their task. A cluster with examples of both
    sides shuffles these among its own examples.
    """
    _, cluster = np.unique(sides.cluster, return_inverse=True)  # (n,), codes
    n_members = np.bincount(cluster, sides.member)  # (clusters,)
    n_examples = np.bincount(cluster)  # (clusters,)
    is_mixed_cluster = (n_members > 0) & (n_members < n_examples)  # (clusters,)
    is_mixed = is_mixed_cluster[cluster]  # (n,)

    # The unit that swaps sides: a whole cluster, or each example of a mixed one.
    n_clusters = len(n_examples)
    example_units = n_clusters + np.arange(len(cluster))
    unit = np.where(is_mixed, example_units, cluster)  # (n,), codes

    # The pool that it swaps in: clusters of its task, or examples of its cluster.
    n_tasks = sides.task.max(initial=0) + 1
    pool = np.where(is_mixed, n_tasks + cluster, sides.task)  # (n,), codes

    _, first_example, unit_of_example = np.unique(
        unit, return_index=True, return_inverse=True
    )
    side_of_unit = sides.member[first_example].copy()  # (units,), bool
    pool_of_unit = pool[first_example]  # (units,)
    for code in np.unique(pool_of_unit):
        units = np.flatnonzero(pool_of_unit == code)
        side_of_unit[units] = rng.permutation(side_of_unit[units])
    return side_of_unit[unit_of_example]


def labels_and_sides(units: pd.DataFrame) -> tuple[np.ndarray, Design]:
    """Return the codes of examples' labels, -1 for none, and their sides.

    Parameters
    ----------
    units
        Columns ``label``, ``member``, ``cluster`` and ``task``.

    Returns
    -------
    The codes have the shape ``(examples,)``.
    """
    sides = Design.of(units["member"], units["cluster"], units["task"])
    return units["label"].to_numpy(np.int64), sides


def label_test(
    label: np.ndarray, sides: Design, *, seed: int, permutations: int = 999
) -> float | None:
    """Return a permutation p that labels are distributed alike on both sides.

    The statistic is Pearson's chi-square of side by label, summed over tasks; sides are
    permuted by cluster within tasks. ``None``: no task has two labels.

    Parameters
    ----------
    label
        Shape ``(n,)``, codes within the task, -1: none.
    """
    has_label = label >= 0
    sides = sides.take(np.flatnonzero(has_label))
    label = label[has_label]
    if not len(label):
        return None

    # Cells are tasks and labels; with one label per task there is nothing to compare.
    n_tasks = sides.task.max() + 1
    n_labels = label.max() + 1
    cell = sides.task * n_labels + label  # (n,), codes of task and label
    n_examples = np.bincount(cell, minlength=n_tasks * n_labels)
    n_examples = n_examples.reshape(n_tasks, n_labels)
    if (n_examples > 0).sum(axis=1).max() < 2:
        return None

    def chi_square(is_member: np.ndarray) -> float:
        """Return the statistic for some sides, shape ``(n,)`` bool."""
        n_members = np.bincount(cell, is_member, n_examples.size)
        n_members = n_members.reshape(n_tasks, n_labels)
        # Empty cells give 0 / 0 and add nothing.
        with np.errstate(invalid="ignore"):
            share = n_members.sum(axis=1, keepdims=True) / n_examples.sum(
                axis=1, keepdims=True
            )  # (tasks, 1)
            variance = n_examples * share * (1 - share)  # (tasks, labels)
            return float(np.nansum((n_members - n_examples * share) ** 2 / variance))

    observed = chi_square(sides.member) - ROUNDING_OF_STATISTIC
    rng = np.random.default_rng(seed)
    n_reaching = 0
    for _ in range(permutations):
        n_reaching += chi_square(permute_sides(sides, rng)) >= observed
    return (1 + n_reaching) / (1 + permutations)


@remember_last
def blind_classifier(
    texts: Sequence[str],
    label: np.ndarray,
    sides: Design,
    *,
    seed: int,
    permutations: int = 199,
) -> tuple[dict[str, float], np.ndarray]:
    """Classify members by their texts alone, out of fold; no figures without two sides.

    Logistic regression (fixed penalty) on the presence of words (hashed: nothing is
    fitted), the text's length and its label. Folds keep clusters whole and are
    stratified by task and side; sides weigh alike in every task. For the p value, sides
    are permuted by cluster and the whole procedure is repeated, since Mann-Whitney's
    standard error is too small for a cross-validated AUC. Once
    :data:`BLIND_EXCEEDANCES_TO_STOP` permutations reach the observed AUC, no more are
    drawn and p is their share, which is valid (Besag and Clifford 1991, "Sequential
    Monte Carlo p-values").

    Parameters
    ----------
    texts
        ``n`` texts; more than :data:`MAX_ROWS_FOR_TEXTS` are subsampled by cluster.
    label
        Shape ``(n,)``, codes within the task.

    Returns
    -------
    Figures: the AUC averaged over tasks as ``blind_value``, its one-sided p
    ``blind_p``, its mean ``blind_null`` and central 95 % under permuted sides, and the
    numbers of permutations and rows. Scores: shape ``(n,)``, NaN for rows that were not
    drawn.
    """
    rng = np.random.default_rng(seed)
    drawn = subsample(sides, rng)  # (drawn,), indices of examples
    scores = np.full(len(texts), np.nan)
    sides_drawn = sides.take(drawn)
    if not has_enough_clusters(sides_drawn, FOLDS):
        return {}, scores

    task = sides_drawn.task
    features = word_features([texts[i] for i in drawn], label[drawn], task)
    order = rng.permutation(len(np.unique(sides_drawn.cluster)))

    def out_of_fold(is_member: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the AUC for some sides, and the scores of the drawn rows.

        Sides and scores have the shape ``(drawn,)``.
        """
        fold = folds_of(sides_drawn, is_member, order)
        fold_scores = np.zeros(len(is_member))
        for k in range(FOLDS):
            in_fold = fold == k
            score = fit_scorer(features, is_member, task, ~in_fold)
            fold_scores[in_fold] = score(in_fold)
        return mean_auc(sides_drawn, is_member, fold_scores), fold_scores

    value, scores[drawn] = out_of_fold(sides_drawn.member)
    nulls: list[float] = []
    n_reaching = 0
    while len(nulls) < permutations and n_reaching < BLIND_EXCEEDANCES_TO_STOP:
        null, _ = out_of_fold(permute_sides(sides_drawn, rng))
        nulls.append(null)
        n_reaching += null >= value - ROUNDING_OF_AUC

    has_stopped_early = (
        n_reaching == BLIND_EXCEEDANCES_TO_STOP and len(nulls) < permutations
    )
    if has_stopped_early:
        p = n_reaching / len(nulls)
    else:
        p = (1 + n_reaching) / (1 + len(nulls))
    low, high = np.quantile(nulls, [0.025, 0.975]).tolist()
    figures = {
        "blind_value": value,
        "blind_p": p,
        "blind_null": float(np.mean(nulls)),
        "blind_null_low": low,
        "blind_null_high": high,
        "blind_permutations": len(nulls),
        "blind_rows": len(drawn),
    }
    return figures, scores


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
    """Return sorted places of drawn rows: whole clusters in random order.

    Returns
    -------
    Shape ``(examples,)``, of at most :data:`MAX_ROWS_FOR_TEXTS`.
    """
    n_examples = len(sides.member)
    if n_examples <= MAX_ROWS_FOR_TEXTS:
        return np.arange(n_examples)

    # The smaller side gets up to half of the rows, since it limits the precision of an
    # AUC.
    members = np.flatnonzero(sides.member)
    others = np.flatnonzero(~sides.member)
    size_of_smaller = min(len(members), len(others))
    n_from_smaller = min(size_of_smaller, MAX_ROWS_FOR_TEXTS // 2)
    n_from_larger = MAX_ROWS_FOR_TEXTS - n_from_smaller

    drawn = []
    for rows in (members, others):
        is_smaller = len(rows) == size_of_smaller
        n_wanted = n_from_smaller if is_smaller else n_from_larger
        _, cluster = np.unique(sides.cluster[rows], return_inverse=True)
        # All rows of a cluster have the turn of the cluster.
        turn = rng.permutation(cluster.max() + 1)[cluster]  # (rows of the side,)
        drawn.append(rows[np.argsort(turn, kind="stable")][:n_wanted])
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
        Shape ``(n,)``, codes.

    Returns
    -------
    Shape ``(n, features)``.
    """
    words = hash_features(texts, n_features=FEATURES)

    # The length is scaled to about -1 to 1, with its square.
    length = np.log1p([len(text) for text in texts]) / np.log(1000) - 1
    lengths = scipy.sparse.csr_matrix(np.stack([length, 2 * length**2], axis=1))

    # Add one column for each label of each task.
    _, column = np.unique(np.stack([task, label]), axis=1, return_inverse=True)
    weights = np.full(len(texts), 0.5)
    labels = scipy.sparse.csr_matrix((weights, (np.arange(len(texts)), column.ravel())))
    return scipy.sparse.csr_matrix(scipy.sparse.hstack([words, lengths, labels]))


def folds_of(sides: Design, member: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the fold of each row: clusters are dealt in turn within task and side.

    Parameters
    ----------
    member
        Sides that the folds are stratified by, shape ``(n,)``.
    order
        Random order of the clusters, shape ``(clusters,)``.

    Returns
    -------
    Shape ``(n,)``, 0 to ``FOLDS - 1``.
    """
    _, first_example, cluster = np.unique(
        sides.cluster, return_index=True, return_inverse=True
    )
    # Sort clusters by task, side and random order; the first row decides for a cluster.
    sorted_clusters = np.lexsort(
        (order, member[first_example], sides.task[first_example])
    )
    n_clusters = len(first_example)
    fold_of_cluster = np.empty(n_clusters, dtype=np.int64)
    fold_of_cluster[sorted_clusters] = np.arange(n_clusters) % FOLDS
    return fold_of_cluster[cluster]


def fit_scorer(
    features: Features, member: np.ndarray, task: np.ndarray, train: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that scores rows by a logistic regression on the train rows.

    Parameters
    ----------
    features
        Shape ``(n, features)``.
    member, task, train
        Shape ``(n,)``; ``member`` and ``train`` are bool.

    Returns
    -------
    A function of the rows to score, shape ``(n,)`` bool, that returns their scores.
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
    fitted = np.flatnonzero(train)  # indices of the train examples
    weight = balancing_weights(member[fitted], task[fitted])
    model.fit(features[fitted], member[fitted], sample_weight=weight)

    def score(is_scored: np.ndarray) -> np.ndarray:
        """Return the scores of the rows of a mask, shape ``(n,)`` bool."""
        return np.asarray(model.decision_function(features[np.flatnonzero(is_scored)]))

    return score


def balancing_weights(member: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Return weights that give both sides of every task the same total; mean 1.

    Parameters
    ----------
    member, task
        Shape ``(n,)``.

    Returns
    -------
    Shape ``(n,)``.
    """
    side = 2 * task + member  # (n,), codes of task and side
    n_examples_of_task = np.bincount(task)[task]  # (n,)
    n_examples_of_side = np.bincount(side)[side]  # (n,)
    return np.asarray(n_examples_of_task / (2 * n_examples_of_side))


def mean_auc(sides: Design, member: np.ndarray, scores: np.ndarray) -> float:
    """Return the AUC averaged over the tasks with both sides.

    Parameters
    ----------
    member, scores
        Shape ``(n,)``.
    """
    areas = []
    for members, others in Design(member, sides.cluster, sides.task).tasks:
        if len(members) and len(others):
            areas.append(auc(scores[members], scores[others]))
    return float(np.mean(areas))


def without_model(
    manifest: Manifest,
    texts: list[str],
    ids: list[str],
    *,
    seed: int,
    permutations: int,
) -> WithoutModel:
    """Return the examples, the figures of their texts alone, and the blind scores.

    Labels are compared without case and outer white space.

    Parameters
    ----------
    texts
        Scored text of each id.
    permutations
        Permutations of the blind classifier; 0: it is not run.
    """
    units = _units(manifest, texts, ids)

    # Find near-duplicates of each row, and rows with some on the other side.
    rows_without_template = [_without_template(manifest.by_id[key]) for key in ids]
    group = duplicate_groups(rows_without_template)  # (n,)
    is_member_by_group = units["member"].groupby(group)
    n_members = is_member_by_group.transform("sum")  # (n,)
    n_examples = is_member_by_group.transform("size")  # (n,)
    units["dose"] = n_members.astype(float)
    is_crossing = (n_members > 0) & (n_members < n_examples)

    figures: dict[str, float] = {
        "duplicates_left": int(is_crossing.sum()),
        "duplicates_removed": manifest.counts.get("rows_near_duplicate", 0),
    }
    if not permutations:
        return WithoutModel(units, figures, np.full(len(ids), np.nan))

    label, sides = labels_and_sides(units)
    blind_figures, scores = blind_classifier(
        texts,
        label,
        sides,
        seed=seed_for(seed, "mia", "blind"),
        permutations=permutations,
    )
    return WithoutModel(units, {**figures, **blind_figures}, scores)


def _units(
    manifest: Manifest, texts: Sequence[str], ids: Sequence[str]
) -> pd.DataFrame:
    """Return the columns of :class:`WithoutModel` without ``dose``."""
    members = set(manifest.membership.members)
    records = []
    for key in ids:
        example = manifest.by_id[key]
        # Keep no examples, each of which takes 12 KB.
        record = {
            "example": key,
            "task": example.task,
            "cluster": example.cluster,
            "member": key in members,
            "label": example.answer.strip().casefold(),
        }
        records.append(record)
    columns = ["example", "task", "cluster", "member", "label"]
    units = pd.DataFrame(records, columns=columns)

    # Labels become codes within the task, so that the evidence has no answers.
    answers = units.groupby("task")["label"]
    codes = answers.transform(lambda of_task: pd.factorize(of_task, sort=True)[0])
    is_compared = answers.transform("nunique") <= MOST_COMPARED
    units["label"] = np.asarray(codes.where(is_compared, -1), np.int64)
    units["length"] = [len(text) for text in texts]
    units["zlib_bytes"] = [compressed_bytes(text) for text in texts]
    return units


def _without_template(example: ManifestExample) -> str:
    """Return prompt and response without the task's fixed wording.

    Near-duplicates are found by this text.
    """
    text = example.text
    spans = parts_outside(tuple(example.template), len(text))
    without_template = " ".join(text[start:end] for start, end in spans)
    # A row that consists of the template alone is compared as it is.
    return without_template if without_template.strip() else text

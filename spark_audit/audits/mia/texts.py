"""Tests whether texts alone distinguish members: blind classifier and labels.

Both permute the sides of whole clusters. The guards of
:mod:`spark_audit.audits.mia.guards` read their p values;
:mod:`spark_audit.audits.mia.text_classifiers` has the folds, features and regression of
the classifier.

An example is a row of the manifest, a *member* if it was trained on. ``sides`` is a
:class:`~spark_audit.stats.clustered_roc.Design`: whether each example is a member, its
cluster and its task, shape ``(n,)`` each; clusters and tasks are codes from 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.mia.text_classifiers import (
    FOLDS,
    fit_scorer,
    folds_of,
    has_enough_clusters,
    mean_auc,
    remember_last,
    subsample,
    word_features,
)
from spark_audit.data.examples import parts_outside
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.duplicates import duplicate_groups

MOST_COMPARED = 20
"""Most labels of a task for comparing the sides; with more, each is too rare."""

BLIND_EXCEEDANCES_TO_STOP = 20
"""Stop permuting once this many permutations reach the observed AUC."""

ROUNDING_OF_STATISTIC = 1e-9
"""Tolerance with which a permuted chi-square counts as equal to the observed one."""

ROUNDING_OF_AUC = 1e-12
"""Tolerance with which a permuted AUC counts as equal to the observed one."""


class WithoutModel(NamedTuple):
    """Everything that is known about the examples without a checkpoint.

    Attributes
    ----------
    units
        One line per example: ``example`` (its id), ``task``, ``cluster``, ``member``
        (bool), ``label`` (a number within the task, -1 where responses are free),
        ``length`` (characters), ``zlib_bytes``, ``dose`` (members among its
        near-duplicates, itself included) and ``is_crossing`` (bool: whether a
        near-duplicate is on the other side).
    figures
        ``duplicates_left``, examples with a near-duplicate on the other side;
        ``duplicates_removed``, rows that the manifest left out for that reason; and
        those of :func:`blind_classifier`.
    scores
        Scores of the blind classifier, shape ``(n,)``; NaN: no score.
    """

    units: pd.DataFrame
    figures: dict[str, float]
    scores: np.ndarray


def compressed_bytes(text: str) -> int:
    """Return the size of a text under zlib at level 6, in bytes."""
    return len(zlib.compress(text.encode(), 6))


def permute_sides(sides: Design, rng: np.random.Generator) -> np.ndarray:
    """Return randomly permuted sides, shape ``(n,)`` bool: who counts as a member.

    Whole clusters swap sides within their task. A cluster with examples of both
    sides shuffles these among its own examples.
    """
    _, cluster = np.unique(sides.cluster, return_inverse=True)  # (n,), codes
    n_members = np.bincount(cluster, sides.member)  # (clusters,)
    n_examples = np.bincount(cluster)  # (clusters,)
    is_mixed_cluster = (n_members > 0) & (n_members < n_examples)  # (clusters,)
    is_mixed = is_mixed_cluster[cluster]  # (n,)

    # A block swaps sides as one: a whole cluster, or one example of a mixed cluster.
    n_clusters = len(n_examples)
    block_of_single_example = n_clusters + np.arange(len(cluster))
    block = np.where(is_mixed, block_of_single_example, cluster)  # (n,), codes

    # The pool that it swaps in: clusters of its task, or examples of its cluster.
    n_tasks = sides.task.max(initial=0) + 1
    pool = np.where(is_mixed, n_tasks + cluster, sides.task)  # (n,), codes

    _, first_example, block_of_example = np.unique(
        block, return_index=True, return_inverse=True
    )
    is_member_by_block = sides.member[first_example].copy()  # (blocks,), bool
    pool_by_block = pool[first_example]  # (blocks,)
    for code in np.unique(pool_by_block):
        in_pool = np.flatnonzero(pool_by_block == code)  # (blocks of the pool,)
        is_member_by_block[in_pool] = rng.permutation(is_member_by_block[in_pool])
    return is_member_by_block[block_of_example]


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
        Shape ``(n,)``, codes within the task, -1: none. Examples without a label do not
        count.
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
    n_labels_of_task = (n_examples > 0).sum(axis=1)  # (tasks,)
    if n_labels_of_task.max() < 2:
        return None

    def chi_square(is_member: np.ndarray) -> float:
        """Return the statistic for some sides, shape ``(n,)`` bool."""
        n_members = np.bincount(cell, is_member, n_examples.size)
        n_members = n_members.reshape(n_tasks, n_labels)
        # Empty cells give 0 / 0 and add nothing.
        with np.errstate(invalid="ignore"):
            share = n_members.sum(axis=1, keepdims=True) / n_examples.sum(
                axis=1, keepdims=True
            )  # (tasks, 1), of members
            # A binomial variance, of the members in a cell without a difference.
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
    """Classify members by their texts alone, and test whether that works.

    Logistic regression (fixed penalty) on the presence of words (hashed: nothing is
    fitted), the text's length and its label. Each example is scored by a model that was
    fitted to other folds; these keep clusters whole and are stratified by task and
    side. Sides weigh alike in every task.

    Parameters
    ----------
    texts
        ``n`` texts; more than ``MAX_ROWS_FOR_TEXTS`` are subsampled by cluster.
    label
        Shape ``(n,)``, codes within the task.
    permutations
        Most permutations of the sides, at least 1.

    Returns
    -------
    Figures: the AUC averaged over tasks as ``blind_value``, its one-sided p
    ``blind_p``, its mean ``blind_null`` and central 95 % under permuted sides, and the
    numbers of permutations and rows. Empty where a side has fewer than :data:`FOLDS`
    clusters, or no task has both sides.

    Scores: shape ``(n,)``, the higher, the likelier a member; NaN for examples that
    were not drawn.

    Notes
    -----
    For the p value, sides are permuted by cluster and the whole procedure is repeated,
    since Mann-Whitney's standard error is too small for a cross-validated AUC.
    """
    rng = np.random.default_rng(seed)
    drawn = subsample(sides, rng)  # (drawn,), indices of examples
    scores = np.full(len(texts), np.nan)
    sides_drawn = sides.take(drawn)
    if not has_enough_clusters(sides_drawn, FOLDS):
        return {}, scores

    task = sides_drawn.task
    features = word_features([texts[i] for i in drawn], label[drawn], task)
    turns_of_clusters = rng.permutation(len(np.unique(sides_drawn.cluster)))

    def out_of_fold(is_member: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the AUC for some sides, and the scores of the drawn examples.

        Sides and scores have the shape ``(drawn,)``.
        """
        fold = folds_of(sides_drawn, is_member, turns_of_clusters)
        fold_scores = np.zeros(len(is_member))
        for k in range(FOLDS):
            in_fold = fold == k
            score = fit_scorer(features, is_member, task, ~in_fold)
            fold_scores[in_fold] = score(in_fold)
        return mean_auc(sides_drawn, is_member, fold_scores), fold_scores

    observed_auc, scores[drawn] = out_of_fold(sides_drawn.member)

    permuted_aucs: list[float] = []
    n_reaching = 0
    while len(permuted_aucs) < permutations and n_reaching < BLIND_EXCEEDANCES_TO_STOP:
        permuted_auc, _ = out_of_fold(permute_sides(sides_drawn, rng))
        permuted_aucs.append(permuted_auc)
        n_reaching += permuted_auc >= observed_auc - ROUNDING_OF_AUC

    low, high = np.quantile(permuted_aucs, [0.025, 0.975]).tolist()
    figures = {
        "blind_value": observed_auc,
        "blind_p": _permutation_p(n_reaching, len(permuted_aucs), permutations),
        "blind_null": float(np.mean(permuted_aucs)),
        "blind_null_low": low,
        "blind_null_high": high,
        "blind_permutations": len(permuted_aucs),
        "blind_rows": len(drawn),
    }
    return figures, scores


def _permutation_p(n_reaching: int, n_drawn: int, most: int) -> float:
    """Return p from permutations that may have stopped early.

    If they did, p is the share that reaches the observed value, which is valid (Besag
    and Clifford 1991, "Sequential Monte Carlo p-values"). Else the observed sides count
    as one more permutation.

    Parameters
    ----------
    n_reaching
        Permutations that reach the observed value.
    n_drawn, most
        Permutations that were drawn, and that were asked for.
    """
    if n_reaching == BLIND_EXCEEDANCES_TO_STOP and n_drawn < most:
        return n_reaching / n_drawn
    return (1 + n_reaching) / (1 + n_drawn)


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
        Scored text of each id, ``n`` of them.
    ids
        Ids of examples of the manifest.
    permutations
        Permutations of the blind classifier; 0: it is not run.
    """
    units = _units(manifest, texts, ids)

    # Find near-duplicates of each example, and examples with some on the other side.
    whole_texts = [_without_template(manifest.by_id[example_id]) for example_id in ids]
    duplicate_group = duplicate_groups(whole_texts)  # (n,), codes
    is_member_by_group = units["member"].groupby(duplicate_group)
    n_members = is_member_by_group.transform("sum")  # (n,), of the example's group
    n_examples = is_member_by_group.transform("size")  # (n,)
    units["dose"] = n_members.astype(float)
    is_crossing = (n_members > 0) & (n_members < n_examples)  # (n,), bool
    units["is_crossing"] = is_crossing

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
    """Return the columns of :class:`WithoutModel` without those of near-duplicates."""
    members = set(manifest.membership.members)
    records = []
    for example_id in ids:
        # `by_id` makes each example when it is asked for; a list of all would fill the
        # memory.
        example = manifest.by_id[example_id]
        record = {
            "example": example_id,
            "task": example.task,
            "cluster": example.cluster,
            "member": example_id in members,
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
    # An example that consists of the template alone is compared as it is.
    return without_template if without_template.strip() else text

"""What the audit ``mia`` could detect, from numbers of rows and groups alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from spark_audit.audits.mia.above_texts import MAX_AUC_EFFECT
from spark_audit.audits.mia.score_tables import (
    DECLARED_SCORES,
    MEMBERSHIP_FPRS,
    MIN_MEMBERS_FOR_AUC,
)
from spark_audit.audits.planned_effects import (
    AuditSizes,
    PlannedEffect,
    units_needed,
)
from spark_audit.stats.clustered_tpr import effective_clusters
from spark_audit.stats.estimate import Power
from spark_audit.stats.power import smallest
from spark_audit.stats.roc import allowed

TARGET_AUC = 0.05
"""AUC above chance: an attacker is right about 55 of 100 pairs."""

PLANNED_RATES = {"tpr_at_fpr_1": 5.0, "tpr_at_fpr_0.1": 1.0}
"""Rate at a budget of false positives -> the rate that users ask for, in points."""

ROWS_OF_RATE = 100.0
"""A rate is stated as so many of a hundred trained rows."""


def planned_effects(sizes: AuditSizes, *, significance: float) -> list[PlannedEffect]:
    """Return the smallest AUC and true-positive rates that would be detected.

    The rows of a side of a task count as many as clusters of equal size
    (:func:`~spark_audit.stats.clustered_tpr.effective_clusters`).
    """
    groups_by_task = effective_clusters(sizes.rows)  # (tasks, 2): members, others
    effects = [_auc(groups_by_task, significance=significance)]
    for metric, target in PLANNED_RATES.items():
        effects.append(
            _rate(groups_by_task, metric, target=target, significance=significance)
        )
    return effects


def _auc(groups_by_task: np.ndarray, *, significance: float) -> PlannedEffect:
    """Return the smallest distance of an AUC from chance, as corrected over scores."""
    n_members, n_others = _totals(groups_by_task)

    def effect_of(n_members: int, n_others: int) -> float | None:
        if min(n_members, n_others) < MIN_MEMBERS_FOR_AUC:
            return None
        # The standard error of an AUC of 0.5 is that of the rank-sum test.
        n_rows = n_members + n_others
        se = math.sqrt((n_rows + 1) / (12 * n_members * n_others))
        test = Power(
            test="t",
            se=se,
            df=n_rows - 1,
            largest_effect=MAX_AUC_EFFECT,
            n_tests=len(DECLARED_SCORES),
        )
        effect = smallest(test, significance)
        return None if effect is None or effect >= MAX_AUC_EFFECT else effect

    return PlannedEffect(
        audit="mia",
        figure="auc",
        unit="AUC",
        n_trained=n_members,
        n_held_out=n_others,
        effect=effect_of(n_members, n_others),
        target=TARGET_AUC,
        needed=units_needed(effect_of, n_members, n_others, target=TARGET_AUC),
    )


def _rate(
    groups_by_task: np.ndarray, metric: str, *, target: float, significance: float
) -> PlannedEffect:
    """Return the smallest true-positive rate at a budget, in points.

    Parameters
    ----------
    target
        Points of a hundred.
    """
    budget = MEMBERSHIP_FPRS[metric]
    n_members, n_others = _totals(groups_by_task)
    # Each task has a threshold, which needs as many held-out groups.
    n_tasks = max(1, len(groups_by_task))
    fewest = math.ceil(1 / budget - 1e-9)

    def needed_of(n_members: int, n_others: int) -> float | None:
        if n_others < fewest * n_tasks:
            return None
        groups = np.array([[n_members, n_others]])
        return _smallest_rate(groups, budget, significance=significance)

    effect = None
    if len(groups_by_task) and groups_by_task[:, 1].min() >= fewest:
        effect = _smallest_rate(groups_by_task, budget, significance=significance)
    return PlannedEffect(
        audit="mia",
        figure=metric,
        unit="points",
        n_trained=n_members,
        n_held_out=n_others,
        effect=effect,
        target=target,
        needed=units_needed(needed_of, n_members, n_others, target=target),
    )


def _totals(groups_by_task: np.ndarray) -> tuple[int, int]:
    """Return the members and the non-members of all tasks."""
    n_members, n_others = groups_by_task.sum(axis=0).tolist()
    return n_members, n_others


def _smallest_rate(
    groups_by_task: Sequence[Sequence[int]] | np.ndarray,
    budget: float,
    *,
    significance: float,
) -> float | None:
    """Return the smallest rate at a budget that differs from a random score's, points.

    Notes
    -----
    The hits of a random score follow a beta-binomial in each task
    (:func:`~spark_audit.stats.roc.chance_band`), and their sum the convolution of
    these. The hits of an attack are taken as binomial, at the threshold as it is.
    """
    chances = np.ones(1)  # of 0, 1, ... hits
    n_members = 0
    for n_of_task, n_others in groups_by_task:
        n_allowed = allowed(int(n_others), budget)
        law = scipy.stats.betabinom(n_of_task, n_allowed + 1, n_others - n_allowed)
        of_task = law.pmf(np.arange(n_of_task + 1))
        chances = scipy.signal.fftconvolve(chances, of_task)
        n_members += int(n_of_task)

    # The chance of at least 1, 2, ... hits; rounding leaves some below 0.
    ps = np.clip(np.cumsum(chances[::-1])[::-1][1:], 0.0, 1.0)
    n_kept = int(np.searchsorted(-ps, -significance, side="right")) + 1
    test = Power(
        test="hits",
        n=n_members,
        ps=ps[:n_kept].tolist(),
        largest_effect=ROWS_OF_RATE,
    )
    return smallest(test, significance)

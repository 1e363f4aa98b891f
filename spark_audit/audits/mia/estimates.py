"""Estimates of the ``mia`` audit by group of examples, each computed once.

The audit of series uses them, too. In this file ``name`` is a checkpoint, ``attack``
the name of one of its scores, and ``metric`` the AUC (``auc``) or a true-positive rate
(TPR) at a budget of false positives. An example is a row of the manifest, a *member* if
it was trained on. All scores are oriented alike: the higher, the likelier a member.

Of the ``n`` examples of an audit, a group has some, and of these the *scored* ones have
the scores in question. Estimates are over scored examples only.

A further metric goes into :meth:`MembershipGroup.resampled` (its value in each
resample), :meth:`MembershipGroup.estimate` and :meth:`MembershipGroup.differences`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.mia.above_texts import (
    CHANCE_AUC,
    AboveTexts,
    beyond_both,
    less_chance,
)
from spark_audit.audits.mia.score_tables import (
    BASELINE_VARIANTS,
    MIN_MEMBERS_FOR_AUC,
    RELATIVE_SCORES,
)
from spark_audit.audits.mia.scores import NOTHING_FELL
from spark_audit.data.occurrences import dose_group
from spark_audit.errors import NotEstimableError
from spark_audit.names import BASE
from spark_audit.stats import clustered_roc, clustered_tpr
from spark_audit.stats.bootstrap import Weights
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.percentiles import percentile_interval
from spark_audit.stats.power import with_mde
from spark_audit.stats.roc_replicates import roc_replicates

CheckpointScore: TypeAlias = tuple[str, str]
"""A checkpoint, and the name of one of its scores."""

MOST_REPLICATES = 2000
"""Most replicates in both presets: an AUC needs no more, and there are many rows."""

NO_SCORE_REASONS = {
    "response": "no response token was scored",
    **dict.fromkeys(
        ("minkpp10", "minkpp20", "minkpp30"),
        "the score table has no moments of the next-token distribution",
    ),
    **dict.fromkeys(RELATIVE_SCORES, "the untrained model was not scored"),
    "ez": "no text has two wrong first guesses that changed since the untrained model",
    "blind": "the blind text classifier was not run",
}
"""Score -> reason why a checkpoint lacks it."""

TEXTS_ALPHA = 0.01
"""p below which the texts alone distinguish the sides. The p of out-of-fold scores is
somewhat too small.
"""

ITSELF = "the checkpoint is the reference itself"
"""Reason why the untrained model lacks the scores relative to it."""

NULL_COLUMNS = ("null", "null_low", "null_high")
"""Columns of a figure: the value of a score that knows nothing, and its 95% band."""

TOO_FEW_MEMBERS = (
    f"fewer than {MIN_MEMBERS_FOR_AUC} members or {MIN_MEMBERS_FOR_AUC} non-members"
)


@dataclass(frozen=True)
class ScoredExamples:
    """Examples that have some scores, their design and the weights of its resamples.

    Attributes
    ----------
    example_indices
        Which of all examples they are, shape ``(scored,)``.
    design
        Side, cluster and task of each.
    weights
        How often each resample draws each cluster.
    """

    example_indices: np.ndarray
    design: clustered_roc.Design
    weights: Weights


class ScoreDifference(NamedTuple):
    """The difference of two scores by a metric, with the two-sided p that it is 0.

    Rates have no test, so that their ``p`` is None.
    """

    metric: str
    estimate: Estimate
    p: float | None


@dataclass
class MembershipGroup:
    """The examples of one group; designs and resamples are kept for the next question.

    ``n`` of its estimates counts examples, members and non-members together, and
    ``clusters`` the clusters that they are in.

    Attributes
    ----------
    facts
        A line per example of the audit, ``n`` of them: ``task``, ``cluster``, and
        ``member`` (bool).
    scores
        Checkpoint -> attack -> scores, shape ``(n,)``; NaN: no score. Those of the
        texts alone (``texts``, ``blind``) are the same for every checkpoint.
    fprs
        Metric of a rate -> its budget of false positives, a share from 0 to 1.
    chance_seed
        Seed of the rates of a random score.
    name
        Name of the group: ``pooled``, ``task:NAME`` or ``dose:RANGE``.
    example_indices
        Which of all examples are in the group, shape ``(examples of the group,)``.
    seed
        Seed of the resamples.
    _scored_by_mask
        Mask of the group's examples, as bytes -> those examples.
    _resampled
        (Checkpoint, attack, scored examples as bytes) -> metric -> its replicates.
    """

    facts: pd.DataFrame
    scores: Mapping[str, Mapping[str, np.ndarray]]
    context: Context
    fprs: Mapping[str, float]
    chance_seed: int
    name: str
    example_indices: np.ndarray
    seed: int
    _scored_by_mask: dict[bytes, ScoredExamples] = field(default_factory=dict)
    _resampled: dict[tuple[str, str, bytes], dict[str, np.ndarray]] = field(
        default_factory=dict
    )

    def scored_examples(
        self, *scores: CheckpointScore
    ) -> tuple[ScoredExamples, list[np.ndarray]]:
        """Return the examples that have all of the given scores, and these scores.

        Returns
        -------
        The scores have the shape ``(scored,)`` each, in the order of the arguments.
        """
        # One array per given score, shape (examples of the group,) each.
        values_of_group = [
            self.scores[name][attack][self.example_indices] for name, attack in scores
        ]
        is_scored = np.isfinite(values_of_group).all(axis=0)  # (examples of the group,)

        # Scores of the same examples share their design and their resamples.
        mask = is_scored.tobytes()
        if mask not in self._scored_by_mask:
            example_indices = self.example_indices[is_scored]
            facts = self.facts.iloc[example_indices]
            design = clustered_roc.Design.of(
                facts["member"], facts["cluster"], facts["task"]
            )
            replicates = min(self.context.replicates, MOST_REPLICATES)
            weights = design.draw(replicates=replicates, seed=self.seed)
            self._scored_by_mask[mask] = ScoredExamples(
                example_indices, design, weights
            )
        scored_values = [values[is_scored] for values in values_of_group]
        return self._scored_by_mask[mask], scored_values

    def resampled(
        self, name: str, attack: str, scored: ScoredExamples
    ) -> dict[str, np.ndarray]:
        """Return AUC and rates in every resample.

        Returns
        -------
        Metric -> replicates, shape ``(replicates,)``; ``auc`` comes first.
        """
        # The scores of the texts are the same for every checkpoint.
        scored_by = "" if attack in BASELINE_VARIANTS else name
        key = (scored_by, attack, scored.example_indices.tobytes())
        if key not in self._resampled:
            values = self.scores[name][attack][scored.example_indices]  # (scored,)
            replicates = roc_replicates(
                scored.design, values, scored.weights, budgets=[*self.fprs.values()]
            )
            by_metric = {"auc": replicates.auc}
            # Rates are in the order of `fprs`.
            by_metric |= zip(self.fprs, replicates.tpr, strict=True)
            self._resampled[key] = by_metric
        return self._resampled[key]

    def reason_missing(self, name: str, attack: str) -> str:
        """Return why a checkpoint lacks a score in this group; empty: it has it."""
        if not len(self.example_indices):
            return TOO_FEW_MEMBERS
        of_all_examples = self.scores[name][attack]  # (n,)
        values = of_all_examples[self.example_indices]  # (examples of the group,)
        if np.isfinite(values).any():
            return ""
        if name == BASE and attack in RELATIVE_SCORES:
            return ITSELF
        return NO_SCORE_REASONS.get(attack, "nothing was scored")

    def estimate(self, name: str, attack: str, metric: str = "auc") -> Estimate:
        """Return the AUC, or TPR at a budget, with interval and smallest effect.

        It is averaged over tasks. ``metric`` is ``auc`` or a key of :attr:`fprs`.
        """
        if reason := self.reason_missing(name, attack):
            return Estimate.missing(reason)

        # All scores use the same resamples for interval and smallest effect.
        scored, (values,) = self.scored_examples((name, attack))
        replicates = self.resampled(name, attack, scored)[metric]
        if metric == "auc":
            estimate, _ = clustered_roc.auc_estimate(
                scored.design, values, replicates=replicates
            )
            estimate = self._with_notes(estimate, attack, values)
        else:
            estimate = clustered_tpr.tpr_estimate(
                scored.design, values, self.fprs[metric], replicates=replicates
            )
        return with_mde(estimate).with_deciding_interval(paper=self.context.paper)

    def _with_notes(
        self, estimate: Estimate, attack: str, values: np.ndarray
    ) -> Estimate:
        """Return an AUC with notes on examples without the score, and on its limit.

        Parameters
        ----------
        values
            The scores, shape ``(scored,)``.
        """
        n_unscored = len(self.example_indices) - len(values)
        if n_unscored:
            estimate = estimate.noting(f"{n_unscored} rows have no such score")

        n_at_limit = int((values >= NOTHING_FELL).sum())
        if attack == "ez" and n_at_limit:
            note = f"{n_at_limit} rows at its limit: no token became less likely"
            estimate = estimate.noting(note)
        return estimate

    def chance(self, name: str, attack: str, fpr: float) -> dict[str, float]:
        """Return the TPR of a random score on the same examples.

        Parameters
        ----------
        fpr
            Budget of false positives, a share from 0 to 1.

        Returns
        -------
        :data:`NULL_COLUMNS` -> values; empty: the budget allows no false positive.
        """
        scored, _ = self.scored_examples((name, attack))
        try:
            band = clustered_tpr.chance(scored.design, fpr, seed=self.chance_seed)
        except NotEstimableError:
            # There are too few non-members for this budget.
            return {}
        return dict(zip(NULL_COLUMNS, band, strict=True))

    def p(self, name: str, attack: str) -> float | None:
        """Return the two-sided p of an AUC of 0.5; ``None`` where there is none."""
        scored, (values,) = self.scored_examples((name, attack))
        _, p = clustered_roc.auc_estimate(scored.design, values)
        return p

    def above_texts(
        self,
        name: str,
        attack: str,
        *,
        members_score_higher: bool = True,
        texts: str = "texts",
        sides_differ: bool = False,
    ) -> AboveTexts | None:
        """Return the AUC of a score minus its bar; ``None`` if either is missing.

        The bar is the AUC of the texts alone, or 0.5 if that is higher.

        Parameters
        ----------
        members_score_higher
            Whether members have the higher scores; else the score is turned round
            first, as whoever attacks with it would.
        texts
            Score of the texts alone: ``texts``, the best guess, or ``blind``, which
            does not use the base's scores.
        sides_differ
            Whether something else than training is known to distinguish the sides.
        """
        if self.reason_missing(name, attack) or self.reason_missing(name, texts):
            return None

        scored, (score_values, guess) = self.scored_examples(
            (name, attack), (name, texts)
        )
        if not members_score_higher:
            score_values = -score_values

        # Each difference has its own test: against the texts, and against chance.
        design = scored.design
        over_texts, p_over_texts = clustered_roc.auc_difference(
            design, score_values, guess
        )
        score_auc, p_over_chance = clustered_roc.auc_estimate(design, score_values)
        texts_auc, texts_p = clustered_roc.auc_estimate(design, guess)
        if score_auc.value is None or texts_auc.value is None or p_over_texts is None:
            return None

        # A guess is oriented: below 0.5 it is a bad guess, and distinguishes nothing.
        if texts_p is not None and texts_p < TEXTS_ALPHA:
            sides_differ |= texts_auc.value > CHANCE_AUC

        # A score must exceed both the texts and chance.
        excess = beyond_both(over_texts, less_chance(score_auc, CHANCE_AUC))
        if p_over_chance is None:
            p_over_chance = 1.0
        return AboveTexts(
            with_mde(excess, null=0.0),
            score=score_auc.value,
            texts=texts_auc.value,
            larger_p=max(p_over_texts, p_over_chance),
            sides_differ=sides_differ,
        )

    def correlation(
        self, name: str, tests: Mapping[str, CheckpointScore | None]
    ) -> np.ndarray:
        """Return the correlation of a checkpoint's AUCs, each minus its comparison.

        The correction of their p values needs it
        (:func:`spark_audit.stats.multiple_tests.correlated`).

        Parameters
        ----------
        tests
            Attack -> score that its AUC is compared with; None: :data:`CHANCE_AUC`.

        Returns
        -------
        Shape ``(tests, tests)``; 0 between scores of different examples, so that their
        correction is too strict rather than too weak.
        """
        unit_vectors: list[np.ndarray] = []  # (clusters,) each
        examples_of_tests: list[bytes] = []
        for attack, compared_with in tests.items():
            scores = [(name, attack)]
            if compared_with is not None:
                scores.append(compared_with)
            scored, values = self.scored_examples(*scores)

            # Contribution of each cluster to the AUC, or to the difference of two AUCs.
            components = clustered_roc.auc_components(scored.design, values[0])
            if compared_with is not None:
                components = components - clustered_roc.auc_components(
                    scored.design, values[1]
                )
            # A score without spread has only zeros, and no correlation with others.
            norm = np.linalg.norm(components) or 1.0
            unit_vectors.append(components / norm)
            examples_of_tests.append(scored.example_indices.tobytes())

        # The vectors have length 1, so their product is a correlation.
        correlation = np.eye(len(unit_vectors))  # (tests, tests)
        for i, j in combinations(range(len(unit_vectors)), 2):
            if examples_of_tests[i] == examples_of_tests[j]:
                correlation[i, j] = unit_vectors[i] @ unit_vectors[j]
                correlation[j, i] = correlation[i, j]
        return correlation

    def differences(
        self, first: CheckpointScore, second: CheckpointScore
    ) -> Iterator[ScoreDifference]:
        """Yield the first score minus the second, over examples with both, by metric.

        The AUC comes first, and is the only difference if it cannot be estimated. Above
        0 the first score distinguishes members better.
        """
        reason = self.reason_missing(*first) or self.reason_missing(*second)
        if reason:
            yield ScoreDifference("auc", Estimate.missing(reason), None)
            return

        scored, both_values = self.scored_examples(first, second)
        first_replicates = self.resampled(*first, scored)
        second_replicates = self.resampled(*second, scored)
        for metric in first_replicates:
            # Paired: both scores in the same resamples of the same examples.
            replicates = first_replicates[metric] - second_replicates[metric]
            p: float | None = None
            if metric == "auc":
                difference, p = clustered_roc.auc_difference(
                    scored.design, *both_values, replicates=replicates
                )
            else:
                difference = _rate_difference(
                    scored, both_values, self.fprs[metric], replicates
                )
            estimate = with_mde(difference, null=0.0)
            yield ScoreDifference(
                metric, estimate.with_deciding_interval(paper=self.context.paper), p
            )
            if metric == "auc" and estimate.value is None:
                # Without a difference of AUCs there is none of rates.
                return


def indices_by_group(facts: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the examples of each group: pooled, by task, and by dose.

    A task is used if it has :data:`MIN_MEMBERS_FOR_AUC` members and as many
    non-members; ``pooled`` has the examples of all tasks that are. A dose is the number
    of trained examples that are near-duplicates of an example, itself included: its
    group has the members of this dose, and all non-members. A single dose has no group.

    Parameters
    ----------
    facts
        Columns ``task``, ``member`` (bool) and ``dose`` (NaN: not known), one line per
        example, ``n`` of them.

    Returns
    -------
    Name of the group -> indices of its examples, from 0 to ``n - 1``, rising. A task
    that is not used has an empty group.
    """
    is_member = facts["member"].to_numpy(bool)  # (n,)
    dose = facts["dose"].to_numpy(np.float64)  # (n,)

    tasks: dict[str, np.ndarray] = {}
    for task in sorted(set(facts["task"])):
        of_task = np.flatnonzero(facts["task"] == task)  # (examples of the task,)
        n_members = np.count_nonzero(is_member[of_task])
        n_smaller_side = min(n_members, len(of_task) - n_members)
        if n_smaller_side < MIN_MEMBERS_FOR_AUC:
            # Keep an empty group, so that the report says why it has no figure.
            of_task = of_task[:0]
        tasks[f"task:{task}"] = of_task

    pooled = np.sort(np.concatenate(list(tasks.values())))
    groups = {"pooled": pooled, **tasks}
    # Evidence may have no doses.
    if np.isnan(dose).any():
        return groups

    doses = _indices_by_dose(is_member, dose, list(tasks.values()))
    if len(doses) > 1:
        groups |= doses
    return groups


def _indices_by_dose(
    is_member: np.ndarray, dose: np.ndarray, tasks: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the examples of each dose, from the tasks where it has enough members.

    Parameters
    ----------
    is_member, dose
        Shape ``(n,)``.
    tasks
        Indices of the examples of each used task.

    Returns
    -------
    Name of the group -> indices of its examples, the lowest dose first.
    """
    # A member has a dose of at least 1, as it is its own near-duplicate. A non-member
    # can have 0, which has no range; non-members are in all groups anyway.
    dose_range = np.array([dose_group(max(int(copies), 1)) for copies in dose])  # (n,)

    lowest_first = np.argsort(dose[is_member])
    ranges = dict.fromkeys(dose_range[is_member][lowest_first])

    groups: dict[str, np.ndarray] = {}
    for name in ranges:
        is_used = (dose_range == name) | ~is_member  # (n,)
        indices_by_task = []
        for of_task in tasks:
            used_of_task = of_task[is_used[of_task]]
            if is_member[used_of_task].sum() >= MIN_MEMBERS_FOR_AUC:
                indices_by_task.append(used_of_task)
        if indices_by_task:
            groups[f"dose:{name}"] = np.sort(np.concatenate(indices_by_task))
    return groups


def _rate_difference(
    scored: ScoredExamples,
    both_values: Sequence[np.ndarray],
    fpr: float,
    replicates: np.ndarray,
) -> Estimate:
    """Return the TPR of the first score minus that of the second.

    Its interval is the percentile interval.

    Parameters
    ----------
    both_values
        The first and the second score, shape ``(scored,)`` each.
    fpr
        Budget of false positives, a share from 0 to 1.
    replicates
        The difference in each resample, shape ``(replicates,)``.
    """
    # Without a rate of either score there is no difference.
    if reason := clustered_tpr.why_unresolved(scored.design, fpr):
        return scored.design.missing(reason)

    first_values, second_values = both_values
    first = clustered_tpr.tpr_by_task(scored.design, first_values, fpr)
    second = clustered_tpr.tpr_by_task(scored.design, second_values, fpr)
    first_rate = float(np.mean([tpr.value for tpr in first]))
    second_rate = float(np.mean([tpr.value for tpr in second]))
    estimate = scored.design.point(first_rate - second_rate)

    low, high = percentile_interval(replicates)
    if not high > low:
        return estimate.noting("all resamples are equal: no interval")
    return replace(estimate, se=float(np.nanstd(replicates))).decided_by_percentiles(
        low, high
    )

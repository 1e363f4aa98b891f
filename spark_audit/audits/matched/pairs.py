"""Figures of matched pairs, and contrasts of checkpoints with their baselines.

A pair consists of an identifier and its control, other text that was equally hard for
the reference model. All figures are in nats per token. :func:`pair_figures` estimates
these by group: all pairs of train rows, those of each task and type, and those of test
rows (:mod:`~spark_audit.audits.matched.pair_groups`):

===================  ================================================================
metric               meaning
===================  ================================================================
``nll_pii``          mean NLL of the identifiers of pairs
``nll_control``      mean NLL of their controls
``delta_sel``        the first minus the second; the variant ``change`` is its change
                     since the reference, other variants weight the pairs differently
``did``              ``delta_sel`` of a checkpoint minus that of its baseline
``rtm_bias``         ``delta_sel`` (variant ``change``: its change; with a baseline:
                     ``did``) by regression to the mean alone
===================  ================================================================

:func:`contrasts_with_baseline` adds the NLL of a checkpoint minus that of its baseline:

===================  ================================================================
metric               meaning
===================  ================================================================
``low_change``       of low-sensitivity text: the unequal drift of the two
``memory``           of trained identifiers minus that of held-out ones, by group
``nll_pii``          of the identifiers of pairs
``did_alike``        of these minus that of text that looks alike
===================  ================================================================

A new figure gets its estimand here, and its value without an effect in
``_value_without_effect``. Its metric is declared in ``Matched.metrics`` (``audit.py``),
with its words in ``sentences/en/metrics.toml`` and ``definitions.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from spark_audit.audits.matched.drift import (
    change_beyond_alike,
    low_drift,
    pooled_change,
)
from spark_audit.audits.matched.pair_groups import PairGroup, pair_groups
from spark_audit.audits.matched.report_rows import contrast_of, row_of
from spark_audit.audits.matched.units import REFERENCE, UnitScores
from spark_audit.names import entry_of, original_of
from spark_audit.results import Contrast, Row
from spark_audit.results.rows import Family
from spark_audit.stats import (
    bootstrap,
    intervals,
    memory_contrast,
    selectivity,
    sign_flips,
)
from spark_audit.stats.bootstrap import Weights
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.power import mde, with_mde

NO_PAIRS = Estimate.missing("this group has no matched identifier")

OF_REFERENCE = (
    "the baseline is the matching reference: DiD is Delta_sel minus the residual of "
    "matching"
)

METRICS_WITH_TEST = ("delta_sel", "did")
"""Metrics whose figures state the smallest effect that would be detected."""


class FigureKey(NamedTuple):
    """Checkpoint, baseline, metric and variant of a figure of pairs.

    ``baseline`` is empty for a figure of one checkpoint, ``variant`` for the main one.
    """

    checkpoint: str
    baseline: str
    metric: str
    variant: str = ""


Estimands: TypeAlias = dict[FigureKey, intervals.Estimand | Estimate]
"""Key of a figure -> its sums by cluster, or a missing estimate with the reason."""


@dataclass(frozen=True)
class DidTest:
    """The test of one DiD.

    Attributes
    ----------
    p
        Two-sided p of no difference, by sign flips; ``None``: not tested.
    p_adjusted
        p corrected by max-T over the primary DiD; ``None``: not one of these.
    mde
        Smallest DiD that passes the first step of that correction, nats per token.
    note
        Note for readers of the test.
    """

    p: float | None = None
    p_adjusted: float | None = None
    mde: float | None = None
    note: str = ""


NOT_TESTED = DidTest()


class PairFigures(NamedTuple):
    """Figures of checkpoints, and of checkpoints compared with their baselines."""

    rows: list[Row]
    contrasts: list[Contrast]


def pair_figures(scores: UnitScores) -> PairFigures:
    """Return the figures of the matched pairs in every group of train and test rows.

    The audit calls this once, with all checkpoints.
    """
    context = scores.context

    @cache
    def weights_of(n_clusters: int) -> Weights:
        """Return the resamples for a number of clusters, the same for all groups."""
        return bootstrap.draw_weights(
            n_clusters, replicates=context.replicates, seed=context.seed
        )

    figures = PairFigures(rows=[], contrasts=[])
    for group in pair_groups(scores.units):
        # All figures of a group share the resamples, which pairs their differences.
        estimands = _estimands(scores, group)
        weights = weights_of(group.n_clusters)
        replicates = intervals.replicates_of(estimands, weights)
        estimates = intervals.estimates_of(estimands, replicates)

        tests = _did_tests(scores, group.name, estimands, estimates)

        for key, estimate in estimates.items():
            if key.metric in METRICS_WITH_TEST:
                estimate = with_mde(estimate)
            estimate = estimate.with_deciding_interval(paper=context.paper)

            # A figure without a baseline is a row, with one a contrast.
            if not key.baseline:
                figures.rows.append(_pair_row(key, estimate, group))
            else:
                test = tests.get(key, NOT_TESTED)
                figures.contrasts.append(_pair_contrast(key, estimate, group, test))
    return figures


def _pair_row(key: FigureKey, estimate: Estimate, group: PairGroup) -> Row:
    """Return the row of a figure of one checkpoint."""
    return row_of(
        estimate,
        checkpoint=key.checkpoint,
        metric=key.metric,
        variant=key.variant,
        group=group.name,
        no_effect=_value_without_effect(key, group),
    )


def _pair_contrast(
    key: FigureKey, estimate: Estimate, group: PairGroup, test: DidTest
) -> Contrast:
    """Return the contrast of a figure with a baseline, with its test."""
    # The correction of p makes the smallest effect larger.
    if test.mde is not None:
        estimate = replace(estimate, mde=test.mde)

    return contrast_of(
        estimate,
        checkpoint=key.checkpoint,
        baseline=key.baseline,
        metric=key.metric,
        variant=key.variant,
        group=group.name,
        no_effect=_value_without_effect(key, group),
        family=_family(key, group.name),
        p=test.p,
        p_adjusted=test.p_adjusted,
        note=test.note,
    )


def _value_without_effect(key: FigureKey, group: PairGroup) -> float | None:
    """Return the value of a figure without an effect, nats per token.

    For the level of Delta_sel it is the value of the reference. ``None``: the figure
    has no such value.
    """
    if not len(group.pii):
        return None

    values = {
        ("delta_sel", ""): group.residual,
        ("delta_sel", "change"): 0.0,
        ("did", ""): 0.0,
    }
    return values.get((key.metric, key.variant))


def _family(key: FigureKey, group_name: str) -> Family:
    """Return ``primary`` for a contrast that is corrected with others like it.

    These are contrasts of all pairs of train rows. Contrasts of single seeds, and of
    checkpoints derived from their baseline, are exploratory.
    """
    # `NAME[2]` is one seed of the method NAME, and `entry_of` gives NAME.
    is_single_seed = entry_of(key.checkpoint) != key.checkpoint
    is_derived = original_of(key.checkpoint) == key.baseline
    if group_name == "pooled" and not is_single_seed and not is_derived:
        return "primary"
    return "exploratory"


def _estimands(scores: UnitScores, group: PairGroup) -> Estimands:
    """Return the estimands of all figures of a group, checkpoints first.

    A group without pairs has only its main variants, as missing estimates.
    """
    # Levels of checkpoints come first, then differences from their baselines.
    estimands: Estimands = {}
    for name in scores.nll:
        estimands |= _estimands_of_checkpoint(scores, group, name)
    for name, baseline in scores.context.baselines.items():
        estimands |= _estimands_of_did(scores, group, name, baseline)

    if not len(group.pii):
        return {key: NO_PAIRS for key in estimands if not key.variant}
    return estimands


def _estimands_of_checkpoint(
    scores: UnitScores, group: PairGroup, name: str
) -> Estimands:
    """Return the estimands of NLL, Delta_sel and its expected bias."""
    nll = scores.nll[name]  # (units,), nats
    pii_nll = nll[group.pii.index]  # (pairs,), nats
    control_nll = nll[group.control.index]  # (pairs,), nats

    # A change is the difference of a pair less the one that it has at the reference
    # (`group.gap_by_pair`). By unit, changes are `scores.changes[name]`, nats: below 0
    # likelier than at the reference. The reference itself has no change and no bias.
    change: intervals.Estimand | Estimate
    bias: intervals.Estimand | Estimate
    if name in scores.references:
        change = Estimate.missing(REFERENCE)
        bias = Estimate.missing(REFERENCE)
    else:
        change = group.mean_per_token(pii_nll - control_nll - group.gap_by_pair)
        bias = group.regression_to_mean(nll)

    estimands: Estimands = {
        FigureKey(name, "", "nll_pii"): group.mean_per_token(pii_nll),
        FigureKey(name, "", "nll_control"): group.mean_per_token(control_nll),
        FigureKey(name, "", "delta_sel"): group.mean_per_token(pii_nll - control_nll),
        FigureKey(name, "", "delta_sel", "change"): change,
        FigureKey(name, "", "rtm_bias"): bias,
        FigureKey(name, "", "rtm_bias", "change"): _bias_of_change(bias, group),
    }

    # For all pairs, Delta_sel also has variants weighted by spans and by sources.
    if group.name == "pooled":
        variants = selectivity.reweighted(
            pii_nll,
            control_nll,
            n_tokens=group.pii["n_tokens"],
            clusters=group.pii["cluster_code"],
            n_clusters=group.n_clusters,
        )
        for variant, estimand in variants.items():
            estimands[FigureKey(name, "", "delta_sel", variant)] = estimand
    return estimands


def _bias_of_change(
    bias: intervals.Estimand | Estimate, group: PairGroup
) -> intervals.Estimand | Estimate:
    """Return the expected bias of the change of Delta_sel from that of its level.

    Let ``residual`` be how far pairs still differ at the reference after matching, nats
    per token (``group.residual``), and ``gap`` how far their means differed before.
    Without an effect the expected level is ``(1 - beta) gap + beta residual``, so that
    the change from the reference is ``(1 - beta) (gap - residual)``. The first part,
    ``(1 - beta) gap``, is the bias of the level; see
    :mod:`spark_audit.stats.selectivity`.
    """
    if isinstance(bias, Estimate):
        return bias

    # The sums of a bias over all clusters determine the slope beta - 1.
    sums_of_all_clusters = bias.sums.sum(axis=0)
    beta_minus_1 = float(selectivity.slope(sums_of_all_clusters))
    return bias.plus(beta_minus_1 * group.residual)


def _estimands_of_did(
    scores: UnitScores, group: PairGroup, name: str, baseline: str
) -> Estimands:
    """Return the estimands of the DiD from a baseline and of its expected bias."""
    nll = scores.nll[name]  # (units,), nats
    baseline_nll = scores.nll[baseline]  # (units,), nats

    # Both are matched on one reference, so the residual of matching cancels.
    difference = nll - baseline_nll
    by_pair = difference[group.pii.index] - difference[group.control.index]  # (pairs,)
    bias = group.regression_to_mean(nll, baseline_nll)
    return {
        FigureKey(name, baseline, "did"): group.mean_per_token(by_pair),
        FigureKey(name, baseline, "rtm_bias"): bias,
    }


def _did_tests(
    scores: UnitScores,
    group_name: str,
    estimands: Estimands,
    estimates: Mapping[FigureKey, Estimate],
) -> dict[FigureKey, DidTest]:
    """Return the tests of a group's DiD; missing DiD have none.

    The primary ones (:func:`_family`) are corrected over all of them.
    """
    seed = scores.context.seed
    tests: dict[FigureKey, DidTest] = {}
    primary_sums: dict[FigureKey, np.ndarray] = {}  # key -> (clusters,), nats
    for key, estimand in estimands.items():
        if key.metric != "did" or isinstance(estimand, Estimate):
            continue
        if estimates[key].value is None:
            continue

        # Both checkpoints score the same tokens, so the test needs only the sums of
        # nats, and not those of tokens.
        sums_by_cluster = estimand.sums[:, 0]  # (clusters,), nats
        tests[key] = DidTest(
            p=sign_flips.sign_flip(sums_by_cluster, seed=seed),
            note=OF_REFERENCE if key.baseline in scores.references else "",
        )
        if _family(key, group_name) == "primary":
            primary_sums[key] = sums_by_cluster

    if primary_sums:
        tests |= _corrected_tests(tests, primary_sums, estimates, seed=seed)
    return tests


def _corrected_tests(
    tests: Mapping[FigureKey, DidTest],
    primary_sums: Mapping[FigureKey, np.ndarray],
    estimates: Mapping[FigureKey, Estimate],
    *,
    seed: int,
) -> dict[FigureKey, DidTest]:
    """Return the primary tests with p corrected by max-T, and smallest effects.

    Parameters
    ----------
    primary_sums
        DiD of each primary test: sums of nats by cluster, shape ``(clusters,)``.
    """
    columns = np.stack([*primary_sums.values()], axis=1)  # (clusters, tests), nats
    adjusted_ps = sign_flips.max_t(columns, seed=seed).tolist()

    corrected: dict[FigureKey, DidTest] = {}
    for key, p_adjusted in zip(primary_sums, adjusted_ps, strict=True):
        estimate = estimates[key]
        smallest_did = None
        if estimate.se is not None:
            # By Bonferroni's bound on max-T. A level is a confidence here.
            level = 1 - (1 - estimate.level) / len(primary_sums)
            smallest_did = mde(estimate.se, clusters=estimate.clusters, level=level)
        corrected[key] = replace(tests[key], p_adjusted=p_adjusted, mde=smallest_did)
    return corrected


def contrasts_with_baseline(
    scores: UnitScores, name: str, baseline: str
) -> Iterator[Contrast]:
    """Yield how identifiers and low-sensitivity text differ from a baseline's.

    Below 0, the text is likelier than under the baseline. Both checkpoints share the
    reference, and memory is linear in the change since it. The difference of their
    memories is therefore the memory of their difference.
    """
    train = scores.train
    difference = scores.nll[name] - scores.nll[baseline]  # (units,), nats
    yield contrast_of(
        low_drift(train, difference),
        checkpoint=name,
        baseline=baseline,
        metric="low_change",
    )

    for occurrences in scores.groups:
        memory = memory_contrast.memory(
            difference[occurrences.spans.index], occurrences.sides
        )
        yield contrast_of(
            memory.difference,
            checkpoint=name,
            baseline=baseline,
            metric="memory",
            group=occurrences.group,
            no_effect=0.0,
            p=memory.t_p(),
        )

    matched = train[train["role"] == "pii"]
    yield contrast_of(
        pooled_change(matched, difference),
        checkpoint=name,
        baseline=baseline,
        metric="nll_pii",
        no_effect=0.0,
    )
    yield contrast_of(
        change_beyond_alike(train, difference),
        checkpoint=name,
        baseline=baseline,
        metric="did_alike",
        no_effect=0.0,
    )

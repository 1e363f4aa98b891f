"""Figures of matched pairs, and contrasts of checkpoints with their baselines.

A pair consists of an identifier and its control, other text that was equally hard for
the reference model. These figures are in nats per token:

===================  ================================================================
metric               meaning
===================  ================================================================
``nll_pii``          mean NLL of the identifiers of pairs
``nll_control``      mean NLL of their controls
``delta_sel``        the first minus the second; ``change`` is that since the
                     reference
``did``              ``delta_sel`` of a checkpoint minus that of its baseline
``rtm_bias``         the difference by regression to the mean alone:
                     see :mod:`spark_audit.stats.selectivity`
===================  ================================================================

They are estimated by group: all pairs of train rows, those of each task and type, and
those of test rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.matched.drift import (
    change_beyond_alike,
    low_drift,
    pooled_change,
)
from spark_audit.audits.matched.units import REFERENCE, Occurrences, UnitScores, row_of
from spark_audit.audits.supervision import NOT_READ
from spark_audit.names import BASE, entry_of, original_of
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

PAIR_COLUMNS = ["role", "n_tokens", "ref_sum", "mean", "cell", "code"]
"""Columns of :class:`PairGroup`, as few as possible, since there can be many windows.

``ref_sum`` is the summed NLL on the reference, nats, ``mean`` the same per token;
``cell`` numbers examples and lengths, ``code`` clusters.
"""


class FigureKey(NamedTuple):
    """Checkpoint, baseline, metric and variant of a figure of pairs.

    ``baseline`` is empty for a figure of one checkpoint, ``of`` for the main variant.
    """

    checkpoint: str
    baseline: str
    metric: str
    of: str = ""


Estimands: TypeAlias = dict[FigureKey, intervals.Estimand | Estimate]
"""Key of a figure -> its sums by cluster, or a missing estimate with the reason."""


@dataclass(frozen=True)
class DidTest:
    """The test of one DiD.

    Attributes
    ----------
    p
        Two-sided p of no difference; ``None``: not tested.
    p_adjusted
        p corrected by max-T over the pooled DiD of methods; ``None``: not one of these.
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


def contrast_of(
    estimate: Estimate,
    *,
    checkpoint: str,
    baseline: str,
    metric: str,
    of: str = "",
    group: str = "pooled",
    null: float | None = None,
    family: Family = "exploratory",
    p: float | None = None,
    p_adjusted: float | None = None,
    note: str = "",
) -> Contrast:
    """Return a contrast of this audit with an estimate's figures."""
    return Contrast.of_estimate(
        estimate,
        audit="matched",
        checkpoint=checkpoint,
        baseline=baseline,
        metric=metric,
        of=of,
        group=group,
        unit="nats",
        null=null,
        family=family,
        p=p,
        p_adjusted=p_adjusted,
        note=note,
    )


@dataclass(frozen=True)
class PairGroup:
    """Pairs and windows of one group, for all checkpoints.

    Attributes
    ----------
    name
        Name of the group, such as ``pooled`` or ``type:NAME``.
    pii, control
        The identifiers of the pairs and their controls, in the same order, by their
        indices in the evidence (:data:`PAIR_COLUMNS`).
    pool
        The windows by their indices in the evidence: ``n_tokens``.
    windows
        Means on the reference over identifiers and windows, nats per token.
    """

    name: str
    pii: pd.DataFrame
    control: pd.DataFrame
    pool: pd.DataFrame
    windows: selectivity.Windows

    @cached_property
    def gap_by_pair(self) -> np.ndarray:
        """Identifier minus control on the reference, shape ``(pairs,)``, nats."""
        return np.asarray(self.pii["ref_sum"].to_numpy() - self.control["ref_sum"])

    @property
    def residual(self) -> float:
        """Delta_sel of the reference, nats per token: the residual of matching."""
        return float(self.gap_by_pair.sum() / max(self.pii["n_tokens"].sum(), 1))

    def mean(self, values: np.ndarray) -> intervals.Estimand:
        """Return the mean per token of values of shape ``(pairs,)``."""
        tokens = self.pii["n_tokens"]
        columns = np.stack([values, tokens], axis=1)  # (pairs, 2)
        sums = bootstrap.cluster_sums(
            columns, self.pii["code"], self.windows.n_clusters
        )  # (clusters, 2)
        return intervals.Estimand(sums, intervals.ratio, int(tokens.sum()))

    def regression(self, *nll: np.ndarray) -> intervals.Estimand | Estimate:
        """Return the effect of regression to the mean alone (R1).

        Parameters
        ----------
        nll
            Shape ``(units,)`` each, nats: one checkpoint for its Delta_sel, or a
            checkpoint and its baseline for their DiD.
        """
        tokens = self.pool["n_tokens"].to_numpy()  # (windows,)
        means = [sums[self.pool.index] / tokens for sums in nll]  # each (windows,)
        return selectivity.rtm_bias(self.windows, *means)


def pair_groups(units: pd.DataFrame) -> Iterator[PairGroup]:
    """Yield train rows pooled, by task and by type, and test rows if there are any.

    The windows of a group are those of its spans' cells: examples and lengths.
    Identifiers that training cut off in all of their trained rows are in no group, even
    if test rows contain them: they are neither trained nor held out.

    Parameters
    ----------
    units
        Units of rows of the manifest, both splits.
    """
    # A cell is an example and a length. It holds the windows that could replace a span.
    is_of_pairs = units["role"].isin(["pii", "control", "unmatched", "window"])
    units = _without_cut_off(units[is_of_pairs])
    units = units.assign(
        cell=units.groupby(["example", "n_tokens"]).ngroup(),
        mean=units["ref_sum"] / units["n_tokens"],
    )

    # Clusters are numbered by split, since the splits are resampled separately.
    for split, name_of_all in (("train", "pooled"), ("test", "split:test")):
        of_split = units[units["split"] == split]
        codes, clusters = pd.factorize(of_split["cluster"], sort=True)
        of_split = of_split.assign(code=codes)
        is_window = of_split["role"] == "window"
        spans = of_split[~is_window].sort_values("pair", kind="stable")
        windows = of_split.loc[is_window, PAIR_COLUMNS]

        # Pooled train rows are a group even without identifiers.
        if split == "train" or len(spans):
            yield _pair_group(name_of_all, spans, windows, len(clusters))

        if split == "test":
            continue
        for column in ("task", "type"):
            for value, of_value in spans.groupby(column):
                yield _pair_group(f"{column}:{value}", of_value, windows, len(clusters))


def _without_cut_off(units: pd.DataFrame) -> pd.DataFrame:
    """Return the units without identifiers of dose ``NOT_READ`` and their controls."""
    # Leave the control of a cut-off identifier out with it.
    is_identifier = units["role"].isin(["pii", "unmatched"])
    is_cut_off = is_identifier & (units["dose"] == NOT_READ)

    pairs = units.loc[is_cut_off & (units["role"] == "pii"), "pair"]
    is_their_control = (units["role"] == "control") & units["pair"].isin(pairs)
    return units[~is_cut_off & ~is_their_control]


def _pair_group(
    name: str, spans: pd.DataFrame, windows: pd.DataFrame, n_clusters: int
) -> PairGroup:
    """Return one group of identifiers and controls, with the windows of their cells.

    Parameters
    ----------
    spans
        Identifiers and controls, sorted by pair: :data:`PAIR_COLUMNS` and others.
    windows
        Windows of the split: :data:`PAIR_COLUMNS`.
    n_clusters
        Clusters of the split.
    """
    # Take windows of the same cells, and identifiers with and without a control.
    pool = windows[windows["cell"].isin(spans["cell"])]
    spans = spans[PAIR_COLUMNS]
    identifiers = spans[spans["role"] != "control"]

    reference = selectivity.Windows(
        pool=pool["mean"].to_numpy(),
        pool_clusters=pool["code"].to_numpy(),
        spans=identifiers["mean"].to_numpy(),
        span_tokens=identifiers["n_tokens"].to_numpy(),
        span_clusters=identifiers["code"].to_numpy(),
        n_clusters=n_clusters,
        pool_cells=pool["cell"].to_numpy(),
        span_cells=identifiers["cell"].to_numpy(),
    )
    return PairGroup(
        name=name,
        pii=spans[spans["role"] == "pii"],
        control=spans[spans["role"] == "control"],
        pool=pool[["n_tokens"]],
        windows=reference,
    )


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
        return {key: NO_PAIRS for key in estimands if not key.of}
    return estimands


def _estimands_of_checkpoint(
    scores: UnitScores, group: PairGroup, name: str
) -> Estimands:
    """Return the estimands of NLL, Delta_sel and its expected bias."""
    nll = scores.nll[name]  # (units,), nats
    pii_nll = nll[group.pii.index]  # (pairs,), nats
    control_nll = nll[group.control.index]  # (pairs,), nats

    # The reference has no change and no bias.
    change: intervals.Estimand | Estimate
    bias: intervals.Estimand | Estimate
    if name in scores.references:
        change = Estimate.missing(REFERENCE)
        bias = Estimate.missing(REFERENCE)
    else:
        change = group.mean(pii_nll - control_nll - group.gap_by_pair)
        bias = group.regression(nll)

    # The bias of the change is that of the level minus the residual of matching.
    bias_of_change = bias
    if isinstance(bias, intervals.Estimand):
        # Without an effect, a pair that differs by ``d`` nats after matching has the
        # expected level ``(1 - beta) gap + beta d``, and so the change ``(1 - beta)
        # (gap - d)``.
        slope = float(selectivity.slope(bias.sums.sum(axis=0)))
        bias_of_change = bias.plus(slope * group.residual)

    estimands: Estimands = {
        FigureKey(name, "", "nll_pii"): group.mean(pii_nll),
        FigureKey(name, "", "nll_control"): group.mean(control_nll),
        FigureKey(name, "", "delta_sel"): group.mean(pii_nll - control_nll),
        FigureKey(name, "", "delta_sel", "change"): change,
        FigureKey(name, "", "rtm_bias"): bias,
        FigureKey(name, "", "rtm_bias", "change"): bias_of_change,
    }

    # For all pairs, Delta_sel also has variants weighted by spans and by sources.
    if group.name == "pooled":
        variants = selectivity.reweighted(
            pii_nll,
            control_nll,
            n_tokens=group.pii["n_tokens"],
            clusters=group.pii["code"],
            n_clusters=group.windows.n_clusters,
        )
        for variant, estimand in variants.items():
            estimands[FigureKey(name, "", "delta_sel", variant)] = estimand
    return estimands


def _estimands_of_did(
    scores: UnitScores, group: PairGroup, name: str, baseline: str
) -> Estimands:
    """Return the estimands of the DiD from a baseline and of its expected bias."""
    nll = scores.nll[name]  # (units,), nats
    baseline_nll = scores.nll[baseline]  # (units,), nats

    # Both are matched on one reference, so the residual of matching cancels.
    difference = nll - baseline_nll
    by_pair = difference[group.pii.index] - difference[group.control.index]  # (pairs,)
    return {
        FigureKey(name, baseline, "did"): group.mean(by_pair),
        FigureKey(name, baseline, "rtm_bias"): group.regression(nll, baseline_nll),
    }


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
        weights = weights_of(group.windows.n_clusters)
        replicates = intervals.replicates_of(estimands, weights)
        estimates = intervals.estimates_of(estimands, replicates)

        tests = _did_tests(scores, group.name, estimands, estimates)

        for key, estimate in estimates.items():
            # Only tested metrics have smallest effects.
            if key.metric in ("delta_sel", "did"):
                estimate = with_mde(estimate)
            estimate = estimate.decided(paper=context.paper)

            # A figure without a baseline is a row.
            if not key.baseline:
                row = row_of(
                    estimate,
                    checkpoint=key.checkpoint,
                    metric=key.metric,
                    of=key.of,
                    group=group.name,
                    null=_null(key, group),
                )
                figures.rows.append(row)
                continue

            # A comparison with the baseline is a contrast, with its test.
            test = tests.get(key, NOT_TESTED)
            if test.mde is not None:
                estimate = replace(estimate, mde=test.mde)
            contrast = contrast_of(
                estimate,
                checkpoint=key.checkpoint,
                baseline=key.baseline,
                metric=key.metric,
                of=key.of,
                group=group.name,
                null=_null(key, group),
                family=_family(group.name, key),
                p=test.p,
                p_adjusted=test.p_adjusted,
                note=test.note,
            )
            figures.contrasts.append(contrast)
    return figures


def _null(key: FigureKey, group: PairGroup) -> float | None:
    """Return the value of a figure without an effect, nats per token.

    For the level of Delta_sel it is the value of the reference. ``None``: the figure
    has no such value.
    """
    if not len(group.pii):
        return None
    nulls = {
        ("delta_sel", ""): group.residual,
        ("delta_sel", "change"): 0.0,
        ("did", ""): 0.0,
    }
    return nulls.get((key.metric, key.of))


def _family(group: str, key: FigureKey) -> Family:
    """Return ``primary`` for a contrast whose p is corrected with others like it.

    These are contrasts of all pairs of train rows. Contrasts of single seeds, and of
    checkpoints derived from their baseline, are exploratory.
    """
    is_method = entry_of(key.checkpoint) == key.checkpoint
    is_derived = original_of(key.checkpoint) == key.baseline
    if group == "pooled" and is_method and not is_derived:
        return "primary"
    return "exploratory"


def _did_tests(
    scores: UnitScores,
    group: str,
    estimands: Estimands,
    estimates: Mapping[FigureKey, Estimate],
) -> dict[FigureKey, DidTest]:
    """Return the tests of a group's DiD.

    The pooled DiD of methods are one family, corrected by max-T. Smallest effects are
    those that pass its first step, by Bonferroni's bound.
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
        # nats.
        sums_by_cluster = estimand.sums[:, 0]  # (clusters,), nats
        tests[key] = DidTest(
            p=sign_flips.sign_flip(sums_by_cluster, seed=seed),
            note=OF_REFERENCE if key.baseline in scores.references else "",
        )
        if _family(group, key) == "primary":
            primary_sums[key] = sums_by_cluster

    if not primary_sums:
        return tests

    columns = np.stack([*primary_sums.values()], axis=1)  # (clusters, tests), nats
    corrected = sign_flips.max_t(columns, seed=seed).tolist()
    for key, p in zip(primary_sums, corrected, strict=True):
        estimate = estimates[key]
        smallest = None
        if estimate.se is not None:
            level = 1 - (1 - estimate.level) / len(primary_sums)
            smallest = mde(estimate.se, clusters=estimate.clusters, level=level)
        tests[key] = replace(tests[key], p_adjusted=p, mde=smallest)
    return tests


def contrasts_with_baseline(
    scores: UnitScores, name: str, baseline: str
) -> Iterator[Contrast]:
    """Yield how identifiers and low-sensitivity text differ from a baseline's.

    Both checkpoints share the reference, and memory is linear in the change since it.
    The difference of their memories is therefore the memory of their difference.
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
            null=0.0,
            p=memory.t_p(),
        )

    matched = train[train["role"] == "pii"]
    yield contrast_of(
        pooled_change(matched, difference),
        checkpoint=name,
        baseline=baseline,
        metric="nll_pii",
        null=0.0,
    )
    yield contrast_of(
        change_beyond_alike(train, difference),
        checkpoint=name,
        baseline=baseline,
        metric="did_alike",
        null=0.0,
    )


def left_out_types(train: pd.DataFrame, pooled: Occurrences) -> list[Row]:
    """Return the share of each type's trained identifiers that are not compared.

    ``of`` is the reason: ``form`` (no held-out identifier has their form and place),
    ``few`` (too few do, so that texts cannot be tested) or ``text`` (the texts differ).
    A type is listed once for each of its reasons, the larger shares first.

    Parameters
    ----------
    train
        Units of train rows.
    pooled
        All trained and all held-out identifiers.
    """
    spans = train[train["role"].isin(["pii", "unmatched"])]
    is_compared = pd.Series(pooled.sides.cells >= 0, index=pooled.spans.index)
    is_left_out = ~is_compared.reindex(spans.index, fill_value=False)

    reason = pd.Series("form", index=spans.index)
    is_refused = spans["stratum"] < 0
    reason[is_refused] = np.where(spans["text_auc"][is_refused].isna(), "few", "text")

    # Make one row for each type and reason.
    rows = []
    for (name, why), left_out in spans[is_left_out].groupby(["type", reason]):
        n_of_type = int((spans["type"] == name).sum())
        share = Estimate(
            len(left_out) / n_of_type,
            n=n_of_type,
            clusters=left_out["cluster"].nunique(),
        )
        row = row_of(
            share,
            checkpoint=BASE,
            metric="left_out",
            of=str(why),
            group=f"type:{name}",
            unit="",
        )
        rows.append(row)
    return sorted(rows, key=lambda row: -(row.value or 0.0))

"""Figures of matched pairs, and of their contrasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.matched.drift import _beyond_alike, _low_drift, pooled_change
from spark_audit.audits.matched.units import REFERENCE, Occurrences, UnitScores, row_of
from spark_audit.audits.supervision import NOT_READ
from spark_audit.names import (
    BASE,
    entry_of,
    original_of,
)
from spark_audit.results import Contrast, Row
from spark_audit.results.rows import Family
from spark_audit.stats import bootstrap, intervals, memory_contrast, selectivity
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.power import mde, with_mde

NO_PAIRS = Estimate.missing("this group has no matched identifier")

OF_REFERENCE = (
    "the baseline is the matching reference: DiD is Delta_sel minus the residual of "
    "matching"
)

Key: TypeAlias = tuple[str, str, str, str]
"""Checkpoint, baseline (empty: none), metric and variant of a figure."""

Summed: TypeAlias = dict[Key, intervals.Estimand | Estimate]
"""What figures rest on, or why there are none."""


@dataclass(frozen=True)
class DidTest:
    """The test of one DiD.

    Attributes
    ----------
    p
        Two-sided p of no difference; ``None``: not tested.
    p_adjusted
        p corrected by max-T over the pooled DiD of methods; ``None``: none of them.
    mde
        Smallest DiD that passes the first step of that correction, nats per token.
    note
        What its readers must know.
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
class PairSums:
    """One group's pairs and windows, for all checkpoints.

    ``pii`` and ``control`` are the sides of the pairs, with their cluster ``code``, and
    ``pool`` the windows, by their places in the evidence; ``windows`` are the
    reference's means over spans and pool.
    """

    name: str
    pii: pd.DataFrame
    control: pd.DataFrame
    pool: pd.DataFrame
    windows: selectivity.Windows

    @cached_property
    def residual(self) -> np.ndarray:
        """What matching left over: PII sum minus control sum of the reference, nats."""
        return np.asarray(self.pii["ref_sum"].to_numpy() - self.control["ref_sum"])

    @property
    def left_over(self) -> float:
        """The same in nats per token: Delta_sel of the reference."""
        return float(self.residual.sum() / max(self.pii["n_tokens"].sum(), 1))

    def mean(self, values: np.ndarray) -> intervals.Estimand:
        """Mean of the pairs' values per token."""
        tokens, clusters = self.pii["n_tokens"], self.windows.n_clusters
        columns = np.stack([values, tokens], axis=1)
        sums = bootstrap.cluster_sums(columns, self.pii["code"], clusters)
        return intervals.Estimand(sums, intervals.ratio, int(tokens.sum()))

    def regression(self, *nll: np.ndarray) -> intervals.Estimand | Estimate:
        """R1 of a checkpoint's Delta_sel, or of its DiD from a baseline."""
        at, tokens = self.pool.index, self.pool["n_tokens"].to_numpy()
        return selectivity.rtm_bias(self.windows, *(sums[at] / tokens for sums in nll))


def _groups(units: pd.DataFrame) -> Iterator[PairSums]:
    """Train rows pooled, by task and by type, and test rows where there are any.

    The windows of a group are those of its spans' cells: examples and lengths.
    Identifiers that training cut off in all of their trained rows are in no group:
    those that stand in test rows, too, are neither trained nor held out.
    """
    units = units[units["role"].isin(["pii", "control", "unmatched", "window"])]
    units = _without_cut_off(units)
    units = units.assign(
        cell=units.groupby(["example", "n_tokens"]).ngroup(),
        mean=units["ref_sum"] / units["n_tokens"],
    )
    # Of many windows all columns would not fit.
    kept = ["role", "n_tokens", "ref_sum", "mean", "cell", "code"]
    for split, whole in (("train", "pooled"), ("test", "split:test")):
        inside = units[units["split"] == split]
        codes, clusters = pd.factorize(inside["cluster"], sort=True)
        inside = inside.assign(code=codes)
        window = inside["role"] == "window"
        spans = inside[~window].sort_values("pair", kind="stable")
        windows = inside.loc[window, kept]
        parts = [(whole, spans)] if split == "train" or len(spans) else []
        for column in ("task", "type") if split == "train" else ():
            for value, own in spans.groupby(column):
                parts.append((f"{column}:{value}", own))
        for name, own in parts:
            pool = windows[windows["cell"].isin(own["cell"])]
            role, own = own["role"], own[kept]
            every = own[role != "control"]
            reference = selectivity.Windows(
                pool=pool["mean"].to_numpy(),
                pool_clusters=pool["code"].to_numpy(),
                spans=every["mean"].to_numpy(),
                span_tokens=every["n_tokens"].to_numpy(),
                span_clusters=every["code"].to_numpy(),
                n_clusters=len(clusters),
                pool_cells=pool["cell"].to_numpy(),
                span_cells=every["cell"].to_numpy(),
            )
            pii, control = own[role == "pii"], own[role == "control"]
            yield PairSums(name, pii, control, pool[["n_tokens"]], reference)


def _without_cut_off(units: pd.DataFrame) -> pd.DataFrame:
    """Return the units without identifiers of dose ``NOT_READ`` and their controls."""
    is_identifier = units["role"].isin(["pii", "unmatched"])
    is_cut_off = is_identifier & (units["dose"] == NOT_READ)
    pairs = units.loc[is_cut_off & (units["role"] == "pii"), "pair"]
    is_their_control = (units["role"] == "control") & units["pair"].isin(pairs)
    return units[~is_cut_off & ~is_their_control]


def _summed(known: UnitScores, group: PairSums) -> Summed:
    """What the figures of a group rest on, those of checkpoints first."""
    nll, pairs = known.nll, known.context.baselines.items()
    sums: Summed = {}
    pii, control = group.pii.index, group.control.index
    for name, values in nll.items():
        ours, theirs = values[pii], values[control]
        change: intervals.Estimand | Estimate = Estimate.missing(REFERENCE)
        bias = shifted = change
        if name not in known.references:
            change = group.mean(ours - theirs - group.residual)
            bias = shifted = group.regression(values)
        if isinstance(bias, intervals.Estimand):
            # A pair that matching left ``d`` nats apart is expected at ``(1 - beta)
            # gap + beta d`` without an effect: its change at ``(1 - beta) (gap - d)``.
            slope = float(selectivity.slope(bias.sums.sum(axis=0)))
            shifted = bias.plus(slope * group.left_over)
        sums[name, "", "nll_pii", ""] = group.mean(ours)
        sums[name, "", "nll_control", ""] = group.mean(theirs)
        sums[name, "", "delta_sel", ""] = group.mean(ours - theirs)
        sums[name, "", "delta_sel", "change"] = change
        sums[name, "", "rtm_bias", ""] = bias
        sums[name, "", "rtm_bias", "change"] = shifted
        if group.name == "pooled":
            variants = selectivity.reweighted(
                ours,
                theirs,
                n_tokens=group.pii["n_tokens"],
                clusters=group.pii["code"],
                n_clusters=group.windows.n_clusters,
            )
            for variant, estimand in variants.items():
                sums[name, "", "delta_sel", variant] = estimand
    for name, other in pairs:
        apart = nll[name] - nll[other]
        sums[name, other, "did", ""] = group.mean(apart[pii] - apart[control])
        sums[name, other, "rtm_bias", ""] = group.regression(nll[name], nll[other])
    if len(pii):
        return sums
    return {key: NO_PAIRS for key in sums if not key[3]}


def pair_figures(known: UnitScores) -> tuple[list[Row], list[Contrast]]:
    """Return the figures of the matched pairs in every group of train and test rows."""
    context = known.context
    weights_of = cache(
        partial(
            bootstrap.draw_weights, replicates=context.replicates, seed=context.seed
        )
    )

    rows: list[Row] = []
    contrasts: list[Contrast] = []
    for group in _groups(known.units):
        sums = _summed(known, group)
        replicates = intervals.replicates_of(sums, weights_of(group.windows.n_clusters))
        estimates = intervals.estimates_of(sums, replicates)
        tests = _tests(known, group.name, sums, estimates)

        nulls: dict[tuple[str, str], float] = {}
        if len(group.pii):
            nulls["delta_sel", ""] = group.left_over
            nulls["delta_sel", "change"] = 0.0
            nulls["did", ""] = 0.0

        for key, estimate in estimates.items():
            name, baseline, metric, of = key
            if metric in ("delta_sel", "did"):
                estimate = with_mde(estimate)
            estimate = estimate.decided(paper=context.paper)
            null = nulls.get((metric, of))

            if not baseline:
                row = row_of(
                    estimate,
                    checkpoint=name,
                    metric=metric,
                    of=of,
                    group=group.name,
                    null=null,
                )
                rows.append(row)
                continue

            test = tests.get(key, NOT_TESTED)
            if test.mde is not None:
                estimate = replace(estimate, mde=test.mde)
            contrast = contrast_of(
                estimate,
                checkpoint=name,
                baseline=baseline,
                metric=metric,
                of=of,
                group=group.name,
                null=null,
                family=_family(group.name, name, baseline),
                p=test.p,
                p_adjusted=test.p_adjusted,
                note=test.note,
            )
            contrasts.append(contrast)
    return rows, contrasts


def _family(group: str, name: str, other: str) -> Family:
    """Of a contrast; single seeds, and what was made of the other, are no tests."""
    single = group == "pooled" and entry_of(name) == name and original_of(name) != other
    return "primary" if single else "exploratory"


def _tests(
    known: UnitScores, group: str, sums: Summed, estimates: Mapping[Key, Estimate]
) -> dict[Key, DidTest]:
    """Return the tests of a group's DiD.

    The pooled DiD of methods are one family, corrected by max-T; smallest effects are
    those that pass its first step among so many tests (by Bonferroni's bound).
    """
    seed = known.context.seed
    tests: dict[Key, DidTest] = {}
    primary_sums: dict[Key, np.ndarray] = {}  # key -> (clusters,), nats
    for key, summed in sums.items():
        name, baseline, metric, _ = key
        if metric != "did" or isinstance(summed, Estimate):
            continue
        if estimates[key].value is None:
            continue
        sums_by_cluster = summed.sums[:, 0]
        tests[key] = DidTest(
            p=bootstrap.sign_flip(sums_by_cluster, seed=seed),
            note=OF_REFERENCE if baseline in known.references else "",
        )
        if _family(group, name, baseline) == "primary":
            primary_sums[key] = sums_by_cluster
    if not primary_sums:
        return tests

    columns = np.stack([*primary_sums.values()], axis=1)  # (clusters, tests), nats
    corrected = bootstrap.max_t(columns, seed=seed).tolist()
    for key, p in zip(primary_sums, corrected, strict=True):
        estimate = estimates[key]
        smallest = None
        if estimate.se is not None:
            level = 1 - (1 - estimate.level) / len(primary_sums)
            smallest = mde(estimate.se, clusters=estimate.clusters, level=level)
        tests[key] = replace(tests[key], p_adjusted=p, mde=smallest)
    return tests


def contrasts_of(known: UnitScores, name: str, baseline: str) -> Iterator[Contrast]:
    """Yield a checkpoint's identifiers and low-sensitivity text against a baseline's.

    Memory is linear in the change since the reference, which both share: what is left
    of the difference is how far the two are apart.
    """
    train = known.train
    difference = known.nll[name] - known.nll[baseline]  # (units,), nats
    yield contrast_of(
        _low_drift(train, difference),
        checkpoint=name,
        baseline=baseline,
        metric="low_change",
    )

    for occurrences in known.sides:
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
        _beyond_alike(train, difference),
        checkpoint=name,
        baseline=baseline,
        metric="did_alike",
        null=0.0,
    )


def _left_out_types(train: pd.DataFrame, whole: Occurrences) -> list[Row]:
    """Return the share of each type's trained identifiers that are not compared.

    ``of`` is the reason: ``form`` (none of their form and place was held out), ``few``
    (too few were, to test whether their texts differ) or ``text`` (their texts differ).
    A type is listed once for each of its reasons, the larger shares first.
    """
    spans = train[train["role"].isin(["pii", "unmatched"])]
    is_compared = pd.Series(whole.sides.cells >= 0, index=whole.spans.index)
    reason = pd.Series("form", index=spans.index)
    is_refused = spans["stratum"] < 0
    reason[is_refused] = np.where(spans["text_auc"][is_refused].isna(), "few", "text")
    is_left_out = ~is_compared.reindex(spans.index, fill_value=False)

    rows = []
    for (kind, why), part in spans[is_left_out].groupby(["type", reason]):
        every = spans[spans["type"] == kind]
        shown = Estimate(
            len(part) / len(every), n=len(every), clusters=part["cluster"].nunique()
        )
        row = row_of(
            shown,
            checkpoint=BASE,
            metric="left_out",
            of=str(why),
            group=f"type:{kind}",
            unit="",
        )
        rows.append(row)
    return sorted(rows, key=lambda row: -(row.value or 0.0))

"""Figures of matched pairs, and of their contrasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.matched.drift import _beyond_alike, _low_drift, pooled_change
from spark_audit.audits.matched.units import REFERENCE, Occurrences, UnitScores, row_of
from spark_audit.names import (
    BASE,
    entry_of,
    original_of,
)
from spark_audit.results import Contrast, Row
from spark_audit.results.findings import Family
from spark_audit.stats import bootstrap, intervals, memory_contrast, selectivity
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.power import mde, with_mde

contrast_of = partial(Contrast.of_estimate, audit="matched", unit="nats")

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
    """
    units = units[units["role"].isin(["pii", "control", "unmatched", "window"])]
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


def _summed(known: UnitScores, group: PairSums) -> Summed:
    """What the figures of a group rest on, those of checkpoints first."""
    nll, pairs = known.nll, known.context.baselines.items()
    sums: Summed = {}
    pii, control = group.pii.index, group.control.index
    weighed = {"n_tokens": group.pii["n_tokens"], "clusters": group.pii["code"]}
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
            size = group.windows.n_clusters
            more = selectivity.reweighted(ours, theirs, **weighed, n_clusters=size)
            for of, one in more.items():
                sums[name, "", "delta_sel", of] = one
    for name, other in pairs:
        apart = nll[name] - nll[other]
        sums[name, other, "did", ""] = group.mean(apart[pii] - apart[control])
        sums[name, other, "rtm_bias", ""] = group.regression(nll[name], nll[other])
    if len(pii):
        return sums
    return {key: NO_PAIRS for key in sums if not key[3]}


def pair_figures(known: UnitScores) -> tuple[list[Row], list[Contrast]]:
    """Figures of the matched pairs in every group of train and of test rows."""
    context, rows, contrasts = known.context, list[Row](), list[Contrast]()
    options = {"replicates": context.replicates, "seed": context.seed}
    weights_of = cache(partial(bootstrap.draw_weights, **options))
    for group in _groups(known.units):
        sums, nulls = _summed(known, group), dict[tuple[str, str], float]()
        if len(group.pii):
            nulls = {("delta_sel", "change"): 0.0, ("did", ""): 0.0}
            nulls["delta_sel", ""] = group.left_over
        drawn = intervals.replicates_of(sums, weights_of(group.windows.n_clusters))
        estimates = intervals.estimates_of(sums, drawn)
        tests = _tests(known, group.name, sums, estimates)
        for key, estimate in estimates.items():
            name, other, metric, of = key
            shown = with_mde(estimate) if metric in ("delta_sel", "did") else estimate
            shown = shown.decided(paper=context.paper)
            columns: dict[str, Any] = {"checkpoint": name, "group": group.name}
            columns |= {"metric": metric, "of": of, "null": nulls.get((metric, of))}
            if other:
                columns |= {"baseline": other, **tests.get(key, {})}
                columns["family"] = _family(group.name, name, other)
                contrasts.append(contrast_of(shown, **columns))
            else:
                rows.append(row_of(shown, **columns))
    return rows, contrasts


def _family(group: str, name: str, other: str) -> Family:
    """Of a contrast; single seeds, and what was made of the other, are no tests."""
    single = group == "pooled" and entry_of(name) == name and original_of(name) != other
    return "primary" if single else "exploratory"


def _tests(
    known: UnitScores, group: str, sums: Summed, estimates: Mapping[Key, Estimate]
) -> dict[Key, dict[str, Any]]:
    """What the contrasts of DiD state of their tests.

    The pooled DiD of methods are one family, corrected by max-T; smallest effects are
    those that pass its first step among so many tests (by Bonferroni's bound).
    """
    seed, family = known.context.seed, dict[Key, np.ndarray]()
    found: dict[Key, dict[str, Any]] = {}
    for key, summed in sums.items():
        if key[2] != "did" or isinstance(summed, Estimate):
            continue
        if estimates[key].value is not None:
            note = OF_REFERENCE if key[1] in known.references else ""
            scores = summed.sums[:, 0]
            found[key] = {"p": bootstrap.sign_flip(scores, seed=seed), "note": note}
            if _family(group, *key[:2]) == "primary":
                family[key] = scores
    if family:
        scores = np.stack([*family.values()], axis=1)
        corrected = bootstrap.max_t(scores, seed=seed).tolist()
        for key, p in zip(family, corrected, strict=True):
            one = estimates[key]
            level = 1 - (1 - one.level) / len(family)
            found[key]["p_adjusted"] = p
            if one.se is not None:
                found[key]["mde"] = mde(one.se, clusters=one.clusters, level=level)
    return found


def contrasts_of(known: UnitScores, name: str, baseline: str) -> Iterator[Contrast]:
    """Identifiers on either side and low-sensitivity text against the baseline's.

    Memory is linear in the change since the reference, which both share: what is left
    of the difference is how far the two are apart.
    """
    contrast = partial(contrast_of, checkpoint=name, baseline=baseline)
    apart, train = known.nll[name] - known.nll[baseline], known.train
    yield contrast(_low_drift(train, apart), metric="low_change")
    for each in known.sides:
        moved = memory_contrast.memory(apart[each.spans.index], each.sides)
        more = {"group": each.group, "null": 0.0, "p": moved.t_p()}
        yield contrast(moved.difference, metric="memory", **more)
    pii = train[train["role"] == "pii"]
    yield contrast(pooled_change(pii, apart), metric="nll_pii", null=0.0)
    yield contrast(_beyond_alike(train, apart), metric="did_alike", null=0.0)


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
        place = {"metric": "left_out", "group": f"type:{kind}", "of": str(why)}
        rows.append(row_of(shown, checkpoint=BASE, **{**place, "unit": ""}))
    return sorted(rows, key=lambda row: -(row.value or 0.0))

"""Delta_sel and DiD of the matched pairs, by group: rows and contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.matched.matched_claims import NO_PAIRS
from spark_audit.audits.matched.span_scores import CLASSES
from spark_audit.audits.spans import Group, group_of, groups
from spark_audit.names import entry_of, original_of
from spark_audit.results import Contrast, Estimate, Family, Row
from spark_audit.stats.bootstrap import cluster_sums, max_t, sign_flip
from spark_audit.stats.intervals import estimate_of, ratio_estimate
from spark_audit.stats.power import mde, with_mde
from spark_audit.stats.selectivity import (
    delta_sel,
    estimands,
    rtm_bias_estimate,
    rtm_slope,
)
from spark_audit.stats.weights import Weights, draw_weights

REFERENCE = "the checkpoint is the matching reference itself, so there is no change"
OF_PAIRS = ("nll_pii", "nll_control", "delta_sel", "rtm_bias")
"""Metrics that a group without a matched span lacks."""


@dataclass
class OfPairs:
    """Rows and contrasts of all groups.

    ``tests`` holds the per-cluster sums that the tests of primary contrasts rest on,
    ``references`` the checkpoints that score as the matching reference does.
    """

    rows: list[Row] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)
    tests: dict[str, np.ndarray] = field(default_factory=dict)
    references: set[str] = field(default_factory=set)


def by_group(spans: pd.DataFrame, names: Sequence[str], context: Context) -> OfPairs:
    """Figures of the matched pairs in every group of train and of test rows."""
    made = OfPairs()
    for split in ("train", "test"):
        part = spans[spans["split"] == split]
        if not len(part):
            continue
        clusters = sorted(set(part["cluster"]))
        weights = draw_weights(
            len(clusters), replicates=context.replicates, seed=context.seed
        )
        for group, chosen in groups(part, split):
            of_name = {
                name: group_of(chosen[chosen["checkpoint"] == name], clusters)
                for name in names
            }
            if group == "pooled":
                made.references |= {n for n, one in of_name.items() if one.is_reference}
            for name in names:
                made.rows += pair_rows(name, group, of_name[name], weights, context)
            for name, baseline in context.baselines.items():
                contrasts, scores = pair_contrast(
                    name, baseline, group, of_name, weights, context
                )
                made.contrasts += contrasts
                if scores is not None and any(map(is_primary, contrasts)):
                    made.tests[name] = scores
    return made


def missing_rows(names: Sequence[str], group: str) -> list[Row]:
    """Rows of a group that has no matched span."""
    missing = Estimate.missing(NO_PAIRS)
    return [
        Row.of_estimate(
            missing,
            audit="matched",
            checkpoint=name,
            group=group,
            metric=metric,
            unit="nats",
        )
        for name in names
        for metric in OF_PAIRS
    ]


def pair_rows(
    name: str, group: str, found: Group, weights: Weights, context: Context
) -> list[Row]:
    """NLL of either side, Delta_sel, its change, and R1 of both."""
    columns: dict[str, Any] = {
        "audit": "matched",
        "checkpoint": name,
        "group": group,
        "unit": "nats",
    }
    if not len(found.pii):
        return missing_rows([name], group)
    size = found.windows.n_clusters
    sides = [
        ratio_estimate(
            cluster_sums(values, found.codes, size), found.den, weights=weights
        )
        for values in (found.pii, found.control)
    ]
    residual = float(found.residual.sum() / found.tokens.sum())
    bias = Estimate.missing(REFERENCE)
    if not found.is_reference:
        bias = rtm_bias_estimate(
            found.windows, found.checkpoint_windows, weights=weights
        )
    spans = (found.pii, found.control, found.tokens, found.codes)
    pooled, by_span, by_source = estimands(*spans, weights=weights)
    change = delta_sel(
        found.pii - found.residual, found.control, *spans[2:], weights=weights
    )
    if found.is_reference:
        change = Estimate.missing(REFERENCE)
    rows = [
        Row.of_estimate(
            estimate.decided(paper=context.paper), metric=metric, **columns, **more
        )
        for metric, estimate, more in (
            ("nll_pii", sides[0], {}),
            ("nll_control", sides[1], {}),
            ("delta_sel", with_mde(pooled), {"null": residual}),
            ("delta_sel", with_mde(change), {"of": "change", "null": 0.0}),
            ("rtm_bias", bias, {}),
            ("rtm_bias", _shifted(bias, found, residual), {"of": "change"}),
        )
    ]
    if group != "pooled":
        return rows
    return rows + [
        Row.of_estimate(
            with_mde(estimate).decided(paper=context.paper),
            metric="delta_sel",
            of=of,
            **columns,
        )
        for of, estimate in (("span-weighted", by_span), ("source-weighted", by_source))
    ]


def _shifted(bias: Estimate, found: Group, residual: float) -> Estimate:
    """R1 for the change since the reference.

    A pair that matching left ``d`` nats apart is expected at ``(1 - beta) gap +
    beta d`` without an effect, so its change at ``(1 - beta) (gap - d)``.
    """
    if bias.value is None:
        return bias
    windows = found.windows
    beta = rtm_slope(
        windows.pool,
        found.checkpoint_windows,
        windows.pool_clusters,
        cells=windows.pool_cells,
    ).beta
    shift = (1 - beta) * residual
    limits = ("value", "low", "high", "parity_low", "parity_high")
    known = {k: bound for k in limits if (bound := getattr(bias, k)) is not None}
    return replace(bias, **{k: bound - shift for k, bound in known.items()})


def pair_contrast(
    name: str,
    baseline: str,
    group: str,
    found: dict[str, Group],
    weights: Weights,
    context: Context,
) -> tuple[list[Contrast], np.ndarray | None]:
    """DiD and its R1; the per-cluster sums that its test rests on."""
    ours, theirs = found[name], found[baseline]
    columns: dict[str, Any] = {
        "audit": "matched",
        "checkpoint": name,
        "baseline": baseline,
        "group": group,
        "unit": "nats",
        "family": _family(name, baseline, group),
    }
    if not len(ours.pii):
        missing = Estimate.missing(NO_PAIRS)
        return [
            Contrast.of_estimate(missing, metric=metric, **columns)
            for metric in ("did", "rtm_bias")
        ], None
    estimate = with_mde(
        delta_sel(
            ours.pii - theirs.pii,
            ours.control - theirs.control,
            ours.tokens,
            ours.codes,
            weights=weights,
        )
    )
    bias = rtm_bias_estimate(
        ours.windows,
        ours.checkpoint_windows,
        theirs.checkpoint_windows,
        weights=weights,
    )
    scores = ours.num - theirs.num
    testable = np.count_nonzero(ours.den) > 1
    note = (
        "the baseline is the matching reference: DiD is Delta_sel minus the residual "
        "of matching"
        if theirs.is_reference
        else ""
    )
    return [
        Contrast.of_estimate(
            estimate.decided(paper=context.paper),
            metric="did",
            p=float(sign_flip(scores, seed=context.seed)) if testable else None,
            null=0.0,
            note=note,
            **columns,
        ),
        Contrast.of_estimate(
            bias.decided(paper=context.paper), metric="rtm_bias", **columns
        ),
    ], scores if testable else None


def is_rounded(name: str, baseline: str) -> bool:
    """Whether a checkpoint is its baseline with rounded weights, by its name."""
    return name != baseline and original_of(name) == baseline


def _family(name: str, baseline: str, group: str) -> Family:
    """The pooled DiD of methods is primary; single seeds and variants are not."""
    single = entry_of(name) == name and not is_rounded(name, baseline)
    return "primary" if group == "pooled" and single else "exploratory"


def is_primary(row: Contrast) -> bool:
    """Whether a contrast is of the family that is corrected together."""
    return row.metric == "did" and row.family == "primary"


def has_sentence(row: Contrast) -> bool:
    """Whether a contrast has a sentence: the primary ones, and those of rounding."""
    rounded = row.group == "pooled" and is_rounded(row.checkpoint, row.baseline)
    return is_primary(row) or (row.metric == "did" and rounded)


def adjusted(
    contrasts: list[Contrast], tests: dict[str, np.ndarray], seed: int
) -> list[Contrast]:
    """The pooled DiD of all checkpoints as one family, by max-T.

    Smallest effects are those that pass its first step among so many tests (by
    Bonferroni's bound).
    """
    if not tests:
        return contrasts
    scores = np.stack(list(tests.values()), axis=1)
    corrected = dict(zip(tests, max_t(scores, seed=seed), strict=True))

    def first_step(row: Contrast) -> float | None:
        if row.mde is None:
            return None
        size, level = partial(mde, 1.0, clusters=row.clusters), 1 - row.level
        return row.mde * size(level=1 - level / len(tests)) / size(level=row.level)

    return [
        row.model_copy(
            update={
                "p_adjusted": float(corrected[row.checkpoint]),
                "mde": first_step(row),
            }
        )
        if is_primary(row) and row.checkpoint in corrected
        else row
        for row in contrasts
    ]


NONE_ALIKE = "no other text has tokens of the same classes as these identifiers"
FEWEST = 2
"""Clusters that must hold other tokens of a class."""


def own_contrasts(
    name: str, baseline: str, ours: pd.DataFrame, theirs: pd.DataFrame
) -> list[Contrast]:
    """NLL of matched identifiers against the baseline's, and beyond look-alikes.

    Parameters
    ----------
    ours, theirs
        Evidence of the two, with the same rows.
    """
    keys = ["example", "role", "start", "type", "n_tokens"]
    both = ours.merge(theirs[[*keys, "nll_sum"]], on=keys, suffixes=("", "_other"))
    both = both[both["split"] == "train"]
    both = both.assign(apart=both["nll_sum"] - both["nll_sum_other"])
    pii = both[both["role"] == "pii"]
    sums = pii.groupby("cluster")[["apart", "n_tokens"]].sum()
    columns: dict[str, Any] = {
        "audit": "matched",
        "checkpoint": name,
        "baseline": baseline,
        "unit": "nats",
        "null": 0.0,
    }
    own = ratio_estimate(sums["apart"], sums["n_tokens"])
    return [
        Contrast.of_estimate(own, metric="nll_pii", **columns),
        Contrast.of_estimate(_beyond(both, pii), metric="did_alike", **columns),
    ]


def _beyond(both: pd.DataFrame, pii: pd.DataFrame) -> Estimate:
    """Mean over identifiers' tokens minus that over other tokens of their classes."""
    alike = both[both["role"] == "alike"]
    held = alike.groupby("type")["cluster"].nunique()
    known = {n: held.get(letter, 0) >= FEWEST for letter, n in CLASSES.items()}
    used = pii[~(pii[[n for n in known if not known[n]]] > 0).any(axis=1)]
    if used.empty:
        return Estimate.missing(NONE_ALIKE)
    letters = [letter for letter, name in CLASSES.items() if known[name]]
    names = [CLASSES[letter] for letter in letters]
    table = _table(used, alike, letters, names)
    size = len(letters)

    def statistic(totals: np.ndarray) -> np.ndarray:
        own, tokens = totals[..., 0], totals[..., 1]
        counts, sums, others = (
            totals[..., 2 + i * size : 2 + (i + 1) * size] for i in range(3)
        )
        return np.asarray((own - (counts * sums / others).sum(-1)) / tokens)

    found = estimate_of(table, statistic, n=int(used["n_tokens"].sum()))
    left = len(pii) - len(used)
    if not left:
        return found
    return found.noting(f"{left} of {len(pii)} identifiers left out: {NONE_ALIKE}")


def _table(
    used: pd.DataFrame, alike: pd.DataFrame, letters: Sequence[str], names: list[str]
) -> np.ndarray:
    """Per cluster: changes, tokens, tokens by class; of others changes and tokens."""
    own = used.groupby("cluster")[["apart", "n_tokens", *names]].sum()
    other = alike[alike["type"].isin(letters)].pivot_table(
        index="cluster", columns="type", values=["apart", "n_tokens"], aggfunc="sum"
    )
    other = other.reindex(
        columns=[(v, c) for v in ("apart", "n_tokens") for c in letters]
    )
    clusters = own.index.union(other.index)
    parts = [part.reindex(clusters).fillna(0.0).to_numpy() for part in (own, other)]
    return np.concatenate(parts, axis=1)

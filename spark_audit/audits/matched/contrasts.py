"""Delta_sel and DiD of the matched pairs, by group: rows and contrasts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.matched.matched_spans import CLASSES
from spark_audit.audits.spans import Group
from spark_audit.names import entry_of, original_of
from spark_audit.results import Contrast, Estimate, Family, Row
from spark_audit.stats.bootstrap import Weights, draw_weights, max_t, sign_flip
from spark_audit.stats.intervals import (
    Estimand,
    estimate_of,
    estimates_of,
    ratio_estimate,
    replicates_of,
)
from spark_audit.stats.power import mde, with_mde
from spark_audit.stats.selectivity import reweighted, rtm_bias, slope

row_of = partial(Row.of_estimate, audit="matched", unit="nats")
contrast_of = partial(Contrast.of_estimate, audit="matched", unit="nats")
NO_PAIRS = "this group has no matched identifier"
REFERENCE = "the checkpoint is the matching reference itself, so there is no change"
OF_REFERENCE = (
    "the baseline is the matching reference: DiD is Delta_sel minus the residual of "
    "matching"
)
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


def by_group(
    groups: Sequence[Group], nll: Mapping[str, np.ndarray], context: Context
) -> OfPairs:
    """Figures of the matched pairs in every group of train and of test rows.

    Parameters
    ----------
    nll
        Summed NLL of the units by checkpoint, nats.
    """
    made = OfPairs()
    options = {"replicates": context.replicates, "seed": context.seed}
    weights_of = cache(partial(draw_weights, **options))
    for group in groups:
        references = {name for name in nll if group.is_reference(nll[name])}
        if group.name == "pooled":
            made.references |= references
        if not len(group.pii):
            made.rows += missing_rows(nll, group.name)
            missing = Estimate.missing(NO_PAIRS)
            for pair in context.baselines.items():
                made.contrasts += _contrasts(pair, group.name, missing, missing)
            continue
        weights = weights_of(group.windows.n_clusters)
        made.rows += _pair_rows(group, nll, references, weights, context)
        _add_contrasts(made, group, nll, references, weights, context)
    return made


def missing_rows(names: Iterable[str], group: str) -> list[Row]:
    """Rows of a group that has no matched span."""
    missing = Estimate.missing(NO_PAIRS)
    return [
        row_of(missing, checkpoint=name, group=group, metric=metric)
        for name in names
        for metric in OF_PAIRS
    ]


def _pair_rows(
    group: Group,
    nll: Mapping[str, np.ndarray],
    references: Collection[str],
    weights: Weights,
    context: Context,
) -> Iterator[Row]:
    """NLL of either side, Delta_sel, its change and R1 of each checkpoint."""
    sums: dict[tuple[str, str, str], Estimand | Estimate] = {}
    residual = float(group.residual.sum() / group.tokens.sum())
    for name, values in nll.items():
        pii, control = values[group.pii], values[group.control]
        change: Estimand | Estimate = Estimate.missing(REFERENCE)
        bias = shifted = change
        if name not in references:
            change = group.mean(pii - group.residual - control)
            bias = shifted = rtm_bias(group.windows, group.means(values))
        if isinstance(bias, Estimand):
            # A pair that matching left ``d`` nats apart is expected at ``(1 - beta)
            # gap + beta d`` without an effect: its change at ``(1 - beta) (gap - d)``.
            shifted = bias.plus(float(slope(bias.sums.sum(axis=0))) * residual)
        sums |= {
            (name, "nll_pii", ""): group.mean(pii),
            (name, "nll_control", ""): group.mean(control),
            (name, "delta_sel", ""): group.mean(pii - control),
            (name, "delta_sel", "change"): change,
            (name, "rtm_bias", ""): bias,
            (name, "rtm_bias", "change"): shifted,
        }
        if group.name == "pooled":
            where, size = (group.tokens, group.codes), group.windows.n_clusters
            for of, one in reweighted(pii, control, *where, n_clusters=size).items():
                sums[name, "delta_sel", of] = one
    nulls = {("delta_sel", ""): residual, ("delta_sel", "change"): 0.0}
    estimates = estimates_of(sums, replicates_of(sums, weights))
    for (name, metric, of), estimate in estimates.items():
        shown = with_mde(estimate) if metric == "delta_sel" else estimate
        yield row_of(
            shown.decided(paper=context.paper),
            checkpoint=name,
            group=group.name,
            metric=metric,
            of=of,
            null=nulls.get((metric, of)),
        )


def _add_contrasts(
    made: OfPairs,
    group: Group,
    nll: Mapping[str, np.ndarray],
    references: Collection[str],
    weights: Weights,
    context: Context,
) -> None:
    """Add DiD and its R1, and the per-cluster sums that its test rests on."""
    dids: dict[tuple[str, str], Estimand] = {}
    sums: dict[tuple[str, str], Estimand | Estimate] = {}
    for name, baseline in context.baselines.items():
        moved = nll[name] - nll[baseline]
        dids[name, "did"] = group.mean(moved[group.pii] - moved[group.control])
        means = group.means(nll[name]), group.means(nll[baseline])
        sums[name, "rtm_bias"] = rtm_bias(group.windows, *means)
    sums |= dids
    estimates = estimates_of(sums, replicates_of(sums, weights))
    for name, baseline in context.baselines.items():
        did, bias = (estimates[name, metric] for metric in ("did", "rtm_bias"))
        scores, p = dids[name, "did"].sums[:, 0], None
        if did.value is not None:
            p = sign_flip(scores, seed=context.seed)
            if _family(name, baseline, group.name) == "primary":
                made.tests[name] = scores
        note = OF_REFERENCE if baseline in references else ""
        made.contrasts += _contrasts(
            (name, baseline),
            group.name,
            with_mde(did).decided(paper=context.paper),
            bias.decided(paper=context.paper),
            p=p,
            null=0.0,
            note=note,
        )


def _contrasts(
    pair: tuple[str, str], group: str, did: Estimate, bias: Estimate, **more: Any
) -> list[Contrast]:
    """DiD, which the further columns are of, and its R1."""
    columns = {"checkpoint": pair[0], "baseline": pair[1], "group": group}
    columns["family"] = _family(*pair, group)
    return [
        contrast_of(did, metric="did", **columns, **more),
        contrast_of(bias, metric="rtm_bias", **columns),
    ]


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
    corrected = dict(zip(tests, max_t(scores, seed=seed).tolist(), strict=True))
    made = []
    for row in contrasts:
        if is_primary(row) and row.checkpoint in corrected:
            least = row.mde
            if least is not None:
                size, level = partial(mde, 1.0, clusters=row.clusters), 1 - row.level
                least *= size(level=1 - level / len(tests)) / size(level=row.level)
            changes = {"p_adjusted": corrected[row.checkpoint], "mde": least}
            row = row.model_copy(update=changes)
        made.append(row)
    return made


NONE_ALIKE = "no other text has tokens of the same classes as these identifiers"
FEWEST = 2
"""Clusters that must hold other tokens of a class."""


def own_contrasts(name: str, baseline: str, train: pd.DataFrame) -> list[Contrast]:
    """NLL of matched identifiers against the baseline's, and beyond look-alikes.

    Parameters
    ----------
    train
        Units of train rows, with their NLL minus the baseline's as ``apart``.
    """
    pii = train[train["role"] == "pii"]
    sums = pii.groupby("cluster")[["apart", "n_tokens"]].sum()
    own = ratio_estimate(sums["apart"], sums["n_tokens"])
    columns: dict[str, Any] = {"checkpoint": name, "baseline": baseline, "null": 0.0}
    return [
        contrast_of(own, metric="nll_pii", **columns),
        contrast_of(_beyond(train, pii), metric="did_alike", **columns),
    ]


def _beyond(both: pd.DataFrame, pii: pd.DataFrame) -> Estimate:
    """Mean over identifiers' tokens minus that over other tokens of their classes."""
    alike = both[both["role"] == "alike"]
    held = alike.groupby("type")["cluster"].nunique()
    letters = [letter for letter in CLASSES if held.get(letter, 0) >= FEWEST]
    unknown = [name for letter, name in CLASSES.items() if letter not in letters]
    used = pii[~(pii[unknown] > 0).any(axis=1)]
    if used.empty:
        return Estimate.missing(NONE_ALIKE)
    names = [CLASSES[letter] for letter in letters]
    own = used.groupby("cluster")[["apart", "n_tokens", *names]].sum()
    other = alike.pivot_table(
        index="cluster", columns="type", values=["apart", "n_tokens"], aggfunc="sum"
    )
    # Changes of all these classes, and then their tokens.
    other = other.reindex(
        columns=[(v, c) for v in ("apart", "n_tokens") for c in letters]
    )
    clusters = own.index.union(other.index)
    parts = [part.reindex(clusters).fillna(0.0).to_numpy() for part in (own, other)]

    def statistic(totals: np.ndarray) -> np.ndarray:
        counts, sums, others = np.split(totals[..., 2:], 3, axis=-1)
        expected = (counts * sums / others).sum(axis=-1)
        return np.asarray((totals[..., 0] - expected) / totals[..., 1])

    found = estimate_of(np.hstack(parts), statistic, n=int(used["n_tokens"].sum()))
    left = len(pii) - len(used)
    if not left:
        return found
    return found.noting(f"{left} of {len(pii)} identifiers left out: {NONE_ALIKE}")

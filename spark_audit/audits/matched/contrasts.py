"""Delta_sel and DiD of the matched pairs, by group: rows and contrasts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.matched.matched_claims import NO_PAIRS
from spark_audit.audits.matched.span_scores import CLASSES
from spark_audit.audits.spans import Group
from spark_audit.names import entry_of, original_of
from spark_audit.results import Contrast, Estimate, Family, Row
from spark_audit.stats.bootstrap import max_t, sign_flip
from spark_audit.stats.intervals import (
    Estimand,
    estimate_of,
    estimates_of,
    ratio_estimate,
    replicates_of,
)
from spark_audit.stats.power import mde, with_mde
from spark_audit.stats.selectivity import estimands, rtm_bias, rtm_slope
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
    drawn: dict[int, Weights] = {}
    for group in groups:
        references = {name for name in nll if group.is_reference(nll[name])}
        if group.name == "pooled":
            made.references |= references
        if not len(group.pii):
            made.rows += missing_rows(list(nll), group.name)
            made.contrasts += _missing_contrasts(group.name, context)
            continue
        size = group.windows.n_clusters
        if size not in drawn:
            drawn[size] = draw_weights(
                size, replicates=context.replicates, seed=context.seed
            )
        sums = _estimands(group, nll, references, context.baselines)
        estimates = estimates_of(sums, replicates_of(sums, drawn[size]))
        for name, values in nll.items():
            made.rows += _pair_rows(name, group, values, estimates, context)
        for name, baseline in context.baselines.items():
            contrasts, scores = _pair_contrast(
                (name, baseline), group, nll, references, estimates, context
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


Key: TypeAlias = tuple[str, str, str]
"""Checkpoint, metric and variant; of a contrast the baseline is the variant."""


def _estimands(
    group: Group,
    nll: Mapping[str, np.ndarray],
    references: Collection[str],
    baselines: Mapping[str, str],
) -> dict[Key, Estimand | Estimate]:
    """NLL of either side, Delta_sel, its change and R1 of each checkpoint; DiD."""
    made, windows = dict[Key, Estimand | Estimate](), group.windows
    for name, sums in nll.items():
        pii, control = sums[group.pii], sums[group.control]
        made[name, "nll_pii", ""] = group.mean(pii)
        made[name, "nll_control", ""] = group.mean(control)
        made[name, "rtm_bias", ""] = Estimate.missing(REFERENCE)
        made[name, "delta_sel", "change"] = Estimate.missing(REFERENCE)
        if name not in references:
            change = group.mean(pii - group.residual - control)
            made[name, "delta_sel", "change"] = change
            made[name, "rtm_bias", ""] = rtm_bias(windows, group.means(sums))
        made[name, "delta_sel", ""] = group.mean(pii - control)
        if group.name == "pooled":
            where, size = (group.tokens, group.codes), windows.n_clusters
            each = estimands(pii, control, *where, n_clusters=size)[1:]
            for of, one in zip(WEIGHED, each, strict=True):
                made[name, "delta_sel", of] = one
    for name, baseline in baselines.items():
        moved = nll[name] - nll[baseline]
        means = group.means(nll[name]), group.means(nll[baseline])
        made[name, "did", baseline] = group.mean(
            moved[group.pii] - moved[group.control]
        )
        made[name, "rtm_bias", baseline] = rtm_bias(windows, *means)
    return made


WEIGHED = ("span-weighted", "source-weighted")


def _pair_rows(
    name: str,
    group: Group,
    nll: np.ndarray,
    estimates: Mapping[Key, Estimate],
    context: Context,
) -> list[Row]:
    """Rows of a checkpoint from :func:`_levels`."""
    residual = float(group.residual.sum() / group.tokens.sum())
    of = {key[1:]: one for key, one in estimates.items() if key[0] == name}
    of["rtm_bias", "change"] = _shifted(of["rtm_bias", ""], group, nll, residual)
    rows: list[tuple[str, str, float | None]] = [
        ("nll_pii", "", None),
        ("nll_control", "", None),
        ("delta_sel", "", residual),
        ("delta_sel", "change", 0.0),
        ("rtm_bias", "", None),
        ("rtm_bias", "change", None),
    ]
    if group.name == "pooled":
        rows += [("delta_sel", variant, None) for variant in WEIGHED]
    return [
        Row.of_estimate(
            (with_mde(one) if metric == "delta_sel" else one).decided(
                paper=context.paper
            ),
            audit="matched",
            checkpoint=name,
            group=group.name,
            metric=metric,
            of=variant,
            unit="nats",
            null=null,
        )
        for metric, variant, null in rows
        for one in [of[metric, variant]]
    ]


def _shifted(
    bias: Estimate, group: Group, nll: np.ndarray, residual: float
) -> Estimate:
    """R1 for the change since the reference.

    A pair that matching left ``d`` nats apart is expected at ``(1 - beta) gap +
    beta d`` without an effect, so its change at ``(1 - beta) (gap - d)``.
    """
    if bias.value is None:
        return bias
    windows = group.windows
    beta = rtm_slope(
        windows.pool,
        group.means(nll),
        windows.pool_clusters,
        cells=windows.pool_cells,
    ).beta
    shift = (1 - beta) * residual
    limits = ("value", "low", "high", "parity_low", "parity_high")
    known = {k: bound for k in limits if (bound := getattr(bias, k)) is not None}
    return replace(bias, **{k: bound - shift for k, bound in known.items()})


def _missing_contrasts(group: str, context: Context) -> list[Contrast]:
    """Contrasts of a group that has no matched span."""
    missing = Estimate.missing(NO_PAIRS)
    return [
        _contrast(missing, pair, group, metric)
        for pair in context.baselines.items()
        for metric in ("did", "rtm_bias")
    ]


def _contrast(
    estimate: Estimate, pair: tuple[str, str], group: str, metric: str, **more: Any
) -> Contrast:
    return Contrast.of_estimate(
        estimate,
        audit="matched",
        checkpoint=pair[0],
        baseline=pair[1],
        group=group,
        metric=metric,
        unit="nats",
        family=_family(*pair, group),
        **more,
    )


def _pair_contrast(
    pair: tuple[str, str],
    group: Group,
    nll: Mapping[str, np.ndarray],
    references: Collection[str],
    estimates: Mapping[Key, Estimate],
    context: Context,
) -> tuple[list[Contrast], np.ndarray | None]:
    """DiD and its R1; the per-cluster sums that its test rests on."""
    name, baseline = pair
    ours, theirs = (
        group.sums(s[group.pii] - s[group.control])[:, 0]
        for s in (nll[name], nll[baseline])
    )
    scores = ours - theirs
    testable = len(np.unique(group.codes)) > 1
    note = (
        "the baseline is the matching reference: DiD is Delta_sel minus the residual "
        "of matching"
        if baseline in references
        else ""
    )
    did, bias = (estimates[name, metric, baseline] for metric in ("did", "rtm_bias"))
    p = float(sign_flip(scores, seed=context.seed)) if testable else None
    shown = with_mde(did).decided(paper=context.paper)
    return [
        _contrast(shown, pair, group.name, "did", p=p, null=0.0, note=note),
        _contrast(bias.decided(paper=context.paper), pair, group.name, "rtm_bias"),
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


def own_contrasts(name: str, baseline: str, train: pd.DataFrame) -> list[Contrast]:
    """NLL of matched identifiers against the baseline's, and beyond look-alikes.

    Parameters
    ----------
    train
        Units of train rows, with their NLL minus the baseline's as ``apart``.
    """
    pii = train[train["role"] == "pii"]
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
        Contrast.of_estimate(_beyond(train, pii), metric="did_alike", **columns),
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
